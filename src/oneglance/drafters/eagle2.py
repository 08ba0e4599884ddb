"""The EAGLE-2 drafter: the target's top feature, regressed a step at a time, as a chain or as a dynamic tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from oneglance.core import Drafter
from oneglance.drafters.eagle import EagleDrafter, EagleSettings, EagleState, causal, prepared
from oneglance.drafters.eagle2_head import Eagle2Head, load_eagle2
from oneglance.drafters.settings import read_settings
from oneglance.drafters.taken import binds
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState


class Eagle2Drafter(EagleDrafter):
    """Searches with an EAGLE-2 head, whose outputs the target's lm_head reads."""

    head: Eagle2Head
    kind: ClassVar[str] = "eagle2"
    weights: ClassVar[str] = "an EAGLE-2 head"
    chain_passes: ClassVar[int] = 5  # as for EAGLE-3's chains
    tree_passes: ClassVar[int] = 6  # its tree is six tokens deep (EAGLE-2's default)

    @property
    def token_ids(self) -> Tensor:
        return torch.arange(self.target.vocab_size, device=self.target.lm_head_device)

    def logits(self, output: Tensor) -> Tensor:
        rows: Tensor = self.target.lm_head(output.to(self.target.lm_head_device))
        return rows

    def read(self, features: Tensor, following: list[int], state: TargetState, draft_state: EagleState) -> Tensor:
        cache, count = draft_state.cache, len(features)
        embedded, hidden, _ = self.pairs(features, following, state, draft_state)
        positions = torch.arange(cache.length, cache.length + count, device=features.device)
        mask = causal(cache.length, count, features.device)
        output, own = self.head(embedded[None], hidden[None], draft_state.past, positions, mask)
        cache.extend([own])
        return torch.as_tensor(output)

    def pairs(
        self, features: Tensor, following: list[int], state: TargetState, draft_state: EagleState
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What rows are made of.

        Returns:
            (T, H) embeddings of the tokens that follow, (T, H) features after the final norm, and (T,) True where what
            follows is a row of an image.
        """
        first, count = draft_state.num_tokens, len(features)
        images = self.target.image_rows(state.inputs).to(features.device) - 1 - first
        is_image = torch.zeros(count, dtype=torch.bool, device=features.device)
        is_image[images[(images >= 0) & (images < count - 1)]] = True
        streams, hidden = top_features(self.target, features)
        return with_images(self.embed(following)[0], streams, is_image), hidden, is_image


def top_features(target: Target, features: Tensor) -> tuple[Tensor, Tensor]:
    """(…, 2H) kept features → (…, H) embeddings of the rows, (…, H) last hidden states after the final norm."""
    streams, last = features.chunk(2, dim=-1)
    norm = target.final_norm
    return streams, norm(last.to(next(norm.parameters()))).to(features)


def with_images(embedded: Tensor, streams: Tensor, is_image: Tensor) -> Tensor:
    """Embeddings of the tokens after each row, those of images from the row that follows: a placeholder has none.

    Args:
        embedded: (…, T, H) from the table.
        streams: (…, T, H) what entered the target's first layer.
        is_image: (…, T) True where the token after the row is one of an image.
    """
    return torch.where(is_image[..., None], streams.roll(-1, dims=-2).to(embedded.dtype), embedded)


@binds(Eagle2Drafter.bind)
def prepare(head: str | None, **settings: Any) -> Callable[..., Drafter]:
    """Registry entry: loads the checkpoint now, binds it to a target later.

    Raises:
        InputError: no head was named, or a bad setting.
    """
    return prepared(Eagle2Drafter, load_eagle2, read_settings(EagleSettings, "eagle2", settings), head)
