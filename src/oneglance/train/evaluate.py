"""Held-out quality of a head: top-1 at each offset (teacher-forced), and τ by decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from oneglance.core import SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.head import BlockHead
from oneglance.targets.base import Target
from oneglance.train.blocks import Reveal, build_blocks, generator
from oneglance.train.objectives import OBJECTIVES
from oneglance.train.recipe import HeadRecipe
from oneglance.train.step import PackedHead, Sample, block_loss
from oneglance.train.traces import Trace

NUM_ANCHORS = 16


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Share of right top-1 predictions at each offset, only the root visible.

    Attributes:
        top1: (L,).
        counts: (L,) labelled slots.
    """

    top1: list[float]
    counts: list[int]


@torch.no_grad()
def heldout_accuracy(head: BlockHead, target: Target, samples: Sequence[Sample], *, seed: int = 0) -> Accuracy:
    """Top-1 at each offset over up to ``NUM_ANCHORS`` anchors a sample (appendix D)."""
    hits = torch.zeros(head.config.num_offsets)
    labelled = torch.zeros(head.config.num_offsets)
    objective, packed = OBJECTIVES["ce"](), PackedHead(head)
    for index, sample in enumerate(samples):
        blocks = build_blocks(
            [(sample.token_ids, sample.prompt_length)],
            num_anchors=NUM_ANCHORS,
            block_size=head.config.block_size,
            mask_token_id=head.config.mask_token_id,
            reveal=Reveal(enabled=False),
            rngs=[generator("heldout", seed, index)],
        )
        result = block_loss(packed, target, [sample], blocks, objective)
        hits += result.hits.cpu()
        labelled += result.labelled.cpu()
    return Accuracy((hits / labelled.clamp(min=1)).tolist(), labelled.int().tolist())


def heldout_tau(head: BlockHead, target: Target, rows: Sequence[Trace], recipe: HeadRecipe) -> dict[str, float]:
    """τ pooled over the rounds of each task, over the first prompts of each task."""
    taken: dict[str, int] = {}
    kept: dict[str, list[int]] = {}
    drafter = BlockDrafter(head, target, budget=recipe.schedule.tau_budget)
    decoder = Decoder(target, drafter)
    for row in rows:
        if taken.get(row.task, 0) >= recipe.schedule.tau_prompts:
            continue
        taken[row.task] = taken.get(row.task, 0) + 1
        inputs = row.encode(target, long_side=recipe.image_long_side)
        stream = decoder.stream_inputs(inputs, SamplingParams(max_new_tokens=max(2, len(row.answer_ids))))
        for step in stream:
            if step.round is not None:
                kept.setdefault(row.task, []).append(len(step.round.token_ids))
    return {task: sum(lengths) / len(lengths) for task, lengths in kept.items()}
