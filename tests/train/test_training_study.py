"""benchmarks/training_study.py: arms by seeds, resumed where it was killed, compared on the same prompts."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import helpers
from oneglance.train.recipe import load_recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return helpers.script("benchmarks/training_study.py")


def studies(script: ModuleType) -> dict[str, object]:
    return {name: script.Study(**raw) for name, raw in script.yaml.safe_load(script.STUDIES.read_text()).items()}


def test_every_arm_is_a_recipe(script: ModuleType) -> None:
    for study in studies(script).values():
        for _, seed, overrides in study.runs():
            assert load_recipe(ROOT / study.recipe, overrides).seed == seed


def test_an_untrained_arm_is_scored_once(script: ModuleType) -> None:
    runs = list(studies(script)["ocr"].runs())
    assert [arm for arm, _, _ in runs].count("shipped") == 1
    assert [arm for arm, _, _ in runs].count("documents") == 2


def row(arm: str, seed: int, kept: list[list[int]], steps: int = 5) -> dict[str, object]:
    return {
        "arm": arm, "seed": seed, "steps": steps, "minutes": 1.0, "top1": [0.5] * 15, "kept": {"docvqa": kept},
        "manifest": {"git_sha": "abc"},
    }  # fmt: skip


def test_the_table_pools_rounds_over_seeds_and_compares_prompt_by_prompt(script: ModuleType) -> None:
    study = script.Study("r.yaml", [], [0, 1], {"base": [], "other": []})
    rows = [
        row("base", 0, [[2, 2], [2]]),
        row("other", 0, [[4, 4], [4]]),
        row("other", 1, [[2, 2], [2]]),
    ]
    text = script.table(study, rows)
    assert "| other | 2 | 0.500 | 0.500 | 0.500 | 0.500 | 0.500 | 3.00 | 1.50 [1.50, 1.50] |" in text
    assert "docvqa 2" in text
    assert "abc" in text
