"""textvqa (signs and posters) and infovqa (infographics)."""

from __future__ import annotations

import re
from typing import Final

from oneglance.tasks.pages import words as w
from oneglance.tasks.pages.page import MARGIN, ROW, SQUARE, Page, Sheet, fitted
from oneglance.tasks.pages.pick import Pick

SIGN_PROMPTS: Final = ("What is written on the sign?", "What does the sign say?", "Read the sign.")
SIGN_FACES: Final = ("bold", "slab", "humanist", "sans")
INFO_PROMPTS: Final = ("What does the infographic say?", "Summarize the infographic.", "List the facts.")
INFO_FACES: Final = ("sans", "humanist", "serif", "slab")
_FACT: Final = re.compile(r"(\d+%) of (\S+) in (\S+) (\S+ \S+)\.")
WHITE: Final = (255, 255, 255)
INK: Final = (20, 20, 20)


def contrast(colour: w.Rgb) -> w.Rgb:
    """White on dark colours, black on light ones."""
    return WHITE if 0.3 * colour[0] + 0.6 * colour[1] + 0.1 * colour[2] < 150 else (0, 0, 0)


def sign(pick: Pick) -> Sheet:
    """A coloured board with one to four lines of capitals."""
    lines = _sign_lines(pick)
    name = pick.one(list(w.COLOURS))
    colour = w.COLOURS[name]
    page = Page(SQUARE, pick.one(((200, 220, 240), (225, 225, 225), (214, 232, 206), (240, 232, 214))))
    row = pick.whole(0, SQUARE[1] // ROW - len(lines) - 1)
    left, right = pick.whole(6, 40), SQUARE[0] - pick.whole(6, 40)
    top, bottom = ROW * row + 4, ROW * (row + len(lines)) + 12
    post = (left + right) / 2 + pick.whole(-30, 30)
    page.pen.rectangle((post - 4, bottom, post + 4, SQUARE[1]), fill=(120, 110, 100))
    page.pen.rounded_rectangle((left, top, right, bottom), pick.whole(0, 10), fill=colour)
    face, shift, align = pick.one(SIGN_FACES), pick.whole(4, 10), pick.one(("left", "centre"))
    at = {"left": left + 10, "centre": (left + right) / 2}[align]
    for index, text in enumerate(lines):
        size = fitted(face, pick.whole(18, 23), text, right - left - 20)
        middle = ROW * (row + index) + ROW / 2 + shift
        page.text((at, middle), text, face=face, size=size, fill=contrast(colour), align=align)
    page.finish(pick)
    said = " ".join(lines)
    answer = pick.one(
        (
            f"The sign reads {said}.",
            f"It says {said}.",
            f"A {name} sign with the words {said}.",
            f"The {name} sign says {said}.",
        )
    )
    return Sheet(page, pick.one(SIGN_PROMPTS), answer, tuple(said.split()))


def _sign_lines(pick: Pick) -> list[str]:
    lines = []
    for _ in range(pick.whole(1, 4)):
        kind = pick.whole(0, 3)
        if kind == 0:
            lines.append(f"{pick.one(w.NUMBERED_SIGNS)} {pick.number(100, 999)}")
        elif kind == 1:
            lines.append(pick.one(w.SIGNS))
        else:
            lines.append(" ".join(pick.pair(w.SIGNS, w.SIGNS)))
    return lines


def infographic(pick: Pick) -> Sheet:
    """A title, three shares of people with what they do, and a source."""
    page = Page(SQUARE, pick.one(w.TINTS))
    face, size, shift = pick.one(INFO_FACES), pick.whole(15, 17), pick.whole(-3, 3)
    title, source = pick.one(w.SURVEY_TITLES), f"Source: {pick.one(w.CITIES)} {pick.whole(2001, 2029)}"
    page.text((SQUARE[0] / 2, ROW / 2 + shift), title, face="bold", size=19, fill=INK, align="centre")
    facts = []
    for index in range(3):
        facts.append(_fact(pick, page, ROW * (2 * index + 1) + shift, face, size))
    page.text((pick.whole(MARGIN, 60), ROW * 7.5 + shift), source, face=face, size=14, fill=INK)
    page.finish(pick)
    prompt = pick.one(INFO_PROMPTS)
    told = [pick.worded("fact", fact.split()[-1], wordings(fact)) for fact in facts]
    answer = "\n".join(facts) if prompt == INFO_PROMPTS[2] else " ".join([f"{title}.", *told, f"{source}."])
    return Sheet(page, prompt, answer, tuple(facts))


def _fact(pick: Pick, page: Page, top: float, face: str, size: int) -> str:
    """A coloured disc and two lines of text; returns them as a sentence."""
    thing = pick.one((w.ITEMS, w.GOODS))
    group, city = pick.one(w.GROUPS), pick.one(w.CITIES)
    what = pick.one(thing)
    share = pick.value_for(what, 1, 99)
    colour = pick.one(list(w.COLOURS.values()))
    page.pen.ellipse((MARGIN + 2, top + 10, MARGIN + 42, top + 50), fill=colour)
    page.pen.ellipse((MARGIN + 14, top + 22, MARGIN + 30, top + 38), fill=page.ground)
    first, second = f"{share}% of {group}", f"in {city} {pick.one(w.VERBS)} {what}"
    for row, line in enumerate((first, second)):
        middle = top + ROW * row + ROW / 2
        fit = fitted(face, size, line, SQUARE[0] - MARGIN - 60)
        page.text((60, middle), line, face=face, size=fit, fill=INK)
    return f"{first} {second}."


def wordings(fact: str) -> tuple[str, ...]:
    """The sentences that say a fact, the page's own first."""
    share, group, city, does = _FACT.fullmatch(fact).groups()  # type: ignore[union-attr]  # every fact is made by `_fact`
    return (
        fact,
        f"In {city}, {share} of {group} {does}.",
        f"Of {group} in {city}, {share} {does}.",
        f"{share} of the {group} of {city} {does}.",
    )
