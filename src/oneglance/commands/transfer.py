"""``oneglance transfer``: does the law's form survive another drafter, target or modality (Tables 14 and 15)?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from oneglance.commands import logs, options, terminal

if TYPE_CHECKING:
    from oneglance.report.causes import Transfer

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]LOG...", help="Round logs, each with a name for the table, such as speech=asr.jsonl."
    ),
]


def transfer(
    files: Files,
    method: logs.Estimator = "ml",
    figures: logs.Figures = None,
    json: options.Json = False,
) -> None:
    """Fit the law to logs of other drafters, targets and modalities, in one table.

    A row a log and task, with the sign of b1 (0 where its interval holds zero) and the verdict: holds, inverted or
    inconclusive. Degenerate fits are listed apart and not counted.
    """
    from oneglance.report import figures as draw
    from oneglance.report.causes import study_transfer

    estimator = logs.method(method)
    read = [(label, logs.target(path), logs.read([path], None)) for label, path in logs.named(files)]
    found = study_transfer(read, method=estimator)
    fits = {f"{row.log}: {row.task}": row.fit for row in found.rows}
    written = logs.draw(figures, {"fig6": lambda: draw.decile_curves(fits)} if fits else {})
    if json:
        terminal.write_json({**terminal.as_object(found), "figures": written})
    else:
        _show(terminal.console(), found, written)


def _show(console: Console, found: Transfer, written: list[str]) -> None:
    names = ("", "target", "drafter", "task", "rounds/prompts", "b0", "b1 [95 %]", "sign", "R² curve", "a", "")
    table = Table(*names, title="the law across drafters, targets and modalities", title_justify="left")
    for row in found.rows:
        law, b1 = row.fit.law, row.fit.law.b1
        table.add_row(
            row.log,
            row.target or "–",
            row.run,
            row.task,
            f"{law.num_rounds}/{law.num_prompts}",
            f"{law.b0.value:.2f}",
            f"{b1.value:.2f} [{b1.low:.2f}, {b1.high:.2f}]",
            {1: "+", 0: "0", -1: "-"}[row.sign],
            f"{row.fit.curve_r2:.2f}",
            f"{row.fit.mean_a.value:.2f}",
            row.fit.verdict,
        )
    console.print(table)
    for name, reason in found.excluded.items():
        console.print(f"{name}: excluded, {reason}", markup=False)
    for path in written:
        console.print(path)
