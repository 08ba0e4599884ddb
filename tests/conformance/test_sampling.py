"""Seeded sampling is token-identical to plain sampling with that seed, and processors act as in ``generate``.

The oracle is transformers' own ``generate(do_sample=False)``: the noise is one more logits processor, the last one, so
that its argmax is the draw.
"""

from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from conformance.conftest import tiny
from helpers import PlannedDrafter, forget, prompt
from oneglance.accept import gumbel
from oneglance.core import Drafter, Generation, InputError, OneglanceWarning, SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs
from oneglance.testing import lucky_drafter, tiny_head, tiny_target
from oneglance.tree import best_first, chain

NUM_TOKENS = 16
SEED = 11
IMAGES = {"qwen3_vl": 1, "mllama": 1, "qwen3": 0}
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 1.5},
    "one": {"temperature": 1.0},
    "filters": {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": -0.4},
    "forbidden": {"temperature": 1.2, "bad_words": [[5], [6, 7], "a"], "logit_bias": {9: 2.5, 40: -3.0}},
    "greedy penalties": {"repetition_penalty": 1.2, "frequency_penalty": 1.0, "presence_penalty": 0.5},
    "greedy bias": {"logit_bias": {9: 2.5}, "bad_words": [(17,)], "min_new_tokens": 6},
    "own processor": {"temperature": 0.5, "logits_processors": [NoRepeatNGramLogitsProcessor(1)]},
}


class Counts(LogitsProcessor):
    """OpenAI's penalties, counted by hand."""

    def __init__(self, prompt_length: int, frequency: float, presence: float) -> None:
        self.prompt_length, self.frequency, self.presence = prompt_length, frequency, presence

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        generated = input_ids[0, self.prompt_length :].tolist()
        for token in set(generated):
            scores[0, token] -= self.frequency * generated.count(token) + self.presence
        return scores


class Noise(LogitsProcessor):
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.double() + gumbel(self.seed, input_ids.shape[1], scores.shape[1])


class Record(LogitsProcessor):
    """Keeps the log-probabilities of every row that it sees."""

    def __init__(self) -> None:
        self.log_p: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.log_p.append(torch.log_softmax(scores[0].double(), dim=-1))
        return scores


