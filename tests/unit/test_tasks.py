"""The built-in pages: the same from the same seed, never shared between splits, and true to their answers."""

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from oneglance.core import InputError
from oneglance.images import image_sha256
from oneglance.tasks import TASKS, Example, draw, examples
from oneglance.tasks.synthetic import SEEDS

SPLITS = ("train", "eval")


def fingerprint(example: Example) -> tuple[object, ...]:
    return (example.id, example.prompt, example.answer, example.words, example.facts, image_sha256(example.image))


def test_tasks_are_ordered_by_grounding() -> None:
    assert TASKS == ("caption", "textvqa", "infovqa", "docvqa", "chartqa")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", SPLITS)
def test_same_seed_same_example(task: str, split: str) -> None:
    assert fingerprint(draw(task, 3, split=split)) == fingerprint(draw(task, 3, split=split))
    assert fingerprint(draw(task, 3, split=split)) != fingerprint(draw(task, 4, split=split))


def test_examples_do_not_depend_on_the_process() -> None:
    code = """if True:
        from oneglance.images import image_sha256
        from oneglance.tasks import TASKS, draw
        for task in TASKS:
            example = draw(task, 11, split="eval")
            print(image_sha256(example.image), repr(example.answer))
    """
    outputs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment).stdout
        for environment in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("task", TASKS)
def test_splits_share_nothing(task: str) -> None:
    train, held_out = ([*examples(task, split=split, limit=200)] for split in SPLITS)
    assert not {image_sha256(example.image) for example in train} & {
        image_sha256(example.image) for example in held_out
    }
    assert len({example.id for example in (*train, *held_out)}) == 400


def test_seed_ranges_are_disjoint() -> None:
    assert not range(
        max(seeds.start for seeds in SEEDS.values()), min(seeds.stop for seeds in SEEDS.values())
    )  # their intersection


def test_examples_are_those_of_draw() -> None:
    listed = [fingerprint(example) for example in examples("chartqa", split="eval", limit=3, start=5)]
    assert listed == [fingerprint(draw("chartqa", seed, split="eval")) for seed in (5, 6, 7)]


@pytest.mark.parametrize("task", TASKS)
def test_examples_are_well_formed(task: str) -> None:
    for example in examples(task, split="train", limit=100):
        assert example.image.mode == "RGB"
        assert example.image.size == (256, 256)
        assert example.task == task
        assert example.answer == example.answer.strip()
        assert example.facts
        assert all(fact in example.answer for fact in example.facts)
        for word in example.words:
            left, top, right, bottom = word.box
            assert 0 <= left < right <= 256
            assert 0 <= top < bottom <= 256
            assert word.text
            assert not any(letter.isspace() for letter in word.text)


@pytest.mark.parametrize("task", ["docvqa", "chartqa"])
def test_transcriptions_hold_exactly_the_words_on_the_page(task: str) -> None:
    for example in examples(task, split="train", limit=50):
        written = example.answer.replace(" | ", " ").split()
        assert Counter(word.text for word in example.words) == Counter(written)


@pytest.mark.parametrize("task", ["infovqa", "docvqa", "chartqa"])
def test_no_ink_lies_outside_the_boxes_of_its_words(task: str) -> None:
    for example in examples(task, split="train", limit=50):
        pixels = np.asarray(example.image).astype(int)
        is_ink = (pixels.max(axis=2) < 100) & (np.ptp(pixels, axis=2) < 5)  # dark and grey: text
        if task == "chartqa":
            is_ink[:, 104:110] = False  # bars may be black and start here
            is_ink[:, 110:] &= np.arange(110, 256) >= 215  # values stand behind the bars
        if task == "infovqa":
            is_ink[:, :56] = False  # discs
        for word in example.words:
            left, top, right, bottom = word.box
            is_ink[top:bottom, left:right] = False
        assert not is_ink.any(), example.id


@pytest.mark.parametrize(
    ("task", "seed", "split", "message"),
    [
        ("ocr", 0, "train", "unknown task 'ocr'; choose from caption"),
        ("docvqa", 0, "test", "unknown split 'test'; choose from train, eval"),
        ("docvqa", -1, "train", "seed must be from 0 to 999999999, got -1"),
        ("docvqa", 10**9, "train", "seed must be from 0"),
    ],
)
def test_bad_arguments(task: str, seed: int, split: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw(task, seed, split=split)  # type: ignore[arg-type]
