"""Rows as markdown, CSV and LaTeX. A number that was not measured is a dash."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oneglance.report.section import Section
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
    "is_lossless": "lossless",
    "score": "score",
    "prefill_share": "prefill",
    "vision_share": "vision",
    "num_parameters": "parameters",
    "weights": "weights",
}
OUTSIDE: dict[str, str] = {
    "task": "task",
    "system": "system",
    "n": "prompts",
    "first_ms": "to first token, ms",
    "end_to_end_ms": "end to end, ms",
    "tau": "τ, own count",
    "identical": "identical",
    "score": "score",
    "failures": "failures",
    "failure": "why",
}
"""Of systems that are not ours, with ours beside them: end to end, and no ratio."""

FORMS: dict[str, str] = {
    **dict.fromkeys(("nodes", "context", "first_ms", "end_to_end_ms"), ".1f"),
    **dict.fromkeys(("tau", "tau_no_bonus", "ms_per_token", "speedup", "ci_low", "ci_high"), ".2f"),
    **dict.fromkeys(("mean_of_ratios", "paper_window", "equal_length", "end_to_end", "passes"), ".2f"),
    **dict.fromkeys(("prefill_share", "vision_share"), ".0%"),
    **dict.fromkeys(("t_draft_ms", "t_build_ms", "t_verify_ms", "t_host_ms", "round_ms", "round_over_plain"), ".2f"),
    **dict.fromkeys(("ms", "low_ms", "high_ms"), ".2f"),
    "host_share": ".1%",
    "value": "g",
}
ESCAPES = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "τ": r"$\tau$"}


def cell(value: Any, name: str = "") -> str:
    """A value as it is shown in the column of that name."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format(value, FORMS.get(name, ".3f"))
    return f"{value:,}" if name == "num_parameters" else str(value)


def with_bounds(value: float | None, low: float | None, high: float | None) -> str:
    """A value and its interval, where it has one."""
    if value is None:
        return cell(None)
    return f"{value:.2f}" if low is None or high is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def columns_of(result: Mapping[str, Any]) -> dict[str, str]:
    """Columns of a result's rows: what a sweep varies stands beside the system."""
    if "axis" not in result:
        return COLUMNS
    first = {"task": "task", "system": "system", "value": str(result["axis"]), "context": "prompt tokens"}
    return {**first, **COLUMNS}


def of_interval(name: str, found: Interval, low: str = "low", high: str = "high") -> dict[str, float]:
    """A value and its bounds, under these names of columns."""
    return {name: found.value, low: found.low, high: found.high}


def measured(values: Mapping[str, float]) -> dict[str, float | None]:
    """None in place of what is not a number."""
    return {name: value if value == value else None for name, value in values.items()}


def markdown(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] = COLUMNS) -> str:
    """A table in GitHub's markdown."""
    table = [list(columns.values()), *([cell(row.get(name), name) for name in columns] for row in rows)]
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
    lines += [" & ".join(_tex(cell(row.get(name), name)) for name in columns) + r" \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def document(sections: Sequence[Section], *, level: int = 2) -> str:
    """Sections as markdown: heading, what a reader needs to judge the table, the table, notes. Charts stay out."""
    parts = []
    for section in sections:
        opening, *notes = section.notes or [""]
        heading = f"{'#' * level} {section.name}" if section.name else ""
        parts += [heading, opening, markdown(section.rows, section.columns).rstrip() if section.rows else ""]
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(part for part in parts if part) + "\n"


FORMATS: dict[str, Callable[[Sequence[Mapping[str, Any]], Mapping[str, str]], str]] = {
    "md": markdown,
    "csv": comma_separated,
    "tex": latex,
}


def _tex(text: str) -> str:
    return "".join(ESCAPES.get(character, character) for character in text)
