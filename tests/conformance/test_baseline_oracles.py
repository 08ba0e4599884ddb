"""Baseline drafters against slow forms of their own definitions, on features of unpacked, uncached passes."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from baselines import (
    eagle2_log_q,
    eagle3_log_q,
    relative,
    tiny_eagle2,
    tiny_eagle3,
    tiny_medusa,
    tiny_vispec,
    vispec_log_q,
)
from conformance.conftest import tiny
from helpers import counting, hf_forward, hf_generate, hf_rows, path_to, prompt, start
from oneglance.core import DraftError, TokenTree
from oneglance.drafters.eagle import EagleDrafter
from oneglance.drafters.eagle2 import Eagle2Drafter
from oneglance.drafters.eagle3 import Eagle3Drafter
from oneglance.drafters.medusa import MedusaDrafter
from oneglance.drafters.ngram import NgramDrafter, NgramSettings
from oneglance.drafters.two_model import TwoModelDrafter, TwoModelSettings
from oneglance.drafters.vispec import VispecDrafter
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


def top_of_the_target(target: Target, inputs: Inputs, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(T, H) embeddings and (T, H) last hidden states of an unpacked, uncached pass, as transformers gives them."""
    hidden = hf_forward(target, inputs, tokens, output_hidden_states=True).hidden_states
    return hidden[0][0], hidden[-1][0]


def dynamic_tree(
    log_q: Callable[[tuple[int, ...]], Tensor], depth: int, width: int, budget: int
) -> set[tuple[int, ...]]:
    """EAGLE-2's tree as a set of paths, by its definition: expand the best of a level, then rank everything."""
    scores: dict[tuple[int, ...], float] = {}
    level: list[tuple[int, ...]] = [()]
    for _ in range(depth):
        grown: list[tuple[int, ...]] = []
        for path in level:
            row = log_q(path)
            for token in row.topk(width).indices.tolist():
                scores[*path, token] = scores.get(path, 0.0) + float(row[token])
                grown.append((*path, token))
        level = sorted(grown, key=lambda path: -scores[path])[:width]
    return set(sorted(scores, key=lambda path: -scores[path])[:budget])


def paths_of(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.token_ids[i - 1] for i in path_to(tree, node)) for node in range(1, len(tree) + 1)}


@torch.inference_mode()
@pytest.mark.parametrize(
    ("family", "num_images", "num_queries"),
    [("qwen3_vl", 2, 2), pytest.param("qwen3_vl", 1, 3, marks=pytest.mark.slow), ("qwen2_5_vl", 0, 2)],
)
@pytest.mark.parametrize("kind", ["eagle2", "vispec"])
def test_dynamic_trees_are_those_of_their_definition(kind: str, family: str, num_images: int, num_queries: int) -> None:
    """After a committed path, so that rows of prompt, answer and tree all come in."""
    target = tiny(family, "sdpa")
    inputs = prompt(target, num_images)
    drafter, log_q = drafter_and_definition(kind, target, num_queries)
    state, root = start(target, inputs, drafter.target_layer_ids)
    draft_state = drafter.start(state)
    drafter.draft(root, state, draft_state, max_depth=2)
    reference = hf_generate(target, inputs, 4)
    tree = TokenTree((reference[1], 7, reference[2]), (0, 0, 1), (1, 1, 2))
    target.verify(state, root, tree)
    target.commit(state, [0, 1, 3], reference[1:4])
    streams, hidden = top_of_the_target(target, inputs, reference[:3])
    found = drafter.draft(reference[3], state, draft_state, max_depth=15)
    assert drafter.num_passes(found) == 3

    def slow(path: tuple[int, ...]) -> Tensor:
        return log_q(streams, hidden, state.token_ids, path)

    assert paths_of(found) == dynamic_tree(slow, 3, 3, 11)
    for node in range(1, len(found) + 1):
        path = tuple(found.token_ids[i - 1] for i in path_to(found, node))
        score = sum(float(slow(path[:i])[token]) for i, token in enumerate(path))
        assert found.scores[node - 1] == pytest.approx(score, abs=1e-3)


def drafter_and_definition(
    kind: str, target: Target, num_queries: int
) -> tuple[EagleDrafter, Callable[[Tensor, Tensor, Sequence[int], Sequence[int]], Tensor]]:
    if kind == "eagle2":
        eagle2 = tiny_eagle2(target)
        drafter: EagleDrafter = Eagle2Drafter(eagle2, target, num_passes=3, top_k=3, budget=11)
        return drafter, lambda *seen: eagle2_log_q(target, eagle2, *seen)
    vispec = tiny_vispec(target, num_queries=num_queries)
    drafter = VispecDrafter(vispec, target, num_passes=3, top_k=3, budget=11)
    return drafter, lambda *seen: vispec_log_q(target, vispec, *seen)


@torch.inference_mode()
def test_vispec_keeps_one_row_an_image_and_the_places_of_the_others() -> None:
    target = tiny("qwen3_vl", "sdpa")
    inputs = prompt(target, 2)
    drafter = VispecDrafter(tiny_vispec(target), target, budget=5)
    state, root = start(target, inputs, drafter.target_layer_ids)
    draft_state = drafter.start(state)
    drafter.draft(root, state, draft_state, max_depth=3)
    num_rows = len(target.image_rows(inputs))
    assert num_rows > 2
    assert draft_state.cache.length == len(inputs.token_ids) - num_rows + 2
    assert draft_state.num_tokens == len(inputs.token_ids)


@torch.inference_mode()
def test_nan_of_a_regressed_feature_is_an_error() -> None:
    target = tiny("qwen3", "sdpa")
    head = tiny_eagle2(target)
    head.fc.weight[0, 0] = torch.nan
    drafter = Eagle2Drafter(head, target, budget=5)
    state, root = start(target, prompt(target), drafter.target_layer_ids)
    with pytest.raises(DraftError, match="NaN"):
        drafter.draft(root, state, drafter.start(state), max_depth=3)


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
