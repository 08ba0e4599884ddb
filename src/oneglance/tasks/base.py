"""What a task gives: examples."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image


@dataclass(frozen=True, slots=True)
class WordBox:
    """A word that stands on the page.

    Attributes:
        text: the word, without surrounding space.
        box: left, top, right, bottom in pixels; right and bottom are exclusive.
    """

    text: str
    box: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Example:
    """One page and what is asked about it.

    Attributes:
        id: unique over all tasks and splits.
        task: name of the family.
        prompt: the user's text.
        answer: a right answer; the only one where the task is grounded, one of many for captions.
        image: RGB.
        words: each word drawn on the page, in drawing order.
        facts: the parts of the answer that can be read off the page.
    """

    id: str
    task: str
    prompt: str
    answer: str
    image: Image.Image
    words: tuple[WordBox, ...]
    facts: tuple[str, ...] = ()
