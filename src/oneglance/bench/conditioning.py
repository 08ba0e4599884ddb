"""What a draft head reads instead of the target's own fused states: nothing, the text's, another image's (Table 16).

A drafter is shown other features than the target's; the target verifies as ever, so the text stays its own and only
acceptance changes. ``Reading`` functions make a reader for each sequence: (T, F) features of the rows committed since
the last draft → what the drafter gets in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oneglance.core import Drafter, InputError, TokenTree
from oneglance.drafters.two_model import check_tokenizers
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs, TargetState
from oneglance.tree import from_path

Reader = Callable[[Tensor], Tensor]
Reading = Callable[[TargetState], Reader]


@dataclass
class Swapped:
    """A sequence of the drafter inside, and what has been swapped but not taken by it yet."""

    own: Any
    read: Reader
    waiting: Tensor | None = None


class Conditioned:
    """A drafter that reads other features.

    Args:
        drafter: reads features.
        reading: makes a reader a sequence.

    Raises:
        InputError: the drafter reads none.
    """

    def __init__(self, drafter: Drafter, reading: Reading) -> None:
        if not drafter.target_layer_ids:
            raise InputError("this drafter reads no states of the target, so there are none to swap; use a block head")
        self._drafter = drafter
        self._reading = reading
        self.name = drafter.name
        self.target_layer_ids = drafter.target_layer_ids

    def start(self, state: TargetState) -> Swapped:
        return Swapped(self._drafter.start(state), self._reading(state))

    def draft(self, root: int, state: TargetState, draft_state: Swapped, *, max_depth: int) -> TokenTree:
        old = [rows for rows in state.fresh if rows is draft_state.waiting]
        new = [rows for rows in state.fresh if rows is not draft_state.waiting]
        if new:
            draft_state.waiting = torch.cat([*old, draft_state.read(torch.cat(new))])
            state.fresh = [draft_state.waiting]
        return self._drafter.draft(root, state, draft_state.own, max_depth=max_depth)

    def num_passes(self, tree: TokenTree) -> int:
        return self._drafter.num_passes(tree)


def zeroed(state: TargetState) -> Reader:
    """No conditioning at all."""
    return torch.zeros_like


def only_layers(kept: Collection[int], layer_ids: Collection[int]) -> Reading:
    """Zeros in place of the layers that are not in ``kept``; the head is not retrained.

    Args:
        kept: some of ``layer_ids``.
        layer_ids: what the drafter reads, in the order of its features.
    """

    def reading(state: TargetState) -> Reader:
        def read(features: Tensor) -> Tensor:
            parts = features.chunk(len(layer_ids), dim=-1)
            return torch.cat(
                [p if i in kept else torch.zeros_like(p) for i, p in zip(layer_ids, parts, strict=True)], dim=-1
            )

        return read

    return reading


def text_only(target: Target, model: Target) -> Reading:
    """States of a text stack at text rows, zeros at image rows.

    Args:
        target: whose prompts they are.
        model: the target itself, or a text-only twin of it.
    """

    def reading(state: TargetState) -> Reader:
        inputs = target.without_images(state.inputs)
        is_text = torch.ones(len(state.inputs.token_ids), dtype=torch.bool)
        is_text[target.image_rows(state.inputs).cpu()] = False
        own = Inputs({name: t.to(model.device) for name, t in inputs.tensors.items()})
        return _Beside(model, own, state, is_text)

    return reading


def other_images(target: Target, inputs: Inputs) -> Reading:
    """States of the same target under the same prompt with other images, row by row.

    Raises:
        InputError: the other prompt has another length.
    """

    def reading(state: TargetState) -> Reader:
        if len(inputs.token_ids) != len(state.inputs.token_ids):
            raise InputError(
                f"the mismatched prompt has {len(inputs.token_ids)} rows, the right one {len(state.inputs.token_ids)}; "
                "their images must have one size"
            )
        return _Beside(target, inputs, state, torch.ones(len(inputs.token_ids), dtype=torch.bool))

    return reading


def check_twin(model: Target, target: Target, layer_ids: Collection[int]) -> None:
    """Refuse a text-only twin whose states do not stand for the target's.

    Raises:
        InputError: another tokenizer, width or depth.
    """
    check_tokenizers(model, target)
    if model.hidden_size != target.hidden_size:
        raise InputError(
            f"the twin's states have {model.hidden_size} numbers, the target's {target.hidden_size}; choose another"
        )
    if model.num_layers <= max(layer_ids):
        raise InputError(
            f"the twin has {model.num_layers} layers and the head reads layer {max(layer_ids)}; choose another"
        )


class _Beside:
    """A second sequence that is fed what the first one commits, and gives its own features.

    Args:
        model: runs it.
        inputs: its prompt.
        state: the first sequence, freshly prefilled.
        is_own: (T,) rows of the first prompt that the second has; the others are zeros.
    """

    def __init__(self, model: Target, inputs: Inputs, state: TargetState, is_own: Tensor) -> None:
        self._model = model
        self._followed = state
        self._num_read = 0
        self._is_own = is_own
        self._state = model.prefill(inputs, state.layer_ids)

    def __call__(self, features: Tensor) -> Tensor:
        start, self._num_read = self._num_read, self._num_read + len(features)
        prompt_length = len(self._is_own)
        made = torch.zeros_like(features)
        if start < prompt_length:  # the prompt comes in one piece
            is_own = self._is_own.to(features.device)
            made[:prompt_length][is_own] = self._state.take_features().to(made)
            start = prompt_length
        if self._num_read > start:
            made[start - self._num_read :] = self._follow(start).to(made)
        return made

    @torch.inference_mode()
    def _follow(self, start: int) -> Tensor:
        """Features of the rows from ``start`` to the last one read, given the second sequence's own past."""
        tokens = self._followed.token_ids[start : self._num_read + 1]
        self._model.verify(self._state, tokens[0], from_path(tokens[1:-1]))
        self._model.commit(self._state, range(len(tokens) - 1), tokens[1:])
        return self._state.take_features()
