"""How right an answer is."""

from __future__ import annotations

from dataclasses import dataclass

from oneglance.tasks.base import Example


@dataclass(frozen=True, slots=True)
class Grade:
    """How many of an answer's items are right; errors and characters for transcriptions."""

    right: int
    total: int
    char_errors: int = 0
    num_chars: int = 0
    wording: str = ""


def grade(example: Example, answer: str) -> Grade:
    """Exact lines, in place, and character errors."""
    wanted, given = example.answer.split("\n"), answer.split("\n")
    right = sum(a == b for a, b in zip(wanted, given, strict=False))
    return Grade(right, len(wanted), edit_distance(example.answer, answer), len(example.answer))


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions and substitutions between two texts."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]
