"""``oneglance select``, ``eval-head`` and ``heads``: which head to use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from oneglance.commands import opening, options, terminal
from oneglance.commands.train import SHOWN_OFFSETS, at_offsets
from oneglance.core import InputError

if TYPE_CHECKING:
    from oneglance.train.select import TaskScore

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training run.")]
Step = Annotated[int | None, typer.Option(metavar="N", min=1, help="Take this checkpoint instead of the best.")]
Limit = Annotated[int | None, typer.Option(metavar="N", min=1, help="Traces a task, at most.")]
HeadName = Annotated[str, typer.Option("--head", metavar="NAME", rich_help_panel=options.MODEL, help="The head.")]
ForTarget = Annotated[
    str | None, typer.Option("--target", metavar="TEXT", help="Only targets whose name contains this.")
]


def select(run: RunFolder, step: Step = None, json: options.Json = False) -> None:
    """Make the best checkpoint of a run its head, by held-out top-1 per offset.

    The score is the expected accepted length of the width-1 chain if offsets were independent: the sum over offsets of
    the product of the top-1 accuracies up to there. The head in RUN/head is replaced.
    """
    from oneglance.train.select import candidates
    from oneglance.train.select import select as choose

    best = choose(run, step=step)
    found = candidates(run)
    if json:
        rows = [{"step": c.step, "score": c.score, "top1": c.top1} for c in found]
        terminal.write_json({"head": str(run / "head"), "step": best.step, "score": best.score, "candidates": rows})
        return
    table = Table("step", "expected accepted", "held-out top-1")
    for c in found:
        table.add_row(f"{c.step}{' ←' if c.step == best.step else ''}", f"{c.score:.3f}", at_offsets(c.top1))
    terminal.console().print(table)
    equal = len(found) > 1 and len({c.score for c in found}) == 1 and step is None
    why = f"no difference between the {len(found)} checkpoints, so the newest is taken; " if equal else ""
    print(terminal.visible(f"{why}step {best.step} is now {run / 'head'}"))


def eval_head(
    traces: options.TracesFolder,
    head: HeadName = options.BUILTIN,
    target: options.Target = options.BUILTIN,
    limit: Limit = None,
    budget: options.Budget = options.BUDGET,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Score a head on held-out traces: top-1 at each offset, and τ by decoding, per task.

    Images get the size at which the traces were collected. The interval is a bootstrap over prompts.
    """
    from oneglance.drafters.checkpoint import read_config
    from oneglance.targets import open_target
    from oneglance.train.card import subject
    from oneglance.train.origin import check_ids, check_origin
    from oneglance.train.select import as_table, evaluate_head
    from oneglance.train.traces import read_traces

    opening.head_name(target, head, "block")
    opening.check_tree(budget, None)
    opening.set_threads(threads)
    found = read_traces(traces)
    rows = first_of_each_task(found.rows, limit)
    opened = open_target(target, dtype=dtype, device=device, device_map=device_map)
    check_origin([traces], opened, fix="give --target {}, or traces of this one")
    check_ids(rows, opened)
    long_side = found.manifest.get("image_long_side")
    scores = evaluate_head(head, opened, rows, long_side=long_side, budget=budget)
    if json:
        of = subject(read_config(head)[0], opened.fingerprint())
        terminal.write_json({"head": head, "target": target, **of, "budget": budget, "tasks": as_table(scores)})
    else:
        show(terminal.console(), scores)


def first_of_each_task(rows: list[Any], limit: int | None) -> list[Any]:
    """The first ``limit`` traces of each task."""
    taken: dict[str, int] = {}
    kept = []
    for row in rows:
        taken[row.task] = taken.get(row.task, 0) + 1
        if limit is None or taken[row.task] <= limit:
            kept.append(row)
    return kept


def show(console: Console, scores: list[TaskScore]) -> None:
    """Scores as a table."""
    table = Table(Column("task", overflow="fold"), "n", "τ [95 %]", "chain", *(f"top-1 @{k}" for k in SHOWN_OFFSETS))
    for score in scores:
        interval = f" [{score.ci_low:.2f}, {score.ci_high:.2f}]" if score.ci_low is not None else ""
        tau = "–" if score.tau is None else f"{score.tau:.2f}{interval}"
        shown = [f"{score.top1[k - 1]:.3f}" if k <= len(score.top1) else "" for k in SHOWN_OFFSETS]
        table.add_row(score.task, str(score.n), tau, f"{score.chain:.2f}", *shown)
    console.print(table)
    console.print("τ: kept tokens a round, bonus included. chain: expected accepted length at width 1, without it.")


def heads(target: ForTarget = None, json: options.Json = False) -> None:
    """List the draft heads that are known, and for which target.

    τ is given only where this project measured it. A licence is 'unknown' where it was not confirmed: read the
    checkpoint's own page before you use it.
    """
    from oneglance.train.known import known_heads

    found = [head for head in known_heads() if target is None or target.lower() in head.target.lower()]
    if target is not None and not found:
        raise InputError(
            f"no head is known for {target!r}; 'oneglance heads' lists all, 'oneglance fit-head' makes one"
        )
    if json:
        terminal.write_json({"heads": [head.model_dump(mode="json") for head in found]})
        return
    console = terminal.console()
    for name in dict.fromkeys(head.target for head in found):
        console.print(Text(name, "bold"), soft_wrap=True)  # ids stay whole, to copy and to find
        for head in found:
            if head.target == name:
                facts = f"  {head.head} · {head.kind} · licence {head.licence} · τ {head.tau_text()}"
                console.print(Text("\n    ".join(filter(None, (facts, head.note)))), soft_wrap=True)
