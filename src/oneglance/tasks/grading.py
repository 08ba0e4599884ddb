"""Graders of the built-in suite: one per family, each from the answer's text alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from oneglance.tasks.base import Example
from oneglance.tasks.pages.scenes import KINDS, NUMBERS, PLACE_PHRASES, SIDE_PHRASES, SIZE_WORDS
from oneglance.tasks.pages.signs import wordings
from oneglance.tasks.pages.words import COLOURS

RELAXED: Final = 0.05
"""A number is right within this relative error."""


@dataclass(frozen=True, slots=True)
class Grade:
    """How many of an answer's items are right; errors and characters for transcriptions."""

    right: float
    total: int
    char_errors: int = 0
    num_chars: int = 0
    wording: str = ""

    @property
    def share(self) -> float:
        """Right items over all items; 1 when nothing was asked or stated."""
        return self.right / self.total if self.total else 1.0


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions and substitutions between two texts."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


def grade(example: Example, answer: str) -> Grade:
    """Grade an answer by its example's family."""
    return GRADERS[example.task](example, answer)


def lines(example: Example, answer: str) -> Grade:
    """Exact lines, in place, and character errors."""
    wanted, given = example.answer.split("\n"), answer.split("\n")
    right = sum(a == b for a, b in zip(wanted, given, strict=False))
    return Grade(right, len(wanted), edit_distance(example.answer, answer), len(example.answer))


def labelled_values(example: Example, answer: str) -> Grade:
    """`label: value` pairs whose number is right within five percent."""
    given = dict(pair for line in answer.split("\n") if (pair := _pair(line)))
    right = 0
    for fact in example.facts:
        label, value = _pair(fact) or ("", 0.0)
        right += label in given and is_close(given[label], value)
    return Grade(right, len(example.facts))


def _pair(line: str) -> tuple[str, float] | None:
    match = re.fullmatch(r"(.+): (\d+(?:\.\d+)?)%?", line.strip())
    return (match[1], float(match[2])) if match else None


def is_close(given: float, wanted: float) -> bool:
    """Relaxed accuracy: within five percent."""
    return abs(given - wanted) <= RELAXED * abs(wanted)


def sentences(example: Example, answer: str) -> Grade:
    """Facts that the answer states in one of their wordings."""
    given = Counter(re.split(r"(?<=\.)\s+", answer.strip()))
    right = sum(any(given[said] for said in wordings(fact)) for fact in example.facts)
    return Grade(right, len(example.facts))


def words(example: Example, answer: str) -> Grade:
    """Words of the sign that the answer holds."""
    given = Counter(answer.rstrip(".").split())
    right = sum((given & Counter(example.facts)).values())
    return Grade(right, len(example.facts))


def letter(example: Example, answer: str) -> Grade:
    """The one letter."""
    return Grade(int(answer.strip() == example.answer), 1)


_SIZES: Final = {word: size for size, words in SIZE_WORDS.items() for word in words}
_SIDES: Final = {phrase: side for side, phrases in SIDE_PHRASES.items() for phrase in phrases}
_WHERE: Final = {phrase: place for place, phrases in PLACE_PHRASES.items() for phrase in phrases}
_THING: Final = re.compile(
    rf"(?:a|an|one) (?:({'|'.join(_SIZES)}) )?({'|'.join(COLOURS)}) ({'|'.join(KINDS)})(?: ({'|'.join(_SIDES)}))?\b"
)


def caption(example: Example, answer: str) -> Grade:
    """Stated facts that hold: things with their attributes, the place, the count.

    The wording is the answer with what it names blanked out, so that wordings can be counted.
    """
    things = [tuple(f.split()) for f in example.facts if not f.startswith(("place", "count"))]
    stated = [_is_there(match.groups(), things) for match in _THING.finditer(answer)]
    stated += [f"place {place}" in example.facts for phrase, place in _WHERE.items() if phrase in answer]
    stated += [f"count {n}" in example.facts for n, phrase in NUMBERS.items() if phrase in answer]
    names = "|".join((*_WHERE, *NUMBERS.values()))
    wording = re.sub(names, "_", _THING.sub("_", answer))
    return Grade(sum(stated), max(len(stated), 1), wording=wording)


def _is_there(stated: tuple[str | None, ...], things: list[tuple[str, ...]]) -> bool:
    size, colour, kind, where = stated
    wanted = (_SIZES.get(size or ""), colour, kind, _SIDES.get(where or ""))
    return any(all(w is None or w == h for w, h in zip(wanted, thing, strict=True)) for thing in things)


GRADERS: Final[dict[str, Callable[[Example, str], Grade]]] = {
    "caption": caption,
    "textvqa": words,
    "infovqa": sentences,
    "docvqa": lines,
    "chartqa": labelled_values,
    "scienceqa": letter,
}
