"""What every drafter owes the loop, over the whole registry: valid trees, the target's own text, and a clean end."""

from functools import cache
from typing import Any

import pytest
import torch

from baselines import EVERY, MAKERS
from conformance import checks
from conformance.conftest import tiny
from helpers import decode_ids, hf_generate, prompt, start
from oneglance.core import EMPTY_TREE, OneglanceWarning, SamplingParams, TokenTree
from oneglance.decoder import Decoder
from oneglance.drafters import DRAFTERS
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs
from oneglance.testing import FAMILIES

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
    generation = decode_ids(Decoder(target, drafter), inputs, NUM_TOKENS).generation
    assert generation.token_ids == reference
    assert generation.fell_back is None
    assert all(len(r.tree) <= budget for r in generation.rounds)
    if label == "itself":
        assert max(r.verdict.num_accepted for r in generation.rounds) == min(budget, 8)


@torch.inference_mode()
@pytest.mark.parametrize("label", EVERY)
def test_trees_are_no_deeper_than_asked_for_and_propose_no_placeholder(label: str) -> None:
    target, inputs, _ = problem("qwen3_vl")
    drafter = EVERY[label](target, 63)
    for max_depth in (0, 1, 3, 99):
        state, root = start(target, inputs, drafter.target_layer_ids)
        tree = drafter.draft(root, state, drafter.start(state), max_depth=max_depth)
        assert max(tree.depths, default=0) <= max_depth
        assert not set(tree.token_ids) & set(target.placeholder_ids)
        siblings = list(zip(tree.parents, tree.token_ids, strict=True))
        assert len(set(siblings)) == len(siblings)
        assert drafter.num_passes(tree) >= 0
        if not max_depth:
            assert (tree, drafter.num_passes(tree)) == (EMPTY_TREE, 0)


@torch.inference_mode()
@pytest.mark.parametrize("label", EVERY)
def test_skipped_rounds_lose_no_context(label: str) -> None:
    """Rounds that commit a path, rounds without a draft: the next tree is that of a drafter that starts there."""
    target, inputs, reference = problem("qwen3_vl")
    drafter = EVERY[label](target, 31)
    state, root = start(target, inputs, drafter.target_layer_ids)
    draft_state = drafter.start(state)
    for asks in (True, True, False, False, True, True):
        if asks:
            tree = drafter.draft(root, state, draft_state, max_depth=15)
            committed = state.token_ids[len(inputs.token_ids) : -1]
            fresh = target.prefill(target.extend(inputs, committed), drafter.target_layer_ids)
            fresh.token_ids.append(root)
            again = drafter.draft(root, fresh, drafter.start(fresh), max_depth=15)
            assert (again.token_ids, again.parents) == (tree.token_ids, tree.parents)
            assert drafter.num_passes(again) == drafter.num_passes(tree)
        rows = target.verify(state, root, EMPTY_TREE if not asks else tree)
        choices = rows.argmax(-1).tolist()
        path, tokens = [0], [choices[0]]
        while asks and (child := tree.children[path[-1]].get(tokens[-1])) is not None:
            path.append(child)
            tokens.append(choices[child])
        target.commit(state, path, tokens)
        root = tokens[-1]
    done = state.token_ids[len(inputs.token_ids) :][:NUM_TOKENS]
    assert done == reference[: len(done)]


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
    decoder = Decoder(target, EVERY[label](target, 15))
    with decoder.stream_inputs(inputs, SamplingParams(max_new_tokens=NUM_TOKENS)) as stream:
        next(stream)
        next(stream)
    other = prompt(target, 1, text="something else", seed=5)
    checks.check_identity(target, decoder.drafter, other, hf_generate(target, other, 9))
    checks.check_identity(target, decoder.drafter, inputs, reference)
