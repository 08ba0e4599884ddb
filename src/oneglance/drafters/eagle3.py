"""The EAGLE-3 drafter: fused features of three layers, an lm_head of its own, as a chain or as a dynamic tree."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from oneglance.core import Drafter, OneglanceWarning
from oneglance.drafters.checkpoint import Checkpoint
from oneglance.drafters.eagle import EagleDrafter, EagleSettings, EagleState, causal, prepared
from oneglance.drafters.eagle3_head import Eagle3Head, load_eagle3
from oneglance.drafters.settings import read_settings
from oneglance.drafters.taken import binds
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState


class Eagle3Drafter(EagleDrafter):
    """Searches with an EAGLE-3 head."""

    head: Eagle3Head
    kind: ClassVar[str] = "eagle3"
    weights: ClassVar[str] = "an EAGLE-3 head"
    chain_passes: ClassVar[int] = 5  # as deployed for chains
    tree_passes: ClassVar[int] = 8  # EAGLE's tree of depth 7 below the first level

    @classmethod
    def check(cls, checkpoint: Checkpoint[Any, Any], target: Target) -> None:
        super().check(checkpoint, target)
        if checkpoint.config.wants_mrope:
            warnings.warn(
                f"{checkpoint.name} asks for M-RoPE and is given token indices: same output, acceptance may drop",
                OneglanceWarning,
                stacklevel=3,
            )

    @property
    def token_ids(self) -> Tensor:
        return self.head.token_ids

    def logits(self, output: Tensor) -> Tensor:
        return self.head.logits(output)

    def read(self, features: Tensor, following: list[int], state: TargetState, draft_state: EagleState) -> Tensor:
        cache, count = draft_state.cache, len(features)
        positions = torch.arange(cache.length, cache.length + count, device=features.device)
        mask = causal(cache.length, count, features.device)
        fused = self.head.fuse(features[None])
        output, own = self.head(self.embed(following), fused, draft_state.past, positions, mask)
        cache.extend([own])
        return torch.as_tensor(output)


@binds(Eagle3Drafter.bind)
def prepare(head: str | None, **settings: Any) -> Callable[..., Drafter]:
    """Registry entry: loads the checkpoint now, binds it to a target later.

    Raises:
        InputError: no head was named, or a bad setting.
    """
    return prepared(Eagle3Drafter, load_eagle3, read_settings(EagleSettings, "eagle3", settings), head)
