"""``oneglance sweep``: one thing varied, everything else held fixed (Table 10, Fig. 3c, 3d, 9, Table 3, Table 6)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oneglance.commands import asking, measuring, opening, options, terminal
from oneglance.commands.bench import interval
from oneglance.core import InputError

if TYPE_CHECKING:
    from oneglance.bench.record import Record
    from oneglance.bench.sweeps import Point

AxisName = Annotated[str, typer.Argument(metavar="AXIS", help="budget, depth, context, temperature or threads.")]
Values = Annotated[str | None, typer.Option(metavar="N,N,…", help="Default as the paper has them, where it has.")]
Systems = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Comma-separated; plain is always there. Default tree, or chain.")
]


def sweep(
    axis: AxisName,
    values: Values = None,
    systems: Systems = None,
    tasks: options.Tasks = None,
    prompts: options.Prompts = None,
    data: asking.Data = None,
    limit: asking.Limit = 20,
    replicates: measuring.Replicates = 1,
    warmup: measuring.Warmup = 2,
    out: measuring.Out = None,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    budget: options.Budget = options.BUDGET,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    seed: options.Seed = 0,
    dtype: options.Dtype = "float32",
    device: options.Device = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    json: options.Json = False,
) -> None:
    """Vary one thing: budget or depth (arms of one run, with one plain arm), context, temperature or threads.

    Context is varied by the resolution of the images (percent of their own), not by padding. depth varies a chain.
    Each value of context, temperature and threads has a plain arm of its own, since plain decoding changes with it.
    """
    from oneglance.bench import sweeps
    from oneglance.bench.manifest import manifest
    from oneglance.bench.runner import Bench

    along = sweeps.axis(axis)
    chosen = sweeps.values_of(along, values)
    setup = measuring.Setup(target, head, budget, max_new_tokens, dtype, device, attention, threads, runner=runner)
    places = {value: None if out is None else _place(out, value) for value in ([None] if along.is_shared else chosen)}
    setup.check(*places.values())
    if along.name == "threads" and threads is not None:
        raise InputError("sweep threads sets the threads itself; give --values instead of --threads")
    names = opening.names_of(systems or ("chain" if along.name == "depth" else "tree"))
    bound = setup.bind(["plain", *(name for name in names if name != "plain")])
    made = sweeps.arms(along, bound, chosen)
    cases = asking.choose_cases(tasks, prompts, limit, data)
    settings = setup.describe(cases, limit=limit, axis=axis, values=chosen)
    if not along.is_shared:
        settings |= {along.name: chosen}
    if along.name == "temperature":
        settings |= {"seed": seed}
    params = opening.sampling(max_new_tokens, seed=seed)
    base = Bench(setup.open(), made, params, warmup=warmup, replicates=replicates)
    points: list[Point] = []
    records: list[Record] = []
    for value, place in places.items():
        clock = base if value is None else sweeps.at(base, along, value)
        done = measuring.measure(clock, cases, {**settings, "value": value}, out=place, show=not json)
        points += sweeps.points(done, value)
        records += done
    result: dict[str, Any] = {
        "manifest": manifest(**settings),
        "axis": axis,
        "unit": along.unit,
        "rows": [{"value": point.value, "context": point.context, **point.row.as_dict()} for point in points],
    }
    measuring.finish(out, result, records)
    for place in places.values():
        if place not in (None, out):
            measuring.finish_part(place)
    if json:
        terminal.write_json(result)
    else:
        _show(terminal.console(), result)
    if dtype == "float32" and any(not record.identical for record in records):
        raise typer.Exit(1)


def _place(out: Path, value: float | None) -> Path:
    return out if value is None else out.with_name(f"{out.name}.{value:g}")


def _show(console: Console, result: dict[str, Any]) -> None:
    rows = result["rows"]
    for task in dict.fromkeys(row["task"] for row in rows):
        names = ("system", result["axis"], "prompt tokens", "τ", "ms/token", "speedup [95 %]", "identical")
        table = Table(*names, title=task, title_justify="left")
        for row in (row for row in rows if row["task"] == task):
            value, speedup = row["value"], row["speedup"]
            table.add_row(
                row["system"],
                "" if value is None else f"{value:g}",
                f"{row['context']:.0f}",
                f"{row['tau']:.2f}" if row["tau"] else "",
                f"{row['ms_per_token']:.2f}",
                "" if speedup is None else f"{speedup:.2f}{interval(row['ci_low'], row['ci_high'], '.2f')}",
                f"{row['identical']}/{row['n'] * row['replicates']}",
            )
        console.print(table)
