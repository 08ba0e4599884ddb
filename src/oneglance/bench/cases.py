"""What is asked: prompts with their images, and how an answer is scored where that is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from PIL import Image

from oneglance.bulk import Failure, find_pages
from oneglance.core import ImageError, InputError
from oneglance.images import image_sha256, load_image
from oneglance.pdf import DPI
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.state import Inputs
from oneglance.tasks import grading, synthetic
from oneglance.tasks.base import Example
from oneglance.tasks.catalogue import OfficialTask, load_task
from oneglance.tasks.grading import Grade
from oneglance.tasks.layouts import Item
from oneglance.train.prompts import Prompt, check_readable, note_left_out, read_prompts
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
        audio: path of a recording, for speech targets.
        version: of its task's definition; None for prompts of your own.
        ocr: the text of its pages, where that is given: only systems with extra input see it.
    """

    id: str
    task: str
    text: str
    images: Callable[[], list[Image.Image]]
    grade: Callable[[str], Grade] | None = None
    system: str | None = None
    metric: str | None = None
    audio: str | None = None
    version: int | None = None
    ocr: Callable[[], str] | None = None

    def encode(self, target: Target, *, scale: float = 1.0) -> Inputs:
        """The prompt, as the target sees it; ``scale`` changes the images' resolution, up or down.

        Raises:
            InputError: there are images, and the target takes none.
            ImageError: an image cannot be read.
        """
        pictures = [resize(image, scale) for image in self.images()]
        if pictures:
            check_readable(target, self.id)
        return encode(target, self.text, images=pictures, system=self.system, audio=self.audio)


def resize(image: Image.Image, scale: float) -> Image.Image:
    """The image at ``scale`` times its resolution."""
    if scale == 1.0:
        return image
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.BICUBIC)


def suite(tasks: Sequence[str], limit: int) -> list[Case]:
    """``limit`` held-out pages of each task of the built-in suite."""
    return [_page(task, index) for task in tasks for index in range(limit)]


def in_turn(tasks: Sequence[str], count: int) -> list[Case]:
    """``count`` held-out pages of the built-in suite, a task after the other."""
    return [_page(tasks[index % len(tasks)], index // len(tasks)) for index in range(count)]


def from_file(path: Path, limit: int | None = None) -> list[Case]:
    """Prompts of a JSONL file (``train.prompts``), without a score.

    Raises:
        InputError: there is no such file, or a line is malformed.
    """
    return [from_prompt(prompt) for prompt in read_prompts(path)[:limit]]


def official(names: Sequence[str], data: str, limit: int) -> list[Case]:
    """``limit`` held-out examples of each official data set, chosen by hash, so that a larger limit only adds some.

    Args:
        names: keys of ``tasks.catalogue``.
        data: a folder with the data set's own layout, or ``hf`` for the Hugging Face one.
        limit: examples a task.

    Raises:
        InputError: no such task, or its files are not there.
    """
    return [_official(task, item) for task in map(load_task, names) for item in task.sample(data, limit)]


def from_prompt(prompt: Prompt) -> Case:
    """A case without a score."""

    def images() -> list[Image.Image]:
        return [open_source(source) for source in prompt.images]

    ocr = None if prompt.ocr is None else partial(str, prompt.ocr)
    return Case(prompt.id, prompt.task, prompt.text, images, system=prompt.system, audio=prompt.audio, ocr=ocr)


def prompt_set(cases: Iterable[Case]) -> str:
    """A short hash of which prompts were asked, in which order: what two results must share to be compared."""
    names = [(case.task, case.id, case.text, case.version) for case in cases]
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:12]


def task_versions(cases: Iterable[Case]) -> dict[str, int | None]:
    """Which version of each task's definition was asked."""
    return {case.task: case.version for case in cases}


def _official(task: OfficialTask, item: Item) -> Case:
    def grade(answer: str) -> Grade:
        return Grade(task.score(answer, item.answers), 1)

    def images() -> list[Image.Image]:
        return [shrink(load_image(source), task.long_side_px) for source in item.find()]

    has_answers = bool(item.answers) and task.metric != "none"
    return Case(
        item.id,
        task.name,
        task.ask(item),
        images,
        grade if has_answers else None,
        metric=task.metric,
        version=task.version,
    )


def _page(task: str, index: int) -> Case:
    example = _draw(task, index)
    return Case(
        example.id,
        task,
        example.prompt,
        lambda: [_draw(task, index).image],
        lambda answer: grading.grade(_draw(task, index), answer),
        metric="items",
        version=synthetic.VERSIONS[task],
        ocr=lambda: " ".join(word.text for word in _draw(task, index).words),
    )


@lru_cache(maxsize=16)
def _draw(task: str, index: int) -> Example:
    return synthetic.draw(task, index, split="eval")


def own_images(folder: Path, questions: Sequence[str], limit: int) -> list[Case]:
    """A question about each different page of a folder, questions taking turns; without a score.

    Args:
        folder: of images and PDFs, searched to the bottom.
        questions: at least one.
        limit: pages, the first by the hash of their pixels: a random but stable choice.

    Raises:
        InputError: the folder does not exist or holds no readable page.

    Warns:
        OneglanceWarning: some could not be read.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; --images takes a folder of images and PDFs")
    found: dict[str, Callable[[], list[Image.Image]]] = {}
    reasons = []
    for page in find_pages([str(folder)], "", dpi=DPI):
        try:
            if isinstance(page, Failure):
                raise ImageError(page.reason)
            found.setdefault(image_sha256(page.load()[0]), page.load)
        except ImageError as error:
            reasons.append(str(error))
    note_left_out(reasons)
    if not found:
        raise InputError(f"{folder} holds no page that can be read; give a folder of images and PDFs")
    return [
        Case(sha[:16], folder.name or "images", questions[index % len(questions)], load)
        for index, (sha, load) in enumerate(sorted(found.items(), key=lambda own: own[0])[:limit])
    ]
