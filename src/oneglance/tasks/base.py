"""Value types of a task: an example, its words and their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from PIL import Image

Split = Literal["train", "eval"]

TASKS: Final[tuple[str, ...]] = ("caption", "textvqa", "infovqa", "docvqa", "chartqa", "scienceqa")
"""The families, ordered by how much of the answer the page dictates; last, the boundary case."""


@dataclass(frozen=True, slots=True)
class WordBox:
    """A word as drawn and the box that holds it: left, top, right, bottom, in px."""

    text: str
    box: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with its page and true answer; `facts` are what a free answer may state."""

    id: str
    task: str
    prompt: str
    answer: str
    image: Image.Image
    words: tuple[WordBox, ...]
    facts: tuple[str, ...] = ()
