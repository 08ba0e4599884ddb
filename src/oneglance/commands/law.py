"""``oneglance law``: the entropy law on round logs (Table 12, Fig. 3a, 4, 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from oneglance.commands import logs, options, terminal

if TYPE_CHECKING:
    from oneglance.report.study import LawStudy

Budget = Annotated[
    int | None,
    typer.Option(metavar="N", min=2, help="Nodes that the ceiling 2 log N / H of Fig. 4 is for; default the log's."),
]
Calibration = Annotated[
    bool,
    typer.Option(
        "--calibration",
        help="Also compare plug-in scores with what matched, before and after a rescorer; needs marginals.",
    ),
]


def law(
    files: logs.Files,
    tasks: logs.Tasks = None,
    method: logs.Estimator = "ml",
    budget: Budget = None,
    calibration: Calibration = False,
    figures: logs.Figures = None,
    json: options.Json = False,
) -> None:
    """Fit logit p = b0 - b1 H to round logs, per task and pooled, and say whether the law holds.

    Intervals resample prompts, not rounds. Gives the decile curve, the R²s, the noise ceiling, Fano's check of every
    row, Mann-Whitney between tasks, the derivative identities and the drafter's scale.
    """
    from oneglance.report import figures as draw
    from oneglance.report.study import study_law

    log = logs.read(files, tasks)
    estimator = logs.method(method)
    table = logs.marginals(files, tasks) if calibration else None
    nodes = log.budget if budget is None else budget
    study = study_law(log, method=estimator, budget=nodes, vocab_size=logs.vocab_size(files), marginals=table)
    per_task = {name: found for name, found in study.fits.items() if name != logs.POOLED}
    pooled = study.fits.get(logs.POOLED)
    sheets = {
        "fig3a": lambda: draw.decile_curves(per_task, cap=pooled.law.loose_cap if pooled else None),
        "fig4": lambda: draw.law_panels(per_task, budget=nodes),
        "fig8": lambda: draw.law_panels(study.fits, budget=nodes),
    }
    if study.calibration is not None:
        found, given = study.calibration, study.calibration_given
        sheets["calibration"] = lambda: draw.calibration_plot(found, given)
    written = logs.draw(figures, sheets)
    if json:
        terminal.write_json({"num_rounds": len(log), **terminal.as_object(study), "figures": written})
    else:
        _show(terminal.console(), study, written)


def _show(console: Console, study: LawStudy, written: list[str]) -> None:
    names = ("", "rounds/prompts", "b0", "b1 [95 %]", "R² curve", "R² round/ceiling", "a", "a ≥ 8", "")
    table = Table(*names, title="logit p = b0 - b1 H, E[a | H] = Σ p^ℓ", title_justify="left")
    for name, fit in study.fits.items():
        b0, b1 = fit.law.b0, fit.law.b1
        table.add_row(
            name,
            f"{fit.law.num_rounds}/{fit.law.num_prompts}",
            f"{b0.value:.2f}",
            f"{b1.value:.2f} [{b1.low:.2f}, {b1.high:.2f}]",
            f"{fit.curve_r2:.2f}",
            f"{fit.round_r2:.3f}/{fit.ceiling.share:.3f}",
            f"{fit.mean_a.value:.2f}",
            f"{fit.long_runs:.0%}",
            fit.verdict,
        )
    console.print(table)
    for name, fit in study.fits.items():
        failed = [criterion for criterion, is_met in fit.criteria.items() if not is_met]
        if failed:
            reason = fit.law.degenerate or ", ".join(f"not: {criterion}" for criterion in failed)
            console.print(f"{name}: {fit.verdict}; {reason}")
    for name, gap in study.gaps.items():
        d = gap.difference
        console.print(
            f"{name}: a differs by {d.value:+.2f} [{d.low:.2f}, {d.high:.2f}], Mann-Whitney p {gap.p_prompts:.2g} over "
            f"prompts, {gap.p_rounds:.2g} over rounds"
        )
    if study.fano is None:
        console.print("Fano's bound not checked: the size of the vocabulary does not stand beside the log")
    else:
        console.print(f"Fano's bound: {len(study.fano.violations)} of {study.fano.num_rows} rows violate it")
    for path in written:
        console.print(path)
