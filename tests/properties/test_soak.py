"""Rounds without end at temperature 1: memory stays flat and the text stays that of plain sampling.

``make test`` runs a slice; ``make soak`` sets ``SOAK_ROUNDS`` to 20,000.
"""

import gc
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from helpers import prompt
from oneglance.core import Generation, SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.plain import NoDrafter
from oneglance.testing import tiny_head, tiny_target

NUM_ROUNDS = int(os.environ.get("SOAK_ROUNDS", "300"))
NUM_TOKENS = 60
TRACED_GROWTH = 1 << 18  # bytes of Python objects
RESIDENT_GROWTH = 1 << 25  # bytes of the process: allocators keep some


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


def test_memory_is_flat_and_text_exact() -> None:
    target = tiny_target("qwen3_vl")
    drafted, plain = Decoder(target, BlockDrafter(tiny_head(target), target)), Decoder(target, NoDrafter())
    prompts = [prompt(target), prompt(target, 1, seed=3)]

    def generations() -> Iterator[Generation]:
        for seed in range(1 << 30):
            options = {"max_new_tokens": NUM_TOKENS, "temperature": 1.0, "seed": seed, "ignore_eos": True}
            params = SamplingParams(**options, top_p=0.95, logprobs=1, gate=0.01)  # type: ignore[arg-type]
            inputs = prompts[seed % 2]
            for _ in (stream := drafted.stream_inputs(inputs, params)):
                pass
            if seed % 20 == 0:
                for _ in (other := plain.stream_inputs(inputs, params)):
                    pass
                assert stream.generation.token_ids == other.generation.token_ids, f"seed {seed}"
            yield stream.generation

    running = generations()

    def rounds(at_least: int) -> int:
        done = 0
        while done < at_least:
            done += len(next(running).rounds)
        gc.collect()
        return done

    tracemalloc.start()
    try:
        done = rounds(NUM_ROUNDS // 3)
        traced, before = tracemalloc.get_traced_memory()[0], resident()
        done += rounds(NUM_ROUNDS - done)
        grown = tracemalloc.get_traced_memory()[0] - traced
    finally:
        tracemalloc.stop()
    assert done >= NUM_ROUNDS
    assert grown < TRACED_GROWTH, f"Python objects grew by {grown} bytes over {done} rounds"
    assert resident() - before < RESIDENT_GROWTH, f"the process grew by {resident() - before} bytes"
