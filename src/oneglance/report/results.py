"""Results as sections of the page: rows, margins, curves, the cost of a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oneglance.report.matched import is_matched, matched_sections
from oneglance.report.section import Chart, Section
from oneglance.report.svg import Bar, curves, forest, stacks
from oneglance.report.tables import OUTSIDE, columns_of
from oneglance.stats.bootstrap import NAN

Rows = list[dict[str, Any]]

STAGES = ("draft", "build", "verify", "commit", "host")
PARTS = ("draft", "verify", "host")
COSTS: dict[str, str] = {
    "system": "system",
    "budget": "budget",
    "t_draft_ms": "draft, ms",
    "t_build_ms": "of it tree",
    "t_verify_ms": "verify, ms",
    "t_host_ms": "host, ms",
    "host_share": "host share",
    "round_ms": "round, ms",
    "round_over_plain": "in plain steps",
    "passes": "passes",
    "rounds": "rounds",
}
PASSES: dict[str, str] = {"nodes": "nodes", "ms": "ms", "low_ms": "lower quartile", "high_ms": "upper quartile"}
WITH_OURS = (
    "Times are from the prompt to the last token, prefill included. Ours stand beside theirs, and no ratio is made: "
    "what happens inside them is theirs."
)
WITH_MORE = (
    "These systems are given more than the prompt, as the last column says, so they stand apart. Their speedups are "
    "over the same plain arm."
)


def sections(result: Mapping[str, Any], name: str = "") -> list[Section]:
    """The tables of one result, each with its charts.

    Args:
        result: the object that the command wrote.
        name: of the result, for the headings.
    """
    before = f"{name}: " if name else ""
    if is_cost(result):
        return _cost_sections(result, before)
    if is_matched(result):
        return matched_sections(result, before)
    own, more, outside = split(result["rows"])
    heading = f"sweep of {result['axis']}" if "axis" in result else "systems"
    columns = _filled(columns_of(result), own)
    made = [Section(_title(before, heading), columns, own, _notes(result), _charts(result, own), result["manifest"])]
    if more:
        columns = {**_filled(columns_of(result), more), "extra_input": "also given"}
        made.append(Section(_title(before, "systems with extra input"), columns, more, [WITH_MORE], []))
    if outside:
        rows = [row if row.get("is_outside") else {**row, "tau": None} for row in result["rows"] if row not in more]
        title = _title(before, "end to end, beside systems that are not ours")
        made.append(Section(title, _filled(OUTSIDE, rows), rows, [WITH_OURS], []))
    return made


def is_cost(result: Mapping[str, Any]) -> bool:
    """Whether ``oneglance cost`` wrote it."""
    return "regression" in result


def split(rows: Iterable[dict[str, Any]]) -> tuple[Rows, Rows, Rows]:
    """Rows that may be compared with one another, rows of systems that were given more, rows from outside."""
    kinds: tuple[Rows, Rows, Rows] = ([], [], [])
    for row in rows:
        kinds[2 if row.get("is_outside") else 1 if row.get("extra_input") else 0].append(row)
    return kinds


def regression(result: Mapping[str, Any]) -> str:
    """Round time on draft passes, in words (§5.2)."""
    line = result["regression"]
    if line["reason"]:
        return f"No regression on draft passes: {line['reason']}."
    return (
        f"Round = {line['constant_ms']:.2f} ms + {line['per_pass_ms']:.2f} ms a draft pass over {line['num_arms']} "
        f"arms (R² {line['r2']:.2f}); the constant is {line['in_plain_steps']:.2f} plain steps."
    )


def name_of(row: Mapping[str, Any]) -> str:
    """A row's system, with the value that was swept."""
    return f"{row['system']}" if row.get("value") is None else f"{row['system']}/{row['value']:g}"


def _title(before: str, heading: str) -> str:
    return f"{before}{heading}" if before else heading.capitalize()


def _filled(columns: Mapping[str, str], rows: Rows) -> dict[str, str]:
    """The columns in which something stands; task and system always."""
    kept = ("task", "system")
    return {
        name: label for name, label in columns.items() if name in kept or any(row.get(name) is not None for row in rows)
    }


