"""What a report is made of: tables, what a reader needs to judge them, and charts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
        manifest: what ran, on what; empty where another section says so.
    """

    name: str
    columns: dict[str, str]
    rows: list[dict[str, Any]]
    notes: list[str]
    charts: list[Chart]
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def texts(self) -> frozenset[str]:
        """Columns whose values are words, which stand on the left."""
        return frozenset(name for name in self.columns if any(_is_word(row.get(name)) for row in self.rows))


def _is_word(value: Any) -> bool:
    if not isinstance(value, str):
        return isinstance(value, bool)
    try:
        float(value)
    except ValueError:
        return True
    return False
