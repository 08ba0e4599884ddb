"""What a target is given and what it keeps: an encoded prompt, and where one sequence stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

EMBEDDING = -1  # "layer" whose output is what enters the first one: embeddings, of image rows as well


@dataclass(frozen=True, slots=True)
class Inputs:
    """An encoded prompt, batch one.

    Attributes:
        tensors: what the HF model's forward takes, ``input_ids`` (1, T) among them; no padding.
        num_images: images in the prompt.
        encoded: images that the model's vision encoder has seen already, and positions, under the names of the model's
            arguments; only for targets that say ``takes_encoded``.
    """

    tensors: dict[str, Tensor]
    num_images: int = 0
    encoded: dict[str, Any] = field(default_factory=dict)

    @property
    def token_ids(self) -> list[int]:
        ids: list[int] = self.tensors["input_ids"][0].tolist()
        return ids

    def in_float64(self) -> Inputs:
        """The same prompt for a target whose arithmetic is float64."""
        wide = {key: value.double() if value.is_floating_point() else value for key, value in self.tensors.items()}
        return replace(self, tensors=wide)


@dataclass(slots=True)
class TargetState:
    """Where one sequence stands in the target. Owned by the target, read by drafters.

    Attributes:
        cache: keys and values of the first ``length`` tokens.
        length: committed tokens in the cache; the root is not among them.
        rope_delta: added to the token index to get the position of a row after the prompt (M-RoPE), on all axes.
        token_ids: prompt and kept tokens, root included once there is one.
        last_row: (V,) logits of the last prompt row.
        layer_ids: kept layers whose features are collected.
        inputs: the prompt, for drafters that run a model of their own over it.
        fresh: features of committed rows that no drafter has taken yet, (T_i, F) each.
        draft_rows: the drafter's own rows of a reused prefix, from which ``Drafter.start`` goes on; features of those
            rows are not in ``fresh``.
        extras: what packed passes of this family need besides (for mllama the cross-attention mask row).
    """

    cache: Cache
    length: int
    rope_delta: int
    token_ids: list[int]
    last_row: Tensor
    inputs: Inputs
    layer_ids: tuple[int, ...] = ()
    fresh: list[Tensor] = field(default_factory=list)
    draft_rows: list[Tensor] = field(default_factory=list)
    extras: dict[str, Tensor] = field(default_factory=dict)
    pending: tuple[int, Sequence[Tensor]] | None = None

    def take_features(self) -> Tensor:
        """(T, F) features of the rows committed since the last call; the root's own feature does not exist yet."""
        features = self.fresh[0] if len(self.fresh) == 1 else torch.cat(self.fresh)
        self.fresh = []
        return features


def joined(features: Sequence[Tensor]) -> Tensor:
    """(T, F) features on the device of the last kept layer, concatenated in listed order."""
    device = features[-1].device
    return torch.cat([f[0].to(device) for f in features], dim=-1)
