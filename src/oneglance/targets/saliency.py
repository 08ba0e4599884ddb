"""How much a root looks at the image: v_t, the paper's image saliency, which it does not define (Table 13). Ours:

the share of the root row's attention that falls on image rows, averaged over heads and over the kept layers. Attention
kernels keep their weights to themselves, so one row is run again with attention written out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oneglance.core import EMPTY_TREE, InputError
from oneglance.targets import hf
from oneglance.targets.base import Target
from oneglance.targets.passes import FreeShape
from oneglance.targets.state import TargetState


class ImageAttention:
    """Measures v_t at a root. Leaves the sequence as it was.

    Args:
        target: whose attention it is.
        layer_ids: kept layers; all self-attention layers where a drafter reads none.

    Raises:
        InputError: images do not enter this target as rows.
    """

    def __init__(self, target: Target, layer_ids: Sequence[int]) -> None:
        if not (target.takes_images and target.has_image_rows):
            raise InputError(
                f"{target.name} has no image rows in its sequence, so there is no attention on them; leave saliency out"
            )
        self._target = target.with_passes(FreeShape())
        self._layers = frozenset(layer_ids or target.self_attention_layers)

    @torch.inference_mode()
    def __call__(self, state: TargetState, root: int) -> float | None:
        """v_t in 0..1 of the row that follows the committed ones; None for a prompt without an image."""
        rows = self._target.image_rows(state.inputs)
        if not len(rows):
            return None
        masses: list[float] = []

        def see(layer: int, weights: Tensor) -> None:
            if layer in self._layers:
                masses.append(float(weights[:, -1, rows.to(weights.device)].sum(-1).mean()))

        with hf.watched_attention(self._target.text_config, see):
            self._target.verify(state, root, EMPTY_TREE)
        self._target.rollback(state)
        return sum(masses) / len(masses)
