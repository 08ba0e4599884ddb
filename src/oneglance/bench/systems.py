"""Systems of a benchmark: drafters behind the one seam, all decoding in the one loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from oneglance.core import Drafter, InputError
from oneglance.drafters import prepare
from oneglance.targets.base import Target
from oneglance.tree import policy

# system → (drafter, tree policy)
SYSTEMS: dict[str, tuple[str, str]] = {
    "plain": ("none", "best_first"),
    "plain-shaped": ("none", "best_first"),  # what --fixed-shape costs: plain decoding in the shape of the others
    "chain": ("block", "chain"),
    "tree": ("block", "best_first"),
}


def prepare_systems(names: list[str], head: str | None, *, budget: int) -> dict[str, Callable[[Target], Drafter]]:
    """What binds each system to a target; checkpoints are loaded now.

    Raises:
        InputError: an unknown system, or one named twice.
    """
    if len(set(names)) != len(names):
        raise InputError(f"a system is named twice: {', '.join(names)}")
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        raise InputError(f"unknown system {unknown[0]!r}; choose from {', '.join(SYSTEMS)}")
    return {
        name: partial(prepare(SYSTEMS[name][0], head), policy=policy(SYSTEMS[name][1]), budget=budget) for name in names
    }
