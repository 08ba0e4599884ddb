"""Baseline drafters against slow forms of their own definitions, on features of unpacked, uncached passes."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from baselines import eagle3_log_q, relative, tiny_eagle3, tiny_medusa
from conformance.conftest import tiny
from helpers import counting, hf_forward, hf_generate, hf_rows, path_to, prompt, start
from oneglance.core import TokenTree
from oneglance.drafters.eagle3 import Eagle3Drafter
from oneglance.drafters.medusa import MedusaDrafter
from oneglance.drafters.ngram import NgramDrafter, NgramSettings
from oneglance.drafters.two_model import TwoModelDrafter, TwoModelSettings
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs


@torch.inference_mode()
def test_eagle3_scores_are_those_of_its_definition() -> None:
    target = tiny("qwen3_vl", "sdpa")
    inputs = prompt(target, 1)
    head = tiny_eagle3(target, eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 3, 4]})  # past the DeepStack adds
    reference = hf_generate(target, inputs, 4)
    state = target.prefill(target.extend(inputs, reference[:2]), head.config.target_layer_ids)
    root = reference[2]
    state.token_ids.append(root)
    hidden = hf_forward(target, inputs, reference[:2], output_hidden_states=True).hidden_states
    # the last entry is normed already: the residual before it is what the head reads
    last: list[Tensor] = []
    handle = target.text_model.get_submodule("norm").register_forward_pre_hook(lambda _, args: last.append(args[0]))
    hf_forward(target, inputs, reference[:2])
    handle.remove()
    features = torch.cat([hidden[3][0], hidden[4][0], last[0][0]], dim=-1)
    drafter = Eagle3Drafter(head, target, num_passes=4, top_k=3, budget=12)
    tree = drafter.draft(root, state, drafter.start(state), max_depth=15)
    assert (len(tree), drafter.num_passes(tree)) == (12, 4)
    assert max(tree.depths) > 1
    for node in range(1, len(tree) + 1):
        path = [tree.token_ids[i - 1] for i in path_to(tree, node)]
        score = sum(
            float(eagle3_log_q(target, head, features, state.token_ids, path[:i])[token])
            for i, token in enumerate(path)
        )
        assert tree.scores[node - 1] == pytest.approx(score, abs=1e-3)
    roots = eagle3_log_q(target, head, features, state.token_ids, [])
    first = [t for t, parent in zip(tree.token_ids, tree.parents, strict=True) if parent == 0]
    assert set(first) <= set(roots.topk(3).indices.tolist())
    assert first[0] == int(roots.argmax())


@torch.inference_mode()
def test_an_eagle3_chain_is_the_greedy_path_of_its_definition() -> None:
    target = tiny("qwen3", "sdpa")
    head = tiny_eagle3(target)
    state, root = start(target, prompt(target), head.config.target_layer_ids)
    features = state.fresh[0].clone()
    drafter = Eagle3Drafter(head, target, num_passes=5, top_k=1)
    with counting(head) as calls:
        tree = drafter.draft(root, state, drafter.start(state), max_depth=15)
    expected: list[int] = []
    for _ in range(5):
        row = eagle3_log_q(target, head, features, state.token_ids, expected)
        expected.append(int(row.argmax()))
    assert tree.token_ids == tuple(expected)
    assert len(calls) == drafter.num_passes(tree) == 5


@torch.inference_mode()
@pytest.mark.parametrize("shares", [True, False])
def test_medusa_reads_the_state_that_predicted_the_root(shares: bool) -> None:
    target = tiny("qwen3_vl", "sdpa")
    inputs = prompt(target, 1)
    head = tiny_medusa(target, shares_lm_head=shares)
    state, root = start(target, inputs, head.config.target_layer_ids)
    tree = MedusaDrafter(head, target, budget=63).draft(
        root, state, MedusaDrafter(head, target).start(state), max_depth=9
    )
    normed = hf_forward(target, inputs, [], output_hidden_states=True).hidden_states[-1][0, -1]
    assert int(target.lm_head(normed).argmax()) == root
    rows = []
    for one in head:
        x = normed
        for layer in one:
            x = x + torch.nn.functional.silu(layer.linear(x)) if hasattr(layer, "linear") else layer(x)
        row = target.lm_head(x) if shares else x
        rows.append(row.index_fill(0, torch.tensor(target.banned_ids), -torch.inf).log_softmax(-1))
    for node in range(1, len(tree) + 1):
        score = sum(float(rows[d][tree.token_ids[i - 1]]) for d, i in enumerate(path_to(tree, node)))
        assert tree.scores[node - 1] == pytest.approx(score, abs=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("num_images", [0, 2])
def test_a_draft_model_continues_as_it_would_alone(num_images: int) -> None:
    target = tiny("qwen3_vl", "sdpa")
    model = relative(target)
    inputs = prompt(target, num_images)
    drafter = TwoModelDrafter(model, target, TwoModelSettings(num_draft=6))
    state, root = start(target, inputs)
    with counting(model.text_model) as calls:
        draft_state = drafter.start(state)
        tree = drafter.draft(root, state, draft_state, max_depth=99)
    assert list(tree.token_ids) == continued(model, inputs, [root], 6)
    assert len(calls) == 1 + drafter.num_passes(tree) == 7
    # the first two were right: what comes next starts behind them, in one pass of two tokens
    rows = target.verify(state, root, tree)
    assert rows.shape[0] == 7
    target.commit(state, [0, 1, 2], [*tree.token_ids[:2], 7])
    again = drafter.draft(7, state, draft_state, max_depth=99)
    assert list(again.token_ids) == continued(model, inputs, [root, *tree.token_ids[:2], 7], 6)


def continued(model: Target, inputs: Inputs, so_far: Sequence[int], count: int) -> list[int]:
    """Greedy tokens after ``so_far``, a whole uncached pass each."""
    tokens = list(so_far)
    for _ in range(count):
        row = hf_rows(model, inputs, tokens)[-1]
        tokens.append(int(row.index_fill(0, torch.tensor(model.banned_ids), -torch.inf).argmax()))
    return tokens[len(so_far) :]


@pytest.mark.parametrize("seed", range(30))
def test_lookups_find_the_first_place_where_the_longest_ngram_stood(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    target = tiny("qwen3_vl", "sdpa")
    banned = target.banned_ids[0]
    token_ids = [3, 4, 5, banned][seed % 2 :] + torch.randint(0, 4, (40,), generator=generator).tolist()
    token_ids[10] = banned
    settings = NgramSettings(max_ngram=1 + seed % 4, min_ngram=1, num_draft=5)
    extra = torch.randint(0, 4, (9,), generator=generator).tolist() if seed % 3 else []
    drafter = NgramDrafter(target, settings, extra=extra)
    state, _ = start(target, prompt(target))
    draft_state = drafter.start(state)
    for length in (12, 13, 25, 40):
        state.token_ids[:] = token_ids[:length]
        tree = drafter.draft(token_ids[length - 1], state, draft_state, max_depth=4)
        assert list(tree.token_ids) == slow_lookup(extra + token_ids[:length], settings.max_ngram, 4, banned)
        assert tree == TokenTree(tree.token_ids, tuple(range(len(tree))), tuple(range(1, len(tree) + 1)))


def slow_lookup(token_ids: list[int], max_ngram: int, num_draft: int, banned: int) -> list[int]:
    """Prompt lookup by looking everywhere, the longest n-gram first."""
    for size in range(max_ngram, 0, -1):
        for end in range(size, len(token_ids)):
            if token_ids[end - size : end] == token_ids[-size:] and token_ids[end] != banned:
                found = token_ids[end : end + num_draft]
                return found[: found.index(banned)] if banned in found else found
    return []
