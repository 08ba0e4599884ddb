"""Keys and values of one layer, written in place: a pass appends its rows without copying those before it.

transformers' own layer concatenates, which copies the whole context once a layer and pass.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer

GROWTH = 512  # rows by which a layer grows


def capacity_for(needed: int, limit: int) -> int:
    """Rows of a layer that has grown until so many fit: a multiple of ``GROWTH``, or the limit."""
    return max(needed, min(-(-needed // GROWTH) * GROWTH, limit))


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """A cache layer with room behind its rows.

    ``keys`` and ``values`` are views of its rows, (1, KV, length, D); so transformers' own length, crop and masks hold
    as they are, and cropping costs nothing. Room that no pass has written yet is zero.

    Args:
        limit: rows that one sequence has at most. Packed rows may pass it for as long as they are pending.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, limit: int = sys.maxsize) -> None:
        super().__init__()
        self.limit = limit
        self.room: tuple[Tensor, Tensor] | None = None

    @property
    def capacity(self) -> int:
        """Rows that fit without growing."""
        return 0 if self.room is None else int(self.room[0].shape[2])

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append rows, (1, KV, T, D) each, and return all rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        if end > self.capacity:
            self.room = self._grown(key_states, self.keys, end), self._grown(value_states, self.values, end)
        assert self.room is not None
        keys, values = self.room
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values

    def reserve(self, needed: int) -> None:
        """Have room for so many rows. The layer has some already."""
        if needed > self.capacity:
            self.move((self._grown(self.keys, self.keys, needed), self._grown(self.values, self.values, needed)))

    def move(self, room: tuple[Tensor, Tensor]) -> None:
        """Lie elsewhere: in tensors that hold the same rows."""
        length = self.get_seq_length()
        self.room = room
        self.keys, self.values = (part[:, :, :length] for part in room)

    def advance(self, count: int) -> None:
        """Count rows that a static pass has written behind the last one."""
        assert self.room is not None
        end = self.get_seq_length() + count
        self.keys, self.values = (part[:, :, :end] for part in self.room)

    def reset(self) -> None:
        super().reset()
        self.room = None

    def _grown(self, like: Tensor, rows: Tensor, needed: int) -> Tensor:
        """Room for ``needed`` rows and the next ones, which begins with the rows so far."""
        capacity = capacity_for(needed, self.limit)
        room = like.new_zeros(*like.shape[:2], capacity, like.shape[3])
        if rows.numel():
            room[:, :, : rows.shape[2]] = rows
        return room
