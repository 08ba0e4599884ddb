"""The block head's pass in one static shape: what a runner can compile, or record and replay (docs/runner.md).

A pass takes in at most one block of new context rows, padded, and then runs the block. Padded rows are written behind
the last real one, which is where the block's own keys and values go next: nothing ever sees them. More rows than a
block, a prompt's above all, are taken in beforehand as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from oneglance.drafters.head import BlockHead
from oneglance.targets.state import TargetState
from oneglance.targets.static import Execution, Outputs, Rooms, StaticPass

if TYPE_CHECKING:
    from oneglance.drafters.block import BlockState

Rank = Callable[[Tensor, int], "Candidates"]
"""(L, H) states of the mask slots, K → candidates."""


class Candidates(NamedTuple):
    """What a pass gives, on the device.

    Attributes:
        logits: (L, V) float32.
        ids, log_q: (L, K), best first.
        given: a rescorer's tables, where one ran.
    """

    logits: Tensor
    ids: Tensor
    log_q: Tensor
    given: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftInputs:
    """Tensors of one draft pass over a block of B slots and a capacity of C.

    Attributes:
        features: (1, B, F) new context rows, then padding.
        context_slots: (B,) their places, which are their positions.
        token_ids: (1, B) root and masks.
        slots: (B,) places and positions of the block.
        masks: a layer each, (1, 1, B, C) bool; layers of one window share theirs.
    """

    features: Tensor
    context_slots: Tensor
    token_ids: Tensor
    slots: Tensor
    masks: tuple[Tensor, ...]

    @property
    def tensors(self) -> list[Tensor]:
        return [self.features, self.context_slots, self.token_ids, self.slots, *self.masks]

    @property
    def growing(self) -> list[tuple[Tensor, int]]:
        return [(mask, 3) for mask in self.masks]


class StaticDraft:
    """Draft passes of one shape for each capacity. Holds buffers, and no sequence state.

    Args:
        head: the block head.
        embed: token ids → embeddings on the head's device.
        rank: states → candidates; runs inside the pass.
        execution: runs it.
    """

    def __init__(self, head: BlockHead, embed: Callable[[Tensor], Tensor], rank: Rank, execution: Execution) -> None:
        self._head = head
        self._embed = embed
        self._rank = rank
        self._execution = execution
        self._buffers: dict[int, DraftInputs] = {}
        self._passes: dict[int, StaticPass] = {}

    def __call__(self, root: int, state: TargetState, draft_state: BlockState, num_ranks: int) -> Candidates:
        """One pass; takes in fresh context rows."""
        size, waiting = self._head.config.block_size, sum(map(len, state.fresh))
        if waiting > size or not draft_state.layers:
            draft_state.ingest(state)
            waiting = 0
        layers, end = draft_state.layers, draft_state.length + waiting
        for layer in layers:
            layer.reserve(end + size)
        self._execution.adopt(self, layers)
        given = self._filled(root, state, draft_state.length, waiting, layers[0].capacity)
        if num_ranks not in self._passes:
            self._passes[num_ranks] = self._pass(num_ranks)
        rooms = [layer.room for layer in layers]
        logits, (ids, log_q, *given_before) = self._execution(self._passes[num_ranks], given, rooms)  # type: ignore[arg-type]
        for layer in layers:
            layer.advance(waiting)
        draft_state.length = end
        return Candidates(logits, ids, log_q, tuple(given_before))

    def _pass(self, num_ranks: int) -> StaticPass:
        head, embed, rank = self._head, self._embed, self._rank

        def run(given: DraftInputs, rooms: Rooms) -> Outputs:
            context = head.project_context(given.features, given.context_slots)
            for room, own in zip(rooms, context, strict=True):
                for rows, new in zip(room, own, strict=True):
                    rows.index_copy_(2, given.context_slots, new)
            hidden = head(embed(given.token_ids), rooms, given.slots, given.masks, given.slots)
            found = rank(hidden[0, 1:], num_ranks)
            return found.logits, [found.ids, found.log_q, *found.given]

        return run

    def _filled(self, root: int, state: TargetState, length: int, waiting: int, capacity: int) -> DraftInputs:
        """The buffers of this capacity, with this pass in them."""
        if capacity not in self._buffers:
            self._buffers[capacity] = self._made(capacity)
        given = self._buffers[capacity]
        if state.fresh:
            given.features[0, :waiting].copy_(state.take_features())
        given.token_ids[0, 0] = root
        end = length + waiting
        torch.arange(length, length + len(given.slots), out=given.context_slots)
        torch.arange(end, end + len(given.slots), out=given.slots)
        masks = {self._head.config.window(layer): mask for layer, mask in enumerate(given.masks)}
        for window, mask in masks.items():
            _fill(mask, given.slots, window)
        return given

    def _made(self, capacity: int) -> DraftInputs:
        config, weight = self._head.config, self._head.fc.weight
        size, device = config.block_size, weight.device
        windows = [config.window(layer) for layer in range(config.num_hidden_layers)]
        masks = {w: torch.zeros(1, 1, size, capacity, dtype=torch.bool, device=device) for w in windows}
        return DraftInputs(
            features=torch.zeros(1, size, config.feature_size, dtype=weight.dtype, device=device),
            context_slots=torch.zeros(size, dtype=torch.long, device=device),
            token_ids=torch.full((1, size), config.mask_token_id, device=device),
            slots=torch.zeros(size, dtype=torch.long, device=device),
            masks=tuple(masks[window] for window in windows),
        )


def _fill(mask: Tensor, slots: Tensor, window: int | None) -> None:
    """A full layer sees context and block; a sliding one its window, and is causal inside the block."""
    columns = torch.arange(mask.shape[-1], device=mask.device)
    if window is None:
        mask.copy_(columns <= slots[-1])
    else:
        mask.copy_((columns <= slots[:, None]) & (columns > slots[:, None] - window))
