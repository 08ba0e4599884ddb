"""Rows as markdown, CSV and LaTeX. A number that was not measured is a dash."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oneglance.report.page import Section
    from oneglance.stats.bootstrap import Interval

COLUMNS: dict[str, str] = {
    "task": "task",
    "system": "system",
    "n": "prompts",
    "passes": "passes",
    "nodes": "nodes",
    "tau": "τ",
    "tau_no_bonus": "τ - 1",
    "ms_per_token": "ms/token",
    "speedup": "speedup",
    "ci_low": "low",
    "ci_high": "high",
    "mean_of_ratios": "mean of ratios",
    "paper_window": "paper's window",
    "equal_length": "equal length",
    "end_to_end": "end to end",
    "wins": "wins",
    "identical": "identical",
    "score": "score",
    "prefill_share": "prefill",
    "num_parameters": "parameters",
}
ESCAPES = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "τ": r"$\tau$"}


def cell(value: Any) -> str:
    """A value as it is shown."""
    if value is None:
        return "—"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def of_interval(name: str, found: Interval, low: str = "low", high: str = "high") -> dict[str, float]:
    """A value and its bounds, under these names of columns."""
    return {name: found.value, low: found.low, high: found.high}


def measured(values: Mapping[str, float]) -> dict[str, float | None]:
    """None in place of what is not a number."""
    return {name: value if value == value else None for name, value in values.items()}


def markdown(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] = COLUMNS) -> str:
    """A table in GitHub's markdown."""
    table = [list(columns.values()), *([cell(row.get(name)) for name in columns] for row in rows)]
    lines = ["| " + " | ".join(text.replace("|", r"\|") for text in line) + " |" for line in table]
    lines.insert(1, "|" + "---|" * len(columns))
    return "\n".join(lines) + "\n"


def comma_separated(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] = COLUMNS) -> str:
    """CSV with the rows' own names and full precision; empty where nothing was measured."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([["" if row.get(name) is None else row[name] for name in columns] for row in rows])
    return out.getvalue()


def latex(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] = COLUMNS) -> str:
    """A tabular with booktabs rules."""
    lines = [rf"\begin{{tabular}}{{ll{'r' * (len(columns) - 2)}}}", r"\toprule"]
    lines += [" & ".join(_tex(title) for title in columns.values()) + r" \\", r"\midrule"]
    lines += [" & ".join(_tex(cell(row.get(name))) for name in columns) + r" \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def document(sections: Sequence[Section]) -> str:
    """Sections as markdown: heading, what a reader needs to judge the table, the table, notes. Charts stay out."""
    parts = []
    for section in sections:
        opening, *notes = section.notes or [""]
        parts += [f"## {section.name}", opening, markdown(section.rows, section.columns).rstrip()]
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(part for part in parts if part) + "\n"


FORMATS: dict[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {
    "md": markdown,
    "csv": comma_separated,
    "tex": latex,
}


def _tex(text: str) -> str:
    return "".join(ESCAPES.get(character, character) for character in text)
