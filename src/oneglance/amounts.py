"""Amounts for people: each in the unit that leaves a number one can read."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 3  # names of many
BYTES = (("GB", 1e9, 1e8, 2), ("MB", 1e6, 1e6, 1), ("KB", 1e3, 1e3, 1))
NUMBERS = (("B", 1e9, 1e9, 2), ("M", 1e6, 1e6, 1), ("K", 1e3, 1e3, 1))


def size(count: float) -> str:
    """Bytes: 2.10 GB, 31.4 MB, 1.2 KB, 17 bytes."""
    return _scaled(count, BYTES) or plural(round(count), "byte")


def parameters(count: int) -> str:
    """Of a head: 1.05 B, 1.4 M, 23.1 K."""
    return (_scaled(count, NUMBERS) or str(count)) + " parameters"


def duration(seconds: float) -> str:
    """Time: 2.5 h, 12 min, 40 s, a second (or less)."""
    if seconds < 1.5:
        return "a second"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def plural(count: int, noun: str, several: str | None = None) -> str:
    """1 prompt, 2 prompts; ``several`` is a plural that takes more than an s."""
    return f"{count} {noun if count == 1 else several or noun + 's'}"


def listed(names: Sequence[object]) -> str:
    """The first few of many names."""
    more = len(names) - SHOWN
    return ", ".join(map(str, names[:SHOWN])) + (f" and {more} more" if more > 0 else "")


def _scaled(count: float, units: tuple[tuple[str, float, float, int], ...]) -> str | None:
    """In the first unit whose least amount this reaches."""
    return next((f"{count / one:.{digits}f} {name}" for name, one, least, digits in units if count >= least), None)
