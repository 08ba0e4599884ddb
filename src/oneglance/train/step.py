"""One training step of a head: features from the frozen target, packed blocks, weighted slot losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from oneglance.drafters.head import BlockHead
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs
from oneglance.train.blocks import Blocks
from oneglance.train.objectives import Objective

CHUNK = 128  # blocks whose logits are held at a time; the rest is recomputed in the backward pass


@dataclass(frozen=True, slots=True)
class Sample:
    """A trace, run through the target.

    Attributes:
        token_ids: prompt and answer, (T,).
        prompt_length: tokens before the answer.
        features: (T, F) fused features, in the target's dtype.
        last_hidden: (T, H) states that the target's lm_head reads, only for soft objectives.
    """

    token_ids: tuple[int, ...]
    prompt_length: int
    features: Tensor
    last_hidden: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Sums over the slots of a batch.

    Attributes:
        loss: weighted sum of slot losses; differentiable.
        weight: sum of the weights.
        hits, labelled: (L,) right top-1 predictions and labelled hidden slots at each offset from the first hidden
            one.
    """

    loss: Tensor
    weight: Tensor
    hits: Tensor
    labelled: Tensor


Bias = Callable[[Tensor, Tensor], Tensor]
"""(M, L, H) states and (M, L) tokens before each slot → what is added to the logits, (M, L, V)."""


def block_loss(
    head: nn.Module,
    target: Target,
    samples: Sequence[Sample],
    blocks: Blocks,
    objective: Objective,
    *,
    bias: Bias | None = None,
) -> StepResult:
    """Run packed blocks through the head, by the same forward as decoding, and weigh the slot losses.

    Args:
        head: a ``PackedHead``, possibly wrapped for distributed training.
        target: embedding and lm_head, frozen.
        samples: b samples.
        blocks: their blocks, (b, A, B).
        objective: weighs the slots.
        bias: of a rescorer, given the target's own tokens.
    """
    parameter = next(head.parameters())
    device = parameter.device
    context = pad_rows([s.features for s in samples]).to(device, parameter.dtype)
    embedded = target.embedding(blocks.token_ids.to(target.device)).to(device, parameter.dtype).flatten(1, 2)
    states = head(embedded, context, blocks)
    states = states.unflatten(1, blocks.token_ids.shape[1:])[:, :, 1:].flatten(0, 1)  # (b*A, L, H)
    labels = blocks.labels[:, :, 1:].flatten(0, 1).to(target.lm_head_device)  # (b*A, L)
    teacher = teacher_states(samples, blocks, labels.device) if objective.soft else None
    own = torch.where(blocks.labels >= 0, blocks.labels, blocks.token_ids)
    before = own[:, :, :-1].flatten(0, 1).to(labels.device)  # (b*A, L)
    nll, predicted = slot_losses(states.to(labels.device), labels, target.lm_head, teacher, bias=bias, before=before)
    hidden = labels >= 0
    weights = objective.weigh(nll, hidden)
    return StepResult((nll * weights).sum(), weights.sum(), *accuracy(predicted, labels, hidden))


class PackedHead(nn.Module):
    """The head's decoding forward over whole sequences at once: context projected in one go, blocks packed.

    A module, so that distributed wrappers see one forward.
    """

    def __init__(self, head: BlockHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, embedded: Tensor, context: Tensor, blocks: Blocks) -> Tensor:
        """(b, A*B, H) states of all slots."""
        config, device = self.head.config, context.device
        windows = [config.window(i) for i in range(config.num_hidden_layers)]
        masks = {window: blocks.mask(context.shape[1], window=window).to(device) for window in set(windows)}
        rows = torch.arange(context.shape[1], device=device)
        states: Tensor = self.head(
            embedded,
            self.head.project_context(context, rows),
            blocks.position_ids.to(device),
            [masks[window] for window in windows],
        )
        return states


