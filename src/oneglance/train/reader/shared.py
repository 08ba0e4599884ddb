"""Memory that a leader and its helper share: parameters one way, gradients the other.

The leader makes the steps and never waits. The helper computes micro-batches with the newest
parameters it has seen and leaves their gradient sum; the leader takes it between two of its own
micro-batches. A helper that gets little of its core thus costs nothing, and one that gets all of
it doubles the speed. Its gradients may be a step old.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

MAX_AGE: Final = 2
"""Gradients of parameters older than this many steps are dropped."""

_SEQUENCE, _STEP, _READY, _GRAD_STEP, _DONE, _PHASE = range(6)


class Shared:
    """The shared file's tensors and the protocol on them."""

    def __init__(self, path: Path, parameters: list[nn.Parameter], num_stats: int, *, is_leader: bool) -> None:
        self.parameters: Final = parameters
        size = sum(p.numel() for p in parameters)
        numbers = torch.from_file(str(path), shared=True, size=2 * size + num_stats, dtype=torch.float32)
        self._weights, self._grads, self._stats = torch.split(numbers, [size, size, num_stats])
        self._control = torch.from_file(f"{path}.control", shared=True, size=8, dtype=torch.int64)
        if is_leader:
            self._control.zero_()

    # the leader's side

    def publish(self, step: int, phase: int) -> None:
        """Show the helper the parameters of this step and the phase's index."""
        self._control[_SEQUENCE] += 1  # odd: being written
        self._weights.copy_(torch.cat([p.data.flatten() for p in self.parameters]))
        self._control[_STEP], self._control[_PHASE] = step, phase
        self._control[_SEQUENCE] += 1

    def take(self, step: int) -> tuple[Tensor, Tensor] | None:
        """The helper's gradient sum and statistics, if there are any that are not too old."""
        if not self._control[_READY].item():
            return None
        is_fresh = step - self._control[_GRAD_STEP].item() <= MAX_AGE
        found = (self._grads.clone(), self._stats.clone()) if is_fresh else None
        self._control[_READY] = 0
        return found

    def finish(self) -> None:
        """Tell the helper to end."""
        self._control[_DONE] = 1

    # the helper's side

    @property
    def is_finished(self) -> bool:
        """Whether the leader has ended."""
        return bool(self._control[_DONE].item())

    @property
    def step(self) -> int:
        """The step of the newest parameters; 0 before the first."""
        return int(self._control[_STEP].item())

    @property
    def phase(self) -> int:
        """The index of the recipe's phase that the leader is in."""
        return int(self._control[_PHASE].item())

    def fetch(self) -> int | None:
        """Take the newest parameters; None if the leader was writing them."""
        sequence, step = self._control[_SEQUENCE].item(), self.step
        if sequence == 0 or sequence % 2:
            return None
        start = 0
        for parameter in self.parameters:
            parameter.data.copy_(self._weights[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()
        return step if self._control[_SEQUENCE].item() == sequence else None

    def leave(self, flat: Tensor, stats: Tensor, step: int) -> bool:
        """Leave a gradient sum, unless the leader has not taken the one before."""
        if self._control[_READY].item():
            return False
        self._grads.copy_(flat)
        self._stats.copy_(stats)
        self._control[_GRAD_STEP] = step
        self._control[_READY] = 1
        return True
