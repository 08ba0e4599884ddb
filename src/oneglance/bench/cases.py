"""What is asked: prompts with their images, and how an answer is scored where that is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from PIL import Image

from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.state import Inputs
from oneglance.tasks import grading, synthetic
from oneglance.tasks.base import Example
from oneglance.tasks.grading import Grade
from oneglance.train.prompts import Prompt, read_prompts
from oneglance.train.traces import open_source, shrink


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt of a benchmark.

    Attributes:
        id: unique within its task.
        task: family.
        text: user text.
        images: opened when the case is asked.
        grade: scores an answer; None where nothing is known.
        system: system prompt.
        metric: what ``grade`` measures.
    """

    id: str
    task: str
    text: str
    images: Callable[[], list[Image.Image]]
    grade: Callable[[str], Grade] | None = None
    system: str | None = None
    metric: str | None = None

    def encode(self, target: Target, *, long_side: int | None = None) -> Inputs:
        """The prompt, as the target sees it; ``long_side`` sets the images' resolution, up or down.

        Raises:
            ImageError: an image cannot be read.
        """
        pictures = [resize(image, long_side) for image in self.images()]
        return encode(target, self.text, images=pictures, system=self.system)


def resize(image: Image.Image, long_side: int | None) -> Image.Image:
    """The image with exactly this long side, None for its own."""
    if long_side is None or max(image.size) >= long_side:
        return shrink(image, long_side)
    scale = long_side / max(image.size)
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)


def suite(tasks: Sequence[str], limit: int) -> list[Case]:
    """``limit`` held-out pages of each task of the built-in suite."""
    return [_page(task, index) for task in tasks for index in range(limit)]


def from_file(path: Path, limit: int | None = None) -> list[Case]:
    """Prompts of a JSONL file (``train.prompts``), without a score.

    Raises:
        InputError: there is no such file, or a line is malformed.
    """
    return [from_prompt(prompt) for prompt in read_prompts(path)[:limit]]


def from_prompt(prompt: Prompt) -> Case:
    """A case without a score."""
    return Case(
        prompt.id, prompt.task, prompt.text, lambda: [open_source(s) for s in prompt.images], system=prompt.system
    )


def prompt_set(cases: Iterable[Case]) -> str:
    """A short hash of which prompts were asked, in which order: what two results must share to be compared."""
    names = [(case.task, case.id, case.text) for case in cases]
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:12]


def _page(task: str, index: int) -> Case:
    example = _draw(task, index)
    return Case(
        example.id,
        task,
        example.prompt,
        lambda: [_draw(task, index).image],
        lambda answer: grading.grade(_draw(task, index), answer),
        metric="items",
    )


@lru_cache(maxsize=16)
def _draw(task: str, index: int) -> Example:
    return synthetic.draw(task, index, split="eval")