def slot_losses(
    states: Tensor,
    labels: Tensor,
    lm_head: nn.Module,
    teacher: Tensor | None = None,
    *,
    bias: Bias | None = None,
    before: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Loss and top-1 prediction of each slot, in chunks so that logits of large vocabularies fit.

    Args:
        states: (M, L, H).
        labels: (M, L), -100 where there is none.
        lm_head: the target's, frozen.
        teacher: (M, L, H) the target's own states at the labelled positions: soft labels instead of hard ones.
        bias: added to the logits, from the states and ``before``.
        before: (M, L) the token before each slot.

    Returns:
        (M, L) losses, 0 where unlabelled, and (M, L) predicted ids.
    """

    def chunk(
        states: Tensor, labels: Tensor, teacher: Tensor | None, before: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        logits = lm_head(states.to(next(lm_head.parameters()).dtype)).float()
        if bias is not None and before is not None:
            logits = logits + bias(states, before)
        soft = None if teacher is None else lm_head(teacher).float().softmax(-1)
        return slot_nll(logits, labels, soft), logits.argmax(-1)

    return in_chunks(chunk, states, labels, teacher, before)


def slot_nll(logits: Tensor, labels: Tensor, soft: Tensor | None) -> Tensor:
    """(M, L) cross-entropies of logits (M, L, V) with labels, or with soft ones (M, L, V); 0 where unlabelled."""
    if soft is None:
        return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
    return -(soft * logits.log_softmax(-1)).sum(-1) * (labels >= 0)


def in_chunks(
    chunk: Callable[..., tuple[Tensor, Tensor]], states: Tensor, *others: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A function of M rows, ``CHUNK`` rows at a time; with several chunks its inner tensors are recomputed."""
    parts = []
    for start in range(0, len(states), CHUNK):
        piece = slice(start, start + CHUNK)
        arguments = (states[piece], *(None if other is None else other[piece] for other in others))
        single = len(states) <= CHUNK
        parts.append(chunk(*arguments) if single else checkpoint(chunk, *arguments, use_reentrant=False))
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def pad_rows(rows: Sequence[Tensor], multiple: int = 32) -> Tensor:
    """(b, T, F) rows padded with zeros to a common length; padding is never visible to a block."""
    longest = -(-max(len(r) for r in rows) // multiple) * multiple
    return torch.stack([F.pad(r, (0, 0, 0, longest - len(r))) for r in rows])


def teacher_states(samples: Sequence[Sample], blocks: Blocks, device: torch.device) -> Tensor:
    """(b*A, L, H): the target's state one row before each labelled position, which is what predicts it."""
    assert all(s.last_hidden is not None for s in samples)
    states = pad_rows([s.last_hidden for s in samples if s.last_hidden is not None]).to(device)
    size = blocks.token_ids.shape[-1]
    before = (blocks.anchors[..., None] + torch.arange(size - 1)).clamp(max=states.shape[1] - 1).flatten(1).to(device)
    gathered = torch.gather(states, 1, before[..., None].expand(-1, -1, states.shape[-1]))
    return gathered.reshape(-1, size - 1, states.shape[-1])


def accuracy(predicted: Tensor, labels: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """(L,) hits and labelled slots at each offset from the first hidden one."""
    offset = (hidden.cumsum(-1) - 1).clamp(min=0)
    counts = torch.zeros(2, labels.shape[-1], device=labels.device)
    counts[0].index_add_(0, offset.flatten(), ((predicted == labels) & hidden).float().flatten())
    counts[1].index_add_(0, offset.flatten(), hidden.float().flatten())
    return counts[0], counts[1]


@torch.inference_mode()
def run_target(
    target: Target, inputs: Inputs, answer: Sequence[int], layer_ids: Sequence[int], *, soft: bool = False
) -> Sample:
    """Features of a prompt and its answer by the same prefill as decoding.

    Args:
        target: frozen.
        inputs: encoded prompt.
        answer: answer tokens.
        layer_ids: kept layers.
        soft: also keep the states that the lm_head reads.
    """
    prompt_length = len(inputs.token_ids)
    whole = target.extend(inputs, answer)
    hidden: list[Tensor] = []
    norm = target.final_norm
    handle = norm.register_forward_hook(lambda _, __, out: hidden.append(out[0])) if soft else None
    try:
        state = target.prefill(whole, layer_ids)
    finally:
        if handle is not None:
            handle.remove()
    features = state.take_features()
    return Sample(tuple(whole.token_ids), prompt_length, features, hidden[0] if soft else None)
