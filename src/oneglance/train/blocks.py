"""Packed training blocks: anchors, visible prefixes, labels and the strict context mask (§4.3).

A block at anchor t is what the drafter would see with token t as its root: slot 0 holds token t, later slots hold the
mask token unless revealed, the context is every row strictly before t, and blocks do not see one another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

WIDTH_STEP = 8  # blocks a sample come in multiples of this, below num_anchors


@dataclass(frozen=True, slots=True)
class Reveal:
    """How many slots of a training block are visible.

    With ``single_share`` only the root, as in decoding; else a length uniform in 1..L (our choice, the paper gives
    no distribution).
    """

    enabled: bool = True
    single_share: float = 0.5

    def draw(self, rng: np.random.Generator, count: int, num_offsets: int) -> np.ndarray:
        """(count,) visible slots, root included, in 1..L."""
        if not self.enabled:
            return np.ones(count, dtype=np.int64)
        lengths = rng.integers(1, num_offsets + 1, size=count)
        return np.where(rng.random(count) < self.single_share, 1, lengths)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A batch of packed blocks.

    Attributes:
        token_ids: (b, A, B) block input.
        labels: (b, A, B) the target's tokens; -100 where visible, past the end, or in a padding block.
        anchors: (b, A) position of each block's root; 0 for padding blocks.
    """

    token_ids: Tensor
    labels: Tensor
    anchors: Tensor

    @property
    def position_ids(self) -> Tensor:
        """(b, A*B) token indices of the slots."""
        size = self.token_ids.shape[-1]
        return (self.anchors[..., None] + torch.arange(size, device=self.anchors.device)).flatten(1)

    def mask(self, context_length: int, *, window: int | None = None) -> Tensor:
        """(b, 1, A*B, T + A*B) True where a slot may look: rows strictly before its anchor, and its own block.

        Args:
            context_length: T, padded rows of the batch.
            window: of a sliding layer, which also makes the block causal.
        """
        size = self.token_ids.shape[-1]
        positions = self.position_ids[..., None]
        rows = torch.arange(context_length, device=self.anchors.device)
        context = rows < self.anchors.repeat_interleave(size, dim=1)[..., None]
        block = torch.arange(positions.shape[1], device=self.anchors.device) // size
        own = (block[:, None] == block).expand(len(positions), -1, -1)
        if window is not None:
            slot_positions = self.position_ids[:, None]
            context = context & (rows > positions - window)
            own = own & (slot_positions <= positions) & (slot_positions > positions - window)
        return torch.cat([context, own], dim=-1)[:, None]


def generator(*keys: int | str) -> np.random.Generator:
    """A random generator that depends on its keys alone, so that a resumed run draws what an unbroken one would."""
    digest = hashlib.sha256("/".join(map(str, keys)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def build_blocks(
    rows: Sequence[tuple[Sequence[int], int]],
    *,
    num_anchors: int,
    block_size: int,
    mask_token_id: int,
    reveal: Reveal,
    rngs: Sequence[np.random.Generator],
) -> Blocks:
    """Draw anchors and build their blocks.

    Args:
        rows: (token ids of prompt and answer, prompt length) per sample. Only answer tokens can be anchors or labels.
        num_anchors: blocks a sample at most; drawn without replacement. A is as many as the longest answer of the
            batch has candidates, rounded up so that few shapes occur: short answers do not pay for long ones.
        block_size: B.
        mask_token_id: fills hidden slots.
        reveal: how many slots are visible.
        rngs: one generator a sample.
    """
    candidates_at_most = max(len(ids) - 1 - prompt_length for ids, prompt_length in rows)
    width = min(num_anchors, max(1, -(-candidates_at_most // WIDTH_STEP)) * WIDTH_STEP)
    token_ids = np.full((len(rows), width, block_size), mask_token_id)
    labels = np.full((len(rows), width, block_size), -100)
    anchors = np.zeros((len(rows), width), dtype=np.int64)
    slots = np.arange(block_size)
    for index, ((ids, prompt_length), rng) in enumerate(zip(rows, rngs, strict=True)):
        candidates = np.arange(prompt_length, len(ids) - 1)
        chosen = np.sort(rng.choice(candidates, size=min(num_anchors, len(candidates)), replace=False))
        visible = reveal.draw(rng, len(chosen), block_size - 1)[:, None]
        padded = np.concatenate([np.asarray(ids), np.full(block_size, -100)])
        windows = padded[chosen[:, None] + slots]
        count = len(chosen)
        anchors[index, :count] = chosen
        shown = (slots < visible) & (windows >= 0)
        token_ids[index, :count] = np.where(shown, windows, mask_token_id)
        labels[index, :count] = np.where(slots < visible, -100, windows)
    return Blocks(torch.from_numpy(token_ids), torch.from_numpy(labels), torch.from_numpy(anchors))
