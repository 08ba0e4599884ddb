"""``oneglance collect``: the target's own greedy answers, as traces to train a head on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from oneglance.amounts import plural, size
from oneglance.commands import opening, options, terminal
from oneglance.commands.asking import choose_tasks
from oneglance.core import InputError
from oneglance.files import check_free

if TYPE_CHECKING:
    from oneglance.targets.base import Target
    from oneglance.train.caching import Layout
    from oneglance.train.collect import Answerer, Collection
    from oneglance.train.collect import Progress as Collected
    from oneglance.train.prompts import Prompt

SERVERS, FEATURES = "Servers", "Features"
DEFAULT_CONCURRENCY = 8
Out = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Where the traces go; a folder that has some is gone on with.")
]
SplitName = Annotated[
    str, typer.Option("--split", metavar="NAME", rich_help_panel=options.DATA, help="train or eval, of built-in tasks.")
]
Limit = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, rich_help_panel=options.DATA, help="Pages a task, or prompts of the file."),
]
Start = Annotated[
    int, typer.Option(metavar="N", min=0, rich_help_panel=options.DATA, help="Leave out the first N of them.")
]
DisjointFrom = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FOLDER", rich_help_panel=options.DATA, help="Refuse images of these traces. Repeat for several."
    ),
]
OnBadSample = Annotated[
    str, typer.Option(metavar="skip|error", help="Count unreadable images and empty answers, or stop at the first.")
]
Resume = Annotated[bool, typer.Option("--resume/--no-resume", help="Go on where an earlier run stopped.")]
Url = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL", rich_help_panel=SERVERS, help="Ask this OpenAI-compatible server instead. Repeat for several."
    ),
]
Model = Annotated[
    str | None, typer.Option("--served-model", metavar="NAME", rich_help_panel=SERVERS, help="Default: its first one.")
]
CacheFeatures = Annotated[
    bool,
    typer.Option(
        "--cache-features",
        rich_help_panel=FEATURES,
        help="Also run the target over the traces and keep its states beside them, for data.cache_features=disk.",
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(metavar="N,N,…", rich_help_panel=FEATURES, help="Kept layers; default the five of DFlash's rule."),
]
Concurrency = Annotated[
    int, typer.Option(metavar="N", min=1, rich_help_panel=SERVERS, help="Requests in flight, per server.")
]
CheckPrompts = Annotated[
    bool,
    typer.Option(
        "--check-prompts/--no-check-prompts",
        rich_help_panel=SERVERS,
        help="Stop where a server's prompt has another length than ours.",
    ),
]


def collect(
    out: Out,
    target: options.Target = options.BUILTIN,
    prompts: options.Prompts = None,
    tasks: options.Tasks = None,
    split: SplitName = "train",
    limit: Limit = None,
    start: Start = 0,
    long_side: options.LongSide = options.LONG_SIDE,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    disjoint_from: DisjointFrom = None,
    on_bad_sample: OnBadSample = "skip",
    dry_run: options.DryRun = False,
    resume: Resume = True,
    cache_features: CacheFeatures = False,
    layers: Layers = None,
    head: options.Head = None,
    url: Url = None,
    served_model: Model = None,
    concurrency: Concurrency = DEFAULT_CONCURRENCY,
    check_prompts: CheckPrompts = True,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    json: options.Json = False,
) -> None:
    """Write the target's own greedy answers to prompts as traces.

    Answers come from this process, or with --url from servers. With --head they come faster and are the same. A killed
    run goes on where it stopped. Images are stored by name, not copied; bad samples are counted in skipped.jsonl.
    --cache-features spares training over several epochs the target's passes, and costs disk: the size is said first.
    """
    from oneglance.train.collect import Collection

    servers = {"--served-model": served_model, "--no-check-prompts": not check_prompts}
    servers["--concurrency"] = concurrency != DEFAULT_CONCURRENCY
    here = {"--head": head, "--cache-features": cache_features, "--dtype": dtype != "auto", "--device": device}
    here["--device-map"] = device_map
    _refuse(here, where=bool(url), fix="{} works in this process, and with --url servers answer: leave one of them out")
    _refuse(servers, where=not url, fix="{} is for servers; name them by --url")
    _refuse({"--layers": layers}, where=not cache_features, fix="{} is of the features; add --cache-features")

    asked, source = choose_prompts(prompts, tasks, split=split, limit=limit, start=start)
    check_answers(max_new_tokens)
    if on_bad_sample not in ("skip", "error"):
        raise InputError(f"--on-bad-sample takes skip or error, got {on_bad_sample!r}")
    if not resume and out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty; leave out --no-resume, or choose another --out")
    if url and runner != "auto":
        raise InputError(f"--runner is of passes in this process, and --url asks servers; drop --runner {runner}")
    if not dry_run:
        check_free(out)
    opening.set_threads(threads)
    if url:
        answerer = _from_servers(target, url, served_model, max_new_tokens, concurrency, check_prompts)
    else:
        answerer = _from_decoder(
            target, head, max_new_tokens, dtype=dtype, device=device, device_map=device_map, runner=runner
        )
    collection = Collection(
        out=out,
        prompts=asked,
        target=answerer.target,
        long_side=long_side or None,
        max_new_tokens=max_new_tokens,
        source=source,
        on_bad_sample="error" if on_bad_sample == "error" else "skip",
        disjoint_from=tuple(disjoint_from or ()),
    )
    layout = _layout(answerer.target, layers, long_side or None)
    estimate = collection.estimate(None if url else answerer, num_kept=len(layout.layer_ids))
    if dry_run:
        _report(json, {"estimate": _as_dict(estimate)}, estimate.line())
        return
    if not json:
        print(estimate.line(), file=sys.stderr)
    if cache_features:
        _check_room(out, estimate.feature_bytes)
    last = follow(collection, answerer, show=not json)
    nothing = collection.why_nothing()
    if nothing:
        if json:
            terminal.write_json({"out": str(out), **_as_dict(last)})
        print(terminal.visible(nothing), file=sys.stderr)
        raise typer.Exit(1)
    kept = keep_features(out, answerer.target, layout, show=not json) if cache_features else {}
    _report(json, {"out": str(out), **_as_dict(last), **kept}, summary(out, last))


def check_answers(max_new_tokens: int) -> None:
    """Refuse answers that no block can be cut from.

    Raises:
        InputError: they are shorter than two tokens.
    """
    if max_new_tokens < 2:
        raise InputError(f"a trace needs at least two answer tokens, got --max-new-tokens {max_new_tokens}")


def choose_prompts(
    prompts: Path | None, tasks: str | None, *, split: str, limit: int | None, start: int = 0
) -> tuple[list[Prompt], dict[str, Any]]:
    """The prompts that were named, and what they are.

    Raises:
        InputError: neither or both sources, or a bad one.
    """
    from oneglance.train.prompts import check_unique, read_prompts, task_prompts

    if (prompts is None) == (tasks is None):
        raise InputError("give either --prompts FILE or --tasks NAMES")
    if split not in ("train", "eval"):
        raise InputError(f"--split takes train or eval, got {split!r}")
    if prompts is not None:
        chosen = read_prompts(prompts)[start:][:limit]
        if not chosen:
            raise InputError(f"{prompts} has no prompts after the first {start}; use a smaller --start")
        if any(prompt.audio for prompt in chosen):
            raise InputError(f"{prompts} has audio, and traces hold none; heads are trained on images and text")
        return chosen, {"prompts": prompts.name}
    names = choose_tasks(tasks or "")
    if limit is None:
        raise InputError("the built-in tasks have no end; give --limit, pages a task")
    part: Literal["train", "eval"] = "train" if split == "train" else "eval"
    pages = task_prompts(names, split=part, limit=limit, start=start)
    return check_unique(pages), {"tasks": sorted(names), "split": split}


def follow(collection: Collection, answerer: Answerer, *, show: bool) -> Collected:
    """Collect to the end, with a bar on a terminal, and a line now and then where there is none."""
    pulse = terminal.Pulse(len(collection.prompts), "prompts", done=collection.progress.done, show=show)
    with terminal.bar(show=show) as bar:
        task = bar.add_task("collecting", total=len(collection.prompts), completed=collection.progress.done)
        for progress in collection.run(answerer):
            bar.update(task, completed=progress.done, description=f"{progress.num_tokens} tokens")
            pulse.beat(progress.done)
    return progress


def keep_features(out: Path, target: Target, layout: Layout, *, show: bool) -> dict[str, Any]:
    """Write the features of all traces of a folder, the size named first; for JSON."""
    from oneglance.train.caching import FEATURES, cache_features, feature_bytes
    from oneglance.train.traces import read_traces

    rows = read_traces(out).rows
    needed, folder, done = feature_bytes(rows, target, layout), out / FEATURES, 0
    if show:
        layers = ", ".join(map(str, layout.layer_ids))
        print(
            f"features of {plural(len(rows), 'trace')}, layers {layers}: about {size(needed)} in {folder}",
            file=sys.stderr,
        )
    _check_room(out, needed)
    pulse = terminal.Pulse(len(rows), "traces", show=show)
    with terminal.bar(show=show) as bar:
        task = bar.add_task("features", total=len(rows))
        for done in cache_features(out, target, layout):
            bar.update(task, completed=done)
            pulse.beat(done)
    written = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return {"features": str(folder), "feature_bytes": written, "features_of": done}


def summary(out: Path, last: Collected) -> str:
    """The last line."""
    from oneglance.train.collect import reasons

    num_skipped = sum(last.skipped.values())
    skipped = f"; {num_skipped} skipped ({reasons(last.skipped)})" if num_skipped else ""
    found = plural(last.done - num_skipped, "trace")
    return f"{found}, {plural(last.num_tokens, 'answer token')} in {out}{skipped}"


def _from_decoder(target: str, head: str | None, max_new_tokens: int, **machine: Any) -> Answerer:
    from oneglance.train.collect import LocalAnswerer

    decoder = opening.open_decoder(target, head, drafter="block" if head else "none", budget=options.BUDGET, **machine)
    return LocalAnswerer(decoder, max_new_tokens=max_new_tokens)


def _from_servers(
    target: str, urls: list[str], model: str | None, max_new_tokens: int, concurrency: int, check_prompts: bool
) -> Answerer:
    from oneglance.targets.outline import outline_target
    from oneglance.train.servers import Server, ServerAnswerer

    servers = [Server(url, model) for url in urls]
    return ServerAnswerer(
        outline_target(target),
        servers,
        max_new_tokens=max_new_tokens,
        concurrency=concurrency,
        check_prompts=check_prompts,
    )


def _layout(target: Target, layers: str | None, long_side: int | None) -> Layout:
    from oneglance.train.caching import Layout
    from oneglance.train.initial import default_layers
    from oneglance.train.recipe import Data, HeadShape

    named = opening.numbers("--layers", layers, least=0) if layers else None
    chosen = tuple(named or default_layers(target, HeadShape().num_kept))
    if max(chosen) >= target.num_layers or len(set(chosen)) < len(chosen):
        raise InputError(f"--layers takes different ones of 0 to {target.num_layers - 1}, got {layers}")
    return Layout(chosen, long_side, Data.model_fields["max_length"].default)


def _check_room(out: Path, size: int) -> None:
    from oneglance.train.caching import FEATURES
    from oneglance.train.features import check_disk

    existing = sum(path.stat().st_size for path in (out / FEATURES).glob("*.safetensors"))
    check_disk(out / FEATURES, size - existing, fix="leave out --cache-features: training recomputes them")


def _refuse(given: dict[str, Any], *, where: bool, fix: str) -> None:
    named = [name for name, value in given.items() if value]
    if where and named:
        raise InputError(fix.format(" and ".join(named)))


def _as_dict(value: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(value)


def _report(json: bool, value: dict[str, Any], line: str) -> None:
    if json:
        terminal.write_json(value)
    else:
        print(terminal.visible(line))
