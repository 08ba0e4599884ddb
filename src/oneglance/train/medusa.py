"""Train Medusa heads: each predicts one offset from the target's last hidden state (Medusa-1: the target is frozen)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oneglance.core import Drafter, InputError
from oneglance.drafters.checkpoint import Checkpoint
from oneglance.drafters.medusa import MedusaConfig, MedusaDrafter, MedusaHead, load_medusa
from oneglance.targets.base import Target
from oneglance.train.blocks import Blocks
from oneglance.train.initial import warm_start
from oneglance.train.kinds import Kind
from oneglance.train.objectives import Objective
from oneglance.train.recipe import HeadRecipe
from oneglance.train.step import Sample, StepResult, accuracy, in_chunks, pad_rows, slot_nll, teacher_states
from oneglance.train.traces import Trace


class PackedMedusa(nn.Module):
    """The heads under the name that distributed wrappers unwrap to."""

    def __init__(self, head: MedusaHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, states: Tensor, lm_head: nn.Module) -> Tensor:
        """(M, H) → (M, K, V)."""
        logits: Tensor = self.head(states, lm_head)
        return logits


class MedusaKind(Kind):
    """Medusa: ``block_size`` - 1 heads of ``num_layers`` residual blocks."""

    def initial(self, recipe: HeadRecipe, target: Target, rows: Sequence[Trace]) -> tuple[Any, list[str]]:
        torch.manual_seed(recipe.seed)
        ids = recipe.head.target_layer_ids or (target.num_layers - 1,)
        if len(ids) != 1:
            raise InputError(f"Medusa heads read one layer; head.target_layer_ids names {list(ids)}; name one")
        config = MedusaConfig(
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            max_position_embeddings=target.context_length,
            block_size=recipe.head.block_size,
            num_target_layers=target.num_layers,
            target_layer_ids=ids,
            num_layers=recipe.head.num_layers,
            shares_lm_head=not recipe.head.own_lm_head,
        )
        head = MedusaHead(config)
        start = getattr(target.lm_head, "weight", None)
        if recipe.head.own_lm_head and isinstance(start, Tensor) and start.is_floating_point():
            for one in head:
                one[-1].weight.data.copy_(start.detach().float().cpu())  # type: ignore[index]
        anew = warm_start(head, load_medusa(recipe.init).tensors) if recipe.init else []
        return head.to(target.device), anew

    def pack(self, head: Any) -> nn.Module:
        return PackedMedusa(head)

    def loss(
        self, packed: nn.Module, target: Target, samples: Sequence[Sample], blocks: Blocks, objective: Objective
    ) -> StepResult:
        parameter = next(packed.parameters())
        device = parameter.device
        features = pad_rows([s.features for s in samples])
        before = (blocks.anchors - 1).clamp(min=0).to(features.device)
        rows = torch.gather(features, 1, before[..., None].expand(-1, -1, features.shape[-1])).flatten(0, 1)
        states = target.final_norm(rows).to(device, parameter.dtype)  # (b*A, H)
        labels = blocks.labels[:, :, 1:].flatten(0, 1).to(device)
        teacher = teacher_states(samples, blocks, target.lm_head_device) if objective.soft else None

        def chunk(states: Tensor, labels: Tensor, teacher: Tensor | None) -> tuple[Tensor, Tensor]:
            logits = packed(states, target.lm_head).float()
            soft = None if teacher is None else target.lm_head(teacher).float().to(logits.device).softmax(-1)
            return slot_nll(logits, labels, soft), logits.argmax(-1)

        nll, predicted = in_chunks(chunk, states, labels, teacher)
        hidden = labels >= 0
        weights = objective.weigh(nll, hidden)
        return StepResult((nll * weights).sum(), weights.sum(), *accuracy(predicted, labels, hidden))

    def load(self, name: str) -> Checkpoint[Any, Any]:
        return load_medusa(name)

    def layout(self, recipe: HeadRecipe, target: Target, config: Any) -> dict[str, Any]:
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "medusa_num_heads": config.num_offsets,
            "medusa_num_layers": config.num_layers,
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.max_position_embeddings,
            "num_target_layers": config.num_target_layers,
            "target_layer_ids": list(config.target_layer_ids),
        }

    def drafter(self, head: Any, target: Target, *, budget: int) -> Drafter:
        return MedusaDrafter(head, target, budget=budget)