@torch.inference_mode()
def oracle(
    target: Target,
    inputs: Inputs,
    num_tokens: int = NUM_TOKENS,
    seed: int = SEED,
    record: LogitsProcessor | None = None,
    **options: Any,
) -> list[int]:
    """New tokens of ``generate`` with transformers' own options and classes; ``record`` sees what is drawn from."""
    options = dict(options)
    extra: list[LogitsProcessor] = []
    counts = [options.pop(name, 0.0) for name in ("frequency_penalty", "presence_penalty")]
    if any(counts):
        extra.append(Counts(len(inputs.token_ids), *counts))
    extra += options.pop("logits_processors", [])
    temperature = options.pop("temperature", 0)
    if temperature:
        extra.append(TemperatureLogitsWarper(temperature))
        filters = {"top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper, "min_p": MinPLogitsWarper}
        extra += [cls(options.pop(name)) for name, cls in filters.items() if name in options]
    extra += [record] if record else []
    extra += [Noise(seed)] if temperature else []
    if "logit_bias" in options:
        options["sequence_bias"] = {(token,): bias for token, bias in options.pop("logit_bias").items()}
    if "bad_words" in options:
        spelled: list[list[int]] = []
        for word in options.pop("bad_words"):
            texts = [word, " " + word] if isinstance(word, str) else []
            spelled += [target.tokenizer.encode(text) for text in texts] or [list(word)]
        options["bad_words_ids"] = spelled
    forget(target)
    out = target.model.generate(
        **inputs.tensors,
        do_sample=False,
        max_new_tokens=num_tokens,
        logits_processor=LogitsProcessorList(extra),
        **options,
    )
    new: list[int] = out[0, len(inputs.token_ids) :].tolist()
    return new


@cache
def problem(family: str, setting: str) -> tuple[Target, Inputs, list[int]]:
    target = tiny(family, "sdpa")
    inputs = prompt(target, IMAGES[family])
    return target, inputs, oracle(target, inputs, **SETTINGS[setting])


def sampled(target: Target, drafter: Drafter, inputs: Inputs, **options: Any) -> Generation:
    params = SamplingParams(**{"max_new_tokens": NUM_TOKENS, "seed": SEED, **options})
    stream = Decoder(target, drafter).stream_inputs(inputs, params)
    for _ in stream:
        pass
    return stream.generation


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("family", IMAGES)
def test_seeded_text_is_that_of_generate(family: str, setting: str) -> None:
    target, inputs, reference = problem(family, setting)
    generation = sampled(target, NoDrafter(), inputs, **SETTINGS[setting])
    assert generation.token_ids == reference
    assert generation.seed == (SEED if "temperature" in SETTINGS[setting] else None)


@pytest.mark.parametrize("budget", [1, 15, 63])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("family", IMAGES)
def test_no_drafter_changes_a_drawn_token(family: str, setting: str, budget: int) -> None:
    target, inputs, reference = problem(family, setting)
    length, vocabulary = len(inputs.token_ids), target.vocab_size
    drafters: list[Drafter] = [
        BlockDrafter(tiny_head(target, seed=7), target, budget=budget),
        *(lucky_drafter(reference, length, seed=seed, budget=budget, vocab_size=vocabulary) for seed in range(2)),
        PlannedDrafter(reference, length, vocabulary, policy=chain, budget=budget),
        PlannedDrafter(reference, length, vocabulary, policy=best_first, budget=budget, ranks=(0, 1, None)),
    ]
    accepted = 0
    for drafter in drafters:
        generation = sampled(target, drafter, inputs, **SETTINGS[setting])
        assert generation.token_ids == reference
        accepted = max(accepted, *(r.verdict.num_accepted for r in generation.rounds))
    assert accepted >= min(budget, 3), "no path was long enough to test anything"


def test_seed_decides() -> None:
    target = tiny("qwen3", "sdpa")
    inputs = prompt(target)
    texts = {tuple(sampled(target, NoDrafter(), inputs, temperature=1.0, seed=seed).token_ids) for seed in range(8)}
    assert len(texts) == 8


def test_a_drawn_seed_is_reported_and_repeats() -> None:
    target = tiny("qwen3", "sdpa")
    decoder = Decoder(target, NoDrafter())
    once, again = (decoder.generate("hello", temperature=1.0, max_new_tokens=12) for _ in range(2))
    assert once.seed is not None
    assert once.seed != again.seed
    repeated = decoder.generate("hello", temperature=1.0, max_new_tokens=12, seed=once.seed)
    assert repeated.token_ids == once.token_ids
    assert repeated.as_dict()["seed"] == once.seed


def test_a_stop_that_cuts_a_block_leaves_no_trace() -> None:
    """Noise belongs to positions, so nothing that came before can shift it."""
    target = tiny("qwen3", "sdpa")
    inputs = prompt(target)
    options = {"temperature": 1.0}
    reference = oracle(target, inputs, **options)
    drafter = PlannedDrafter(reference, len(inputs.token_ids), target.vocab_size, policy=chain)
    whole = sampled(target, drafter, inputs, **options)
    for cap in (1, 2, 5):
        assert sampled(target, drafter, inputs, max_new_tokens=cap, **options).token_ids == reference[:cap]
        assert sampled(target, drafter, inputs, **options).token_ids == whole.token_ids


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 8.0},
        {"frequency_penalty": 0.25},
        {"presence_penalty": 0.7},
        {"logits_processors": [NoRepeatNGramLogitsProcessor(2)]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_penalties_act_on_tokens_repeated_inside_one_block(options: dict[str, Any]) -> None:
    """Two tokens win everywhere but for the penalty, which must see the block's own tokens to hold them back."""
    target = tiny_target("qwen3", initializer_range=0.02)
    inputs = prompt(target)
    favoured = {"logit_bias": {9: 1.0, 10: 0.5}}
    plain, reference = (oracle(target, inputs, **favoured, **more) for more in ({}, options))
    assert set(plain) == {9}
    assert set(reference) > {9, 10}
    for ahead in (reference, plain):
        drafter = PlannedDrafter(ahead, len(inputs.token_ids), target.vocab_size, policy=chain)
        generation = sampled(target, drafter, inputs, **favoured, **options)
        assert generation.token_ids == reference
    drafter = PlannedDrafter(reference, len(inputs.token_ids), target.vocab_size, policy=chain)
    accepted = [r.verdict.num_accepted for r in sampled(target, drafter, inputs, **favoured, **options).rounds]
    assert max(accepted) > 3


def test_generation_config_still_applies_and_can_be_overridden() -> None:
    target = tiny_target("qwen3", initializer_range=0.02)
    inputs = prompt(target)
    plain = oracle(target, inputs)
    target.model.generation_config.update(
        repetition_penalty=1.5, do_sample=True, temperature=0.6, top_k=20, top_p=0.95, typical_p=0.9
    )
    configured = oracle(target, inputs)
    assert configured != plain
    with pytest.warns(OneglanceWarning, match="generation config applies"):
        assert sampled(target, NoDrafter(), inputs).token_ids == configured
    assert sampled(target, NoDrafter(), inputs, repetition_penalty=1.0).token_ids == plain


def test_bad_ids_and_processors_are_one_line() -> None:
    decoder = Decoder(tiny("qwen3", "sdpa"), NoDrafter())
    with pytest.raises(InputError, match="logit_bias names token 272, but the vocabulary has ids 0 to 271"):
        decoder.generate("x", logit_bias={272: 1.0})
    with pytest.raises(InputError, match="bad_words names token -1"):
        decoder.generate("x", bad_words=[[-1]])
    with pytest.raises(InputError, match="3 is no logits processor"):
        decoder.generate("x", logits_processors=[3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="temprature"):
        decoder.generate("x", temprature=1.0)  # type: ignore[call-arg]


def test_generate_ids_takes_the_same_options() -> None:
    target, inputs, reference = problem("qwen3", "filters")
    ids = Decoder(target, NoDrafter()).generate_ids(
        **inputs.tensors, max_new_tokens=NUM_TOKENS, seed=SEED, **SETTINGS["filters"]
    )
    assert ids[0, len(inputs.token_ids) :].tolist() == reference


def test_the_draft_side_is_never_sampled() -> None:
    """Proposals are the deterministic top prefixes at any temperature: where the text is the same, so are the trees."""
    target = tiny("qwen3", "sdpa")
    inputs = prompt(target)
    drafter = BlockDrafter(tiny_head(target), target, budget=15)
    greedy = sampled(target, drafter, inputs)
    drawn = sampled(target, drafter, inputs, temperature=1.0, top_k=1)
    assert [r.tree for r in drawn.rounds] == [r.tree for r in greedy.rounds]
    assert drawn.token_ids == greedy.token_ids


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_a_tree_accepts_no_less_than_its_chain_when_tokens_are_drawn(temperature: float) -> None:
    """Drafting from sampled offsets fell to a third of the argmax chain's length elsewhere."""
    target = tiny("qwen3", "sdpa")
    inputs = prompt(target)
    length = len(inputs.token_ids)
    taus = []
    for policy in (best_first, chain):
        total = tokens = 0
        for seed in range(4):
            reference = oracle(target, inputs, seed=seed, temperature=temperature)
            drafter = PlannedDrafter(reference, length, target.vocab_size, policy=policy, budget=31, ranks=(0, 0, 1))
            generation = sampled(target, drafter, inputs, seed=seed, temperature=temperature)
            assert generation.token_ids == reference
            total += len(generation.rounds)
            tokens += sum(len(r.token_ids) for r in generation.rounds)
        taus.append(tokens / total)
    assert taus[0] > taus[1] > 1
