"""``oneglance audit --matrix``: every arm next to its drafter-free controls, in float32 and bfloat16."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from oneglance.audit import BindDrafter
from oneglance.bench.manifest import manifest
from oneglance.calibrate import delta_of
from oneglance.commands import opening, terminal
from oneglance.commands.audit import held_out
from oneglance.matrix import Recording, as_dict, markdown, record, rows
from oneglance.targets.base import Target
from oneglance.tree import policy

DTYPES = ("float32", "bfloat16")


def run_matrix(
    open_in: Callable[[str], Target],
    bind: Callable[..., Any],
    *,
    tasks: Sequence[str],
    prompts: int,
    budget: int,
    branch_k: int | None,
    max_new_tokens: int,
    gate: float | Path,
    out: Path | None,
    json: bool,
) -> bool:
    """Decode, compare, write; whether every drafter reproduced plain decoding in float32.

    Args:
        open_in: dtype → target.
        bind: makes a drafter for a target.
        tasks, prompts: what is decoded.
        budget, branch_k: of the tree; the chain has the same budget.
        max_new_tokens: cap.
        gate: δ, its file, or 0 to measure it anew in each precision.
        out: where the JSON object goes as well.
        json: one JSON object on stdout instead of the table.
    """
    console = Console(stderr=True)
    drafters: dict[str, BindDrafter] = {
        name: partial(bind, policy=policy(kind), budget=budget, branch_k=branch_k)
        for name, kind in ((f"chain/{budget}", "chain"), (f"tree/{budget}", "best_first"))
    }
    recordings: list[Recording] = []
    for dtype in DTYPES:
        target = open_in(dtype)
        delta = delta_of(gate, target) if isinstance(gate, Path) else gate or None
        cases = held_out(target, list(tasks), prompts)
        done: list[Recording] = []
        for done in record(target, drafters, cases, max_new_tokens=max_new_tokens, delta=delta):
            if not json:
                console.print(f"{dtype}: {len(done[0].token_ids)}/{prompts} prompts", end="\r")
        recordings += done
    found = rows(recordings)
    answer = {
        **as_dict(found, recordings),
        "manifest": manifest(tasks=list(tasks), prompts=prompts, budget=budget, max_new_tokens=max_new_tokens),
    }
    if out is not None:
        opening.write_text(out, jsonlib.dumps(answer, indent=1) + "\n")
    if json:
        terminal.write_json(answer)
    else:
        print(markdown(found))
    return all(row.identical == row.total for row in found if row.kind == "drafter" and row.arithmetic == "float32")
