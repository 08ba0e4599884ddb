"""Packed passes in a few fixed widths, by any execution.

A tree is padded to the next width, and the cache has room in steps; so a pass has one of a few shapes, and all tensors
that go in are the same ones, refilled. Padded rows stand for the root once more: they see the past and the root.
Nothing sees them, and their keys lie behind the last row, where the next pass writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oneglance.core import TokenTree
from oneglance.runner.execution import Captured, Compiled, CudaGraphs
from oneglance.targets.base import Target
from oneglance.targets.grouped import ancestor_mask, grouped_attention
from oneglance.targets.kv import RoomyLayer
from oneglance.targets.state import TargetState
from oneglance.targets.static import Execution, PassInputs, packed_pass
from oneglance.tree import PackedTree, pack

WIDTHS = (1, 16, 32, 64, 128)  # rows of a pass, the root included


def width_of(rows: int) -> int:
    """The narrowest width that so many rows fit into; beyond the last, multiples of it."""
    for width in WIDTHS:
        if rows <= width:
            return width
    return -(-rows // WIDTHS[-1]) * WIDTHS[-1]


class StaticShape:
    """Passes of few shapes. Holds buffers, and no sequence state.

    Args:
        execution: runs the pass.
    """

    is_fixed = False

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.name = execution.name
        self._buffers: dict[tuple[int, int], PassInputs] = {}
        self._functions: dict[tuple[int, ...], Any] = {}

    def lay_out(self, root: int, tree: TokenTree) -> PackedTree:
        packed = pack(root, tree)
        size = len(packed.token_ids)
        padding = width_of(size) - size
        if not padding:
            return packed
        visible = np.zeros((size + padding, size + padding), dtype=bool)
        visible[:size, :size] = packed.visible
        visible[size:, 0] = True  # a row that sees nothing would have no softmax
        return PackedTree(
            np.pad(packed.token_ids, (0, padding), constant_values=root),
            np.pad(packed.depths, (0, padding)),
            visible,
        )

    def running(self, text_config: Any) -> AbstractContextManager[None]:
        return grouped_attention(text_config)

    def run(self, target: Target, state: TargetState, packed: PackedTree) -> tuple[Tensor, Sequence[Tensor]]:
        layers = [layer for layer in state.cache.layers if isinstance(layer, RoomyLayer)]
        size = len(packed.token_ids)
        for layer in layers:
            layer.reserve(state.length + size)
        self.execution.adopt(self, layers)
        given = self._filled(target, state, packed, layers[0].capacity)
        key = (*state.layer_ids, -1, id(target.text_model))
        if key not in self._functions:
            self._functions[key] = packed_pass(target.text_model, target.lm_head, state.layer_ids)
        rooms = [layer.room for layer in layers]
        rows, features = self.execution(self._functions[key], given, rooms)  # type: ignore[arg-type]
        for layer in layers:
            layer.advance(size)
        return rows, features

    def _filled(self, target: Target, state: TargetState, packed: PackedTree, capacity: int) -> PassInputs:
        """The buffers of this shape, with this pass in them."""
        size = len(packed.token_ids)
        depths = torch.from_numpy(packed.depths).to(target.device)
        positions = target.packed_arguments(state, depths)["position_ids"]
        text = target.text_config
        if (size, capacity) not in self._buffers:
            group = text.num_attention_heads // text.num_key_value_heads
            self._buffers[size, capacity] = PassInputs(
                token_ids=torch.zeros(1, size, dtype=torch.long, device=target.device),
                position_ids=positions.clone(),
                mask=torch.zeros(1, 1, group * size, capacity, dtype=target.dtype, device=target.device),
                slots=torch.zeros(size, dtype=torch.long, device=target.device),
            )
        given = self._buffers[size, capacity]
        given.token_ids[0].copy_(torch.from_numpy(packed.token_ids))
        given.position_ids.copy_(positions)
        torch.arange(state.length, state.length + size, out=given.slots)
        ancestor_mask(given.mask, state.length, torch.from_numpy(packed.visible).to(target.device))
        return given


def eager(target: Target) -> Target:
    """Passes as wide as their trees, by transformers' own forward."""
    return target


def compiled(target: Target) -> Target:
    """Passes compiled by inductor, once a width."""
    return target.with_passes(StaticShape(Compiled()))


def graphs(target: Target) -> Target:
    """Passes recorded as CUDA graphs, once a shape."""
    return target.with_passes(StaticShape(Captured(CudaGraphs(target.device))))
