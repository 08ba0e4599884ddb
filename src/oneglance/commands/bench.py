"""``oneglance bench``: systems against plain decoding, on the same prompts, interleaved."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from oneglance.commands import opening, options, terminal
from oneglance.commands.audit import choose_tasks
from oneglance.core import InputError

Systems = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="plain, plain-shaped, chain, tree, conditioned, ngram, two_model, eagle3, eagle3_tree, medusa: "
        "comma-separated; weights follow an @, settings a colon: eagle3:num_passes=3@runs/reader-eagle3/head.",
    ),
]
Limit = Annotated[int, typer.Option(metavar="N", min=1, help="Held-out prompts a task.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write rows, records and manifest as JSON here.")]


def bench(
    systems: Systems = "plain,chain,tree",
    tasks: options.Tasks = "all",
    limit: Limit = 20,
    out: Out = None,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    budget: options.Budget = options.BUDGET,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    dtype: options.Dtype = "float32",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    fixed_shape: options.FixedShape = False,
    json: options.Json = False,
) -> None:
    """Time systems against plain decoding, prompt by prompt in one process.

    Decode-only, batch one, from the end of the target's prefill. The speedup is a ratio of summed times with a paired
    bootstrap interval over prompts; identity is against an independent plain loop. Exits with 1 if, in float32, an
    output differs from it.

    With --fixed-shape, systems other than plain run packed passes of one shape, and their identity is with single rows
    in that shape: any difference is then a failure, in every dtype. plain-shaped is what that costs plain decoding;
    speedups are against ordinary plain decoding as ever.
    """
    from dataclasses import asdict

    from oneglance.bench.manifest import manifest
    from oneglance.bench.metrics import geomean, summarise
    from oneglance.bench.runner import run
    from oneglance.bench.systems import prepare_systems
    from oneglance.targets import open_fixed, open_target

    if max_new_tokens < 2:
        raise InputError(f"a benchmark needs at least two new tokens, got --max-new-tokens {max_new_tokens}")
    opening.check_tree(budget, None)
    opening.set_threads(threads)
    names, chosen = [n.strip() for n in systems.split(",") if n.strip()], choose_tasks(tasks)
    own = head or (target if target.startswith("builtin:") else None)
    bound = prepare_systems(names, own, budget=budget, target=target)
    if "plain-shaped" in names and not fixed_shape:
        raise InputError("the system plain-shaped goes with --fixed-shape")
    opened = open_target(target, dtype=dtype, device=device, device_map=device_map, attention=attention)
    shaped = open_fixed(opened, budget) if fixed_shape else None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    records = []
    quiet = json or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as progress:
        bar = progress.add_task("decoding", total=limit * len(chosen))
        for done in run(opened, bound, chosen, limit=limit, max_new_tokens=max_new_tokens, shaped=shaped):
            records += done
            progress.update(bar, advance=1, description=done[0].task)
    rows = summarise(records)
    gains = {s: [r.speedup for r in rows if r.system == s and r.speedup is not None] for s in names}
    result: dict[str, Any] = {
        "manifest": manifest(
            target=target,
            head=head,
            budget=budget,
            dtype=dtype,
            attention=attention,
            limit=limit,
            fixed_shape=fixed_shape,
        ),
        "rows": [row.as_dict() for row in rows],
        "geomean_speedup": {system: geomean(values) for system, values in gains.items() if values},
    }
    if out is not None:
        scratch = out.with_name(out.name + ".partial")
        scratch.write_text(json_format.dumps({**result, "records": [asdict(r) for r in records]}, indent=1))
        scratch.replace(out)
    if json:
        terminal.write_json(result)
    else:
        _show(Console(highlight=False), result)
    judged = [r for r in records if dtype == "float32" or (fixed_shape and r.system != "plain")]
    if any(not record.identical for record in judged):
        raise typer.Exit(1)


def _show(console: Console, result: dict[str, Any]) -> None:
    rows = result["rows"]
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        score = "" if own[0]["score"] is None else f", score {own[0]['score']:.3f}"
        title = f"{task}: {own[0]['n']} prompts, {own[0]['tokens']:.0f} tokens{score}, H {own[0]['entropy_nats']:.3f}"
        table = Table(
            "system", "τ", "ms/token", "speedup [95 %]", "wins", "identical", title=title, title_justify="left"
        )
        for row in own:
            has_speedup = row["speedup"] is not None
            table.add_row(
                row["system"],
                f"{row['tau']:.2f}" if row["tau"] else "",
                f"{row['ms_per_token']:.2f}",
                f"{row['speedup']:.2f} [{row['ci_low']:.2f}, {row['ci_high']:.2f}]" if has_speedup else "",
                f"{row['wins']}/{row['n']}" if has_speedup else "",
                f"{row['identical']}/{row['n']}",
            )
        console.print(table)
    for system, value in result["geomean_speedup"].items():
        console.print(f"{system}: geometric mean of the speedups {value:.2f}")
    console.print("τ: kept tokens a round, bonus included. H: mean next-token entropy of the target, nats.")
