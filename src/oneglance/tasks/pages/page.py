"""A page under the pen: draws text and remembers where every word and letter lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from oneglance.tasks.base import WordBox
from oneglance.tasks.pages.pick import Pick
from oneglance.tasks.pages.words import Rgb

ROW: Final = 32
"""Pitch of text lines, px: one line per row of merged vision cells."""
SQUARE: Final = (256, 256)
SHEET: Final = (256, 480)
MARGIN: Final = 8

FACES: Final[dict[str, str]] = {
    "sans": "Roboto-Regular.ttf",
    "bold": "Roboto-Bold.ttf",
    "humanist": "OpenSans-Semibold.ttf",
    "serif": "NotoSerif-Regular.ttf",
    "slab": "RobotoSlab-Regular.otf",
    "mono": "Cousine-Regular.ttf",
}


@cache
def font(face: str, size: int) -> ImageFont.FreeTypeFont:
    """One of the shipped faces at a size in px."""
    path = resources.files("oneglance") / "assets" / "fonts" / FACES[face]
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


@cache
def _advance(face: str, size: int, char: str) -> float:
    return font(face, size).getlength(char)


def _edges(face: str, size: int, text: str) -> list[float]:
    """The left edge of every character and the right edge of the last, px from the start."""
    edges = [0.0]
    for char in text:
        edges.append(edges[-1] + _advance(face, size, char))
    return edges


def fitted(face: str, size: int, text: str, width: float) -> int:
    """The largest size up to `size` at which the text is no wider than `width` px."""
    while size > 11 and _edges(face, size, text)[-1] > width:
        size -= 1
    return size


@dataclass(frozen=True, slots=True)
class Glyph:
    """A drawn character: its advance box's left and right edge and the line's middle, px."""

    char: str
    left: float
    right: float
    middle: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A drawn object: what it is, its colour and its box, px."""

    kind: str
    colour: str
    box: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A finished page with its prompt, true answer and facts."""

    page: Page
    prompt: str
    answer: str
    facts: tuple[str, ...] = ()


class Page:
    """A canvas that records the words, glyphs and objects drawn on it."""

    def __init__(self, size: tuple[int, int], ground: Rgb) -> None:
        self.image = Image.new("RGB", size, ground)
        self.pen = ImageDraw.Draw(self.image)
        self.ground: Final = ground
        self.words: list[WordBox] = []
        self.glyphs: list[Glyph] = []
        self.marks: list[Mark] = []

    def text(
        self, at: tuple[float, float], text: str, *, face: str, size: int, fill: Rgb, align: str = "left"
    ) -> float:
        """Draw one line with its middle at `at[1]`; returns the right edge, px."""
        type_ = font(face, size)
        steps = _edges(face, size, text)
        width = steps[-1]
        left = round(at[0] - {"left": 0.0, "centre": width / 2, "right": width}[align])
        base = round(at[1] + 0.36 * size)
        self.pen.text((left, base), text, fill=fill, font=type_, anchor="ls")
        edges = [left + step for step in steps]
        self.glyphs += [
            Glyph(char, a, b, at[1]) for char, a, b in zip(text, edges, edges[1:], strict=False) if char != " "
        ]
        for start, word in _words(text):
            x0, y0, x1, y1 = type_.getbbox(word, anchor="ls")
            x, y = edges[start], base
            box = (math.floor(x + x0), math.floor(y + y0), math.ceil(x + x1), math.ceil(y + y1))
            self.words.append(WordBox(word, box))
        return left + width

    def finish(self, pick: Pick, *, turn: float = 0.8) -> None:
        """Rotate the page by up to `turn` degrees and add light noise."""
        angle = pick.real(-turn, turn)
        noise = pick.whole(0, 8)
        self.image = self.image.rotate(angle, Image.Resampling.BILINEAR, fillcolor=self.ground)
        self._rotate_records(math.radians(angle))
        if noise:
            rng = np.random.Generator(np.random.PCG64(pick.rng.getrandbits(64)))
            grain = rng.integers(-noise, noise + 1, size=self.image.size[::-1], dtype=np.int16)
            pixels = np.asarray(self.image, dtype=np.int16) + grain[:, :, None]
            self.image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))

    def _rotate_records(self, angle: float) -> None:
        width, height = self.image.size
        cos, sin, cx, cy = math.cos(angle), math.sin(angle), width / 2, height / 2

        def turned(x: float, y: float) -> tuple[float, float]:
            return cx + cos * (x - cx) + sin * (y - cy), cy - sin * (x - cx) + cos * (y - cy)

        self.glyphs = [
            Glyph(g.char, turned(g.left, g.middle)[0], turned(g.right, g.middle)[0], turned(g.left, g.middle)[1])
            for g in self.glyphs
        ]
        self.words = [WordBox(w.text, _hull(w.box, turned, self.image.size)) for w in self.words]


def _words(text: str) -> Iterator[tuple[int, str]]:
    """The words of a line with their first character's index."""
    start = 0
    for word in text.split(" "):
        if word:
            yield start, word
        start += len(word) + 1


def _hull(
    box: tuple[int, int, int, int],
    turned: Callable[[float, float], tuple[float, float]],
    size: tuple[int, int],
) -> tuple[int, int, int, int]:
    """The upright box around a turned box, cut at the page's edge."""
    corners = [turned(x, y) for x in (box[0], box[2]) for y in (box[1], box[3])]
    xs, ys = [c[0] for c in corners], [c[1] for c in corners]
    return (
        max(0, math.floor(min(xs))),
        max(0, math.floor(min(ys))),
        min(size[0], math.ceil(max(xs))),
        min(size[1], math.ceil(max(ys))),
    )
