"""``oneglance run``: one question about every page of a folder, into a file."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from oneglance.amounts import plural
from oneglance.commands import opening, options, terminal
from oneglance.commands.opening import open_decoder, sampling
from oneglance.core import InputError
from oneglance.files import check_free

if TYPE_CHECKING:
    from oneglance.bulk import Failure, Job, Row
    from oneglance.core import SamplingParams
    from oneglance.decoder import Decoder

EVERY_S = 30.0  # between progress lines where there is no terminal

Inputs = Annotated[
    list[str], typer.Argument(metavar="INPUT…", help="Folders, images, PDFs, glob patterns, or JSONL files.")
]
Ask = Annotated[
    str | None,
    typer.Option("--prompt", metavar="TEXT", help="What to ask about each page; a JSONL line's own prompt goes first."),
]
Out = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="JSONL, a row a page, its settings in FILE.settings.json; a file that has rows already is gone on with.",
    ),
]
Dpi = Annotated[int, typer.Option(metavar="N", min=1, help="Dots an inch at which PDF pages are rendered.")]


def run(
    inputs: Inputs,
    prompt: Ask = None,
    out: Out = Path("results.jsonl"),
    dpi: Dpi = 144,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    drafter: options.Drafter = "block",
    tree: options.Tree = "best_first",
    budget: options.AutoBudget = options.AUTO_BUDGET,
    branch_k: options.BranchK = None,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    stop: options.Stop = None,
    system: options.System = None,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
    json_schema: options.JsonSchema = None,
    regex: options.Regex = None,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    json: options.Json = False,
) -> None:
    """Ask one question about every page of a folder.

    Images, PDF pages and lines of JSONL files ({"image", "prompt"}) are decoded one after the other. Rows go to --out
    as they are done: a killed run goes on where it stopped. A page that cannot be read never stops the others; such
    pages are listed at the end, tried again by the next run, and make the exit code 1.
    """
    from oneglance.bulk import Job, find_pages, settings_of

    params = sampling(
        max_new_tokens,
        stop,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        json_schema=opening.schema(json_schema),
        regex=regex,
    )
    pages = list(find_pages(inputs, prompt, dpi=dpi))
    if not pages:
        raise InputError("the inputs hold no pages")
    pages = [with_system(page, system) for page in pages]
    check_free(out)
    opening.note_foreign(target)
    decoder = open_decoder(
        target,
        head,
        drafter=drafter,
        tree=tree,
        budget=opening.budget_of(budget),
        branch_k=branch_k,
        dtype=dtype,
        device=device,
        device_map=device_map,
        attention=attention,
        runner=runner,
        threads=threads,
    )
    job = Job(out, pages, settings_of(decoder, params, dpi=dpi, system=system))
    is_whole = follow(job, decoder, params, show=not json)
    if json:
        terminal.write_json(job.summary())
    else:
        report(job)
    if not is_whole:
        raise KeyboardInterrupt
    if job.failures:
        raise typer.Exit(1)


def with_system(page: Any, system: str | None) -> Any:
    """A page with the common system prompt, where it has none of its own."""
    from dataclasses import replace

    from oneglance.bulk import Page

    return replace(page, system=system) if isinstance(page, Page) and page.system is None else page


def follow(job: Job, decoder: Decoder, params: SamplingParams, *, show: bool) -> bool:
    """Decode to the end, or to Ctrl-C; whether it was the end. A bar on a terminal, else a line now and then."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    is_terminal = show and sys.stderr.isatty()
    started = said = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), disable=not is_terminal, transient=True) as bar:
        task = bar.add_task("reading", total=len(job.todo))
        try:
            for done, result in enumerate(job.run(decoder, params), start=1):
                bar.update(task, completed=done, description=described(result))
                now = time.monotonic()
                if show and not is_terminal and now - said >= EVERY_S:
                    said = now
                    left = (now - started) / done * (len(job.todo) - done)
                    print(f"{done} of {len(job.todo)} pages, {left:.0f} s left", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            return False
    return True


def described(result: Row | Failure) -> str:
    """The page that was done last, short and safe to show."""
    name = terminal.visible(result.id)
    return name if len(name) <= 40 else "…" + name[-39:]


def report(job: Job) -> None:
    """The totals on stdout; what failed on stderr."""
    total = job.acceptance
    there = f", {job.num_rows} in all" if job.num_rows > job.num_written else ""
    new = plural(job.num_written, "new row" if there else "row")
    parts = [f"{new}{there} in {job.out}"]
    if job.num_skipped:
        parts.append(f"{plural(job.num_skipped, 'page')} done already")
    parts.append(plural(job.num_tokens, "token"))
    if total.tau is not None:
        passes = plural(total.num_draft_passes, "draft pass", "draft passes")
        parts.append(f"{plural(total.num_rounds, 'round')} · τ {total.tau:.2f} · {passes}")
        parts.append(f"{job.decode_ms / max(job.num_tokens, 1):.2f} ms/token")
    if total.fell_back:
        parts.append(f"drafting ended early in {total.fell_back} of them")
    print(terminal.visible(" · ".join(parts)))
    if job.failures:
        print(f"{len(job.failures)} failed:", file=sys.stderr)
    for failure in job.failures:
        print(f"  {terminal.visible(failure.line())}", file=sys.stderr)
