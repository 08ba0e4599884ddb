"""Images given as tensors: what the vision encoder would fail at in its depths is one line that names the tensor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image

from oneglance.core import InputError
from oneglance.decoder import Decoder
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.chat import encode
from oneglance.testing import tiny_target

Change = Callable[[dict[str, Any]], dict[str, Any]]
PIXELS, GRID = "pixel_values", "image_grid_thw"
QWEN: dict[str, tuple[str, Change]] = {
    "fewer patches": (PIXELS, lambda t: {PIXELS: t[PIXELS][:-1]}),
    "narrower patches": (PIXELS, lambda t: {PIXELS: t[PIXELS][:, :-1]}),
    "a batch of patches": (PIXELS, lambda t: {PIXELS: t[PIXELS][None]}),
    "whole pixels": (PIXELS, lambda t: {PIXELS: t[PIXELS].long()}),
    "complex pixels": (PIXELS, lambda t: {PIXELS: t[PIXELS].to(torch.complex64)}),
    "no pixels": (PIXELS, lambda t: {PIXELS: t[PIXELS][:0]}),
    "flat grid": (GRID, lambda t: {GRID: t[GRID][0]}),
    "two numbers": (GRID, lambda t: {GRID: t[GRID][:, :2]}),
    "floating grid": (GRID, lambda t: {GRID: t[GRID].float()}),
    "empty grid": (GRID, lambda t: {GRID: t[GRID][:0]}),
    "zero in the grid": (GRID, lambda t: {GRID: t[GRID] * 0}),
    "negative grid": (GRID, lambda t: {GRID: -t[GRID]}),
    "grid between two rows": (GRID, lambda t: {GRID: t[GRID] + torch.tensor([0, 1, 0])}),
    "two grids of one image": (GRID, lambda t: {GRID: t[GRID].repeat(2, 1)}),
    "another image": ("image rows", lambda t: {PIXELS: t[PIXELS].repeat(2, 1), GRID: t[GRID].repeat(2, 1)}),
}
MLLAMA: dict[str, tuple[str, Change]] = {
    "no batch": (PIXELS, lambda t: {PIXELS: t[PIXELS][0]}),
    "two sequences": (PIXELS, lambda t: {PIXELS: torch.cat([t[PIXELS]] * 2)}),
    "whole pixels": (PIXELS, lambda t: {PIXELS: t[PIXELS].long()}),
    "flat": (PIXELS, lambda t: {PIXELS: t[PIXELS].flatten()}),
}
CASES = [
    *(("qwen3_vl", case) for case in QWEN),
    *(("qwen2_5_vl", case) for case in QWEN),
    *(("mllama", case) for case in MLLAMA),
]


@pytest.mark.parametrize(("family", "case"), CASES)
def test_wrong_image_tensors_are_named(family: str, case: str) -> None:
    target = tiny_target(family)
    inputs = encode(target, "What is this?", images=[Image.new("RGB", (64, 64), "white")])
    named, change = (MLLAMA if family == "mllama" else QWEN)[case]
    with pytest.raises(InputError, match=named):
        Decoder(target, NoDrafter()).generate_ids(**{**inputs.tensors, **change(inputs.tensors)}, max_new_tokens=2)


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "mllama"])
def test_image_tensors_of_the_processor_pass(family: str) -> None:
    target = tiny_target(family)
    inputs = encode(target, "What is this?", images=[Image.new("RGB", (64, 64), "white")])
    ids = Decoder(target, NoDrafter()).generate_ids(**inputs.tensors, max_new_tokens=2)
    assert ids.shape[1] > inputs.tensors["input_ids"].shape[1]
