"""fp32 output equals ``generate(do_sample=False)`` token for token, whatever the drafter, tree or budget."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache

import pytest
import torch

from conformance import checks
from conformance.conftest import tiny
from helpers import PlannedDrafter, decode_ids, hf_generate, prompt
from oneglance.core import Drafter, OneglanceWarning
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.head import BlockHead
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs
from oneglance.testing import FAMILIES, lucky_drafter, tiny_head, tiny_target
from oneglance.tree import POLICIES

NUM_TOKENS = 18
BUDGETS = (1, 2, 15, 31, 63, 127)


@cache
def problem(family: str) -> tuple[Target, Inputs, list[int]]:
    """A target, a prompt and its own greedy continuation."""
    target = tiny(family, "sdpa")
    inputs = prompt(target, 2 if target.takes_images else 0)
    return target, inputs, hf_generate(target, inputs, NUM_TOKENS)


def random_head(target: Target) -> BlockHead:
    return tiny_head(target, seed=7)


def uniform_head(target: Target) -> BlockHead:
    """All logits are equal: nothing but ties."""
    head = tiny_head(target)
    head.norm.weight.data.zero_()
    return head


def constant_head(target: Target) -> BlockHead:
    """The same tokens at every offset of every block."""
    head = tiny_head(target)
    state = torch.linspace(-1, 1, target.hidden_size)
    head.forward = lambda block, *_: state.expand_as(block)  # type: ignore[method-assign]
    return head


def nan_head(target: Target) -> BlockHead:
    head = tiny_head(target)
    head.norm.weight.data.fill_(float("nan"))
    return head


HEADS: dict[str, Callable[[Target], BlockHead]] = {
    "random": random_head,
    "uniform": uniform_head,
    "constant": constant_head,
}
PLANS: dict[str, tuple[int | None, ...]] = {
    "perfect": (0,),
    "second": (1,),
    "mixed": (0, 2, 1, 0, None),
    "always_wrong": (None,),
}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_any_head_gives_the_targets_own_text(family: str, kind: str, budget: int) -> None:
    target, inputs, reference = problem(family)
    head = HEADS[kind](target)
    for policy in POLICIES.values():
        checks.check_identity(target, BlockDrafter(head, target, policy=policy, budget=budget), inputs, reference)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("family", FAMILIES)
def test_any_luck_gives_the_targets_own_text(family: str, plan: str, budget: int) -> None:
    target, inputs, reference = problem(family)
    for name, policy in POLICIES.items():
        drafter = PlannedDrafter(
            reference,
            len(inputs.token_ids),
            target.vocab_size,
            policy=policy,
            budget=budget,
            ranks=PLANS[plan],
        )
        accepted = checks.check_identity(target, drafter, inputs, reference)
        if plan == "always_wrong":
            assert not any(accepted)
        elif plan == "perfect" and name == "chain":
            assert accepted[0] == min(budget, 15)
        elif plan == "second" and name != "chain" and budget >= 15:
            assert accepted[0] > 0


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_random_trees_give_the_targets_own_text(family: str, budget: int) -> None:
    target, inputs, reference = problem(family)
    for seed in range(3):
        drafter = lucky_drafter(
            reference, len(inputs.token_ids), seed=seed, budget=budget, vocab_size=target.vocab_size
        )
        checks.check_identity(target, drafter, inputs, reference)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_returns_nan_costs_speed_only(family: str) -> None:
    target, inputs, reference = problem(family)
    decoder = Decoder(target, BlockDrafter(nan_head(target), target))
    with pytest.warns(OneglanceWarning, match="NaN") as caught:
        generation = decode_ids(decoder, inputs, NUM_TOKENS).generation
    assert sum(warning.category is OneglanceWarning for warning in caught) == 1
    assert generation.token_ids == reference
    assert decode_ids(decoder, inputs, NUM_TOKENS).generation.token_ids == reference  # and does not say it again
    assert generation.num_draft_passes == 0
    assert generation.fell_back is not None
    assert "NaN" in generation.fell_back


@cache
def prompts() -> list[tuple[Target, Inputs, list[int]]]:
    """Ten prompts, over families and numbers of images, and their own greedy continuations."""
    found = []
    for index in range(10):
        target = tiny(FAMILIES[index % len(FAMILIES)], "sdpa")
        inputs = prompt(target, index % 3 if target.takes_images else 0, text=f"prompt {index}", seed=index)
        found.append((target, inputs, hf_generate(target, inputs, 10)))
    return found


@pytest.mark.parametrize(
    "budget", [pytest.param(1, marks=pytest.mark.slow), 63, pytest.param(127, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", ["random", "constant", "always wrong", "nan"])
def test_the_worst_heads_on_ten_prompts(kind: str, budget: int) -> None:
    heads = {"random": random_head, "constant": constant_head, "nan": nan_head}
    for target, inputs, reference in prompts():
        drafter: Drafter = (
            BlockDrafter(heads[kind](target), target, budget=budget)
            if kind in heads
            else PlannedDrafter(reference, len(inputs.token_ids), target.vocab_size, budget=budget, ranks=(None,))
        )
        with pytest.warns(OneglanceWarning, match="NaN") if kind == "nan" else nullcontext():
            accepted = checks.check_identity(target, drafter, inputs, reference)
        assert kind not in ("always wrong", "nan") or not any(accepted)


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_decoding_is_the_same_loop(family: str) -> None:
    target, inputs, reference = problem(family)
    accepted = checks.check_identity(target, NoDrafter(), inputs, reference)
    assert accepted == [0] * (len(reference) - 1)


@pytest.mark.parametrize("dtype", [torch.float64])
def test_other_precisions_follow_their_own_target(dtype: torch.dtype) -> None:
    target = tiny_target("qwen3_vl", dtype=dtype)
    inputs = prompt(target, 1)
    reference = hf_generate(target, inputs, NUM_TOKENS)
    drafter: Drafter = BlockDrafter(tiny_head(target), target)
    checks.check_identity(target, drafter, inputs, reference)
