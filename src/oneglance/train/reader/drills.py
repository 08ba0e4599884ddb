"""Training-only pages of words and strings that no language model can guess: they teach copying."""

from __future__ import annotations

import string
from typing import Final

from oneglance.tasks.pages import words as w
from oneglance.tasks.pages.documents import PROMPTS
from oneglance.tasks.pages.page import FACES, MARGIN, ROW, SHEET, SQUARE, Page, Sheet, fitted
from oneglance.tasks.pages.pick import Pick
from oneglance.tasks.pages.signs import contrast

WORDS: Final = tuple(
    dict.fromkeys(
        word
        for group in (
            *(w.FIRST, w.LAST, w.CITIES, w.ITEMS, w.GOODS, w.ADJECTIVES, w.MONTHS, w.WEEKDAYS, w.DEPARTMENTS),
            *(w.STREETS, w.STREET_KINDS, w.SHOPS, w.SIGNS, w.SIGNS, w.NUMBERED_SIGNS, w.GROUPS, w.VERBS),
            *(w.MEASURES, w.SHORT_MONTHS, w.SHORT_DAYS),
        )
        for word in group
    )
)


def drill(pick: Pick, *, lines: tuple[int, int], tall: bool = False) -> Sheet:
    """Lines of unrelated words and strings, dark on light or light on dark."""
    size = SHEET if tall else SQUARE
    dark = pick.chance(0.3)
    ground = pick.one(list(w.COLOURS.values())) if dark else pick.one(w.PAPERS + w.TINTS)
    page = Page(size, ground)
    fill = contrast(ground) if dark else pick.one(w.INKS)
    rows = size[1] // ROW
    count = min(rows, pick.whole(*lines))
    top, shift, text = pick.whole(0, rows - count), pick.whole(-4, 4), []
    for row in range(top, top + count):
        face, height = pick.one(list(FACES)), pick.whole(14, 22)
        left = pick.whole(MARGIN, 90)
        line = _line(pick, face, height, size[0] - MARGIN - left)
        page.text((left, ROW * row + ROW / 2 + shift), line, face=face, size=fitted(face, height, line, 232), fill=fill)
        text.append(line)
    page.finish(pick)
    return Sheet(page, pick.one(PROMPTS), "\n".join(text))


def _line(pick: Pick, face: str, size: int, width: float) -> str:
    line = _word(pick)
    for _ in range(pick.whole(0, 4)):
        longer = f"{line} {_word(pick)}"
        if fitted(face, size, longer, width) < size:
            break
        line = longer
    return line


def _word(pick: Pick) -> str:
    kind = pick.whole(0, 9)
    if kind < 5:
        return pick.one(WORDS) + pick.one(("", "", "", "", ",", ".", ":"))
    if kind < 7:
        return "".join(pick.one(string.digits) for _ in range(pick.whole(1, 5)))
    if kind == 7:
        return f"{pick.whole(0, 999)}{pick.one('.:-%/')}{pick.whole(0, 99):02d}"
    letters = pick.one((string.ascii_lowercase, string.ascii_uppercase))
    return "".join(pick.one(letters) for _ in range(pick.whole(2, 7)))
