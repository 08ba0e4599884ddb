"""The ViSpec drafter: EAGLE-2 that sees each image as one row, and tells every later row about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor

from oneglance.core import Drafter, HeadError, InputError
from oneglance.drafters.checkpoint import Checkpoint
from oneglance.drafters.eagle import EagleState, causal, prepared
from oneglance.drafters.eagle2 import Eagle2Drafter
from oneglance.drafters.head import KeysValues
from oneglance.drafters.settings import Settings, read_settings
from oneglance.drafters.taken import binds
from oneglance.drafters.vispec_head import VispecHead, load_vispec
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState


class TreeShape(NamedTuple):
    """A tree of ViSpec's: its ``depth`` + 1, its ``top_k``, its ``total_token`` - 1."""

    num_passes: int
    top_k: int
    num_nodes: int


TREES: dict[str, TreeShape] = {
    "official": TreeShape(4, 8, 29),  # the defaults of its model: depth 3, 30 tokens with the root
    "deep": TreeShape(6, 10, 59),  # those of its evaluation scripts; which tree the paper calls deep it does not say
    "light": TreeShape(3, 4, 15),  # ours
}


class VispecSettings(Settings):
    """Shape of the search.

    Attributes:
        tree: a preset; the best-first tree is never wider than it, whatever the budget.
        num_passes: of a chain, or of a tree without preset.
        top_k: nodes that a pass of a tree extends, and children that each gets.
    """

    tree: Literal["official", "deep", "light"] | None = None
    num_passes: int | None = Field(default=None, gt=0)
    top_k: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_shape(self) -> VispecSettings:
        if self.tree and (self.num_passes or self.top_k):
            raise ValueError("tree names passes and width; leave out num_passes and top_k, or tree")
        return self


class VispecDrafter(Eagle2Drafter):
    """Searches with a ViSpec head."""

    head: VispecHead
    kind: ClassVar[str] = "vispec"
    weights: ClassVar[str] = "a ViSpec head"
    tree_passes: ClassVar[int] = TREES["official"].num_passes

    @classmethod
    def shape(cls, settings: Any, is_chain: bool, budget: int) -> dict[str, int]:
        if is_chain:
            if settings.tree or settings.top_k:
                raise InputError("drafter 'vispec': a chain has no width; leave out tree and top_k, or --tree chain")
            return {"num_passes": settings.num_passes or cls.chain_passes, "top_k": 1, "budget": budget}
        if settings.num_passes or settings.top_k:
            official = TREES["official"]
            passes, width = settings.num_passes or official.num_passes, settings.top_k or official.top_k
            return {"num_passes": passes, "top_k": width, "budget": budget}
        preset = TREES[settings.tree or "official"]
        return {"num_passes": preset.num_passes, "top_k": preset.top_k, "budget": min(budget, preset.num_nodes)}

    @classmethod
    def check(cls, checkpoint: Checkpoint[Any, Any], target: Target) -> None:
        super().check(checkpoint, target)
        if not sees_image_rows(target):
            raise HeadError(f"a ViSpec head compresses image rows, and {target.name} has none; use drafter eagle2")

    def read(self, features: Tensor, following: list[int], state: TargetState, draft_state: EagleState) -> Tensor:
        embedded, hidden, is_image = self.pairs(features, following, state, draft_state)
        cache, device = draft_state.cache, features.device
        if draft_state.image is None:
            rows, places, draft_state.image = self.head.compress(embedded, hidden, is_image)
        else:
            rows = self.head.fuse(embedded, self.head.told(hidden, draft_state.image))
            places = torch.arange(len(features), device=device)
        mask = causal(cache.length, len(rows), device)
        output, own = self.head.run(rows[None], draft_state.past, draft_state.num_tokens + places, mask)
        cache.extend([own])
        return output

    def step(
        self,
        draft_state: EagleState,
        embedded: Tensor,
        hidden: Tensor,
        past: KeysValues | None,
        position_ids: Tensor,
        mask: Tensor,
    ) -> tuple[Tensor, KeysValues]:
        assert draft_state.image is not None
        told = self.head.told(hidden, draft_state.image)
        return super().step(draft_state, embedded, told, past, position_ids, mask)


def sees_image_rows(target: Target) -> bool:
    """Whether images enter this target as rows, which is what the head compresses."""
    return target.takes_images and target.has_image_rows


@binds(VispecDrafter.bind)
def prepare(head: str | None, **settings: Any) -> Callable[..., Drafter]:
    """Registry entry: loads the checkpoint now, binds it to a target later.

    Raises:
        InputError: no head was named, or a bad setting.
    """
    return prepared(VispecDrafter, load_vispec, read_settings(VispecSettings, "vispec", settings), head)
