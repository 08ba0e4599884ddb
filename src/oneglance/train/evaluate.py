"""Held-out quality of a head: top-1 at each offset (teacher-forced), and τ by decoding."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from oneglance.core import SamplingParams
from oneglance.decoder import Decoder
from oneglance.targets.base import Target
from oneglance.train.blocks import Reveal, build_blocks, generator
from oneglance.train.kinds import Kind
from oneglance.train.objectives import OBJECTIVES
from oneglance.train.recipe import HeadRecipe
from oneglance.train.step import Sample
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
def heldout_accuracy(kind: Kind, head: Any, target: Target, samples: Iterable[Sample], *, seed: int = 0) -> Accuracy:
    """Top-1 at each offset over up to ``NUM_ANCHORS`` anchors a sample (appendix D); one sample is held at a time."""
    hits = torch.zeros(head.config.num_offsets)
    labelled = torch.zeros(head.config.num_offsets)
    objective, packed = OBJECTIVES["ce"](), kind.pack(head)
    for index, sample in enumerate(samples):
        blocks = build_blocks(
            [(sample.token_ids, sample.prompt_length)],
            num_anchors=NUM_ANCHORS,
            block_size=head.config.block_size,
            mask_token_id=head.config.mask_token_id,
            reveal=Reveal(enabled=False),
            rngs=[generator("heldout", seed, index)],
        )
        result = kind.loss(packed, target, [sample], blocks, objective)
        hits += result.hits.cpu()
        labelled += result.labelled.cpu()
    return Accuracy((hits / labelled.clamp(min=1)).tolist(), labelled.int().tolist())


def expected_accepted(top1: Sequence[float]) -> float:
    """Expected accepted length of the width-1 chain if offsets were independent: the sum of the prefix products of
    the top-1 accuracies. It is the scalar by which checkpoints are selected: an offset counts as much as the offsets
    before it let it."""
    reach, total = 1.0, 0.0
    for share in top1:
        reach *= share
        total += reach
    return total


def rounds_per_prompt(
    kind: Kind,
    head: Any,
    target: Target,
    rows: Sequence[Trace],
    *,
    long_side: int | None,
    budget: int,
    prompts_per_task: int | None = None,
) -> dict[str, list[list[int]]]:
    """Per task and prompt the kept tokens of each round, decoding in the target's dtype as serving does."""
    decoder = Decoder(target, kind.drafter(serving(head, target.dtype), target, budget=budget))
    kept: dict[str, list[list[int]]] = {}
    for row in rows:
        own = kept.setdefault(row.task, [])
        if prompts_per_task is not None and len(own) >= prompts_per_task:
            continue
        params = SamplingParams(max_new_tokens=max(2, len(row.answer_ids)))
        stream = decoder.stream_inputs(row.encode(target, long_side=long_side), params)
        own.append([len(step.round.token_ids) for step in stream if step.round is not None])
    return kept


def serving(head: Any, dtype: torch.dtype) -> Any:
    """A frozen copy of a head in training, in another precision."""
    return copy.deepcopy(head).to(dtype).eval().requires_grad_(False)


def heldout_tau(kind: Kind, head: Any, target: Target, rows: Sequence[Trace], recipe: HeadRecipe) -> dict[str, float]:
    """τ pooled over the rounds of each task, over the first prompts of each task."""
    kept = rounds_per_prompt(
        kind,
        head,
        target,
        rows,
        long_side=recipe.image_long_side,
        budget=recipe.schedule.tau_budget,
        prompts_per_task=recipe.schedule.tau_prompts,
    )
    pooled = {task: [n for rounds in prompts for n in rounds] for task, prompts in kept.items()}
    return {task: sum(lengths) / len(lengths) for task, lengths in pooled.items() if lengths}
