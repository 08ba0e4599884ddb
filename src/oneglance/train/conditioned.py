"""Training a rescorer, on a frozen head or with it (docs/conditioned-trees.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oneglance.core import Drafter, HeadError, InputError
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.checkpoint import Checkpoint, load_checkpoint, read_config, save_checkpoint
from oneglance.drafters.head import BlockHead, HeadConfig
from oneglance.drafters.rescorer import RescorerConfig, build, find_rescorer, save_rescorer
from oneglance.targets.base import Target
from oneglance.train.blocks import Blocks
from oneglance.train.initial import head_layout, initial_head
from oneglance.train.kinds import Kind
from oneglance.train.objectives import Objective
from oneglance.train.recipe import HeadRecipe
from oneglance.train.step import PackedHead, Sample, StepResult, block_loss
from oneglance.train.traces import Trace


class ConditionedHead(nn.Module):
    """A block head and its rescorer, as one thing to train and to store."""

    def __init__(self, head: BlockHead, rescorer: nn.Module) -> None:
        super().__init__()
        self.head = head
        self.rescorer: Any = rescorer

    @property
    def config(self) -> HeadConfig:
        return self.head.config


class PackedConditioned(nn.Module):
    """The head's forward over whole batches, which a rescorer does not change."""

    def __init__(self, head: ConditionedHead) -> None:
        super().__init__()
        self.head = head
        self.packed = PackedHead(head.head)

    def forward(self, embedded: Tensor, context: Tensor, blocks: Blocks) -> Tensor:
        states: Tensor = self.packed(embedded, context, blocks)
        return states


class ConditionedKind(Kind):
    """Slots are scored given the target's own token before them: what the tree does along each of its paths."""

    def initial(self, recipe: HeadRecipe, target: Target, rows: Sequence[Trace]) -> tuple[Any, list[str]]:
        choice = recipe.rescorer
        assert choice is not None
        _, head, anew = initial_head(recipe, target)
        if choice.freeze_head and anew:
            raise InputError(f"a frozen head must fit the recipe whole, and {anew[0]} of {recipe.init} does not")
        head.requires_grad_(not choice.freeze_head)
        torch.manual_seed(recipe.seed)
        settings = choice.model_dump(exclude={"freeze_head"})
        config = RescorerConfig(vocab_size=target.vocab_size, hidden_size=target.hidden_size, **settings)
        return ConditionedHead(head, build(config).to(target.device)), anew

    def pack(self, head: Any) -> nn.Module:
        return PackedConditioned(head)

    def loss(
        self, packed: nn.Module, target: Target, samples: Sequence[Sample], blocks: Blocks, objective: Objective
    ) -> StepResult:
        inner: Any = getattr(packed, "module", packed).head  # distributed wrappers hold the module

        def bias(states: Tensor, before: Tensor) -> Tensor:
            added: Tensor = inner.rescorer.along(states, before, target.embedding)
            return added

        return block_loss(packed, target, samples, blocks, objective, bias=bias)

    def load(self, name: str) -> Checkpoint[Any, Any]:
        head = load_checkpoint(name)
        rescorer = find_rescorer("auto", read_config(name)[0])
        if rescorer is None:
            raise HeadError(f"{name} holds a head without a rescorer; name one that has it")
        parts = (("head", head.tensors), ("rescorer", rescorer.tensors))
        tensors = {f"{part}.{key}": value for part, given in parts for key, value in given.items()}

        def module(config: HeadConfig) -> ConditionedHead:
            return ConditionedHead(BlockHead(config), build(rescorer.config))

        return Checkpoint(name, head.config, head.raw, tensors, module)

    def save(self, head: Any, folder: Path, raw: dict[str, Any]) -> None:
        """A plain head, and the rescorer's two files beside it."""
        save_checkpoint(head.head, folder, raw)
        save_rescorer(head.rescorer, folder, head=head.head, training=raw.get("oneglance", {}).get("training"))

    def layout(self, recipe: HeadRecipe, target: Target, config: Any) -> dict[str, Any]:
        return head_layout(recipe, target)

    def drafter(self, head: Any, target: Target, *, budget: int) -> Drafter:
        return BlockDrafter(head.head, target, budget=budget, rescorer=head.rescorer.float())
