"""What the paper says, item by item, with the revision that says it; "—" where no revision at hand does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from oneglance.core import InputError
from oneglance.files import parse_yaml

DASH = "—"
KEYS = ("revision", "system", "quantity")


@dataclass(frozen=True, slots=True)
class Value:
    """One number of the paper: where it stands, and what it is of."""

    revision: str
    system: str
    quantity: str
    task: str
    value: float


@dataclass(frozen=True, slots=True)
class Item:
    """A table or figure.

    Attributes:
        name, title: which.
        kind: what runs here for it, or None.
        needs: what numbers like the paper's take.
        command: what to run.
        values: of the paper.
    """

    name: str
    title: str
    kind: str | None
    needs: str
    command: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """One number of ours, with its interval where there is one."""

    system: str
    quantity: str
    task: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """The paper's number beside ours; either may be missing."""

    item: str
    system: str
    quantity: str
    task: str
    paper: float | str
    revision: str | None
    ours: float | str
    low: float | None
    high: float | None
    status: str


@cache
def items() -> dict[str, Item]:
    """Every table and figure of the paper."""
    data = parse_yaml((resources.files("oneglance.report") / "paper.yaml").read_text(encoding="utf-8"))
    return {name: _item(name, entry, data["revisions"]) for name, entry in data["items"].items()}


def choose(name: str) -> list[Item]:
    """One item, or all.

    Raises:
        InputError: there is none of that name.
    """
    known = items()
    if name == "all":
        return list(known.values())
    if name not in known:
        raise InputError(f"the paper has no {name!r}; choose table1 to table17, fig1 to fig9, or all")
    return [known[name]]


def beside(item: Item, ours: list[Measured], *, is_same_target: bool) -> list[Line]:
    """The paper's numbers beside ours, in the paper's order, then what only we have.

    Args:
        item: which table.
        ours: measured, empty where nothing ran.
        is_same_target: whether the target is the paper's; else the two columns are of different models.
    """
    found = {(m.system, m.quantity, m.task): m for m in ours}
    lines = []
    for value in item.values:
        own = found.pop((value.system, value.quantity, value.task), None)
        lines.append(_line(item, value, own, is_same_target))
    if not item.values and not ours:
        lines.append(Line(item.name, DASH, DASH, DASH, DASH, None, DASH, None, None, f"needs {item.needs}"))
    lines += [
        Line(item.name, m.system, m.quantity, m.task, DASH, None, m.value, m.low, m.high, "measured; not in the text")
        for m in found.values()
    ]
    return lines


def _line(item: Item, value: Value, own: Measured | None, is_same_target: bool) -> Line:
    if own is None:
        status = f"not run: needs {item.needs}"
    elif not is_same_target:
        status = "another target: not comparable"
    elif own.low is not None and own.high is not None:
        status = "in our interval" if own.low <= value.value <= own.high else "outside our interval"
    else:
        status = "measured, without an interval"
    return Line(
        item.name,
        value.system,
        value.quantity,
        value.task,
        value.value,
        value.revision,
        DASH if own is None else own.value,
        None if own is None else own.low,
        None if own is None else own.high,
        status,
    )


def _item(name: str, entry: Mapping[str, Any], revisions: Mapping[str, str]) -> Item:
    values = tuple(value for row in entry["values"] for value in _values(row, revisions))
    return Item(name, entry["title"], entry["kind"], entry["needs"], entry["command"], values)


def _values(row: Mapping[str, Any], revisions: Mapping[str, str]) -> Iterator[Value]:
    for task, value in row.items():
        if task not in KEYS:
            yield Value(revisions[row["revision"]], row["system"], row["quantity"], task, float(value))
