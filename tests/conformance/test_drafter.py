"""The block drafter on real states: what it reads, where it stands, and that its cache is a fresh pass."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import decode_ids, decoyed_tree, hf_forward, hf_generate, prompt, start, walk
from oneglance.core import EMPTY_TREE, DraftError, InputError
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter, DraftState, packed_bytes, to_host, unpacked
from oneglance.drafters.checkpoint import HeadCheckpoint
from oneglance.drafters.head import BlockHead, HeadConfig
from oneglance.targets.base import Target
from oneglance.targets.kv import GROWTH
from oneglance.targets.state import Inputs
from oneglance.testing import tiny_head, tiny_head_config, tiny_target
from oneglance.tree import best_first, chain

Pass = tuple[Tensor, list[tuple[Tensor, Tensor]], Tensor]


@contextmanager
def passes(head: BlockHead) -> Iterator[list[Pass]]:
    """(block, context, positions) of every pass of the head."""
    seen: list[Pass] = []
    handle = head.register_forward_pre_hook(lambda _, args: seen.append((args[0], args[1], args[2])))
    try:
        yield seen
    finally:
        handle.remove()


def fresh_log_q(target: Target, head: BlockHead, inputs: Inputs, committed: list[int], root: int) -> Tensor:
    """(L, V) log q after ``root``, from the model's own hidden states and a whole-context pass; nothing is banned."""
    hidden = hf_forward(target, inputs, committed, output_hidden_states=True).hidden_states
    ran = range(target.num_layers) if inputs.num_images else target.self_attention_layers
    features = torch.cat([hidden[ran.index(i) + 1][0] for i in head.config.target_layer_ids], dim=-1)
    slots = torch.tensor([root] + [head.config.mask_token_id] * head.config.num_offsets)
    length = len(features)
    context = head.project_context(features[None], torch.arange(length))
    positions = torch.arange(length, length + len(slots))
    states = head(target.embedding(slots)[None], context, positions, [None] * len(head.layers))
    return target.lm_head(states[0, 1:]).log_softmax(-1)


@torch.inference_mode()
def test_incremental_drafts_equal_fresh_ones_from_the_models_own_states(sdpa_target: Target) -> None:
    """Over rounds that accept non-contiguous paths, with pictures; features come from an unpacked pass."""
    target = sdpa_target
    inputs = prompt(target, 2 if target.takes_images else 0)
    reference = hf_generate(target, inputs, 12)
    # layers without a DeepStack add: its own test compares those
    kept = [i for i in target.self_attention_layers if i >= 2 or not target.takes_images][:2]
    head = tiny_head(target, kept=kept[::-1])
    drafter = BlockDrafter(head, target, budget=target.vocab_size)
    state, root = start(target, inputs, drafter.target_layer_ids)
    draft_state = drafter.start(state)
    for size in (2, 0, 3, 1):
        committed = state.token_ids[len(inputs.token_ids) : -1]
        with passes(head) as seen:
            marginals = drafter.marginals(root, state, draft_state, head.config.num_offsets)
        ((block, context, positions),) = seen
        # [root, mask, …] at the root's index and after it; the context is all before it, then the block's own rows
        slots = torch.tensor([root] + [head.config.mask_token_id] * 15)
        assert torch.equal(block[0], target.embedding(slots))
        assert positions.tolist() == list(range(state.length, state.length + 16))
        assert state.length == len(state.token_ids) - 1 == draft_state.length
        assert all(keys.shape[2] == values.shape[2] == state.length + 16 for keys, values in context)
        expected = fresh_log_q(target, head, inputs, committed, root)
        expected[:, list(target.banned_ids)] = -torch.inf
        expected = expected.log_softmax(-1)
        actual = torch.empty_like(expected).scatter_(
            1, torch.from_numpy(marginals.token_ids), torch.from_numpy(marginals.log_q).float()
        )
        torch.testing.assert_close(actual, expected, atol=2e-4, rtol=1e-4)
        tree = decoyed_tree(reference[len(committed) + 1 :][:size], vocab_size=target.vocab_size)
        path, tokens = walk(tree, target.verify(state, root, tree).argmax(-1).tolist())
        assert len(path) == size + 1
        target.commit(state, path, tokens)
        root = tokens[-1]


