"""Kinds of draft head that can be trained: how each starts, what its loss is, how it is stored and served.

Traces, anchors, labels, objectives, optimiser, checkpoints and evaluation are the same for all, so that heads trained
from recipes that differ in ``kind`` alone are comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from oneglance.core import Drafter
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.checkpoint import Checkpoint, load_checkpoint, read_config, save_checkpoint, tensor_names
from oneglance.drafters.layouts import drafter_of
from oneglance.drafters.rescorer import CONFIG as RESCORER_CONFIG
from oneglance.targets.base import Target
from oneglance.train.blocks import Blocks
from oneglance.train.initial import head_layout, initial_head
from oneglance.train.objectives import Objective
from oneglance.train.recipe import HeadRecipe
from oneglance.train.step import PackedHead, Sample, StepResult, block_loss
from oneglance.train.traces import Trace

KINDS: dict[str, str] = {
    "head": "oneglance.train.kinds:BlockKind",
    "conditioned": "oneglance.train.conditioned:ConditionedKind",
    "eagle2": "oneglance.train.eagle2:Eagle2Kind",
    "eagle3": "oneglance.train.eagle3:Eagle3Kind",
    "medusa": "oneglance.train.medusa:MedusaKind",
    "vispec": "oneglance.train.vispec:VispecKind",
}


class Kind(Protocol):
    """What a trainer asks of a kind of head."""

    def initial(self, recipe: HeadRecipe, target: Target, rows: Sequence[Trace]) -> tuple[Any, list[str]]:
        """A head under the recipe's seed, with its ``config``, and the tensors of a warm start that did not fit."""

    def pack(self, head: Any) -> nn.Module:
        """The head under a forward over whole batches; keeps it as ``head``."""

    def loss(
        self, packed: nn.Module, target: Target, samples: Sequence[Sample], blocks: Blocks, objective: Objective
    ) -> StepResult:
        """Weighted slot losses of a batch."""

    def load(self, name: str) -> Checkpoint[Any, Any]:
        """A checkpoint of this kind."""

    def save(self, head: Any, folder: Path, raw: dict[str, Any]) -> None:
        """Write such a checkpoint.

        Args:
            head: in the precision in which it is stored.
            folder: made where it is missing.
            raw: ``config.json``.
        """
        save_checkpoint(head, folder, raw)

    def layout(self, recipe: HeadRecipe, target: Target, config: Any) -> dict[str, Any]:
        """``config.json`` in the layout that others read."""

    def drafter(self, head: Any, target: Target, *, budget: int) -> Drafter:
        """The head as it is served, best-first."""


class BlockKind(Kind):
    """The block head (§4.3)."""

    def initial(self, recipe: HeadRecipe, target: Target, rows: Sequence[Trace]) -> tuple[Any, list[str]]:
        _, head, anew = initial_head(recipe, target)
        return head, anew

    def pack(self, head: Any) -> nn.Module:
        return PackedHead(head)

    def loss(
        self, packed: nn.Module, target: Target, samples: Sequence[Sample], blocks: Blocks, objective: Objective
    ) -> StepResult:
        return block_loss(packed, target, samples, blocks, objective)

    def load(self, name: str) -> Checkpoint[Any, Any]:
        return load_checkpoint(name)

    def layout(self, recipe: HeadRecipe, target: Target, config: Any) -> dict[str, Any]:
        return head_layout(recipe, target)

    def drafter(self, head: Any, target: Target, *, budget: int) -> Drafter:
        return BlockDrafter(head, target, budget=budget)


def kind_of(name: str) -> Kind:
    """The kind of that name in a recipe."""
    module, attribute = KINDS[name].split(":")
    kind: Kind = getattr(import_module(module), attribute)()
    return kind


def load_any(name: str) -> tuple[Kind, Checkpoint[Any, Any]]:
    """A checkpoint of whatever kind it is.

    Raises:
        HeadError: it cannot be loaded.
    """
    folder, raw = read_config(name)
    if (folder / RESCORER_CONFIG).is_file():
        kind = kind_of("conditioned")
        return kind, kind.load(name)
    drafter = drafter_of(raw, tensor_names(folder)) or "block"
    kind = kind_of("head" if drafter == "block" else drafter)
    return kind, kind.load(name)
