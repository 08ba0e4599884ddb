"""Passes as pure functions of tensors of fixed shapes: what can be compiled, or recorded and replayed.

The family's own decoder layers run one after the other, with a cache whose rows are written at given places and read
whole. The mask hides what is beyond; so every shape depends on packed width and capacity alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from oneglance.targets import hf
from oneglance.targets.kv import RoomyLayer

Rooms = list[tuple[Tensor, Tensor]]  # a layer's keys and values, (1, KV, C, D) each
Outputs = tuple[Tensor, list[Tensor]]


class Given(Protocol):
    """What goes into a pass besides keys and values: the same tensors in every pass of a shape, refilled."""

    @property
    def tensors(self) -> list[Tensor]: ...

    @property
    def growing(self) -> list[tuple[Tensor, int]]:
        """Those whose shape follows the capacity, and along which axis."""


StaticPass = Callable[[Any, Rooms], Outputs]  # of its own ``Given``; writes keys and values in place


class Execution(Protocol):
    """Runs passes over tensors of fixed shapes."""

    @property
    def name(self) -> str: ...

    def adopt(self, owner: object, layers: Sequence[RoomyLayer]) -> None:
        """Prepare the cache of the sequence whose turn it is; ``owner`` is whose passes run over it."""

    def __call__(self, run: StaticPass, given: Given, rooms: Rooms) -> Outputs:
        """What the pass returns, in tensors that no later pass writes."""


@dataclass(frozen=True, slots=True)
class PassInputs:
    """Tensors of one packed pass of M rows over a capacity of C.

    Attributes:
        token_ids: (1, M).
        position_ids: as the family has them, (…, M).
        mask: (1, 1, group x M, C) additive, in model dtype: the rows once for every query head of a group.
        slots: (M,) places of the packed rows in the rooms.
    """

    token_ids: Tensor
    position_ids: Tensor
    mask: Tensor
    slots: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        return [self.token_ids, self.position_ids, self.mask, self.slots]

    @property
    def growing(self) -> list[tuple[Tensor, int]]:
        return [(self.mask, 3)]


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """A cache layer that writes rows at given places and returns the whole room."""

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.slots = keys, values, slots
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self.slots, key_states)
        self.values.index_copy_(2, self.slots, value_states)
        return self.keys, self.values


def packed_pass(text_model: nn.Module, lm_head: nn.Module, layer_ids: Sequence[int]) -> StaticPass:
    """The pass of a text stack: ``embed_tokens``, ``rotary_emb``, ``layers``, ``norm``.

    Args:
        text_model: of a family in which each layer takes and returns the residual stream.
        lm_head: of the target.
        layer_ids: kept layers; a feature is the input of the layer after.

    Returns:
        A function to (M, V) logits and one (1, M, H) feature a kept layer; it writes keys and values in place.
    """
    model: Any = text_model
    layers: list[Any] = list(model.layers)
    keyword = hf.cache_keyword(layers[0])

    def run(given: PassInputs, rooms: Rooms) -> Outputs:
        cache = Cache(layers=[SlotLayer(keys, values, given.slots) for keys, values in rooms])
        hidden = model.embed_tokens(given.token_ids)
        rotation = model.rotary_emb(hidden, given.position_ids)
        streams = [hidden]
        for layer in layers:
            hidden = layer(
                hidden,
                attention_mask=given.mask,
                position_ids=None,
                position_embeddings=rotation,
                **{keyword: cache},
            )
            streams.append(hidden)  # after layer i, which is what enters layer i + 1
        return lm_head(model.norm(hidden))[0], [streams[i + 1] for i in layer_ids]

    return run
