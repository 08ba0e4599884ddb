"""Training a head that feeds on its own output: training-time test over packed anchors, by the forward of decoding.

A row of the packed pass is an anchor of the block head's: token t is the root, the row before it the last feature. Step
i reads the token i places after the root and the output of step i-1, and predicts the next one. It sees the features
before the root and its own earlier steps, which is what decoding sees: the two are the same forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oneglance.drafters.head import KeysValues, LayerConfig
from oneglance.targets.base import Target
from oneglance.train.blocks import Blocks
from oneglance.train.initial import check_start, llama3_scaling
from oneglance.train.recipe import HeadRecipe
from oneglance.train.step import Sample, pad_rows

INHERITED = ("rope_theta", "rope_llama3", "rms_norm_eps", "has_bias", "has_qkv_bias")
Step = Callable[[Tensor, Tensor, KeysValues, Tensor, Tensor], tuple[Tensor, KeysValues]]
"""(embedded, hidden, past, position_ids, mask) → output and the rows' own keys and values, as in decoding."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """A batch of whole sequences, and what is drafted at its anchors.

    Attributes:
        features: (b, T, F), zeros past the end.
        token_ids: (b, T) the token after each row, 0 past the end.
        following: (b, T, H) its embedding.
        drafted: (b, A, L, H) embeddings of the root and the L-1 tokens after it.
        anchors: (b, A) positions of the roots; 0 for padding.
    """

    features: Tensor
    token_ids: Tensor
    following: Tensor
    drafted: Tensor
    anchors: Tensor


def pairs_of(target: Target, samples: Sequence[Sample], blocks: Blocks, like: Tensor) -> Pairs:
    """The batch on the device and in the precision of ``like``."""
    features = pad_rows([s.features for s in samples]).to(like)
    ids = torch.stack(
        [F.pad(torch.tensor(s.token_ids[1:]), (0, features.shape[1] - len(s.token_ids) + 1)) for s in samples]
    )
    shown = torch.cat([blocks.token_ids[..., :1], blocks.labels[..., 1:-1].clamp(min=0)], dim=-1)
    following, drafted = (target.embedding(x.to(target.device)).to(like) for x in (ids, shown))
    return Pairs(features, ids.to(like.device), following, drafted, blocks.anchors.to(like.device))


def rolled_out(
    step: Step,
    output: Tensor,
    past: KeysValues,
    drafted: Tensor,
    anchors: Tensor,
    *,
    visible: Tensor | None = None,
) -> Tensor:
    """Outputs of every step at every anchor, each fed on the one before.

    Args:
        step: the head.
        output, past: of the pass over the T rows, (b, T, H) and (b, KV, T, D) each.
        drafted: (b, A, L, H) embeddings; the root's is not read.
        anchors: (b, A).
        visible: (b, T) False where nobody may look at a row; None: everybody at every one.

    Returns:
        (b, A, L, H).
    """
    rows = torch.arange(output.shape[1], device=output.device)
    before = (anchors - 1).clamp(min=0)  # (b, A) the row of the root's own pair
    states = [at_rows(output, before)]
    mask = rows <= before[..., None]
    if visible is not None:
        mask = mask & visible[:, None]
    mask = mask[:, None]  # (b, 1, A, T)
    own_row = torch.eye(anchors.shape[1], dtype=torch.bool, device=anchors.device).expand(len(anchors), 1, -1, -1)
    for index in range(1, drafted.shape[2]):
        mask = torch.cat([mask, own_row], dim=-1)
        output, own = step(drafted[:, :, index], states[-1], past, before + index, mask)
        past = torch.cat([past[0], own[0]], 2), torch.cat([past[1], own[1]], 2)
        states.append(output)
    return torch.stack(states, dim=2)


def at_rows(states: Tensor, rows: Tensor) -> Tensor:
    """(b, T, H) states at (b, A) rows → (b, A, H)."""
    return torch.gather(states, 1, rows[..., None].expand(-1, -1, states.shape[-1]))


def layer_shape(recipe: HeadRecipe, target: Target) -> dict[str, Any]:
    """Geometry of the one layer: the recipe's, else the target's."""
    shape, text = recipe.head, target.text_config
    default_dim = getattr(text, "head_dim", None) or target.hidden_size // text.num_attention_heads
    return {
        "hidden_size": target.hidden_size,
        "intermediate_size": shape.intermediate_size or text.intermediate_size,
        "num_attention_heads": shape.num_attention_heads or text.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads or text.num_key_value_heads,
        "head_dim": shape.head_dim or default_dim,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": target.context_length,
        "vocab_size": target.vocab_size,
        "block_size": shape.block_size,
        "num_target_layers": target.num_layers,
    }


def inherited(recipe: HeadRecipe, start: LayerConfig | None) -> dict[str, Any]:
    """Whatever decides what the weights of a warm start compute, to lay over ``layer_shape``.

    Raises:
        InputError: the recipe names another.
    """
    if start is None:
        return {}
    check_start(recipe, start)
    return {key: getattr(start, key) for key in INHERITED if hasattr(start, key)}


def layer_layout(config: Any) -> dict[str, Any]:
    """What ``config.json`` says of the layer, whatever the head around it."""
    keys = (
        "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "vocab_size rms_norm_eps rope_theta max_position_embeddings block_size num_target_layers"
    )
    return {
        "model_type": "llama",
        **{key: getattr(config, key) for key in keys.split()},
        "rope_scaling": llama3_scaling(config),
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
