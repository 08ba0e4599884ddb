"""docs/scale.md says what scripts/sizing.py computes, and the arithmetic is that of its docstrings."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import helpers

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sizing() -> ModuleType:
    return helpers.script("scripts/sizing.py")


def test_the_page_is_the_scripts(sizing: ModuleType) -> None:
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert sizing.written(text, sizing.page(sizing.Assumptions())) == text


def test_a_changed_assumption_changes_the_page(sizing: ModuleType) -> None:
    by = sizing.Assumptions()
    assert sizing.page(replace(by, answer_tokens=2 * by.answer_tokens)) != sizing.page(by)


def test_every_assumption_is_named(sizing: ModuleType) -> None:
    assert set(vars(sizing.Assumptions())) <= set(sizing.comments())


def test_the_arithmetic_by_hand(sizing: ModuleType) -> None:
    """Round numbers: a target of 1 GB whose passes are bound by reading it."""
    by = sizing.Assumptions(
        target_params=5e8,
        kv_width=0,
        prompt_tokens=100,
        answer_tokens=50,
        requests=10,
        gpu_bandwidth=1e12,
        bandwidth_share=1.0,
        gpu_flops=1e15,
        flops_share=1.0,
    )
    one = sizing.Collecting(by)
    assert one.pass_s == pytest.approx(1e-3)
    assert one.prefill_s == pytest.approx(1e-4)
    assert one.prompts_a_second == pytest.approx(1 / (1e-4 + 50 * 1e-3 / 10))
    assert sizing.Collecting(replace(by, accepted=5.0)).prompts_a_second == pytest.approx(1 / (1e-4 + 1e-3))
    assert sizing.Storage(by).features == 2 * 5 * 4096 * 150
    copies, sharded = (sizing.Training(by).memory(8, shared) for shared in (False, True))
    assert copies - sharded == pytest.approx(16 * by.head_params * 7 / 8)
