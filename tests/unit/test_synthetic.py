"""The built-in suite: the same pages everywhere, disjoint splits, true boxes and answers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from oneglance.core import InputError
from oneglance.tasks.base import Example
from oneglance.tasks.pages.pick import Pick, is_held_out
from oneglance.tasks.synthetic import SEEDS, TASKS, draw, examples

HASHES = {
    "caption": "cbb407b61fefae2a",
    "textvqa": "90efb27b7bfcc13f",
    "infovqa": "8b23b1d94cf365cb",
    "docvqa": "3926e920b599c065",
    "chartqa": "e38c4a32d0c36b7e",
    "scienceqa": "a96a1db97cd58928",
}


def digest(example: Example) -> str:
    return hashlib.sha256(example.image.tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_draws_the_recorded_pixels(task: str) -> None:
    assert digest(draw(task, 3, split="eval")) == HASHES[task]


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_draws_the_same_example_twice(task: str) -> None:
    first, second = (draw(task, 7, split="train") for _ in range(2))
    assert digest(first) == digest(second)
    assert (first.prompt, first.answer, first.words, first.facts) == (
        second.prompt,
        second.answer,
        second.words,
        second.facts,
    )


def test_the_splits_share_no_seed() -> None:
    assert not set(SEEDS["eval"]) & set(SEEDS["train"][:200_000])
    with pytest.raises(InputError, match="index must be from 0 to 99999 in the eval split"):
        draw("docvqa", len(SEEDS["eval"]), split="eval")


@pytest.mark.parametrize("task", ["caption", "textvqa", "infovqa", "docvqa", "chartqa"])
def test_no_evaluation_answer_is_a_training_answer(task: str) -> None:
    train = {example.answer for example in examples(task, split="train", limit=200)}
    evaluation = {example.answer for example in examples(task, split="eval", limit=50)}
    assert not train & evaluation


def test_evaluation_numbers_are_held_out() -> None:
    assert all(is_held_out(Pick(str(i), "eval").number(100, 999)) for i in range(50))
    assert not any(is_held_out(Pick(str(i), "train").number(100, 999)) for i in range(50))


@pytest.mark.parametrize("task", TASKS)
def test_every_word_box_is_on_the_page_and_holds_ink(task: str) -> None:
    for example in examples(task, split="eval", limit=12):
        pixels = np.asarray(example.image, dtype=np.int16)
        height, width, _ = pixels.shape
        for word in example.words:
            left, top, right, bottom = word.box
            assert 0 <= left < right <= width, (example.id, word)
            assert 0 <= top < bottom <= height, (example.id, word)
            assert np.ptp(pixels[top:bottom, left:right]) > 80, (example.id, word)


@pytest.mark.parametrize("task", ["docvqa", "infovqa", "textvqa", "chartqa"])
def test_the_page_holds_every_word_of_the_facts_or_transcription(task: str) -> None:
    for example in examples(task, split="eval", limit=12):
        drawn = {word.text for word in example.words}
        told = example.answer.split() if task == "docvqa" else " ".join(example.facts).split()
        strip = (lambda w: w) if task in ("docvqa", "textvqa") else (lambda w: w.rstrip(".:%"))
        assert {strip(w) for w in told} <= {strip(w) for w in drawn}, example.id


def test_documents_have_8_to_14_lines() -> None:
    counts = {example.answer.count("\n") + 1 for example in examples("docvqa", split="eval", limit=60)}
    assert {8, 14} <= counts <= set(range(8, 15))


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(InputError, match="no task 'vqa'"):
        draw("vqa", 0, split="eval")
