"""``oneglance collect``: the target's own greedy answers, as traces to train a head on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from oneglance.commands import opening, options, terminal
from oneglance.commands.audit import choose_tasks
from oneglance.core import InputError

if TYPE_CHECKING:
    from oneglance.train.collect import Answerer, Collection
    from oneglance.train.collect import Progress as Collected
    from oneglance.train.prompts import Prompt

SERVERS = "Servers"
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
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say how much there is to do, on a few samples, and stop.")]
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
    dry_run: DryRun = False,
    resume: Resume = True,
    head: options.Head = None,
    url: Url = None,
    served_model: Model = None,
    concurrency: Concurrency = 8,
    check_prompts: CheckPrompts = True,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Write the target's own greedy answers to prompts as traces.

    Answers come from this process, or with --url from servers. With --head they come faster and are the same. A killed
    run goes on where it stopped. Images are stored by name, not copied; bad samples are counted in skipped.jsonl.
    """
    from oneglance.train.collect import Collection

    asked, source = choose_prompts(prompts, tasks, split=split, limit=limit, start=start)
    if max_new_tokens < 2:
        raise InputError(f"a trace needs at least two answer tokens, got --max-new-tokens {max_new_tokens}")
    if on_bad_sample not in ("skip", "error"):
        raise InputError(f"--on-bad-sample takes skip or error, got {on_bad_sample!r}")
    if not resume and out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty; leave out --no-resume, or choose another --out")
    opening.set_threads(threads)
    if url:
        answerer = _from_servers(target, url, served_model, max_new_tokens, concurrency, check_prompts)
    else:
        answerer = _from_decoder(target, head, max_new_tokens, dtype=dtype, device=device, device_map=device_map)
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
    estimate = collection.estimate(None if url else answerer)
    if dry_run:
        _report(json, {"estimate": _as_dict(estimate)}, estimate.line())
        return
    if not json:
        print(estimate.line(), file=sys.stderr)
    last = follow(collection, answerer, show=not json)
    _report(json, {"out": str(out), **_as_dict(last)}, summary(out, last))


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
    """Collect to the end, with a bar on a terminal."""
    with terminal.bar(show=show) as bar:
        task = bar.add_task("collecting", total=len(collection.prompts), completed=collection.progress.done)
        for progress in collection.run(answerer):
            bar.update(task, completed=progress.done, description=f"{progress.num_tokens} tokens")
    return progress


def summary(out: Path, last: Collected) -> str:
    """The last line."""
    num_skipped = sum(last.skipped.values())
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(last.skipped.items()))
    skipped = f"; {num_skipped} skipped ({reasons})" if num_skipped else ""
    return f"{last.done - num_skipped} traces, {last.num_tokens} answer tokens in {out}{skipped}"


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


def _as_dict(value: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(value)


def _report(json: bool, value: dict[str, Any], line: str) -> None:
    if json:
        terminal.write_json(value)
    else:
        print(terminal.visible(line))