@torch.inference_mode()
def test_a_skipped_round_loses_no_context(qwen3_vl: Target) -> None:
    """Rows that were committed without a draft are ingested by the next one."""
    inputs = prompt(qwen3_vl, 1)
    drafter = BlockDrafter(tiny_head(qwen3_vl), qwen3_vl)
    results = []
    for asks in (True, False):
        state, root = start(qwen3_vl, inputs, drafter.target_layer_ids)
        draft_state = drafter.start(state)
        for _ in range(3):
            if asks:
                drafter.draft(root, state, draft_state, max_depth=15)
            else:
                assert not len(drafter.draft(root, state, draft_state, max_depth=0))
            token = int(qwen3_vl.verify(state, root, EMPTY_TREE)[0].argmax())
            qwen3_vl.commit(state, [0], [token])
            root = token
        results.append(drafter.draft(root, state, draft_state, max_depth=15))
    assert results[0].token_ids == results[1].token_ids


@torch.inference_mode()
def test_marginals_are_sorted_distributions_over_what_may_be_proposed(qwen3_vl: Target) -> None:
    drafter = BlockDrafter(tiny_head(qwen3_vl), qwen3_vl, budget=qwen3_vl.vocab_size)
    state, root = start(qwen3_vl, prompt(qwen3_vl, 1), drafter.target_layer_ids)
    marginals = drafter.marginals(root, state, drafter.start(state), 15)
    assert marginals.log_q.shape == marginals.token_ids.shape == (15, qwen3_vl.vocab_size)
    assert marginals.log_q.dtype == np.float64
    assert (marginals.log_q[:, 1:] <= marginals.log_q[:, :-1]).all()
    assert np.allclose(np.exp(marginals.log_q).sum(1), 1, atol=1e-5)
    assert all(sorted(row) == list(range(qwen3_vl.vocab_size)) for row in marginals.token_ids.tolist())
    impossible = marginals.token_ids[np.isinf(marginals.log_q)]
    assert set(impossible.tolist()) == set(qwen3_vl.banned_ids)


@torch.inference_mode()
def test_ties_of_a_head_are_ordered_by_token_id(qwen3: Target) -> None:
    head = tiny_head(qwen3)
    head.norm.weight.data.zero_()
    drafter = BlockDrafter(head, qwen3, budget=qwen3.vocab_size)
    state, root = start(qwen3, prompt(qwen3), drafter.target_layer_ids)
    marginals = drafter.marginals(root, state, drafter.start(state), 15)
    assert (marginals.token_ids == np.arange(qwen3.vocab_size)).all()


@torch.inference_mode()
@pytest.mark.parametrize("branch_k", [1, 3, 15, 400])
def test_branch_k_limits_the_ranks_and_is_exact_from_the_budget_on(qwen3: Target, branch_k: int) -> None:
    head = tiny_head(qwen3)
    trees = []
    for ranks in (branch_k, None, qwen3.vocab_size):
        drafter = BlockDrafter(head, qwen3, budget=15, branch_k=ranks)
        state, root = start(qwen3, prompt(qwen3), drafter.target_layer_ids)
        trees.append(drafter.draft(root, state, drafter.start(state), max_depth=15))
    limited, default, exact = trees
    assert default == exact
    assert max(limited.parents.count(parent) for parent in limited.parents) <= branch_k
    assert (limited == exact) == (branch_k >= 15)


@torch.inference_mode()
@pytest.mark.parametrize("max_depth", [1, 2, 14, 15, 99])
def test_trees_are_no_deeper_than_asked_for(qwen3: Target, max_depth: int) -> None:
    drafter = BlockDrafter(tiny_head(qwen3), qwen3, policy=chain, budget=63)
    state, root = start(qwen3, prompt(qwen3), drafter.target_layer_ids)
    assert len(drafter.draft(root, state, drafter.start(state), max_depth=max_depth)) == min(max_depth, 15)


@pytest.mark.parametrize("options", [{"budget": 0}, {"budget": -3}, {"branch_k": 0}])
def test_bad_options_are_named(qwen3: Target, options: dict[str, int]) -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        BlockDrafter(tiny_head(qwen3), qwen3, **options)


@torch.inference_mode()
def test_a_head_of_another_block_size(qwen3: Target) -> None:
    torch.manual_seed(0)
    head = BlockHead(HeadConfig.from_checkpoint({**tiny_head_config(qwen3), "block_size": 5})).eval()
    drafter = BlockDrafter(head, qwen3, policy=chain)
    state, root = start(qwen3, prompt(qwen3), drafter.target_layer_ids)
    assert len(drafter.draft(root, state, drafter.start(state), max_depth=15)) == 4
    inputs = prompt(qwen3)
    assert decode_ids(Decoder(qwen3, drafter), inputs, 9).generation.token_ids == hf_generate(qwen3, inputs, 9)


