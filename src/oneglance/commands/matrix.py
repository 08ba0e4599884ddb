"""``oneglance audit --matrix``: every arm next to its drafter-free controls, in float32 and bfloat16."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from oneglance.audit import BindDrafter
from oneglance.bench.cases import Case as Asked
from oneglance.bench.manifest import manifest
from oneglance.commands import opening, terminal
from oneglance.commands.asking import encoded
from oneglance.core import InputError
from oneglance.drafters import installed, prepare, takes
from oneglance.files import spliced
from oneglance.matrix.page import PLACE, as_dict, html, markdown
from oneglance.matrix.record import Matrix, merged, record
from oneglance.targets.base import Target
from oneglance.tree import policy

DTYPES = ("float32", "bfloat16")
SUFFIXES = (".json", ".html", ".md")


def run_matrix(
    open_in: Callable[[str], Target],
    bind: Callable[..., Any],
    *,
    drafter: str,
    baselines: Sequence[str],
    asked: Sequence[Asked],
    budget: int,
    branch_k: int | None,
    max_new_tokens: int,
    gate: float | Path,
    out: Sequence[Path],
    json: bool,
) -> bool:
    """Decode, compare, write; whether no divergence is a bug.

    Args:
        open_in: dtype → target.
        bind: makes the drafter that was named, whose tree and, where it has tree policies, chain are arms.
        drafter: its name.
        baselines: ``NAME=CHECKPOINT`` of other drafters; those that need no checkpoint run anyway.
        asked: what is decoded.
        budget, branch_k: of the tree; the chain has the same budget.
        max_new_tokens: cap.
        gate: δ, its file, or 0 to measure it anew in each precision.
        out: files, whose suffix says what goes there.
        json: one JSON object on stdout instead of the tables.
    """
    pages = {path: check_out(path) for path in out}
    options = {"budget": budget, "branch_k": branch_k}
    own: dict[str, BindDrafter] = {}
    if drafter != "none":
        own = {
            f"{name}/{budget}": partial(bind, policy=policy(kind), **options)
            for name, kind in (("chain", "chain"), ("tree", "best_first"))
            if kind == "best_first" or "policy" in takes(drafter)
        }
    others, skipped = prepare_others(baselines, besides=(drafter, "none"))
    console = Console(stderr=True)
    found: list[Matrix] = []
    for dtype in DTYPES:
        target = open_in(dtype)
        cases = list(encoded(target, asked))
        drafters = {**own}
        for name, make in others.items():
            try:
                make(target, policy=policy("best_first"), **options)
            except InputError as error:
                skipped[name] = str(error)
            else:
                drafters[f"{name}/{budget}"] = partial(make, policy=policy("best_first"), **options)
        delta = opening.delta(gate, target) or None
        gated = f"tree/{budget}" if own else None
        runs = record(target, drafters, cases, gated=gated, delta=delta, max_new_tokens=max_new_tokens)
        matrix = Matrix()
        for matrix in runs:
            if not json:
                console.print(f"{dtype}: {matrix.comparisons[0].total}/{len(asked)} prompts", end="\r")
        found.append(matrix)
    whole = merged(found, target, cases)
    whole.skipped = skipped
    facts = manifest(
        tasks=list(dict.fromkeys(case.task for case in asked)),
        prompts=len(asked),
        budget=budget,
        max_new_tokens=max_new_tokens,
        device=target.device.type,
        passes=target.passes.name,
    )
    for path, page in pages.items():
        opening.write_text(path, written(path, page, whole, facts))
    if json:
        terminal.write_json(as_dict(whole, facts))
    else:
        print(markdown(whole, facts))
        print(f"{whole.ties} ties, {whole.bugs} bugs")
    return not whole.bugs


def prepare_others(
    baselines: Sequence[str], *, besides: Sequence[str]
) -> tuple[dict[str, Callable[..., Any]], dict[str, str]]:
    """Every installed drafter that can run, and why others cannot.

    Raises:
        InputError: a baseline that was named cannot be loaded.
    """
    given = {}
    for text in baselines:
        name, _, checkpoint = text.rpartition("=")
        if not name or not checkpoint or _bare(name) in besides:
            raise InputError(f"--baseline takes NAME=CHECKPOINT of a drafter besides --drafter, got {text!r}")
        given[name] = prepare(name, checkpoint)
    ready, skipped = dict(given), {}
    for name in installed():
        if name not in besides and name not in map(_bare, given):
            try:
                ready[name] = prepare(name, None)
            except InputError as error:
                skipped[name] = str(error)
    return ready, skipped


def _bare(name: str) -> str:
    """A drafter's name without the settings that may follow it."""
    return name.partition(":")[0]


def check_out(path: Path) -> str | None:
    """The Markdown page whose table is to be replaced, or None for a file that is written whole.

    Raises:
        InputError: no format is known by that suffix, the folder is missing, or the page has no place for the table.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"--out writes {', '.join(SUFFIXES)}, got {path.name!r}; choose one of these suffixes")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent} for --out; make it first")
    if path.suffix != ".md" or not path.exists():
        return None
    page = path.read_text(encoding="utf-8")
    spliced(page, PLACE, "")
    return page


def written(path: Path, page: str | None, matrix: Matrix, facts: dict[str, Any]) -> str:
    """What goes into one file."""
    if path.suffix == ".json":
        return jsonlib.dumps(as_dict(matrix, facts), indent=1) + "\n"
    if path.suffix == ".html":
        return html(matrix, facts)
    table = markdown(matrix, facts)
    return table if page is None else spliced(page, PLACE, table)
