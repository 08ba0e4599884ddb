"""Two threads on one decoder: each gets its own text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from helpers import prompt
from oneglance.core import SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.targets.state import Inputs
from oneglance.testing import tiny_head, tiny_target


def test_threads_do_not_mix_their_passes() -> None:
    target = tiny_target("qwen3_vl")
    decoder = Decoder(target, BlockDrafter(tiny_head(target), target, budget=9))
    prompts = [prompt(target, images, seed=seed) for seed, images in enumerate((0, 1, 2, 1))]

    def text(inputs: Inputs) -> list[int]:
        stream = decoder.stream_inputs(inputs, SamplingParams(max_new_tokens=24))
        for _ in stream:
            pass
        assert stream.generation.fell_back is None
        return stream.generation.token_ids

    alone = [text(inputs) for inputs in prompts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(text, prompts * 3)) == alone * 3
