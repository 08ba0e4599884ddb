"""What ``oneglance train-matched`` wrote, as tables: two heads that learned from the same data, on the same prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from oneglance.report.section import Section
from oneglance.report.tables import with_bounds

COLUMNS: dict[str, str] = {
    "task": "task",
    "arm": "arm",
    "n": "prompts",
    "tau": "τ",
    "passes": "passes",
    "tau_ratio": "tree τ over it",
    "ms_per_token": "ms/token",
    "speedup": "speedup",
    "time_ratio": "time over tree",
    "identical": "identical",
}
RATIOS = ("tau_ratio", "time_ratio", "speedup")
POOLED, PLAIN = "all tasks", "plain"


def is_matched(result: Mapping[str, Any]) -> bool:
    """Whether ``oneglance train-matched`` wrote it."""
    return "probe" in result


def rows_of(scores: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A score a row of ``COLUMNS``, intervals written out."""
    return [
        {
            **score,
            "task": score["task"] or POOLED,
            **{name: _bounds(score[name]) for name in RATIOS},
            "identical": f"{score['identical']}/{score['n']}",
        }
        for score in scores
    ]


def matched_sections(result: Mapping[str, Any], before: str = "") -> list[Section]:
    """A table a corpus."""
    probe = result["probe"]
    heads = "; ".join(
        f"{name}: {own['parameters']:,} parameters, {own['steps']} steps, loss {own['loss']:.3f}"
        for name, own in result["heads"].items()
    )
    notes = [
        "Both heads learned from the same samples in the same order. τ: kept tokens a round, bonus included; passes: "
        "draft passes a round. Speedups are over plain decoding; intervals: 95 % bootstrap over prompts.",
        f"{heads}.",
    ]
    return [
        Section(
            f"{before}{corpus}",
            COLUMNS,
            rows_of(score for score in probe if score["corpus"] == corpus),
            notes if corpus == probe[0]["corpus"] else [],
            [],
            result["manifest"],
        )
        for corpus in dict.fromkeys(score["corpus"] for score in probe)
    ]


def by_size(result: Mapping[str, Any]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Columns and rows of a table: the tree's τ over each arm's as the probe of the first corpus grows."""
    first = result["probe"][0]["corpus"]
    pooled = [score for score in result["probe"] if score["task"] is None and score["corpus"] == first]
    columns = {"arm": "tree's τ over"} | {str(n): f"{n} prompts" for n in dict.fromkeys(score["n"] for score in pooled)}
    rows: dict[str, dict[str, Any]] = {}
    for score in pooled:
        if score["tau_ratio"] and score["arm"] != PLAIN:
            rows.setdefault(score["arm"], {"arm": score["arm"]})[str(score["n"])] = _bounds(score["tau_ratio"])
    return columns, list(rows.values())


def largest(section: Section) -> Section:
    """A corpus with its largest probe alone, and its tasks."""
    most = max(row["n"] for row in section.rows)
    return replace(section, rows=[row for row in section.rows if row["task"] != POOLED or row["n"] == most])


def _bounds(found: Mapping[str, float | None] | None) -> str | None:
    return with_bounds(found["value"], found["low"], found["high"]) if found else None
