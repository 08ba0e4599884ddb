"""Random choices of a page, with combinations that only the evaluation split may show."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Final, TypeVar

from oneglance.tasks.base import Split

T = TypeVar("T")

HELD_OUT_ONE_IN: Final = 8
HABIT: Final = 0.5
"""How often a wording is the usual one for what it names."""


def is_held_out(*parts: object) -> bool:
    """Whether this combination belongs to the evaluation split alone."""
    key = "\x1f".join(str(part) for part in parts).encode()
    return zlib.crc32(key) % HELD_OUT_ONE_IN == 0


class Pick:
    """A seeded source of choices that knows which split it draws for."""

    def __init__(self, key: str, split: Split) -> None:
        self.rng: Final = random.Random(key)
        self.split: Final = split

    def one(self, options: Sequence[T]) -> T:
        """One of the options."""
        return self.rng.choice(options)

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """`count` different options in random order."""
        return self.rng.sample(options, count)

    def whole(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self.rng.randint(low, high)

    def real(self, low: float, high: float) -> float:
        """A real number of the interval."""
        return self.rng.uniform(low, high)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.rng.random() < probability

    def worded(self, what: str, named: str, options: Sequence[T]) -> T:
        """One of the wordings: mostly the one that goes with what is named, as speakers have habits."""
        if self.chance(HABIT):
            return options[zlib.crc32(f"{what}/{named}".encode()) % len(options)]
        return self.one(options)

    def pair(self, first: Sequence[T], second: Sequence[T]) -> tuple[T, T]:
        """Two options side by side: a combination that the other split never shows."""
        while True:
            pair = (self.one(first), self.one(second))
            if is_held_out(*pair) == (self.split == "eval"):
                return pair

    def number(self, low: int, high: int) -> int:
        """A number (three digits or more) that the other split never shows."""
        while True:
            number = self.whole(low, high)
            if is_held_out(number) == (self.split == "eval"):
                return number

    def value_for(self, label: str, low: int, high: int) -> int:
        """A number for this label: a (label, number) that the other split never shows."""
        while True:
            number = self.whole(low, high)
            if is_held_out(label, number) == (self.split == "eval"):
                return number
