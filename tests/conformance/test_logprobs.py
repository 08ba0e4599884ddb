"""Log-probabilities are those of plain decoding, for accepted and bonus tokens alike, and are cut like the ids."""

import math
from functools import cache

import pytest
import torch

from conformance.conftest import tiny
from conformance.test_sampling import NUM_TOKENS, SETTINGS, Record, oracle, sampled
from helpers import PlannedDrafter, prompt
from oneglance.core import Drafter, SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs
from oneglance.testing import lucky_drafter
from oneglance.tree import chain

TOLERANCE = 1e-4
CHOSEN = ("temperature", "filters", "penalties", "greedy penalties")


@cache
def problem(setting: str) -> tuple[Target, Inputs, list[int], list[torch.Tensor]]:
    target = tiny("qwen3", "sdpa")
    inputs, record = prompt(target), Record()
    reference = oracle(target, inputs, record=record, **SETTINGS.get(setting, {}))
    return target, inputs, reference, record.log_p


@pytest.mark.parametrize("setting", ["greedy", *CHOSEN])
@pytest.mark.parametrize("kind", ["plain", "chain", "tree"])
def test_logprobs_are_those_of_generate(setting: str, kind: str) -> None:
    target, inputs, reference, log_p = problem(setting)
    length = len(inputs.token_ids)
    drafters: dict[str, Drafter] = {
        "plain": NoDrafter(),
        "chain": PlannedDrafter(reference, length, target.vocab_size, policy=chain),
        "tree": lucky_drafter(reference, length, seed=1, budget=31, vocab_size=target.vocab_size),
    }
    generation = sampled(target, drafters[kind], inputs, logprobs=5, **SETTINGS.get(setting, {}))
    assert generation.token_ids == reference
    assert generation.logprobs is not None
    assert len(generation.logprobs) == len(reference)
    for entry, token, row in zip(generation.logprobs, reference, log_p, strict=True):
        assert entry.token_id == token
        assert entry.log_p == pytest.approx(float(row[token]), abs=TOLERANCE)
        wanted = [value for value in row.topk(5).values.tolist() if value > -math.inf]
        assert [value for _, value in entry.top] == pytest.approx(wanted, abs=TOLERANCE)
        assert [float(row[other]) for other, _ in entry.top] == pytest.approx(wanted, abs=TOLERANCE)


def test_asking_changes_no_token_and_steps_carry_them() -> None:
    target, inputs, reference, _ = problem("greedy")
    drafter = PlannedDrafter(reference, len(inputs.token_ids), target.vocab_size, policy=chain)
    stream = Decoder(target, drafter).stream_inputs(inputs, SamplingParams(max_new_tokens=NUM_TOKENS, logprobs=0))
    pieces = [piece for step in stream for piece in step.pieces]
    assert [piece.logprobs for piece in pieces] == stream.generation.logprobs
    assert [piece.token_id for piece in pieces] == reference
    assert all(piece.logprobs is not None and piece.logprobs.top == () for piece in pieces)
    plain = sampled(target, drafter, inputs)
    assert plain.token_ids == reference
    assert plain.logprobs is None
    assert plain.as_dict()["logprobs"] is None


@pytest.mark.parametrize("cap", [1, 2, 7])
def test_logprobs_are_cut_at_the_cap(cap: int) -> None:
    target, inputs, reference, _ = problem("greedy")
    drafter = PlannedDrafter(reference, len(inputs.token_ids), target.vocab_size, policy=chain)
    generation = sampled(target, drafter, inputs, max_new_tokens=cap, logprobs=1)
    assert [entry.token_id for entry in generation.logprobs or ()] == generation.token_ids == reference[:cap]


def test_logprobs_are_cut_at_a_stop_string_inside_a_block() -> None:
    target, inputs, reference, _ = problem("greedy")
    drafter = PlannedDrafter(reference, len(inputs.token_ids), target.vocab_size, policy=chain)
    whole = sampled(target, drafter, inputs)
    printable = [i for i, t in enumerate(reference) if i > 2 and target.tokenizer.decode([t]).isprintable() and t < 256]
    stop = target.tokenizer.decode([reference[printable[0]]])
    generation = sampled(target, drafter, inputs, stop=[stop], logprobs=1)
    assert generation.text == whole.text[: whole.text.index(stop)]
    assert generation.token_ids == reference[: len(generation.token_ids)] != reference
    assert [entry.token_id for entry in generation.logprobs or ()] == generation.token_ids
