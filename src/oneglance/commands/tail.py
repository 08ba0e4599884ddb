"""``oneglance tail``: does the entropy floor run longer than one hazard allows (Thm. 2, Prop. 3)?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oneglance.commands import logs, options, terminal
from oneglance.core import InputError

if TYPE_CHECKING:
    from oneglance.stats.tail import Tail

Resamples = Annotated[int, typer.Option(metavar="N", min=19, help="Data sets of the parametric bootstrap.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Of the bootstrap and of the halves and folds.")]


def tail(
    files: logs.Files,
    tasks: logs.Tasks = None,
    method: logs.Estimator = "ml",
    resamples: Resamples = 999,
    seed: Seed = 0,
    json: options.Json = False,
) -> None:
    """Test the lowest entropy decile of each task: cap, one hazard against two states, prompt-disjoint.

    The paper's χ² figure with four degrees of freedom stands next to a parametric-bootstrap p, because the second
    state's parameters do not exist under one hazard and the χ² limit does not apply.
    """
    from oneglance.report.study import study_tail

    log = logs.read(files, tasks)
    estimator = logs.method(method)
    found: dict[str, Tail] = {}
    left_out: dict[str, str] = {}
    for name in log.tasks:
        try:
            found[name] = study_tail(log.of(name), method=estimator, resamples=resamples, seed=seed)
        except InputError as error:
            left_out[name] = str(error)
    if json:
        terminal.write_json({"tasks": found, "left_out": left_out})
    else:
        _show(terminal.console(), found, left_out)


def _show(console: Console, found: dict[str, Any], left_out: dict[str, str]) -> None:
    names = ("", "rounds/prompts", "floor a [95 %]", "M(σ(b0)), e^b0", "χ² one, two (df)", "2Δℓ: p χ²₄, p boot", "π*")
    table = Table(*names, title="the lowest entropy decile", title_justify="left")
    for name, t in found.items():
        mean, one, two = t.floor_mean, t.chi_single, t.chi_two_state
        table.add_row(
            name,
            f"{t.num_rounds}/{t.num_prompts}",
            f"{mean.value:.2f} [{mean.low:.2f}, {mean.high:.2f}]",
            f"{t.cap:.2f}, {t.loose_cap:.2f}",
            f"{one.statistic:.1f} ({one.df}), {two.statistic:.1f} ({two.df})",
            f"{t.ratio.statistic:.1f}: {t.ratio.p_chi2:.2g}, {t.ratio.p_bootstrap:.2g}",
            f"{t.pi_star:.2f}",
        )
    if found:
        console.print(table)
    else:
        console.print("No task has rounds enough for the test; log more prompts: oneglance rounds --limit N")
    for name, t in found.items():
        says = "lies above" if t.exceeds_cap else "does not lie above"
        console.print(f"{name}: the floor's interval {says} e^b0")
        if t.held_out is None:
            console.print(f"{name}: fewer than ten prompts on the floor, so no prompt-disjoint comparison")
        else:
            h = t.held_out
            console.print(
                f"{name}: two states fit unseen prompts better in {h.wins} of {len(h.splits)} splits, mean χ² "
                f"{h.mean_two_state:.1f} against {h.mean_single:.1f}"
            )
    for name, reason in left_out.items():
        console.print(f"{name}: left out, {reason}")
