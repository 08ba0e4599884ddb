"""Attention of packed rows without copies of keys and values.

transformers' ``sdpa`` repeats keys and values for every query head of a group as soon as there is a mask. Here the
heads of a group stand below one another as further rows, so that keys and values are read where they lie.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oneglance.targets import hf

GROUPED = "oneglance_grouped"


def grouped_attention(config: Any) -> AbstractContextManager[None]:
    """Packed passes of a text config with ``sdpa`` attend in groups; other backends stay as they are.

    Args:
        config: of the text stack, whose layers look the backend up in it at each pass.
    """
    return hf.attending(config, GROUPED, attend) if config._attn_implementation == "sdpa" else nullcontext()


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function.

    Args:
        module: the layer.
        query: (1, heads, M, D).
        key, value: (1, KV, C, D).
        attention_mask: (1, 1, M or group x M, C) additive; without one every row sees everything.
        scaling: of the scores.
    """
    heads, rows, size = query.shape[1:]
    kv_heads = key.shape[1]
    mask = attention_mask
    if mask is not None and mask.shape[-2] == rows:
        mask = mask.repeat(1, 1, heads // kv_heads, 1)
    stacked = query.reshape(1, kv_heads, -1, size)  # (1, KV, group x M, D)
    out = F.scaled_dot_product_attention(stacked, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(1, heads, rows, size).transpose(1, 2), None


def ancestor_mask(buffer: Tensor, past: int, visible: Tensor) -> Tensor:
    """Fill an additive mask in place: a row sees the past, itself and its ancestors, and nothing beyond.

    Args:
        buffer: (1, 1, M or group x M, C), in the dtype of the model.
        past: committed rows.
        visible: (M, M) bool.
    """
    size = visible.shape[0]
    rows = buffer.view(-1, size, buffer.shape[-1])  # (group, M, C)
    rows[:, :, :past] = 0
    rows[:, :, past:] = torch.finfo(buffer.dtype).min
    rows[:, :, past : past + size].masked_fill_(visible, 0)
    return buffer
