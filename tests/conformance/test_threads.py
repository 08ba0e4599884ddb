"""Two threads on one decoder: each gets its own text."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor

from helpers import prompt
from oneglance.core import SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.targets.capture import Turn
from oneglance.targets.passes import FixedShape
from oneglance.targets.state import Inputs
from oneglance.testing import tiny_head, tiny_target


def test_targets_of_one_model_take_turns() -> None:
    """However they were made: what a pass swaps in on the model is no other pass's."""
    first = tiny_target("qwen3")
    others = [first.with_passes(FixedShape(16)), type(first)(first.model, first.processor, name="again")]
    inside, most = [0], [0]

    def slow(*_: object) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.05)
        inside[0] -= 1

    hook = first.layers[0].register_forward_pre_hook(slow)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda target: target.prefill(prompt(target), (1,)), [first, *others]))
    assert most == [1]
    hook.remove()
    twin = pickle.loads(pickle.dumps(Turn.of(first.model)))
    assert twin.lock is not Turn.of(first.model).lock
    assert first.in_float64()._lock is not first._lock, "another model's passes need not wait"


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
