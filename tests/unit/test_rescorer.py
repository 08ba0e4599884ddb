"""The rescorer against a slow oracle, its files, and decoding with one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from oneglance.audit import reference
from oneglance.core import HeadError, SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.rescorer import (
    CONFIG,
    WEIGHTS,
    PreviousTokenBias,
    RescorerConfig,
    build,
    find_rescorer,
    save_rescorer,
)
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import tiny_head, tiny_target
from oneglance.tree import POLICIES

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


@pytest.mark.parametrize("factors", ["own", "embedding"])
@pytest.mark.parametrize("is_gated", [True, False])
def test_rescoring_is_the_normalised_product_token_by_token(factors: str, is_gated: bool) -> None:
    made, embedding = rescorer(small(factors, is_gated=is_gated)), nn.Embedding(V, H).requires_grad_(False)
    states, logits = torch.randn(L, H), torch.randn(L, V)
    log_q, ids = logits.log_softmax(-1).topk(K)
    found = made.rescore(states, ids, log_q, embedding)
    assert found.shape == (L - 1, K, K)
    for offset in range(1, L):
        for i in range(K):
            before = torch.tensor([int(ids[offset - 1, i])])
            biases = made.bias(states[offset], before, None, embedding)[0]  # (V,)
            mass = {int(t): math.exp(float(logits[offset].log_softmax(-1)[t])) for t in ids[offset]}
            weights = {t: m * math.exp(float(biases[t])) for t, m in mass.items()}
            total = sum(weights.values()) + 1 - sum(mass.values())
            for k in range(K):
                wanted = math.log(weights[int(ids[offset, k])] / total)
                assert float(found[offset - 1, i, k]) == pytest.approx(wanted, abs=1e-4)


def test_a_fresh_rescorer_leaves_the_marginals_alone() -> None:
    log_q, ids = torch.randn(L, V).log_softmax(-1).topk(K)
    found = build(small()).rescore(torch.randn(L, H), ids, log_q, nn.Embedding(V, H))
    assert torch.allclose(found, log_q[1:, None, :].expand(-1, K, -1), atol=1e-5)


def test_files_round_trip_and_damage_is_named(tmp_path: Path) -> None:
    made = rescorer(small())
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
def test_decoding_with_a_rescorer_is_the_targets_own(target: Target, tree: str, budget: int) -> None:
    config = RescorerConfig(rank=4, vocab_size=target.vocab_size, hidden_size=target.hidden_size)
    drafter = BlockDrafter(
        tiny_head(target), target, policy=POLICIES[tree], budget=budget, rescorer=rescorer(config, seed=2)
    )
    inputs = encode(target, "a b c")
    stream = Decoder(target, drafter).stream_inputs(inputs, SamplingParams(max_new_tokens=40))
    for _ in stream:
        pass
    assert stream.generation.token_ids == list(reference(target, inputs, max_new_tokens=40).token_ids)
    assert stream.generation.fell_back is None
