"""Features of a pass, taken where they come by; and one pass at a time, for that changes the model meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Turn:
    """Whose pass it is on a model. It lies on the model, because all that make passes there must take turns; a copy of
    the model has one of its own."""

    NAME = "_oneglance_turn"

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()

    @classmethod
    def of(cls, model: nn.Module) -> Turn:
        """The model's, made by whoever asks first."""
        turn = vars(model).setdefault(cls.NAME, cls())  # in one step, whatever other threads do
        assert isinstance(turn, cls)
        return turn


@contextmanager
def captured_features(points: Sequence[tuple[nn.Module, str]]) -> Iterator[list[torch.Tensor]]:
    """Collect the residual stream at given points during one forward pass.

    Modules get another ``forward`` meanwhile instead of hooks, with which torch calls a module more slowly: five hooks
    cost a pass of the built-in model 2 % of its time.

    Args:
        points: (module, "input" or "output") pairs; modules are as before on exit.

    Yields:
        A list that holds one (1, T, H) tensor a point, in the order of ``points``, after the pass.
    """
    features: list[torch.Tensor] = [torch.empty(0)] * len(points)
    before: list[tuple[dict[str, Any], Any]] = []
    try:
        for slot, (module, where) in enumerate(points):
            own = vars(module)
            before.append((own, own.get("forward")))  # accelerate puts one there
            own["forward"] = (_input_kept if where == "input" else _output_kept)(module.forward, features, slot)
        yield features
    finally:
        for own, forward in reversed(before):
            if forward is None:
                own.pop("forward", None)
            else:
                own["forward"] = forward


def _input_kept(forward: Callable[..., Any], features: list[torch.Tensor], slot: int) -> Callable[..., Any]:
    def keep(*args: Any, **kwargs: Any) -> Any:
        features[slot] = args[0] if args else kwargs["hidden_states"]
        return forward(*args, **kwargs)

    return keep


def _output_kept(forward: Callable[..., Any], features: list[torch.Tensor], slot: int) -> Callable[..., Any]:
    def keep(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        features[slot] = output[0] if isinstance(output, tuple) else output
        return output

    return keep
