"""scienceqa: a drawn question with one letter for an answer."""

from __future__ import annotations

from typing import Final

from oneglance.tasks.pages import words as w
from oneglance.tasks.pages.page import ROW, SQUARE, Page, Sheet
from oneglance.tasks.pages.pick import Pick

LETTERS: Final = ("A", "B", "C", "D")
INK: Final = (20, 20, 20)


def question(pick: Pick) -> Sheet:
    """Beakers or thermometers to compare."""
    return pick.one((beakers, thermometers))(pick)


def _levels(pick: Pick, count: int) -> list[int]:
    """Different levels of ten, so that most and least are plain to see."""
    return pick.some(range(1, 10), count)


def beakers(pick: Pick) -> Sheet:
    """Glasses filled to different heights."""
    count, colour = pick.whole(3, 4), pick.one(list(w.COLOURS.values()))
    levels, page = _levels(pick, count), Page(SQUARE, pick.one(w.TINTS))
    step, floor = SQUARE[0] / count, SQUARE[1] - ROW
    for index, level in enumerate(levels):
        middle = step * (index + 0.5)
        page.pen.rectangle((middle - 20, floor - 15 * level, middle + 20, floor - 4), fill=colour)
        page.pen.line(
            [(middle - 22, ROW), (middle - 22, floor - 3), (middle + 22, floor - 3), (middle + 22, ROW)], INK, 2
        )
        page.text((middle, floor + ROW / 2 - 2), LETTERS[index], face="bold", size=18, fill=INK, align="centre")
    return _ask(pick, page, levels, "Which glass holds the {} liquid?", ("most", "least"))


def thermometers(pick: Pick) -> Sheet:
    """Rows of labelled scales with a coloured column."""
    count, colour = pick.whole(3, 4), pick.one(list(w.COLOURS.values()))
    levels, page = _levels(pick, count), Page(SQUARE, pick.one(w.TINTS))
    top = ROW * pick.whole(1, 3)
    for index, level in enumerate(levels):
        middle = top + ROW * index + ROW / 2
        page.text((20, middle), LETTERS[index], face="bold", size=18, fill=INK, align="centre")
        page.pen.rectangle((44, middle - 8, 236, middle + 8), outline=INK)
        page.pen.rectangle((45, middle - 7, 45 + 21 * level, middle + 7), fill=colour)
    return _ask(pick, page, levels, "Which thermometer is the {}?", ("hottest", "coldest"))


def _ask(pick: Pick, page: Page, levels: list[int], question: str, ends: tuple[str, str]) -> Sheet:
    """The prompt for one end of the scale and the letter that answers it."""
    end = pick.one(ends)
    level = max(levels) if end == ends[0] else min(levels)
    page.finish(pick)
    prompt = f"{question.format(end)} Answer with one letter."
    return Sheet(page, prompt, LETTERS[levels.index(level)])
