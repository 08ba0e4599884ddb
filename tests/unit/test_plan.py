"""The memory plan against what loaded targets, heads and caches hold."""

import pytest
import torch

from helpers import prompt, start
from oneglance.core import EMPTY_TREE
from oneglance.drafters.block import BlockDrafter
from oneglance.plan import plan
from oneglance.targets.kv import GROWTH
from oneglance.testing import FAMILIES, tiny_head, tiny_target


def held(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_weights_caches_and_features_are_what_they_turn_out_to_be(family: str, dtype: torch.dtype) -> None:
    target = tiny_target(family, dtype=dtype)
    head = tiny_head(target)
    drafter = BlockDrafter(head, target)
    state, root = start(target, prompt(target), drafter.target_layer_ids)  # text alone: no rows of cross-attention
    found = plan(target, head.config, dtype=dtype, context=state.length, prompt=state.length, budget=63)
    assert found.target == held(*target.model.parameters())
    assert found.head == held(*head.parameters())
    rows = [state.cache.layers[i] for i in target.self_attention_layers]
    assert found.target_kv == sum(held(layer.keys, layer.values) for layer in rows)
    assert found.features == held(*state.fresh)
    draft_state = drafter.start(state)
    drafter.draft(root, state, draft_state, max_depth=3)
    buffers = held(*(part for layer in draft_state.layers for part in layer.room or ()))
    capacity = -(-state.length // GROWTH) * GROWTH
    assert buffers == found.head_kv // state.length * capacity
    assert found.verify >= 64 * held(target.verify(state, root, EMPTY_TREE))
    assert found.total >= found.target + found.head + found.target_kv + found.head_kv + found.verify


def test_plain_decoding_has_no_head() -> None:
    found = plan(tiny_target("qwen3"), None, dtype=torch.float32, context=100, prompt=50, budget=63)
    assert (found.head, found.head_kv, found.features) == (0, 0, 0)
    wider = plan(tiny_target("qwen3"), None, dtype=torch.float32, context=100, prompt=50, budget=127)
    assert wider.verify > found.verify
