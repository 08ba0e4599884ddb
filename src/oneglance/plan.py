"""How much memory decoding will need, part by part, before anything is loaded. From shapes alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from oneglance.drafters.head import BlockHead, HeadConfig
from oneglance.targets.base import Target


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes by part at one context.

    Attributes:
        target, head: weights; a head has no embedding of its own.
        target_kv, head_kv: keys and values of the whole context.
        features: of the prompt's rows, from prefill until the head has taken them in.
        verify: logits (N + 1, V), mask and the widest layer's rows of one packed pass.
        prefill: the widest layer's rows of the whole prompt.
        dtype, context, prompt, budget: what this is for.
    """

    target: int
    head: int
    target_kv: int
    head_kv: int
    features: int
    verify: int
    prefill: int
    dtype: str
    context: int
    prompt: int
    budget: int

    @property
    def total(self) -> int:
        """The peak: prefill with its features, or a round at the full context, whichever is more."""
        weights = self.target + self.head
        share = self.prompt / self.context
        return weights + max(
            int(self.target_kv * share) + self.features + self.prefill, self.target_kv + self.head_kv + self.verify
        )


def plan(
    target: Target, head: HeadConfig | None, *, dtype: torch.dtype, context: int, prompt: int, budget: int
) -> Plan:
    """Count what decoding holds.

    Args:
        target: an outline (``targets.outline``) or a loaded one; only its shapes are read.
        head: geometry of the block head, None for plain decoding.
        dtype: of weights, keys and values.
        context: prompt and answer, in rows.
        prompt: rows of it that prefill runs over.
        budget: nodes of the tree, root excluded.
    """
    size, text = dtype.itemsize, target.text_config
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kv_row = len(target.self_attention_layers) * 2 * text.num_key_value_heads * head_dim * size
    widest_row = (2 * text.hidden_size + 3 * target.inner_size) * size
    rows = budget + 1
    own = feature_row = head_kv_row = 0
    if head is not None:
        with torch.device("meta"):
            own = sum(p.numel() for p in BlockHead(head).parameters()) * size
        feature_row = len(head.target_layer_ids) * head.hidden_size * size
        head_kv_row = head.num_hidden_layers * 2 * head.num_key_value_heads * head.head_dim * size
    return Plan(
        target=sum(p.numel() for p in target.model.parameters()) * size,
        head=own,
        target_kv=context * kv_row,
        head_kv=context * head_kv_row,
        features=prompt * feature_row,
        verify=rows * (target.vocab_size * size + (context + rows) * size + widest_row + feature_row),
        prefill=prompt * widest_row,
        dtype=str(dtype).removeprefix("torch."),
        context=context,
        prompt=prompt,
        budget=budget,
    )
