"""Graders on known cases."""

from __future__ import annotations

import dataclasses

import pytest

from oneglance.tasks.base import TASKS, Example
from oneglance.tasks.grading import edit_distance, grade
from oneglance.tasks.synthetic import draw, examples


def example(task: str, answer: str, *facts: str) -> Example:
    return dataclasses.replace(draw(task, 0, split="eval"), answer=answer, facts=facts)


@pytest.mark.parametrize("task", TASKS)
def test_the_true_answer_is_all_right(task: str) -> None:
    for item in examples(task, split="eval", limit=40):
        found = grade(item, item.answer)
        assert found.share == 1, (item.answer, item.facts)
        assert found.char_errors == 0
        assert found.total > 0


@pytest.mark.parametrize(("a", "b", "distance"), [("", "abc", 3), ("kitten", "sitting", 3), ("same", "same", 0)])
def test_edit_distance(a: str, b: str, distance: int) -> None:
    assert edit_distance(a, b) == distance


def test_lines_count_exact_lines_and_character_errors() -> None:
    found = grade(example("docvqa", "one\ntwo\nthree"), "one\ntwi\nthree")
    assert (found.right, found.total, found.char_errors, found.num_chars) == (2, 3, 1, 13)


def test_values_are_right_within_five_percent() -> None:
    item = example("chartqa", "", "Oslo: 40", "Rome: 20%", "Lima: 7")
    assert grade(item, "Bar chart: x\nOslo: 41\nRome: 22%\nLima: 7").right == 2


def test_facts_may_be_worded_in_other_ways() -> None:
    item = example("infovqa", "", "41% of doctors in Oslo like milk.", "7% of people in Rome buy tea.")
    told = "City Survey. In Oslo, 41% of doctors like milk. 8% of the people of Rome buy tea. Source: Lima 2001."
    assert grade(item, told).right == 1


def test_signs_count_words() -> None:
    item = example("textvqa", "", "GATE", "214", "OPEN")
    assert grade(item, "The sign reads GATE 215 OPEN.").right == 2


CAPTION = ("place beach", "count 2", "large red star left", "small blue fish right")


@pytest.mark.parametrize(
    ("answer", "right", "total"),
    [
        ("I can see a red star.", 1, 1),
        ("I can see a large red star on the left and one blue fish, in the snow.", 2, 3),
        ("There is a small red star, then a blue fish on the right. In all there is two things on a beach.", 3, 4),
        (
            "Someone drew one big red star at the left, beside a little blue fish. This makes two things on the sand.",
            4,
            4,
        ),
        ("A drawing of a little red star in the centre, at the water.", 0, 2),
        ("Nothing at all.", 0, 1),
    ],
)
def test_captions_count_stated_facts(answer: str, right: int, total: int) -> None:
    found = grade(example("caption", "", *CAPTION), answer)
    assert (found.right, found.total) == (right, total)


def test_a_wording_leaves_out_what_it_names() -> None:
    item = example("caption", "", *CAPTION)
    assert grade(item, "I can see a red star.").wording == grade(item, "I can see a blue fish.").wording
    assert grade(item, "I can see a red star.").wording != grade(item, "There is a red star.").wording
