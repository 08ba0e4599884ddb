"""The calibration finds what packed passes do to logits, and its file is for one target and arithmetic only."""

import json
from pathlib import Path

import pytest
import torch

from conformance.conftest import tiny
from conformance.test_gate import NOISE, noisy_packed_passes
from helpers import PlannedDrafter, hf_generate, prompt
from oneglance.calibrate import Calibration, calibrate, delta_of, settings_of
from oneglance.core import InputError
from oneglance.drafters.block import BlockDrafter
from oneglance.testing import failing_drafter, tiny_head, tiny_target

NUM_TOKENS = 40


@pytest.mark.parametrize("family", ["qwen3", "qwen3_vl", "mllama"])
def test_float32_differs_by_rounding_only(family: str) -> None:
    target = tiny(family, "sdpa")
    prompts = [prompt(target, num) for num in ((0, 1) if target.takes_images else (0,))]
    drafter = BlockDrafter(tiny_head(target), target, budget=15)
    *_, result = calibrate(target, drafter, prompts, max_new_tokens=NUM_TOKENS)
    assert result.num_prompts == len(prompts)
    assert result.num_rows > 0
    assert result.delta == 2 * result.packed < 1e-3
    assert result.single < 1e-3


def test_known_noise_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny("qwen3", "sdpa")
    inputs = prompt(target)
    reference = hf_generate(target, inputs, NUM_TOKENS)
    noisy_packed_passes(monkeypatch)
    drafter = PlannedDrafter(reference, len(inputs.token_ids), target.vocab_size, ranks=(None,))
    *_, result = calibrate(target, drafter, [inputs], max_new_tokens=NUM_TOKENS)
    assert 0.95 * NOISE < result.packed <= NOISE + 1e-3
    assert result.single < 1e-3, "a single step was not what was measured"
    assert result.num_rows == NUM_TOKENS - 2, "all but the first token and the last, which has no room for a tree"


def test_bfloat16_is_coarser() -> None:
    target = tiny_target("qwen3", dtype=torch.bfloat16)
    drafter = BlockDrafter(tiny_head(target), target, budget=15)
    *_, result = calibrate(target, drafter, [prompt(target)], max_new_tokens=NUM_TOKENS)
    assert result.packed > 1e-3
    assert result.settings["dtype"] == "bfloat16"


def test_failing_drafter_is_no_calibration() -> None:
    target = tiny("qwen3", "sdpa")
    with pytest.raises(InputError, match="drafting ended, so there is nothing to measure: scripted failure"):
        list(calibrate(target, failing_drafter(1), [prompt(target)], max_new_tokens=8))


def test_a_file_is_for_one_arithmetic(tmp_path: Path) -> None:
    target, other = tiny("qwen3", "sdpa"), tiny("qwen3", "eager")
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(Calibration(settings_of(target), packed=0.25).as_dict()))
    assert delta_of(path, target) == 0.5
    with pytest.raises(InputError, match="measured with attention sdpa, this is eager; calibrate anew"):
        delta_of(path, other)
    path.write_text("{}")
    with pytest.raises(InputError, match="is no calibration; oneglance calibrate-gate writes one"):
        delta_of(path, target)
