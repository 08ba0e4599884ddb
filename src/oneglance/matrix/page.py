"""The matrix as Markdown, as JSON, and as one HTML page that needs no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import jinja2

from oneglance.matrix.compare import MODES, Comparison
from oneglance.matrix.record import Matrix

SCHEMA_VERSION = 2
PLACE = "audit-matrix"  # of the table in a Markdown page
COUNTED = {"free-running": "outputs identical", "teacher-forced": "tokens that plain decoding chooses as well"}


def as_dict(matrix: Matrix, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of ``oneglance audit --matrix --json``: rows, and every arm's token ids."""
    return {
        "schema_version": SCHEMA_VERSION,
        "ties": matrix.ties,
        "bugs": matrix.bugs,
        "rows": [{**asdict(row), "ties": row.ties, "bugs": row.bugs} for row in matrix.comparisons],
        "recordings": [asdict(recording) for recording in matrix.recordings],
        "skipped": matrix.skipped,
        "manifest": dict(manifest),
    }


def markdown(matrix: Matrix, manifest: Mapping[str, Any]) -> str:
    """A table a mode, what was run, and what the gates did."""
    parts = [f"`{manifest['command']}`, {_machine(manifest)}."]
    for mode in MODES:
        rows = [row for row in matrix.comparisons if row.mode == mode]
        lines = [
            f"| {mode} | arithmetic | {COUNTED[mode]} | least control, same arithmetic | ties | bugs | "
            "gaps where they differ | logits apart by |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
        parts.append("\n".join(lines))
    gates = [r for r in matrix.recordings if "delta" in r.notes]
    parts += [
        f"Gate of {r.arm} in {r.settings['dtype']}: δ {r.notes['delta']:.3g} logits, "
        f"{100 * r.notes.get('gate_rate', 0):.2g} % of tokens left to single steps, τ {r.notes.get('tau', 1):.2f}"
        + (f"; a single step on the same cache still moves by {r.notes['single']:.2g}." if "single" in r.notes else ".")
        for r in gates
    ]
    parts += [f"Not run: {name} ({why})." for name, why in matrix.skipped.items()]
    return "\n\n".join(parts) + "\n"


def html(matrix: Matrix, manifest: Mapping[str, Any]) -> str:
    """One page: the rows, and every divergence with its prefix, both candidates and their logits."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    source = files("oneglance.matrix").joinpath("page.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        matrix=matrix, manifest=manifest, machine=_machine(manifest), modes=MODES, counted=COUNTED
    )


def _cells(row: Comparison) -> Sequence[str]:
    gaps = [found.gap for found in row.divergences if found.gap is not None]
    span = f"{min(gaps):.2g} to {max(gaps):.2g}" if gaps else ""
    is_judged = row.kind != "precision"
    apart = "" if row.perturbation is None else f"{row.perturbation:.2g}"
    counts = (str(row.ties), str(row.bugs)) if is_judged else ("", "")
    return (row.name, row.arithmetic, row.counted, row.control or "", *counts, span, apart)


def _machine(manifest: Mapping[str, Any]) -> str:
    versions = manifest["versions"]
    device = manifest["gpu"] if manifest.get("device", "cpu") != "cpu" else manifest["cpu"]
    return f"{device}, torch {versions['torch']}, transformers {versions['transformers']}, {manifest['time'][:10]}"
