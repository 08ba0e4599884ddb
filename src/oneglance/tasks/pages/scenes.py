"""caption: drawn scenes with many right descriptions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from PIL import ImageDraw

from oneglance.tasks.pages import words as w
from oneglance.tasks.pages.page import SQUARE, Mark, Page, Sheet
from oneglance.tasks.pages.pick import Pick, is_held_out

PROMPTS: Final = ("Describe the image.", "What is in the picture?", "Write a caption.")
Box = tuple[float, float, float, float]
Draw = Callable[[ImageDraw.ImageDraw, Box, w.Rgb], None]


def _mix(box: Box, x: float, y: float) -> tuple[float, float]:
    """A point at these fractions of the box."""
    return box[0] + x * (box[2] - box[0]), box[1] + y * (box[3] - box[1])


def _polygon(pen: ImageDraw.ImageDraw, box: Box, points: tuple[tuple[float, float], ...], fill: w.Rgb) -> None:
    pen.polygon([_mix(box, x, y) for x, y in points], fill=fill)


def _ball(pen: ImageDraw.ImageDraw, box: Box, fill: w.Rgb) -> None:
    pen.ellipse(box, fill=fill)


def _box(pen: ImageDraw.ImageDraw, box: Box, fill: w.Rgb) -> None:
    pen.rectangle(box, fill=fill)
    pen.line((*_mix(box, 0, 0), *_mix(box, 1, 1)), fill=(255, 255, 255), width=3)


def _star(pen: ImageDraw.ImageDraw, box: Box, fill: w.Rgb) -> None:
    reach = [(0.5 if i % 2 == 0 else 0.2, i * math.pi / 5) for i in range(10)]
    _polygon(pen, box, tuple((0.5 + r * math.sin(a), 0.5 - r * math.cos(a)) for r, a in reach), fill)


def _house(pen: ImageDraw.ImageDraw, box: Box, fill: w.Rgb) -> None:
    pen.rectangle((*_mix(box, 0.15, 0.45), *_mix(box, 0.85, 1)), fill=fill)
    _polygon(pen, box, ((0.5, 0), (0, 0.48), (1, 0.48)), (110, 70, 50))
    pen.rectangle((*_mix(box, 0.4, 0.65), *_mix(box, 0.6, 1)), fill=(255, 255, 255))


def _tree(pen: ImageDraw.ImageDraw, box: Box, fill: w.Rgb) -> None:
    pen.rectangle((*_mix(box, 0.42, 0.5), *_mix(box, 0.58, 1)), fill=(110, 70, 50))
    _polygon(pen, box, ((0.5, 0), (0.1, 0.75), (0.9, 0.75)), fill)


def _boat(pen: ImageDraw.ImageDraw, box: Box, fill: w.Rgb) -> None:
    _polygon(pen, box, ((0, 0.65), (1, 0.65), (0.8, 1), (0.2, 1)), fill)
    _polygon(pen, box, ((0.5, 0), (0.5, 0.6), (0.95, 0.6)), (250, 250, 250))
    pen.line((*_mix(box, 0.5, 0), *_mix(box, 0.5, 0.65)), fill=(60, 60, 60), width=2)


def _fish(pen: ImageDraw.ImageDraw, box: Box, fill: w.Rgb) -> None:
    pen.ellipse((*_mix(box, 0, 0.2), *_mix(box, 0.75, 0.8)), fill=fill)
    _polygon(pen, box, ((0.6, 0.5), (1, 0.15), (1, 0.85)), fill)
    pen.ellipse((*_mix(box, 0.15, 0.38), *_mix(box, 0.25, 0.48)), fill=(255, 255, 255))


def _kite(pen: ImageDraw.ImageDraw, box: Box, fill: w.Rgb) -> None:
    _polygon(pen, box, ((0.5, 0), (0.1, 0.4), (0.5, 0.85), (0.9, 0.4)), fill)
    pen.line((*_mix(box, 0.5, 0.85), *_mix(box, 0.7, 1)), fill=(60, 60, 60), width=2)


def _flower(pen: ImageDraw.ImageDraw, box: Box, fill: w.Rgb) -> None:
    pen.line((*_mix(box, 0.5, 0.4), *_mix(box, 0.5, 1)), fill=(60, 120, 60), width=3)
    for x, y in ((0.5, 0.15), (0.28, 0.32), (0.72, 0.32), (0.37, 0.55), (0.63, 0.55)):
        pen.ellipse((*_mix(box, x - 0.16, y - 0.15), *_mix(box, x + 0.16, y + 0.15)), fill=fill)


def _cup(pen: ImageDraw.ImageDraw, box: Box, fill: w.Rgb) -> None:
    pen.ellipse((*_mix(box, 0.5, 0.25), *_mix(box, 1, 0.75)), outline=fill, width=5)
    _polygon(pen, box, ((0, 0.1), (0.75, 0.1), (0.65, 0.95), (0.1, 0.95)), fill)


KINDS: Final[dict[str, Draw]] = {
    "ball": _ball,
    "box": _box,
    "star": _star,
    "house": _house,
    "tree": _tree,
    "boat": _boat,
    "fish": _fish,
    "kite": _kite,
    "flower": _flower,
    "cup": _cup,
}
PLACES: Final[dict[str, w.Rgb]] = {
    "meadow": (200, 232, 190),
    "beach": (246, 228, 180),
    "snow": (246, 248, 252),
    "lake": (190, 222, 242),
}
SIDES: Final = ("left", "middle", "right")
SIZES: Final = {"small": (34, 44), "large": (66, 78)}
SIZE_WORDS: Final = {"small": ("small", "little"), "large": ("large", "big")}
SIDE_PHRASES: Final = {
    "left": ("on the left", "at the left"),
    "middle": ("in the middle", "in the centre"),
    "right": ("on the right", "at the right"),
}
PLACE_PHRASES: Final = {
    "meadow": ("on a meadow", "on the grass"),
    "beach": ("on a beach", "on the sand"),
    "snow": ("in the snow", "on a snowy field"),
    "lake": ("by a lake", "at the water"),
}
NUMBERS: Final = {1: "one thing", 2: "two things", 3: "three things"}


@dataclass(frozen=True, slots=True)
class Thing:
    """A drawn object and all that may be said of it."""

    kind: str
    colour: str
    size: str
    side: str

    @property
    def fact(self) -> str:
        """`large red star left`."""
        return f"{self.size} {self.colour} {self.kind} {self.side}"


def scene(pick: Pick) -> Sheet:
    """One to three objects at a place."""
    place, things = _choose(pick)
    page = Page(SQUARE, PLACES[place])
    for thing in things:
        _place(pick, page, thing)
    page.finish(pick)
    facts = (f"place {place}", f"count {len(things)}", *(thing.fact for thing in things))
    return Sheet(page, pick.one(PROMPTS), _describe(pick, place, things), facts)


def _choose(pick: Pick) -> tuple[str, list[Thing]]:
    """A place and what stands there: a combination that the other split never shows."""
    while True:
        place, things = pick.one(list(PLACES)), []
        for column in sorted(pick.some(range(3), pick.one((1, 2, 2, 3, 3)))):
            kind, colour, size = pick.one(list(KINDS)), pick.one(list(w.COLOURS)), pick.one(list(SIZES))
            things.append(Thing(kind, colour, size, SIDES[column]))
        if is_held_out(place, *(thing.fact for thing in things)) == (pick.split == "eval"):
            return place, things


def _place(pick: Pick, page: Page, thing: Thing) -> None:
    """Draw one object somewhere in its third of the page."""
    side = pick.whole(*SIZES[thing.size])
    left = 5 + 84 * SIDES.index(thing.side) + pick.whole(0, 78 - side)
    top = pick.whole(20, SQUARE[1] - 20 - side)
    box = (left, top, left + side, top + side)
    KINDS[thing.kind](page.pen, box, w.COLOURS[thing.colour])
    page.marks.append(Mark(thing.kind, thing.colour, box))


OPENINGS: Final = (
    "The image shows",
    "I can see",
    "There is",
    "This picture contains",
    "Here we have",
    "We look at",
    "A drawing of",
    "Someone drew",
)
JOINTS: Final = (" and ", ", next to ", ", along with ", ". There is also ", ", then ", ", beside ", ". I also see ")
CLOSINGS: Final = (
    ".",
    ", {where}.",
    ". The scene is {where}.",
    ". This makes {number} {where}.",
    ". All of it is {where}.",
    ". It is a picture of {number}.",
)


def _describe(pick: Pick, place: str, things: list[Thing]) -> str:
    """One of the many right descriptions: what is named draws some wordings more than others."""
    text = f"{pick.worded('opening', things[0].kind, OPENINGS)} {_phrase(pick, things[0])}"
    for thing in things[1:]:
        text += pick.worded("joint", thing.kind, JOINTS) + _phrase(pick, thing)
    number = NUMBERS[len(things)]
    where = pick.worded("place", things[-1].colour, PLACE_PHRASES[place])
    return text + pick.worded("closing", f"{place} {number}", CLOSINGS).format(where=where, number=number)


def _phrase(pick: Pick, thing: Thing) -> str:
    """A thing with its colour and some of what else may be said of it."""
    size = pick.worded("size", f"{thing.colour} {thing.size}", ("", *(f"{w} " for w in SIZE_WORDS[thing.size])))
    one = pick.worded("article", thing.kind, ("a", "one", "a"))
    article = "an" if one == "a" and not size and thing.colour == "orange" else one
    side = pick.worded("side", f"{thing.kind} {thing.side}", ("", *(f" {p}" for p in SIDE_PHRASES[thing.side])))
    return f"{article} {size}{thing.colour} {thing.kind}{side}"
