"""How much memory decoding will need, part by part, before anything is loaded; and what it then held.

The plan comes from shapes alone. The check decodes and counts every tensor that is alive, so it sees what the plan
claims to count and nothing else: no buffers of libraries, no code.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oneglance.core import Drafter
from oneglance.drafters.head import BlockHead, HeadConfig
from oneglance.drafters.timing import prompt_of
from oneglance.targets.base import Target
from oneglance.targets.kv import GROWTH, capacity_for
from oneglance.tree import from_path


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes by part at one context.

    Attributes:
        target, head: weights; a head has no embedding of its own.
        target_kv, head_kv: keys and values of the whole context and a pass, in the steps in which they grow.
        fixed_kv: keys and values of images or of a recording, where they are seen by cross-attention.
        growth: the layer that is being copied while it grows, as it was.
        features: of the prompt's rows, from prefill until the head has taken them in.
        verify: logits (N + 1, V), masks, the widest layer's rows and kept features of one packed pass.
        draft: logits and masks of one block.
        prefill: the widest layer's rows of the whole prompt.
        dtype, context, prompt, budget, images: what this is for.
    """

    target: int
    head: int
    target_kv: int
    head_kv: int
    fixed_kv: int
    growth: int
    features: int
    verify: int
    draft: int
    prefill: int
    dtype: str
    context: int
    prompt: int
    budget: int
    images: int

    @property
    def total(self) -> int:
        """The peak: prefill with its features, or a round at the full context, whichever is more."""
        always = self.target + self.head + self.fixed_kv
        share = self.prompt / self.context
        kept = self.target_kv + self.head_kv
        return always + max(
            int(self.target_kv * share) + self.features + self.prefill, kept + max(self.verify, self.draft, self.growth)
        )


def plan(
    target: Target,
    head: HeadConfig | None,
    *,
    dtype: torch.dtype,
    context: int,
    prompt: int,
    budget: int,
    images: int = 1,
) -> Plan:
    """Count what decoding holds.

    Args:
        target: an outline (``targets.outline``) or a loaded one; only its shapes are read.
        head: geometry of the block head, None for plain decoding.
        dtype: of weights, keys and values.
        context: prompt and answer, in rows.
        prompt: rows of it that prefill runs over.
        budget: nodes of the tree, root excluded.
        images: or recordings of the prompt that are seen by cross-attention; others are rows of it.
    """
    size, text = dtype.itemsize, target.text_config
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    layer_row = 2 * text.num_key_value_heads * head_dim * size
    group = text.num_attention_heads // text.num_key_value_heads
    widest_row = (2 * text.hidden_size + 3 * target.inner_size) * size
    rows = budget + 1
    capacity = capacity_for(context + rows, target.context_length)
    fixed_rows = images * target.fixed_rows
    seen = max(capacity, fixed_rows)  # by a row of one layer
    own = feature_row = head_kv = head_layer_row = block = 0
    if head is not None:
        with torch.device("meta"):
            own = sum(p.numel() for p in BlockHead(head).parameters()) * size
        feature_row = len(head.target_layer_ids) * head.hidden_size * size
        head_layer_row = 2 * head.num_key_value_heads * head.head_dim * size
        block = head.block_size
        head_kv = head.num_hidden_layers * head_layer_row * -(-(context + block) // GROWTH) * GROWTH
    return Plan(
        target=sum(p.numel() for p in target.model.parameters()) * size,
        head=own,
        target_kv=len(target.self_attention_layers) * layer_row * capacity,
        head_kv=head_kv,
        fixed_kv=len(target.fixed_layers) * layer_row * fixed_rows,
        growth=max(layer_row, head_layer_row) * max(0, capacity - GROWTH),
        features=prompt * feature_row,
        verify=rows * (target.vocab_size * size + (1 + group) * seen * size + widest_row + feature_row),
        draft=block * (target.vocab_size * (size + 4) + capacity + widest_row),
        prefill=prompt * widest_row,
        dtype=str(dtype).removeprefix("torch."),
        context=context,
        prompt=prompt,
        budget=budget,
        images=images,
    )


# The check -------------------------------------------------------------------------------------------------------


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that are made inside and still alive.

    Attributes:
        peak: the most at any time.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._now = 0
        self._users: Counter[int] = Counter()  # tensors of each storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            place, size = storage.data_ptr(), storage.nbytes()
            if not size or (place in given and place not in self._users):
                continue  # a view of a weight, or of what was there before
            if not self._users[place]:
                self._now += size
                self.peak = max(self.peak, self._now)
            self._users[place] += 1
            weakref.finalize(tensor, self._gone, place, size)
        return out

    def _gone(self, place: int, size: int) -> None:
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self._now -= size


def _tensors(values: Any) -> Iterable[Tensor]:
    return (value for value in tree_leaves(values) if isinstance(value, Tensor))


@torch.inference_mode()
def held(target: Target, drafter: Drafter, *, context: int, prompt: int, budget: int) -> int:
    """Bytes that weights and tensors took at the most, in decoding from a prompt of that size up to that context.

    Rounds draft and verify; then a whole path of the budget's length is committed, so that few of them fill the
    context.
    """
    head = getattr(drafter, "head", None)
    modules = [target.model, *([head] if isinstance(head, torch.nn.Module) else [])]
    inputs = prompt_of(target, prompt)
    path = list(islice(cycle((1, 2, 3, 4)), budget))
    with Alive() as alive:
        state = target.prefill(inputs, drafter.target_layer_ids)
        state.token_ids.append(int(state.last_row.argmax()))
        draft_state = drafter.start(state)
        while True:
            room = min(budget, context - state.length - 1)
            drafter.draft(state.token_ids[-1], state, draft_state, max_depth=max(1, room))
            target.verify(state, state.token_ids[-1], from_path(path))
            if room < 1:
                break
            target.commit(state, range(room), path[:room])
    weights = sum(int(parameter.nbytes) for module in modules for parameter in module.parameters())
    return int(alive.peak) + weights
