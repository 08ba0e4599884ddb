"""Where on the page each token of an answer stands: what the pointer losses teach."""

from __future__ import annotations

import re
from typing import Final

from tokenizers import Encoding

from oneglance.tasks.pages.page import Page, Sheet
from oneglance.tasks.pages.scenes import KINDS
from oneglance.tasks.pages.words import COLOURS

_ENDS: Final = ".,:%"


def token_points(drawn: Sheet, encoding: Encoding) -> list[tuple[float, float] | None]:
    """The place (x, y in px) of each of the answer's tokens; None for tokens that the page does not show."""
    points = _char_points(drawn)
    found = []
    for start, end in encoding.offsets:
        seen = [index for index in range(start, end) if not drawn.answer[index].isspace()]
        found.append(points.get(seen[0]) if seen else None)
    return found


def _char_points(drawn: Sheet) -> dict[int, tuple[float, float]]:
    """The place of each character of the answer that the page shows."""
    if drawn.page.marks:
        return _mark_points(drawn)
    page, starts = drawn.page, _word_starts(drawn.page)
    points: dict[int, tuple[float, float]] = {}
    last, used = -1, set[int]()
    for match in re.finditer(r"\S+", drawn.answer):
        at = _find(page, match[0], last, used)
        if at is None:
            continue
        last = at
        used.add(at)
        for offset in range(len(match[0])):
            glyph = page.glyphs[starts[at] + min(offset, len(page.words[at].text) - 1)]
            points[match.start() + offset] = (glyph.left + 1, glyph.middle)
    return points


def _word_starts(page: Page) -> list[int]:
    """The index of each word's first glyph."""
    starts, total = [], 0
    for word in page.words:
        starts.append(total)
        total += len(word.text)
    return starts


def _find(page: Page, word: str, last: int, used: set[int]) -> int | None:
    """The unused word of the page that this one repeats: the next one, or else the first."""
    order: list[int] = [*range(last + 1, len(page.words)), *range(last + 1)]
    for wanted in (word, word.rstrip(_ENDS)):
        for index in order:
            text = page.words[index].text
            if index not in used and wanted in (text, text.rstrip(_ENDS)):
                return index
    return None


def _mark_points(drawn: Sheet) -> dict[int, tuple[float, float]]:
    """In a caption, the n-th thing named is the n-th thing drawn."""
    points = {}
    names = rf"\b(?:{'|'.join(COLOURS)}) (?:{'|'.join(KINDS)})\b"
    for match, mark in zip(re.finditer(names, drawn.answer), drawn.page.marks, strict=False):
        left, top, right, bottom = mark.box
        for index in range(match.start(), match.end()):
            points[index] = ((left + right) / 2, (top + bottom) / 2)
    return points
