"""The memory plan against what loaded targets, heads and caches hold."""

import pytest
import torch

from helpers import prompt, start
from oneglance import plan as planning
from oneglance.drafters.block import BlockDrafter
from oneglance.plan import Alive, held, plan
from oneglance.targets import kv
from oneglance.testing import FAMILIES, tiny_head, tiny_target
from oneglance.tree import from_path


def held_by(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_weights_caches_and_features_are_what_they_turn_out_to_be(family: str, dtype: torch.dtype) -> None:
    target = tiny_target(family, dtype=dtype)
    head = tiny_head(target)
    drafter = BlockDrafter(head, target)
    num_images = 2 if "mllama" in family else 0  # others have them in the prompt
    state, root = start(target, prompt(target, num_images), drafter.target_layer_ids)
    seen = num_images or 1  # a recording
    found = plan(target, head.config, dtype=dtype, context=state.length, prompt=state.length, budget=63, images=seen)
    assert found.target == held_by(*target.model.parameters())
    assert found.head == held_by(*head.parameters())
    assert found.features == held_by(*state.fresh)
    draft_state = drafter.start(state)
    drafter.draft(root, state, draft_state, max_depth=3)
    rows = target.verify(state, root, from_path([1] * 63))
    layers = [state.cache.layers[i] for i in target.self_attention_layers]
    assert found.target_kv == sum(held_by(*layer.room) for layer in layers)
    fixed = [state.cache.layers[i] for i in target.fixed_layers]
    assert found.fixed_kv == sum(held_by(layer.keys, layer.values) for layer in fixed)
    assert (found.fixed_kv > 0) == (family in ("mllama", "whisper"))
    assert found.head_kv == sum(held_by(*(layer.room or ())) for layer in draft_state.layers)
    assert found.verify >= held_by(rows)
    kept = found.target_kv + found.head_kv + found.fixed_kv
    assert found.total >= found.target + found.head + kept + found.verify


@pytest.mark.parametrize("family", ["qwen3", "qwen3_vl"])
def test_decoding_holds_what_was_planned(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor that is alive at a time, from prefill to the end of the context, rooms that grow among them."""
    monkeypatch.setattr(kv, "GROWTH", 64)
    monkeypatch.setattr(planning, "GROWTH", 64)
    target = tiny_target(family)
    drafter = BlockDrafter(tiny_head(target), target, budget=31)
    found = plan(target, drafter.head.config, dtype=torch.float32, context=200, prompt=100, budget=31)
    measured = held(target, drafter, context=200, prompt=100, budget=31)
    weights = found.target + found.head
    assert measured <= found.total
    assert measured - weights >= 0.4 * (found.total - weights), "an estimate far above says little"


def test_what_is_alive_is_counted_once_and_given_back() -> None:
    with Alive() as alive:
        first = torch.zeros(1000)
        view = first[:10]
        del first
        second = torch.zeros(500)
        del view, second
        torch.zeros(700)
    assert alive.peak == 1500 * 4


def test_plain_decoding_has_no_head() -> None:
    found = plan(tiny_target("qwen3"), None, dtype=torch.float32, context=100, prompt=50, budget=63)
    assert (found.head, found.head_kv, found.features) == (0, 0, 0)
    wider = plan(tiny_target("qwen3"), None, dtype=torch.float32, context=100, prompt=50, budget=127)
    assert wider.verify > found.verify
