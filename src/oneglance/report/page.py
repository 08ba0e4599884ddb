"""One self-contained HTML page of results: no network, no framework, light and dark."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any

from oneglance.core import InputError
from oneglance.report.strips import Strip
from oneglance.report.svg import Bar, curves, forest, stacks
from oneglance.report.tables import COLUMNS, cell
from oneglance.stats.bootstrap import NAN

STAGES = ("draft", "build", "verify", "commit", "host")


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart and what a reader needs to judge it."""

    title: str
    text: str
    svg: str


@dataclass(frozen=True, slots=True)
class Section:
    """A table with what a reader needs to judge it.

    Attributes:
        name: its heading.
        columns: of the table, key → label; rows: keys → values, None where nothing was measured.
        notes, charts: below the table.
    """

    name: str
    columns: dict[str, str]
    rows: list[dict[str, Any]]
    notes: list[str]
    charts: list[Chart]


def render(
    results: Sequence[Mapping[str, Any]],
    strips: Sequence[Strip] = (),
    *,
    title: str = "oneglance",
    studies: Sequence[Section] = (),
) -> str:
    """The page.

    Args:
        results: objects that ``bench --out``, ``sweep --out`` or ``worth-it --out`` wrote.
        strips: decoded prompts.
        title: of the page.
        studies: what round logs say, from ``report.entropy``.

    Raises:
        InputError: jinja2 is not installed.
    """
    try:
        jinja2: Any = importlib.import_module("jinja2")
    except ImportError as error:
        raise InputError("the HTML report needs jinja2: pip install 'oneglance[report]'") from error
    source = (resources.files("oneglance.report") / "page.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["cell"] = cell
    environment.filters["node"] = lambda piece, index: piece.nodes[index]
    sections = [
        {
            "name": f"Result {index}" if len(results) > 1 else "Results",
            "manifest": result.get("manifest", {}),
            "columns": COLUMNS,
            "rows": result["rows"],
            "charts": charts(result),
            "notes": _notes(result),
        }
        for index, result in enumerate(results, start=1)
    ]
    sections += [{**{f.name: getattr(study, f.name) for f in fields(study)}, "manifest": {}} for study in studies]
    page: str = environment.from_string(source).render(
        title=title, sections=sections, strips=strips, empty=not sections and not strips
    )
    return page


def charts(result: Mapping[str, Any]) -> list[Chart]:
    """What can be drawn of one result."""
    found = []
    rows = result["rows"]
    margins = result.get("margins") or []
    if margins:
        bars = [
            Bar(f"{m['task']}: {m['ours']} / {m['other']}", m["over_ours"], _or_nan(m["low"]), _or_nan(m["high"]))
            for m in margins
        ]
        text = "Other over ours less one, as in Table 1; right of the rule, ours is faster. 95 % paired bootstrap."
        found.append(Chart("Margins", text, forest(bars, title="Margins of ours over other systems")))
    speedups = [row for row in rows if row.get("speedup") is not None and row.get("value") is None]
    if speedups:
        bars = [
            Bar(f"{r['task']}: {r['system']}", r["speedup"], _or_nan(r["ci_low"]), _or_nan(r["ci_high"]))
            for r in speedups
        ]
        text = "Plain milliseconds over this system's, summed over the same prompts. 95 % bootstrap over prompts."
        svg = forest(bars, title="Speedup over plain decoding", centre=1.0, percent=False)
        found.append(Chart("Speedup", text, svg))
    swept = [row for row in rows if row.get("value") is not None and row.get("tau") is not None]
    for name, label in (("tau", "τ"), ("speedup", "speedup")):
        lines = _series(swept, name)
        if lines:
            axis = str(result.get("axis", "value"))
            title = f"{label} by {axis}"
            text = f"Everything but {axis} held fixed ({result.get('unit') or 'no unit'})."
            found.append(Chart(title, text, curves(lines, title=title, x_label=axis, y_label=label)))
    survival = {
        _name(row): [(float(j), s) for j, s in enumerate(row["survival"], start=1)]
        for row in rows
        if row.get("survival")
    }
    if survival and len(survival) <= 12:
        text = "Share of rounds that accept at least so many tokens. Rounds that the text's end cut count as they are."
        svg = curves(survival, title="Survival by offset", x_label="offset ℓ", y_label="P(a ≥ ℓ)")
        found.append(Chart("Survival", text, svg))
    cost = {_name(row): _parts(row) for row in rows if row.get("verify_ms") is not None and row.get("tau") is not None}
    if cost:
        text = "Milliseconds a round: draft pass, tree, packed pass, commit, and the rest (accept, text)."
        found.append(Chart("Cost of a round", text, stacks(cost, title="Cost of a round", unit="ms")))
    return found


def _notes(result: Mapping[str, Any]) -> list[str]:
    notes = [
        f"{p['task']}: {p['system']} charged with τ {p['tau']:.2f}: {p['ms_per_token']:.2f} ms/token, speedup "
        f"{p['speedup']:.2f} ({p['label']})."
        for p in result.get("projections") or []
    ]
    steady = result.get("plain_drift")
    if steady:
        notes.append(f"Plain arm: milliseconds a token of the tasks lie within {steady['spread']:.1%} of one another.")
    if result.get("advice"):
        notes.append(f"Advice: {result['advice']}; {result['reason']}.")
    return notes


def _series(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.get(name) is not None:
            lines.setdefault(f"{row['task']} {row['system']}", []).append((float(row["value"]), float(row[name])))
    return {label: sorted(points) for label, points in lines.items()}


def _parts(row: Mapping[str, Any]) -> dict[str, float]:
    return {stage: row[f"{stage}_ms"] for stage in STAGES if row.get(f"{stage}_ms") is not None}


def _name(row: Mapping[str, Any]) -> str:
    value = "" if row.get("value") is None else f"/{row['value']:g}"
    return f"{row['task']} {row['system']}{value}"


def _or_nan(value: float | None) -> float:
    return NAN if value is None else value