@torch.inference_mode()
def test_sliding_layers_are_given_their_window(qwen3: Target) -> None:
    """The context row that a window reaches last changes the block; the one before it does not."""
    raw = {**tiny_head_config(qwen3, num_layers=1), "layer_types": ["sliding_attention"], "sliding_window": 4}
    torch.manual_seed(0)
    head = BlockHead(HeadConfig.from_checkpoint(raw)).eval().requires_grad_(False)
    drafter = BlockDrafter(head, qwen3, budget=qwen3.vocab_size)
    inputs = prompt(qwen3)

    def marginals(changed: int | None) -> Any:
        state, root = start(qwen3, inputs, drafter.target_layer_ids)
        if changed is not None:
            state.fresh[0] = state.fresh[0].clone()
            state.fresh[0][changed] += 5
        found = drafter.marginals(root, state, drafter.start(state), 15)
        order = np.argsort(found.token_ids, axis=1)
        return np.take_along_axis(found.log_q, order, 1)

    masks: list[Tensor] = []
    head.register_forward_pre_hook(lambda _, args: masks.append(args[3][0]))
    base, length = marginals(None), len(inputs.token_ids)
    for slot in range(16):  # inside the block a sliding layer is causal
        seen = [column for column in range(length + 16) if 0 <= length + slot - column < 4]
        assert torch.nonzero(masks[0][slot])[:, 0].tolist() == seen
    # the slot of offset k stands at length + k and sees four positions, its own among them: the last context row is
    # seen by offsets 1 and 2, the one before it by offset 1, earlier ones by none
    for back, num_seeing in ((1, 2), (2, 1), (3, 0), (4, 0), (9, 0)):
        changed = np.abs(marginals(length - back) - base).max(1) > 1e-6
        assert changed.tolist() == [True] * num_seeing + [False] * (15 - num_seeing)


@torch.inference_mode()
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_head_without_numbers_says_so(qwen3: Target, value: float) -> None:
    head = tiny_head(qwen3)
    head.layers[1].mlp.down_proj.weight.data[3, 3] = value
    drafter = BlockDrafter(head, qwen3)
    state, root = start(qwen3, prompt(qwen3), drafter.target_layer_ids)
    with pytest.raises(DraftError, match="NaN or infinite"):
        drafter.draft(root, state, drafter.start(state), max_depth=15)


def test_bind_gives_the_head_the_targets_type() -> None:
    target = tiny_target("qwen3_vl", dtype=torch.bfloat16)
    config = HeadConfig.from_checkpoint(tiny_head_config(target))
    checkpoint = HeadCheckpoint("some head", config, tiny_head_config(target), BlockHead(config).state_dict())
    drafter = BlockDrafter.bind(checkpoint, target, budget=7)
    assert {p.dtype for p in drafter.head.parameters()} == {torch.bfloat16}
    assert (drafter.name, drafter.budget, drafter.num_ranks) == ("some head", 7, 7)
    generation = decode_ids(Decoder(target, drafter), prompt(target, 1), 8).generation
    assert (generation.num_tokens, generation.fell_back, generation.head) == (8, None, "some head")


# The draft cache -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_draft_cache_is_what_was_appended(seed: int) -> None:
    rng, state = random.Random(seed), DraftState()
    expected: list[list[Tensor]] = [[], [], [], []]
    for _ in range(12):
        size = rng.choice([1, 2, 16, GROWTH - 1, GROWTH, GROWTH + 1, 3 * GROWTH])
        rows = [(torch.randn(1, 2, size, 4), torch.randn(1, 2, size, 4)) for _ in range(2)]
        state.extend(rows)
        for slot, tensor in zip(expected, [t for pair in rows for t in pair], strict=True):
            slot.append(tensor)
    found = [tensor for pair in state.context() for tensor in pair]
    assert all(torch.equal(a, torch.cat(b, 2)) for a, b in zip(found, expected, strict=True))
    assert state.length == found[0].shape[2]


def test_an_array_is_what_its_tensor_was() -> None:
    """One copy a round: ids, log q and the rescorer's table in one transfer, whose bytes are then taken apart."""
    given = [torch.arange(6).view(2, 3), torch.randn(2, 3), torch.randn(1, 3, 3, dtype=torch.float64)]
    for parts in (to_host(*given), unpacked(packed_bytes(*given), given)):
        for array, tensor in zip(parts, given, strict=True):
            assert torch.equal(torch.from_numpy(array), tensor)
            assert array.dtype == tensor.numpy().dtype


def test_best_first_is_the_default_policy(qwen3: Target) -> None:
    assert BlockDrafter(tiny_head(qwen3), qwen3).policy is best_first
