"""One thing varied: which runs that takes, and what each of their rows is a point of.

Budgets and depths are arms of one run and share its plain arm. Context, temperature and threads change plain decoding
as well, so each of their values is a run with a plain arm of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from oneglance.bench.metrics import Row, summarise
from oneglance.bench.record import Record
from oneglance.bench.runner import Bench, Bind
from oneglance.core import InputError

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Axis:
    """What is varied.

    Attributes:
        name: of the axis.
        unit: of its values.
        defaults: values.
        is_shared: whether the values are arms of one run.
        number: reads a value.
    """

    name: str
    unit: str
    defaults: tuple[float, ...]
    is_shared: bool
    number: Callable[[str], float] = int


AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis("budget", "nodes", (15, 31, 47, 63), True),
        Axis("depth", "nodes of a chain", (1, 2, 3, 5, 7, 10, 15), True),
        Axis("context", "% of each image's own resolution", (50, 75, 100, 150), False),
        Axis("temperature", "", (0.0, 0.5, 0.7, 1.0), False, float),
        Axis("threads", "CPU threads", (1, 2, 4), False),
    )
}


@dataclass(frozen=True, slots=True)
class Point:
    """One row of a sweep.

    Attributes:
        value: on the axis; None for the plain arm that all share.
        context: mean tokens of the prompts, image rows included.
        row: the benchmark's row.
    """

    value: float | None
    context: float
    row: Row


def axis(name: str) -> Axis:
    """The axis of that name.

    Raises:
        InputError: there is none.
    """
    if name not in AXES:
        raise InputError(f"cannot sweep {name!r}; choose one of {', '.join(AXES)}")
    return AXES[name]


def values_of(along: Axis, text: str | None) -> list[float]:
    """Values of a comma-separated list, or the axis's own.

    Raises:
        InputError: no numbers, or none that the axis can take.
    """
    try:
        found = list(along.defaults) if text is None else [along.number(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--values takes numbers such as {_example(along)}, got {text!r}") from error
    least = 0 if along.name == "temperature" else 1
    if len(set(found)) < len(found) or any(value < least for value in found):
        raise InputError(f"--values of {along.name} must differ and be at least {least}, got {text!r}")
    return found


def arms(along: Axis, systems: Mapping[str, Bind], values: Sequence[float]) -> dict[str, Bind]:
    """Systems at every budget or depth, beside one plain arm: "tree/31".

    Raises:
        InputError: no system but plain.
    """
    drafting = {name: bind for name, bind in systems.items() if name != PLAIN}
    if not drafting:
        raise InputError("a sweep needs a system besides plain; name one with --systems")
    if not along.is_shared:
        return dict(systems)
    for name in drafting:
        if name == "auto" or ":budget=" in name:
            raise InputError(f"the system {name!r} has a budget of its own, which cannot vary; name it without")
    found: dict[str, Bind] = {PLAIN: systems[PLAIN]}
    for name, bind in drafting.items():
        found |= {f"{name}/{value:g}": partial(bind, budget=int(value)) for value in values}
    return found


def at(bench: Bench, along: Axis, value: float) -> Bench:
    """The run of one value of an axis whose values are runs."""
    if along.name == "context":
        return replace(bench, scale=value / 100)
    if along.name == "temperature":
        return replace(bench, params=replace(bench.params, temperature=value, seed=bench.params.seed or 0))
    if along.name == "threads":
        torch.set_num_threads(int(value))
    return bench


def points(records: Sequence[Record], value: float | None = None) -> list[Point]:
    """Rows with the value of each: of its run, or of its arm's name."""
    found = []
    for row in summarise(records):
        system, _, own = row.system.partition("/")
        context = [r.context for r in records if r.system == row.system and r.task == row.task]
        mean = sum(context) / len(context)
        found.append(Point(float(own) if own else value, mean, replace_system(row, system)))
    return found


def replace_system(row: Row, system: str) -> Row:
    """The row under its system's own name."""
    changes: dict[str, Any] = {"system": system}
    return replace(row, **changes)


def _example(along: Axis) -> str:
    return ",".join(f"{value:g}" for value in along.defaults[:3])