def _cost_sections(result: Mapping[str, Any], before: str) -> list[Section]:
    parts = {c["system"]: {part: c[f"t_{part}_ms"] for part in PARTS} for c in result["systems"]}
    title = "Cost of a round"
    text = "Milliseconds a round: draft pass with its tree, packed pass, and the rest (accept, commit, text)."
    chart = Chart(title, text, stacks(parts, title=title, unit="ms"))
    opening = f"A plain step takes {result['t_plain_ms']:.2f} ms, host included."
    notes = [opening, regression(result)]
    rounds = list(result["systems"])
    alone = [(float(v["nodes"]), float(v["ms"])) for v in result["verify"]]
    title = "A packed pass by nodes"
    text = "Median milliseconds of one packed pass over a prompt's cache, sizes taking turns."
    flat = Chart(title, text, curves({"packed pass": alone}, title=title, x_label="nodes", y_label="ms"))
    note = "0 nodes is the pass of a plain step."
    return [
        Section(_title(before, "parts of a round"), COSTS, rounds, notes, [chart], result["manifest"]),
        Section(_title(before, "one packed pass alone"), PASSES, list(result["verify"]), [note], [flat]),
    ]


def _charts(result: Mapping[str, Any], rows: Rows) -> list[Chart]:
    """What can be drawn of one result's own rows; curves a task each, so that no chart has more lines than colours."""
    found = [*_forests(result, rows)]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    for task in tasks:
        found += _swept(result, [row for row in rows if row["task"] == task])
    for task in tasks:
        survival = {name_of(row): _survival(row) for row in rows if row["task"] == task and row.get("survival")}
        if survival:
            title = f"Survival, {task}"
            text = (
                "Share of rounds that accept at least so many tokens. Rounds that the text's end cut count as they are."
            )
            svg = curves(survival, title=title, x_label="offset ℓ", y_label="P(a ≥ ℓ)")
            found.append(Chart(title, text, svg))
    cost = {
        f"{row['task']} {name_of(row)}": _parts(row)
        for row in rows
        if row.get("verify_ms") is not None and row.get("tau") is not None
    }
    if cost:
        text = "Milliseconds a round: draft pass, tree, packed pass, commit, and the rest (accept, text)."
        found.append(Chart("Cost of a round", text, stacks(cost, title="Cost of a round", unit="ms")))
    return found


def _forests(result: Mapping[str, Any], rows: Rows) -> list[Chart]:
    found = []
    bars = [
        Bar(f"{m['task']}: {m['ours']} / {m['other']}", m["over_ours"], _or_nan(m["low"]), _or_nan(m["high"]))
        for m in result.get("margins") or []
    ]
    if bars:
        text = "Other over ours less one, as in Table 1; right of the rule, ours is faster. 95 % paired bootstrap."
        found.append(Chart("Margins", text, forest(bars, title="Margins of ours over other systems")))
    bars = [
        Bar(f"{r['task']}: {r['system']}", r["speedup"], _or_nan(r["ci_low"]), _or_nan(r["ci_high"]))
        for r in rows
        if r.get("speedup") is not None and r.get("value") is None
    ]
    if bars:
        text = "Plain milliseconds over this system's, summed over the same prompts. 95 % bootstrap over prompts."
        svg = forest(bars, title="Speedup over plain decoding", centre=1.0, percent=False)
        found.append(Chart("Speedup", text, svg))
    return found


def _swept(result: Mapping[str, Any], rows: Rows) -> list[Chart]:
    found = []
    for name, label in (("tau", "τ"), ("speedup", "Speedup")):
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if row.get("value") is not None and row.get(name) is not None:
                lines.setdefault(row["system"], []).append((float(row["value"]), float(row[name])))
        if lines:
            axis = str(result["axis"])
            title = f"{label} by {axis}, {rows[0]['task']}"
            text = f"Everything but {axis} held fixed ({result.get('unit') or 'no unit'})."
            own = {system: sorted(points) for system, points in lines.items()}
            found.append(Chart(title, text, curves(own, title=title, x_label=axis, y_label=label.lower())))
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


def _survival(row: Mapping[str, Any]) -> Sequence[tuple[float, float]]:
    return [(float(offset), share) for offset, share in enumerate(row["survival"], start=1)]


def _parts(row: Mapping[str, Any]) -> dict[str, float]:
    return {stage: row[f"{stage}_ms"] for stage in STAGES if row.get(f"{stage}_ms") is not None}


def _or_nan(value: float | None) -> float:
    return NAN if value is None else value
