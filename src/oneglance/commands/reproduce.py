"""``oneglance reproduce``: the paper's tables, its numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from oneglance.commands import asking, measuring, opening, options, terminal

if TYPE_CHECKING:
    from oneglance.bench.metrics import Row
    from oneglance.report.paper import Line, Measured

ItemName = Annotated[str, typer.Argument(metavar="ITEM", help="table1 to table17, fig1 to fig9, or all.")]
PAPER_TARGET = "Qwen3-VL-8B"


def reproduce(
    item: ItemName,
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Measure what can be measured here.")] = True,
    tasks: options.Tasks = None,
    limit: asking.Limit = 5,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    budget: options.Budget = options.BUDGET,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    dtype: options.Dtype = "float32",
    device: options.Device = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    json: options.Json = False,
) -> None:
    """Set the paper's numbers beside ours: value, interval and status.

    A paper value stands there only where a revision at hand prints it, which is named; else "—". What needs other
    weights, an engine or a GPU says so. On another target than the paper's, the two columns are not comparable.
    """
    from oneglance.report import paper

    chosen = paper.choose(item)
    setup = measuring.Setup(target, head, budget, max_new_tokens, dtype, device, attention, threads, runner=runner)
    setup.check()
    names = asking.choose_tasks(tasks or "all")
    lines: list[Line] = []
    for one in chosen:
        ours = MEASURES[one.kind](setup, names, limit) if measure and one.kind else []
        lines += paper.beside(one, ours, is_same_target=PAPER_TARGET in target)
    if json:
        terminal.write_json({"lines": lines, "commands": {one.name: one.command for one in chosen}})
        return
    console = terminal.console()
    titles = ("", "system", "quantity", "task", "paper", "ours [95 %]", "status")
    table = Table(*titles, title="the paper's numbers beside ours", title_justify="left")
    for line in lines:
        shown = "—" if isinstance(line.ours, str) else f"{line.ours:.3g}"
        bounds = f" [{line.low:.3g}, {line.high:.3g}]" if line.low is not None and line.high is not None else ""
        table.add_row(line.item, line.system, line.quantity, line.task, f"{line.paper}", shown + bounds, line.status)
    console.print(table)
    for revision in dict.fromkeys(line.revision for line in lines if line.revision):
        console.print(f"paper values: {revision}")
    for one in chosen:
        console.print(f"{one.name}, {one.title}: {one.command}", markup=False)


def _bench(setup: measuring.Setup, tasks: list[str], limit: int) -> list[Measured]:
    from oneglance.bench.cases import suite
    from oneglance.bench.metrics import geomean, summarise
    from oneglance.bench.runner import Bench
    from oneglance.report.paper import Measured

    bound = setup.bind(["plain", "chain", "tree", "ngram"])
    runner = Bench(setup.open(), bound, opening.sampling(setup.max_new_tokens))
    records = measuring.measure(runner, suite(tasks, limit), {}, out=None, show=True)
    rows = summarise(records)
    found = [m for row in rows for m in _of_row(row, row.system)]
    for system in bound:
        gains = [row.speedup for row in rows if row.system == system and row.speedup is not None]
        if gains:
            found.append(Measured(system, "speedup", "geomean", geomean(gains)))
    return found


def _swept(axis: str, values: str | None, setup: measuring.Setup, tasks: list[str], limit: int) -> list[Measured]:
    from oneglance.bench import sweeps
    from oneglance.bench.cases import suite
    from oneglance.bench.runner import Bench

    along = sweeps.axis(axis)
    chosen = sweeps.values_of(along, values)
    made = sweeps.arms(along, setup.bind(["plain", "tree"]), chosen)
    base = Bench(setup.open(), made, opening.sampling(setup.max_new_tokens, seed=0))
    cases = suite(tasks, limit)
    found: list[Measured] = []
    for value in [None] if along.is_shared else chosen:
        runner = base if value is None else sweeps.at(base, along, value)
        for point in sweeps.points(measuring.measure(runner, cases, {}, out=None, show=True), value):
            found += _of_row(point.row, f"{point.row.system}, {axis} {point.value}")
    return found


def _temperature(setup: measuring.Setup, tasks: list[str], limit: int) -> list[Measured]:
    return _swept("temperature", "0,1", setup, tasks, limit)


def _budget(setup: measuring.Setup, tasks: list[str], limit: int) -> list[Measured]:
    return _swept("budget", None, setup, tasks, limit)


def _cost(setup: measuring.Setup, tasks: list[str], limit: int) -> list[Measured]:
    from oneglance.bench.cases import suite
    from oneglance.bench.cost import costs
    from oneglance.bench.runner import Bench
    from oneglance.report.paper import Measured

    runner = Bench(setup.open(), setup.bind(["plain", "tree"]), opening.sampling(setup.max_new_tokens))
    records = measuring.measure(runner, suite(tasks, limit), {}, out=None, show=True)
    (found,) = costs(records, {"tree": setup.budget})
    names = ("t_plain_ms", "t_draft_ms", "t_verify_ms", "t_host_ms", "host_share")
    return [Measured("tree", name, "all", getattr(found, name)) for name in names]


def _law(setup: measuring.Setup, tasks: list[str], limit: int) -> list[Measured]:
    from oneglance.bench.cases import suite
    from oneglance.bench.roundlog import record
    from oneglance.decoder import Decoder
    from oneglance.report.paper import Measured
    from oneglance.report.study import study_law
    from oneglance.stats.rounds import RoundLog

    setup = replace(setup, budget=31)  # the paper's for this table
    opened = setup.open()
    decoder = Decoder(opened, setup.bind(["tree"])["tree"](opened))
    params = opening.sampling(setup.max_new_tokens)
    rows = [
        row
        for case in suite(tasks, limit)
        for row in record(decoder, case.encode(opened), params, run="tree", task=case.task, prompt=case.id).rows
    ]
    study = study_law(RoundLog(tuple(rows)).drafted, method="ml")
    found = []
    for task, fit in study.fits.items():
        if fit.law.degenerate is None:
            for name, value in (("b0", fit.law.b0), ("b1", fit.law.b1)):
                found.append(Measured("tree", name, task, value.value, value.low, value.high))
            found.append(Measured("tree", "curve_r2", task, fit.curve_r2))
        found.append(Measured("tree", "mean_a", task, fit.mean_a.value, fit.mean_a.low, fit.mean_a.high))
    return found


def _of_row(row: Row, system: str) -> list[Measured]:
    from oneglance.report.paper import Measured

    found = []
    if row.tau is not None:
        found.append(Measured(system, "tau", row.task, row.tau, row.tau_low, row.tau_high))
    if row.speedup is not None:
        found.append(Measured(system, "speedup", row.task, row.speedup, row.ci_low, row.ci_high))
    return found


MEASURES: dict[str, Callable[[measuring.Setup, list[str], int], list[Measured]]] = {
    "bench": _bench,
    "temperature": _temperature,
    "budget": _budget,
    "cost": _cost,
    "law": _law,
}
