"""The built-in pages, drawn from a seed: five families, from open captions to templated charts.

Each page is 256×256 px. The same task, split and seed give the same page on every machine with the same Pillow; train
and eval seeds never meet.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

from oneglance.core import InputError
from oneglance.tasks.base import Example, WordBox
from oneglance.tasks.words import CITIES, COLOURS, DEPARTMENTS, ITEMS, MONTHS, NAMES, SHAPES, SIGNS

Split = Literal["train", "eval"]
Colour = tuple[int, int, int]

PAGE_PX = 256
SEEDS: dict[Split, range] = {"train": range(10**9), "eval": range(10**9, 2 * 10**9)}

INK: Colour = (20, 20, 20)
GREY: Colour = (60, 60, 60)
WHITE: Colour = (255, 255, 255)


@lru_cache
def _font(size_px: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size=size_px)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise InputError("this Pillow has no FreeType; install a Pillow wheel")
    return font


@dataclass
class _Page:
    """A canvas that remembers where its words are."""

    height: int
    background: Colour = WHITE
    words: list[WordBox] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.image = Image.new("RGB", (PAGE_PX, PAGE_PX), WHITE)
        self.draw = ImageDraw.Draw(self.image)
        self.draw.rectangle((0, 0, PAGE_PX - 1, self.height - 1), fill=self.background)

    def write(self, x: int, y: int, text: str, *, size_px: int, ink: Colour = INK) -> None:
        """Draw one line of text with its top left at (x, y)."""
        font = _font(size_px)
        self.draw.text((x, y), text, fill=ink, font=font)
        start = 0
        for word in text.split():
            start = text.index(word, start)
            left, top, right, bottom = font.getbbox(word)
            shift = x + font.getlength(text[:start])
            box = (math.floor(shift + left), math.floor(y + top), math.ceil(shift + right), math.ceil(y + bottom))
            self.words.append(WordBox(word, box))
            start += len(word)


Drawn = tuple[_Page, str, str, list[str]]  # page, prompt, answer, facts


def _caption(rng: random.Random) -> Drawn:
    page = _Page(192, background=rng.choice([WHITE, (225, 240, 225), (235, 235, 250)]))
    places = sorted(rng.sample([(column, row) for row in range(2) for column in range(3)], rng.randint(2, 3)))
    phrases, facts = [], []
    for column, row in places:
        shape, colour, size = rng.choice(SHAPES), rng.choice(list(COLOURS)), rng.choice([40, 68])
        _draw_shape(page.draw, shape, COLOURS[colour], column * 84 + 6, row * 96 + 8, size)
        across, down = ("left", "middle", "right")[column], ("top", "bottom")[row]
        kind = f"{colour} {shape}"
        noun = rng.choice([f"a {'small' if size == 40 else 'large'} {kind}", f"a {kind}", f"one {kind}"])
        where = rng.choice([f" on the {across}", f" at the {down}", f" in the {down} {across}", ""])
        phrases.append(noun + where)
        facts.append(kind)
    opening = rng.choice(["The image shows", "I can see", "There is", "This picture contains", "We see"])
    text = f"{opening} {phrases[0]}"
    for phrase in phrases[1:]:
        text += rng.choice([" and ", ", next to ", ", along with ", ". There is also "]) + phrase
    text += rng.choice([".", " on a plain background.", ", all drawn as flat shapes."])
    return page, "Describe the image.", text, facts


def _draw_shape(draw: ImageDraw.ImageDraw, shape: str, fill: Colour, x: int, y: int, size: int) -> None:
    """Draw a shape into the square of ``size`` px at (x, y)."""
    half, square = size / 2, (x, y, x + size, y + size)
    if shape == "circle":
        draw.ellipse(square, fill=fill)
    elif shape == "square":
        draw.rectangle(square, fill=fill)
    elif shape == "ring":
        draw.ellipse(square, outline=fill, width=8)
    elif shape == "triangle":
        draw.polygon([(x + half, y), (x, y + size), (x + size, y + size)], fill=fill)
    elif shape == "diamond":
        draw.polygon([(x + half, y), (x, y + half), (x + half, y + size), (x + size, y + half)], fill=fill)
    else:
        turns = [(half if tip % 2 == 0 else 0.4 * half, tip * math.pi / 5) for tip in range(10)]
        draw.polygon([(x + half + r * math.sin(a), y + half - r * math.cos(a)) for r, a in turns], fill=fill)


def _sign(rng: random.Random) -> Drawn:
    page = _Page(128, background=(200, 220, 240))
    words = rng.sample(SIGNS, rng.randint(1, 3))
    name, board = rng.choice(list(COLOURS.items()))
    x, y = rng.randint(4, 40), rng.randint(4, 20)
    page.draw.rectangle((x, y, x + 200, min(y + 32 * len(words) + 12, page.height - 1)), fill=board)
    ink: Colour = WHITE if sum(board) < 450 else (0, 0, 0)
    for row, word in enumerate(words):
        page.write(x + 8 + rng.randint(0, 30), y + 6 + 32 * row, word, size_px=rng.choice([18, 20, 24]), ink=ink)
    text = " ".join(words)
    answers = [
        f"The sign reads {text}.",
        f"It says {text} on a {name} sign.",
        f"A {name} sign with the words {text}.",
        f"There is a {name} sign and the text on it is {text}.",
    ]
    return page, "What is written on the sign?", rng.choice(answers), words


def _infographic(rng: random.Random) -> Drawn:
    num_rows = rng.randint(2, 4)
    page = _Page(64 * num_rows, background=rng.choice([WHITE, (240, 248, 255), (255, 250, 235)]))
    facts = []
    for top in range(0, 64 * num_rows, 64):
        page.draw.ellipse((8, top + 10, 52, top + 54), fill=rng.choice(list(COLOURS.values())))
        share, thing = f"{rng.randint(1, 99)}% of {rng.choice(CITIES)}", f"prefer {rng.choice(ITEMS + DEPARTMENTS)}"
        page.write(64, top + 6, share, size_px=18)
        page.write(64, top + 36, thing, size_px=16, ink=GREY)
        facts.append(f"{share} {thing}.")
    opening = rng.choice(["The graphic says: ", "Facts: ", "It shows that "])
    return page, "What does the infographic say?", opening + " ".join(facts), facts


def _receipt(rng: random.Random) -> list[str]:
    prices = [rng.randint(1, 49) for _ in range(rng.randint(3, 5))]
    return [
        f"{rng.choice(CITIES)} Market",
        *(f"{rng.choice(ITEMS)} {price}" for price in prices),
        f"Total {sum(prices)}",
    ]


def _form(rng: random.Random) -> list[str]:
    fields = [
        f"Name: {rng.choice(NAMES)}",
        f"City: {rng.choice(CITIES)}",
        f"Date: {rng.choice(MONTHS)} {rng.randint(1, 28)}",
        f"Department: {rng.choice(DEPARTMENTS)}",
        f"Age: {rng.randint(18, 70)}",
        f"Number: {rng.randint(100, 999)}",
    ]
    return rng.sample(fields, rng.randint(4, 6))


def _memo(rng: random.Random) -> list[str]:
    return [
        f"To: {rng.choice(NAMES)}",
        f"From: {rng.choice(NAMES)}",
        f"{rng.choice(DEPARTMENTS)} meeting",
        f"in {rng.choice(CITIES)} on",
        f"{rng.choice(MONTHS)} {rng.randint(1, 28)}",
        f"Bring {rng.choice(ITEMS)}",
    ]


def _document(rng: random.Random) -> Drawn:
    lines = rng.choice([_receipt, _form, _memo])(rng)
    page = _Page(PAGE_PX)
    x, size_px = rng.randint(4, 24), rng.choice([16, 18, 20])
    for row, line in enumerate(lines):
        page.write(x + rng.randint(0, 3), 8 + 32 * row + rng.randint(0, 4), line, size_px=size_px)
    return page, "Transcribe the document.", "\n".join(lines), lines


def _chart(rng: random.Random) -> Drawn:
    page = _Page(PAGE_PX)
    labels = rng.sample(rng.choice([ITEMS, CITIES, MONTHS, DEPARTMENTS]), rng.randint(3, 6))
    title = f"{rng.choice(['Sales', 'Visitors', 'Orders', 'Units'])} by {rng.choice(['item', 'group', 'label'])}"
    fill = rng.choice(list(COLOURS.values()))
    page.write(8, 6, title, size_px=16, ink=(0, 0, 0))
    facts = []
    for row, label in enumerate(labels, start=1):
        value, y = rng.randint(1, 99), 32 * row
        page.write(6, y + 6, label, size_px=15)
        page.draw.rectangle((104, y + 8, 104 + value, y + 24), fill=fill)
        page.write(110 + value, y + 6, str(value), size_px=15)
        facts.append(f"{label} | {value}")
    return page, "List the chart values.", "\n".join([title, *facts]), facts


# From the least to the most grounded in what is written on the page.
_FAMILIES: dict[str, Callable[[random.Random], Drawn]] = {
    "caption": _caption,
    "textvqa": _sign,
    "infovqa": _infographic,
    "docvqa": _document,
    "chartqa": _chart,
}
TASKS: Sequence[str] = tuple(_FAMILIES)


def draw(task: str, seed: int, *, split: Split) -> Example:
    """One example, the same for the same arguments.

    Args:
        task: a name in ``TASKS``.
        seed: which example of the split, from 0 below 10⁹.
        split: ``train`` or ``eval``; they share no page.

    Returns:
        An example with a 256×256 px image.

    Raises:
        InputError: an unknown task or split, or a seed out of range.
    """
    if task not in _FAMILIES:
        raise InputError(f"unknown task {task!r}; choose from {', '.join(TASKS)}")
    if split not in SEEDS:
        raise InputError(f"unknown split {split!r}; choose from {', '.join(SEEDS)}")
    if not 0 <= seed < len(SEEDS[split]):
        raise InputError(f"seed must be from 0 to {len(SEEDS[split]) - 1}, got {seed}")
    page, prompt, answer, facts = _FAMILIES[task](random.Random(f"{task} {SEEDS[split][seed]}"))
    name = f"{task}-{split}-{seed:06d}"
    return Example(name, task, prompt, answer, page.image, tuple(page.words), tuple(facts))


def examples(task: str, *, split: Split, limit: int, start: int = 0) -> Iterator[Example]:
    """The examples of seeds ``start`` to ``start + limit - 1``, drawn one at a time.

    Raises:
        InputError: as ``draw``.
    """
    return (draw(task, seed, split=split) for seed in range(start, start + limit))
