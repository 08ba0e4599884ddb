"""The built-in suite: pages drawn from a seed, with their true text.

Evaluation seeds and training seeds are disjoint ranges, and evaluation pages show word
combinations and numbers that no training page shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from oneglance.core import InputError
from oneglance.tasks.base import TASKS, Example, Split
from oneglance.tasks.pages.charts import chart
from oneglance.tasks.pages.documents import document
from oneglance.tasks.pages.page import Sheet
from oneglance.tasks.pages.pick import Pick
from oneglance.tasks.pages.scenes import scene
from oneglance.tasks.pages.science import question
from oneglance.tasks.pages.signs import infographic, sign

__all__ = ["SEEDS", "TASKS", "VERSIONS", "Split", "draw", "examples", "sheet"]

VERSIONS: Final = {"caption": 2, "textvqa": 1, "infovqa": 2, "docvqa": 1, "chartqa": 1, "scienceqa": 1}
"""Raised for a family whenever a seed draws a different page or answer."""

SEEDS: Final[dict[Split, range]] = {"eval": range(100_000), "train": range(100_000, 2**40)}

_DRAWERS: Final[dict[str, Callable[[Pick], Sheet]]] = {
    "caption": scene,
    "textvqa": sign,
    "infovqa": infographic,
    "docvqa": document,
    "chartqa": chart,
    "scienceqa": question,
}


def sheet(task: str, seed: int, *, split: Split) -> Sheet:
    """The page of a seed with its glyphs and objects (what the reader's training needs)."""
    if task not in _DRAWERS:
        raise InputError(f"no task {task!r} in the built-in suite; there are {', '.join(TASKS)}")
    if seed not in SEEDS[split]:
        raise InputError(f"seed {seed} is not of the {split} split: {SEEDS[split]}")
    return _DRAWERS[task](Pick(f"{VERSIONS[task]}/{task}/{seed}", split))


def draw(task: str, index: int, *, split: Split) -> Example:
    """The ``index``-th example of a split (0-based): the same pixels on every machine.

    Raises:
        InputError: no such task, or an index past the split.
    """
    if not 0 <= index < len(SEEDS[split]):
        raise InputError(f"index must be from 0 to {len(SEEDS[split]) - 1} in the {split} split, got {index}")
    drawn = sheet(task, SEEDS[split][index], split=split)
    page = drawn.page
    name = f"{task}-{split}-{index:06d}"
    return Example(name, task, drawn.prompt, drawn.answer, page.image, tuple(page.words), drawn.facts)


def examples(task: str, *, split: Split, limit: int, start: int = 0) -> Iterator[Example]:
    """``limit`` examples from the split's ``start``-th on, drawn one at a time."""
    return (draw(task, index, split=split) for index in range(start, start + limit))
