"""Scores of the official tasks, each from an answer and its references, in 0..1."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from typing import Final

from oneglance.tasks.grading import edit_distance, is_close

ANLS_THRESHOLD: Final = 0.5
ARTICLES: Final = {"a", "an", "the"}
NUMBERS: Final = dict(zip("zero one two three four five six seven eight nine ten".split(), range(11), strict=True))


def anls(answer: str, references: Sequence[str]) -> float:
    """Average normalised Levenshtein similarity of one answer: the best reference, 0 below one half (DocVQA)."""
    return max((_similarity(answer, reference) for reference in references), default=0.0)


def relaxed_accuracy(answer: str, references: Sequence[str]) -> float:
    """A number within five percent, or else the same text (ChartQA)."""
    return float(any(_is_relaxed_match(answer, reference) for reference in references))


def vqa_accuracy(answer: str, references: Sequence[str]) -> float:
    """min(1, matches / 3) averaged over leaving each of the annotators out (TextVQA), after normalisation."""
    given, wanted = normalise(answer), [normalise(reference) for reference in references]
    if len(wanted) < 2:
        return float(given in wanted)
    matches = sum(given == reference for reference in wanted)
    scores = [min(1.0, (matches - (given == own)) / 3) for own in wanted]
    return sum(scores) / len(scores)


def exact_match(answer: str, references: Sequence[str]) -> float:
    """The same text, whatever its case, spaces and final full stop."""
    given = _bare(answer)
    return float(any(given == _bare(reference) for reference in references))


def normalise(answer: str) -> str:
    """As the VQA evaluation does: lower case, no articles or punctuation, digits for number words."""
    text = re.sub(r"(?<=\d),(?=\d)", "", answer.lower().strip())
    text = re.sub(rf"(?<!\d)[{re.escape(string.punctuation)}]|[{re.escape(string.punctuation)}](?!\d)", " ", text)
    words = [str(NUMBERS.get(word, word)) for word in text.split() if word not in ARTICLES]
    return " ".join(words)


SCORES: Final[dict[str, Callable[[str, Sequence[str]], float]]] = {
    "anls": anls,
    "relaxed_accuracy": relaxed_accuracy,
    "vqa_accuracy": vqa_accuracy,
    "exact_match": exact_match,
}


def _similarity(answer: str, reference: str) -> float:
    given, wanted = (" ".join(text.lower().split()) for text in (answer, reference))
    longest = max(len(given), len(wanted))
    similarity = 1.0 - edit_distance(given, wanted) / longest if longest else 1.0
    return similarity if similarity >= ANLS_THRESHOLD else 0.0


def _is_relaxed_match(answer: str, reference: str) -> bool:
    given, wanted = _number(answer), _number(reference)
    if given is not None and wanted is not None:
        return given == wanted if wanted == 0 else is_close(given, wanted)
    return _bare(answer) == _bare(reference)


def _number(text: str) -> float | None:
    bare = text.strip().rstrip(".").replace(",", "")
    scale = 0.01 if bare.endswith("%") else 1.0
    try:
        return float(bare.rstrip("%")) * scale
    except ValueError:
        return None


def _bare(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".")
