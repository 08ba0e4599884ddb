"""What the heads that feed on their own output have in common: one decoder layer, causal, at token indices.

A row pairs the feature at position t with the embedding of token t+1, stands at position t, and predicts token t+2.
Later passes read the layer's own output, which stands in for features not computed yet.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from oneglance.drafters.head import KeysValues, LayerConfig, rotate


class EagleConfig(LayerConfig):
    """Geometry of such a head.

    Attributes:
        num_target_layers, target_layer_ids: 0 and empty where the checkpoint is silent; ``for_target`` fills them in.
        has_embedding: the checkpoint brings an embedding; else the target's serves.
    """

    num_hidden_layers: int = Field(default=1, ge=1, le=1)
    num_target_layers: int = Field(default=0, ge=0)
    target_layer_ids: tuple[int, ...] = ()
    has_embedding: bool = False


class CausalAttention(nn.Module):
    """Self-attention over rows of any width.

    Args:
        config: heads and their size.
        width: of a row; the output has the hidden size.
        bias: of queries, keys and values.
    """

    def __init__(self, config: EagleConfig, width: int, *, bias: bool = False) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(width, queries, bias=bias)
        self.k_proj = nn.Linear(width, keys, bias=bias)
        self.v_proj = nn.Linear(width, keys, bias=bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def forward(
        self, x: Tensor, past: KeysValues | None, turned: tuple[Tensor, Tensor], mask: Tensor
    ) -> tuple[Tensor, KeysValues]:
        shape = (*x.shape[:-1], -1, self.head_dim)
        queries = rotate(self.q_proj(x).view(shape).transpose(1, 2), turned)
        own = rotate(self.k_proj(x).view(shape).transpose(1, 2), turned), self.v_proj(x).view(shape).transpose(1, 2)
        keys, values = own if past is None else (torch.cat([past[0], own[0]], 2), torch.cat([past[1], own[1]], 2))
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        projected: Tensor = self.o_proj(out.transpose(1, 2).reshape(*x.shape[:-1], -1))
        return projected, own


def renamed(key: str, prefixes: tuple[tuple[str, str], ...]) -> str:
    """A tensor's name as ours; ``prefixes`` are (another exporter's, ours), applied in turn."""
    for prefix, ours in prefixes:
        if key.startswith(prefix):
            key = ours + key.removeprefix(prefix)
    return key
