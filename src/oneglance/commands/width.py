"""``oneglance width``: width policies replayed on a log's own marginals (B.5, Fig. 5)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from oneglance.commands import logs, opening, options, terminal
from oneglance.core import InputError

if TYPE_CHECKING:
    from oneglance.bench.rules import RuleResult
    from oneglance.cost import Costs
    from oneglance.report.study import WidthStudy
    from oneglance.stats.bootstrap import Array
    from oneglance.stats.rounds import RoundLog

File = Annotated[Path, typer.Argument(metavar="LOG", help="A round log written with --marginals.")]
Budgets = Annotated[str, typer.Option(metavar="N,N,…", help="Mean nodes a round.")]
CostFile = Annotated[
    Path | None,
    typer.Option(
        "--costs",
        metavar="FILE",
        help="Also compare the rules of --budget auto with fixed widths, at these measured costs (docs/width.md).",
    ),
]
MaxBudget = Annotated[int, typer.Option(metavar="N", min=1, help="The most that one round can get.")]


def width(
    file: File,
    tasks: logs.Tasks = None,
    method: logs.Estimator = "ml",
    budgets: Budgets = "7,15,31,47,63",
    max_budget: MaxBudget = 127,
    costs: CostFile = None,
    figures: logs.Figures = None,
    json: options.Json = False,
) -> None:
    """Replay fixed, entropy-keyed, learned, score-keyed and oracle widths at equal budget, per task.

    Also the peak of V(H), the headroom that the law leaves, and the regret of keying width by entropy.
    """
    from oneglance.report import figures as draw
    from oneglance.report.study import study_width
    from oneglance.stats.sidecar import read_marginals

    sizes = _numbers(budgets, max_budget)
    measured = None if costs is None else _costs(costs)
    log = logs.read([file], tasks)
    estimator = logs.method(method)
    found: dict[str, WidthStudy] = {}
    rules: dict[str, tuple[RuleResult, ...]] = {}
    left_out: dict[str, str] = {}
    for name in log.tasks:
        own = log.of(name)
        table = read_marginals(file, own)
        if measured is not None:
            rules[name] = _compare(own, table, measured, sizes)
        try:
            found[name] = study_width(own, table, method=estimator, budgets=sizes, max_budget=max_budget)
        except InputError as error:
            left_out[name] = str(error)
    written = logs.draw(
        figures, {f"fig5-{name}": lambda s=study: draw.width_pareto(s.points) for name, study in found.items()}
    )
    if json:
        more = {} if measured is None else {"rules": rules}
        terminal.write_json({"tasks": found, "left_out": left_out, "figures": written, **more})
    else:
        _show(terminal.console(), found, left_out, written)
        _show_rules(terminal.console(), rules)


def _costs(path: Path) -> Costs:
    """The measured costs in a file.

    Raises:
        InputError: it holds none.
    """
    from oneglance.cost import load_costs

    return load_costs(path)[0]


def _compare(log: RoundLog, table: Array, costs: Costs, budgets: list[int]) -> tuple[RuleResult, ...]:
    from statistics import median

    from oneglance.bench.rules import compare_rules
    from oneglance.cost import MAX_NODES
    from oneglance.stats.replay import replay

    walked = replay(list(table), log.ranks, log.h_nats, log.prompts, horizon=log.runs.horizon, max_budget=MAX_NODES)
    context = int(median(row.position for row in log.rows))
    return compare_rules(walked, costs, context=context, budgets=[n for n in budgets if n <= MAX_NODES])


def _show_rules(console: Console, rules: dict[str, tuple[RuleResult, ...]]) -> None:
    for name, results in rules.items():
        title = f"{name}: ways of choosing the width, replayed at measured costs; no round goes plain"
        table = Table("rule", "tokens/ms", "accepted", "nodes", title=title, title_justify="left")
        for r in results:
            table.add_row(r.rule, f"{r.tokens_per_ms:.4f}", f"{r.mean_a:.2f}", f"{r.mean_nodes:.1f}")
        console.print(table)


def _numbers(text: str, most: int) -> list[int]:
    sizes = sorted(set(opening.numbers("--budgets", text, least=1)))
    if sizes[-1] > most:
        raise InputError(f"--budgets must lie in 1..{most} (--max-budget), got {text!r}")
    return sizes


def _show(console: Console, found: dict[str, WidthStudy], left_out: dict[str, str], written: list[str]) -> None:
    for name, study in found.items():
        policies = list(dict.fromkeys(point.policy for point in study.points))
        title = f"{name}: accepted length a round, {study.num_rounds} rounds of {study.num_prompts} prompts"
        table = Table("nodes", *policies, title=title, title_justify="left")
        for budget in dict.fromkeys(point.budget for point in study.points):
            own = {point.policy: point for point in study.points if point.budget == budget}
            table.add_row(str(budget), *(f"{own[p].mean_a:.2f} ({own[p].lift:+.1%})" for p in policies))
        console.print(table)
        at = study.peak.h_nats
        where = "no entropy reaches it" if at is None else f"at {at:.2f} nats"
        console.print(
            f"V(H) = p(1 - p^L) peaks at p = {study.peak.p:.3f} ({where}); headroom {study.headroom.relative:.1%} of "
            f"its mean; regret {study.regret.regret:.0f} tokens, bound {study.regret.bound:.0f}"
        )
    for name, reason in left_out.items():
        console.print(f"{name}: left out, {reason}")
    for path in written:
        console.print(path)
