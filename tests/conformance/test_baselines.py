"""What every drafter owes the loop, over the whole registry: valid trees, the target's own text, and a clean end."""

from functools import cache, partial
from typing import Any

import pytest

from baselines import EVERY, MAKERS
from conformance.conftest import tiny
from helpers import decode_ids, hf_generate, prompt
from oneglance.core import OneglanceWarning, SamplingParams, TokenTree
from oneglance.decoder import Decoder
from oneglance.drafters import DRAFTERS
from oneglance.drafters.ngram import NgramDrafter, NgramSettings
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs
from oneglance.testing import FAMILIES, check_drafter, check_reuse, check_rounds, check_text
from oneglance.tree import from_path

NUM_TOKENS = 20


@cache
def problem(family: str) -> tuple[Target, Inputs, list[int]]:
    target = tiny(family, "sdpa")
    inputs = prompt(target, 2 if target.takes_images else 0, text="one two one two one")
    return target, inputs, hf_generate(target, inputs, NUM_TOKENS)


def test_every_registered_drafter_is_under_test() -> None:
    missing = DRAFTERS.keys() - MAKERS.keys()
    assert not missing, f"add a line to MAKERS in tests/baselines.py for {', '.join(sorted(missing))}"
    assert not MAKERS.keys() - DRAFTERS.keys()


@pytest.mark.parametrize(
    ("family", "budget"),
    [
        ("qwen3_vl", 15),
        ("mllama", 6),
        ("whisper", 6),
        *(pytest.param("qwen3_vl", budget, marks=pytest.mark.slow) for budget in (1, 63)),
        *(
            pytest.param(family, 6, marks=pytest.mark.slow)
            for family in FAMILIES
            if family not in ("qwen3_vl", "mllama", "whisper")
        ),
    ],
)
@pytest.mark.parametrize("label", EVERY)
def test_any_drafter_gives_the_targets_own_text(label: str, family: str, budget: int) -> None:
    target, inputs, reference = problem(family)
    drafter = EVERY[label](target, budget)
    params = SamplingParams(max_new_tokens=NUM_TOKENS)
    generation = check_text(drafter, target, inputs, reference, params, budget=budget)
    if label == "itself":
        assert max(r.verdict.num_accepted for r in generation.rounds) == min(budget, 8)


@pytest.mark.parametrize("label", EVERY)
def test_trees_are_valid_and_skipped_rounds_lose_no_context(label: str) -> None:
    target, inputs, _ = problem("qwen3_vl")
    check_rounds(EVERY[label](target, 31), target, inputs, budget=31)


@cache
def drawn() -> list[int]:
    """Plain decoding with a seed."""
    target, inputs, _ = problem("qwen3_vl")
    return list(sampled(Decoder(target, NoDrafter()), inputs))


def sampled(decoder: Decoder, inputs: Inputs) -> list[int]:
    stream = decoder.stream_inputs(inputs, SamplingParams(max_new_tokens=NUM_TOKENS, temperature=1.2, seed=5))
    for _ in stream:
        pass
    assert stream.generation.fell_back is None
    return stream.generation.token_ids


@pytest.mark.parametrize("label", EVERY)
def test_any_drafter_leaves_drawn_tokens_as_they_are(label: str) -> None:
    target, inputs, reference = problem("qwen3_vl")
    assert drawn() != reference, "nothing was drawn"
    assert sampled(Decoder(target, EVERY[label](target, 15)), inputs) == drawn()


@pytest.mark.parametrize("label", [label for label in EVERY if label != "none"])
def test_a_drafter_that_fails_leaves_the_text_as_it_is(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third draft fails after it did its work: the rest is decoded plainly, and that is said."""
    target, inputs, reference = problem("qwen3_vl")
    drafter = EVERY[label](target, 2)
    right, calls = drafter.draft, iter(range(1 << 30))

    def faulty(*args: Any, **options: Any) -> TokenTree:
        tree = right(*args, **options)
        if next(calls) == 2:
            raise RuntimeError("injected")
        return tree

    monkeypatch.setattr(drafter, "draft", faulty)
    with pytest.warns(OneglanceWarning, match="injected"):
        failed = decode_ids(Decoder(target, drafter), inputs, NUM_TOKENS).generation
    assert failed.token_ids == reference
    assert failed.fell_back is not None


@pytest.mark.parametrize("label", EVERY)
def test_an_early_stop_and_other_prompts_leave_nothing_behind(label: str) -> None:
    target, inputs, reference = problem("qwen3_vl")
    other = prompt(target, 1, text="something else", seed=5)
    drafter = EVERY[label](target, 15)
    check_reuse(drafter, target, (inputs, reference), (other, hf_generate(target, other, 9)), budget=15)


class Faulty(NgramDrafter):
    """A drafter with one fault, which nothing but the name of the fault decides."""

    def __init__(self, target: Target, fault: str, *, budget: int) -> None:
        super().__init__(target, NgramSettings(num_draft=99), budget=budget)
        self.fault = fault
        self.target = target
        self.answers: list[int] = []

    def draft(self, root: int, state: Any, draft_state: Any, *, max_depth: int) -> TokenTree:
        tree = super().draft(root, state, draft_state, max_depth=99 if self.fault == "deep" else max_depth)
        if self.fault == "writes":
            state.token_ids[0] += 1
        if self.fault == "remembers" and max_depth:
            self.answers.append(root)
            return from_path([len(self.answers) % 250])
        if self.fault == "banned" and max_depth:
            return from_path(self.target.banned_ids[:1])
        if self.fault == "twins" and max_depth and self.num_draft > 1:
            return TokenTree((1, 1), (0, 0), (1, 1))
        if self.fault == "wide" and max_depth:
            return TokenTree(tuple(range(40)), (0,) * 40, (1,) * 40)
        return tree

    def num_passes(self, tree: TokenTree) -> int:
        return 1 if self.fault == "idle" else 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("deep", "where max_depth is"),
        ("writes", "draft wrote to the target's state"),
        ("remembers", "learns from one answer|by a drafter that starts there"),
        ("banned", r"of target\.banned_ids"),
        ("twins", "the same token twice"),
        ("wide", "its budget is"),
        ("idle", "passes where max_depth is 0"),
    ],
)
def test_the_check_that_plugins_run_finds(fault: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_drafter(partial(Faulty, fault=fault), problem("qwen3_vl")[0], budgets=(31,))


def test_the_check_that_plugins_run_finds_nothing_wrong_with_ours() -> None:
    check_drafter("ngram", budgets=(6,))
