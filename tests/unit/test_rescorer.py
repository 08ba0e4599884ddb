"""The rescorer against a slow oracle, its files, and decoding with one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from oneglance.audit import reference
from oneglance.bench.given import given_text
from oneglance.core import BlockMarginals, HeadError, SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter, as_marginals
from oneglance.drafters.rescorer import (
    CONFIG,
    RESCORERS,
    WEIGHTS,
    PreviousTokenBias,
    RescorerConfig,
    build,
    find_rescorer,
    save_rescorer,
)
from oneglance.drafters.two_tokens import LIMIT_NATS, log_sums
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import tiny_head, tiny_target
from oneglance.tree import POLICIES, best_first

V, H, L, K = 11, 6, 5, 4


def rescorer(config: RescorerConfig, seed: int = 0) -> PreviousTokenBias:
    torch.manual_seed(seed)
    made = build(config)
    assert isinstance(made, PreviousTokenBias)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=1.0)
    return made.eval().requires_grad_(False)


def small(factors: str = "own", **options: object) -> RescorerConfig:
    return RescorerConfig(rank=3, vocab_size=V, hidden_size=H, factors=factors, **options)  # type: ignore[arg-type]


kinds = pytest.mark.parametrize("kind", sorted(RESCORERS))


def tables_of(made: PreviousTokenBias, embedding: nn.Embedding) -> tuple[BlockMarginals, Tensor, Tensor]:
    """What a rescorer says of random candidates, with the states and logits behind it."""
    states, logits = torch.randn(L, H), torch.randn(L, V)
    log_q, ids = logits.log_softmax(-1).topk(K)
    return as_marginals(ids, log_q, *made.rescore(states, ids, log_q, embedding)), states, logits


@kinds
@pytest.mark.parametrize("factors", ["own", "embedding"])
@pytest.mark.parametrize("is_gated", [True, False])
def test_every_prefix_scores_as_the_trained_model_says(kind: str, factors: str, is_gated: bool) -> None:
    """The tree over all candidates against the biases that training sees, normalised one path at a time."""
    made = rescorer(small(factors, kind=kind, is_gated=is_gated))
    embedding = nn.Embedding(V, H).requires_grad_(False)
    given, states, logits = tables_of(made, embedding)
    tree = best_first(given, 5000)
    assert len(tree) == sum(K**depth for depth in range(1, L + 1))
    paths: list[tuple[int, ...]] = [()]
    for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True), start=1):
        paths.append((*paths[parent], token))
        if node % 7:
            continue
        before = torch.tensor([[0, *paths[-1], *[0] * (L - len(paths[-1]))][:L]])
        biases = made.along(states[None], before, embedding)[0]  # (L, V)
        wanted = 0.0
        for offset, own in enumerate(paths[-1]):
            mass = {int(t): float(logits[offset].double().softmax(-1)[t]) for t in given.token_ids[offset]}
            weights = {t: m * math.exp(float(biases[offset, t])) for t, m in mass.items()}
            wanted += math.log(weights[own] / (sum(weights.values()) + 1 - sum(mass.values())))
        assert tree.scores[node - 1] == pytest.approx(wanted, abs=1e-3)


@kinds
def test_what_is_logged_of_a_text_adds_up_to_its_score_in_the_tree(kind: str) -> None:
    given, _, _ = tables_of(rescorer(small(kind=kind)), nn.Embedding(V, H).requires_grad_(False))
    tree = best_first(given, 5000)
    scores = {(): 0.0}
    paths: list[tuple[int, ...]] = [()]
    for token, parent, score in zip(tree.token_ids, tree.parents, tree.scores, strict=True):
        paths.append((*paths[parent], token))
        scores[paths[-1]] = score
    for text in [path for path in paths if len(path) == L][::50]:
        found = given_text(given, text)
        for end in range(1, L + 1):
            assert sum(found.log_q[:end]) == pytest.approx(scores[text[:end]], abs=1e-4)
            siblings = [scores[(*text[: end - 1], int(t))] for t in given.token_ids[end - 1]]
            assert found.ranks[end - 1] == sorted(siblings, reverse=True).index(scores[text[:end]])
            assert found.top[end - 1] == pytest.approx(max(siblings) - scores[text[: end - 1]], abs=1e-4)
        other = next(t for t in range(V) if t not in given.token_ids[1])
        reach = {"previous_token": 1, "two_tokens": 2}[kind]
        lost = given_text(given, (text[0], other, *text[2:]))
        assert [value is None for value in lost.top] == [1 < offset <= 1 + reach for offset in range(L)]
        assert [value is None for value in lost.log_q] == [1 <= offset <= 1 + reach for offset in range(L)]
    best = max((path for path in paths if len(path) == 1), key=lambda path: scores[path])
    assert given_text(given, best).chain[0] == pytest.approx(scores[best])


@kinds
def test_a_fresh_rescorer_leaves_the_marginals_alone(kind: str) -> None:
    fresh = build(small(kind=kind)).requires_grad_(False)
    given, _, _ = tables_of(fresh, nn.Embedding(V, H).requires_grad_(False))
    plain = best_first(BlockMarginals(given.token_ids, given.log_q), 40)
    assert best_first(given, 40).scores == pytest.approx(plain.scores, abs=1e-4)


def test_two_tokens_back_tell_apart_what_one_does_not() -> None:
    torch.manual_seed(1)
    made, embedding = build(small(kind="two_tokens")), nn.Embedding(V, H)
    nn.init.normal_(made.after.weight)
    states, before = torch.randn(1, L, H), torch.tensor([[0, 1, 2, 3, 4]])
    other = torch.tensor([[0, 5, 2, 3, 4]])
    change = (made.along(states, before, embedding) - made.along(states, other, embedding)).abs().amax(-1)[0]
    assert [bool(value > 1e-6) for value in change] == [False, True, True, False, False]


@pytest.mark.parametrize("spread", [1.0, 60.0, 300.0])
def test_sums_of_far_apart_biases_neither_overflow_nor_vanish(spread: float) -> None:
    torch.manual_seed(0)
    bias = (spread * torch.randn(2, K, K)).clamp(-LIMIT_NATS, LIMIT_NATS)
    logits = spread * torch.randn(2, K, K + 3)
    log_p = logits.log_softmax(-1)
    log_q, rest = log_p[..., :K], log_p[..., K:].logsumexp(-1, keepdim=True)
    terms = (bias[:, :, None] + log_q[:, None]).double()
    wanted = torch.logaddexp(terms.logsumexp(-1), rest.double().transpose(-1, -2))
    assert torch.allclose(log_sums(bias, log_q, rest).double(), wanted, atol=1e-3, rtol=1e-4)


@kinds
def test_files_round_trip_and_damage_is_named(kind: str, tmp_path: Path) -> None:
    made = rescorer(small(kind=kind))
    assert find_rescorer("auto", tmp_path) is None
    assert find_rescorer("none", tmp_path) is None
    save_rescorer(made, tmp_path)
    found = find_rescorer("auto", tmp_path)
    assert found is not None
    assert found.config == made.config
    assert all(torch.equal(found.tensors[key], value) for key, value in made.state_dict().items())
    (tmp_path / CONFIG).write_text(made.config.model_copy(update={"rank": 4}).model_dump_json())
    with pytest.raises(HeadError, match="does not fit its config"):
        find_rescorer("auto", tmp_path)
    other = next(name for name in RESCORERS if name != kind)
    (tmp_path / CONFIG).write_text(made.config.model_copy(update={"kind": other}).model_dump_json())
    with pytest.raises(HeadError, match="does not fit its config"):
        find_rescorer("auto", tmp_path)
    (tmp_path / CONFIG).write_text('{"rank": 4, "what": 1}')
    with pytest.raises(HeadError, match=CONFIG):
        find_rescorer("auto", tmp_path)
    (tmp_path / CONFIG).write_text(made.config.model_copy(update={"kind": "psychic"}).model_dump_json())
    with pytest.raises(HeadError, match="previous_token"):
        find_rescorer("auto", tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"no")
    with pytest.raises(HeadError, match="missing or damaged"):
        find_rescorer(str(tmp_path), tmp_path / "elsewhere")
    with pytest.raises(HeadError, match="give the folder"):
        find_rescorer(str(tmp_path / "elsewhere"), tmp_path)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3_vl")


def test_a_rescorer_of_another_head_or_target_is_refused(target: Target, tmp_path: Path) -> None:
    head, other = tiny_head(target), tiny_head(target, seed=5)
    size = {"vocab_size": target.vocab_size, "hidden_size": target.hidden_size}
    save_rescorer(rescorer(RescorerConfig(rank=2, **size)), tmp_path, head=head)
    found = find_rescorer("auto", tmp_path)
    assert found is not None
    assert isinstance(found.build(head, target), PreviousTokenBias)
    with pytest.raises(HeadError, match="another head"):
        found.build(other, target)
    save_rescorer(rescorer(small()), tmp_path)
    found = find_rescorer("auto", tmp_path)
    assert found is not None
    with pytest.raises(HeadError, match=f"has {H}"):
        found.build(head, target)


@pytest.mark.parametrize("tree", sorted(POLICIES))
@pytest.mark.parametrize("budget", [1, 9, 90])
@kinds
def test_decoding_with_a_rescorer_is_the_targets_own(target: Target, kind: str, tree: str, budget: int) -> None:
    config = RescorerConfig(kind=kind, rank=4, vocab_size=target.vocab_size, hidden_size=target.hidden_size)
    drafter = BlockDrafter(
        tiny_head(target), target, policy=POLICIES[tree], budget=budget, rescorer=rescorer(config, seed=2)
    )
    inputs = encode(target, "a b c")
    stream = Decoder(target, drafter).stream_inputs(inputs, SamplingParams(max_new_tokens=40))
    for _ in stream:
        pass
    assert stream.generation.token_ids == list(reference(target, inputs, max_new_tokens=40).token_ids)
    assert stream.generation.fell_back is None
