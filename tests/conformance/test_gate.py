"""The gate: near-ties are decided by single steps, and what packed passes get wrong by less than δ changes no token."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from conformance.conftest import tiny
from conformance.test_sampling import NUM_TOKENS, SETTINGS, oracle, sampled
from helpers import PlannedDrafter, prompt
from oneglance.accept import Gated, Greedy, Sampled
from oneglance.core import EMPTY_TREE, InputError, SamplingParams, TokenTree
from oneglance.drafters.block import BlockDrafter
from oneglance.targets.base import Target
from oneglance.testing import lucky_drafter, tiny_head, tiny_target
from oneglance.tree import chain

NOISE = 0.6  # logits of the tiny target are far apart


def noisy_packed_passes(patch: pytest.MonkeyPatch) -> None:
    """Packed rows are off by up to ``NOISE``, as other kernels would have it; single steps are right."""
    right, generator = Target.verify, torch.Generator().manual_seed(0)

    def verify(self: Target, state: Any, root: int, tree: TokenTree) -> torch.Tensor:
        rows = right(self, state, root, tree)
        return rows + NOISE * (2 * torch.rand(rows.shape, generator=generator) - 1) if len(tree) else rows

    patch.setattr(Target, "verify", verify)


@pytest.mark.parametrize("setting", ["greedy", "one", "penalties"])
def test_the_gate_absorbs_what_packed_passes_get_wrong(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny("qwen3", "sdpa")
    inputs = prompt(target)
    options = dict(SETTINGS.get(setting, {}), max_new_tokens=60)
    options.pop("repetition_penalty", None)  # it stretches logits, and noise with them
    reference = oracle(target, inputs, 60, **{k: v for k, v in options.items() if k != "max_new_tokens"})
    noisy_packed_passes(monkeypatch)
    drafter = PlannedDrafter(reference, len(inputs.token_ids), target.vocab_size, policy=chain)
    ungated = [sampled(target, drafter, inputs, **options).token_ids == reference for _ in range(3)]
    assert not all(ungated), "the noise changes nothing here"
    for _ in range(3):
        generation = sampled(target, drafter, inputs, gate=2 * NOISE, **options)
        assert generation.token_ids == reference
        assert 0 < generation.gate_rate < 1


@pytest.mark.parametrize("gate", [1e-3, 0.5, 1e9])
@pytest.mark.parametrize("setting", ["greedy", "filters", "greedy penalties"])
def test_gating_is_exact_at_any_width(setting: str, gate: float) -> None:
    target = tiny("qwen3", "sdpa")
    inputs = prompt(target)
    options = SETTINGS.get(setting, {})
    reference = oracle(target, inputs, **options)
    length = len(inputs.token_ids)
    for drafter in (
        lucky_drafter(reference, length, seed=3, budget=15, vocab_size=target.vocab_size),
        PlannedDrafter(reference, length, target.vocab_size, policy=chain),
        BlockDrafter(tiny_head(target), target, budget=15),
    ):
        generation = sampled(target, drafter, inputs, gate=gate, logprobs=0, **options)
        assert generation.token_ids == reference
        assert [entry.token_id for entry in generation.logprobs or ()] == reference
        rounds = generation.rounds
        assert all(not after.tree for before, after in pairwise(rounds) if before.gated)
        assert all(r.tree for r in rounds if r.gated)
        assert generation.num_tokens == 1 + sum(len(r.token_ids) for r in rounds)
        if gate == 1e9:
            assert all(r.token_ids == () for r in rounds if r.gated)
            assert generation.gate_rate >= 0.4


def test_a_path_is_cut_before_the_close_choice() -> None:
    rows = torch.tensor([[0.0, 9, 0], [0, 0, 9], [0, 8.9, 9], [9, 0, 0]])
    tree = TokenTree((1, 2, 2), (0, 1, 2), (1, 2, 3))
    assert Gated(Greedy(), 0.05)(tree, rows, [0]).token_ids == (1, 2, 2, 0)
    verdict = Gated(Greedy(), 0.2)(tree, rows, [0])
    assert (verdict.path, verdict.token_ids, verdict.is_gated) == ((0, 1), (1, 2), True)
    assert verdict.num_accepted == 2
    nothing = Gated(Greedy(), 10)(tree, rows, [0])
    assert (nothing.path, nothing.token_ids, nothing.num_accepted) == ((), (), 0)
    single = Gated(Greedy(), 10)(EMPTY_TREE, rows[:1], [0])
    assert (single.token_ids, single.is_gated) == ((1,), False)


def test_margins_of_draws_are_in_logit_units() -> None:
    row = torch.tensor([0.0, 1.0, -2.0])
    hot = Sampled(4, lambda ids, scores: scores / 2, temperature=2.0).decide(row, [1, 2])
    keys = hot.keys.sort(descending=True).values
    assert hot.margin == pytest.approx(2 * float(keys[0] - keys[1]))
    only = Sampled(4, lambda ids, scores: torch.where(scores > 0.5, scores, -torch.inf)).decide(row, [1, 2])
    assert only.margin == float("inf")


def test_the_head_sees_every_committed_row() -> None:
    """Rounds without a draft leave their features to the next one."""
    target = tiny_target("qwen3")
    inputs = prompt(target)
    lengths: list[tuple[int, int]] = []

    class Watched(BlockDrafter):
        def draft(self, root: int, state: Any, draft_state: Any, *, max_depth: int) -> TokenTree:
            tree = super().draft(root, state, draft_state, max_depth=max_depth)
            if max_depth:
                lengths.append((draft_state.length, state.length))
            return tree

    generation = sampled(target, Watched(tiny_head(target), target, budget=7), inputs, gate=1.0)
    assert sum(r.gated for r in generation.rounds) > 0
    assert len(lengths) < len(generation.rounds)
    assert all(drafted == committed for drafted, committed in lengths)


def test_gate_and_own_processors_do_not_go_together() -> None:
    with pytest.raises(InputError, match="the gate processes some rows twice"):
        SamplingParams(max_new_tokens=NUM_TOKENS, gate=0.1, logits_processors=(len,))
