"""How much memory a training run will need, part by part, before it starts. An estimate, from shapes alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from oneglance.amounts import size
from oneglance.drafters.head import LayerConfig
from oneglance.targets.base import Target
from oneglance.train.blocks import WIDTH_STEP
from oneglance.train.recipe import HeadRecipe
from oneglance.train.step import CHUNK
from oneglance.train.traces import Trace

ADAM_BYTES = 16  # a parameter: fp32 weight, gradient, two moments


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by part, and what is free on the device.

    Attributes:
        parts: name → bytes, at the peak.
        available: free bytes; what the target already holds is not among them.
        target: bytes that the loaded target holds.
        disk: bytes of features that will be written.
    """

    parts: dict[str, int]
    available: int
    target: int
    disk: int = 0

    @property
    def needed(self) -> int:
        """Besides the target, which is loaded already."""
        return sum(self.parts.values())

    def line(self) -> str:
        """For a terminal."""
        parts = ", ".join(f"{name} {size(count)}" for name, count in self.parts.items())
        return (
            f"memory: about {size(self.needed)} besides the target's {size(self.target)} ({parts}); "
            f"{size(self.available)} free"
        )

    def advice(self) -> str | None:
        """What to do where it will not fit."""
        if self.needed <= self.available:
            return None
        fixed = self.parts["head and optimiser"] + self.parts.get("cached features", 0)
        if fixed > self.available:
            return (
                "the head and its optimiser state alone do not fit; train a smaller head, use a larger device, or "
                "share them out among several (FSDP: recipes/accelerate/fsdp.yaml)"
            )
        return (
            "this will probably run out of memory: lower data.num_anchors or optimiser.batch_size "
            "(and raise optimiser.accumulate)"
        )


def training_memory(
    recipe: HeadRecipe, target: Target, config: Any, rows: Sequence[Trace], *, parameters: int, shards: int = 1
) -> Memory:
    """Estimate the peak of a run.

    Args:
        recipe: batch, anchors, precision.
        target: loaded.
        config: the head's geometry; heads without attention have no part in what attention takes.
        rows: training traces; the longest ones decide.
        parameters: of the head.
        shards: processes that share its weights, gradients and optimiser state (FSDP).
    """
    length, anchors = _longest(recipe, target, rows)
    batch, slots = recipe.optimiser.batch_size, recipe.optimiser.batch_size * anchors * config.block_size
    half = recipe.precision != "no"
    width = 2 if half else 4
    layers = config if isinstance(config, LayerConfig) else None
    heads = layers.num_attention_heads * layers.head_dim if layers else 0
    keys = layers.num_key_value_heads * layers.head_dim if layers else 0
    depth = layers.num_hidden_layers if layers else 1
    per_slot = 10 * config.hidden_size + 2 * heads + 2 * keys + (3 * layers.intermediate_size if layers else 0)
    context = batch * length * (config.feature_size * (4 + target.dtype.itemsize) + config.hidden_size * 8)
    context += depth * batch * length * 2 * keys * 2 * width
    pairs = slots * (length + anchors * config.block_size)
    logits = min(CHUNK, batch * anchors) * config.num_offsets * config.vocab_size * 4 * 3
    is_sharded = shards > 1
    parts = {
        "head and optimiser": parameters * (ADAM_BYTES + (2 if half and not is_sharded else 0)) // shards,
        # weights and gradients as the passes see them, and the sums to share out: at most, since not all at once
        **({"gathered shards": parameters * (2 * width + 4)} if is_sharded else {}),
        "context": context,
        "blocks": depth * slots * per_slot * width,
        "masks": pairs * (1 + width) if layers else 0,
        "logits": logits,
    }
    cached = len(rows) * length * config.feature_size * target.dtype.itemsize
    if recipe.data.cache_features is True:
        parts["cached features"] = cached
    held = sum(p.numel() * p.element_size() for p in target.model.parameters())
    on_disk = cached if recipe.data.cache_features == "disk" else 0
    return Memory(parts, available_bytes(target.device), held, on_disk)


def available_bytes(device: torch.device) -> int:
    """Free memory of a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil  # type: ignore[import-untyped]  # comes with accelerate

    return int(psutil.virtual_memory().available)


def peak_bytes(device: torch.device) -> int:
    """The most memory that this process has held so far: on the GPU where it works on one, else resident."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    import resource  # of Linux and macOS

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _longest(recipe: HeadRecipe, target: Target, rows: Sequence[Trace]) -> tuple[int, int]:
    """Tokens of the longest sample, prompt and answer, and its anchors."""
    longest = sorted(rows, key=lambda row: -len(row.answer_ids))[:4]
    prompts = [len(row.encode(target, long_side=recipe.image_long_side).token_ids) for row in longest]
    answer = len(longest[0].answer_ids)
    return min(recipe.data.max_length, max(prompts) + answer), min(recipe.data.num_anchors, answer + WIDTH_STEP - 1)
