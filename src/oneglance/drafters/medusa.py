"""The Medusa drafter: K residual heads on the target's last hidden state, one pass a round, then a tree.

Head i predicts the token i+1 places after the root from the state that predicted the root, so the K distributions are
offset-wise marginals as a block head's are, and the same tree policies serve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from oneglance.core import DEFAULT_BUDGET, EMPTY_TREE, BlockMarginals, Drafter, HeadError, InputError, TokenTree
from oneglance.drafters.block import best_ranks
from oneglance.drafters.checkpoint import (
    Checkpoint,
    check_fit,
    check_tensors,
    fitted,
    read_config,
    read_tensors,
    refuse_block,
)
from oneglance.drafters.head import DraftConfig, checked
from oneglance.drafters.settings import NoSettings, read_settings
from oneglance.drafters.taken import binds
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState
from oneglance.tree import best_first, truncate

FILE = "medusa_lm_head.safetensors"  # as the Medusa project names it


class MedusaConfig(DraftConfig):
    """Geometry of Medusa heads.

    Attributes:
        num_target_layers, target_layer_ids: 0 and empty where the checkpoint does not say: the target's last layer.
        block_size: heads, and one.
        num_layers: residual blocks a head.
        shares_lm_head: the heads end in the target's lm_head; else each has its own.
    """

    num_target_layers: int = Field(default=0, ge=0)
    target_layer_ids: tuple[int, ...] = ()
    num_layers: int = Field(default=1, gt=0)
    shares_lm_head: bool = False

    @classmethod
    def from_checkpoint(cls, raw: dict[str, Any], tensors: dict[str, Tensor]) -> MedusaConfig:
        """Read a ``config.json`` of Medusa, which names heads and layers; sizes are read off the tensors.

        Raises:
            HeadError: these are no Medusa heads.
        """
        flat = {key: value for key, value in raw.items() if value is not None}
        first = tensors.get("0.0.linear.weight")
        if first is None or first.ndim != 2:
            raise HeadError("the checkpoint holds no Medusa heads: there is no 0.0.linear.weight")
        flat.setdefault("num_layers", flat.get("medusa_num_layers", 1))
        last = tensors.get(f"0.{flat['num_layers']}.weight")
        flat |= {"hidden_size": first.shape[1], "shares_lm_head": last is None}
        if last is not None:
            flat["vocab_size"] = last.shape[0]
        flat["block_size"] = flat.get("medusa_num_heads", len({key.split(".")[0] for key in tensors})) + 1
        flat.setdefault("max_position_embeddings", 1 << 31)  # no positions: no limit
        return checked(cls, flat)

    def for_target(self, num_layers: int) -> Self:
        """With the target's layers where the checkpoint does not name them."""
        ids = self.target_layer_ids or (num_layers - 1,)
        return self.model_copy(
            update={"target_layer_ids": ids, "num_target_layers": self.num_target_layers or num_layers}
        )


class ResBlock(nn.Module):
    """x + SiLU(linear(x)); starts as the identity."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHead(nn.ModuleList):
    """K heads; the state dict has Medusa's key set (``0.0.linear.weight``, …, ``0.1.weight``)."""

    def __init__(self, config: MedusaConfig) -> None:
        blocks = [[ResBlock(config.hidden_size) for _ in range(config.num_layers)] for _ in range(config.num_offsets)]
        own = [] if config.shares_lm_head else [config.vocab_size]
        super().__init__(
            nn.Sequential(*head, *(nn.Linear(config.hidden_size, rows, bias=False) for rows in own)) for head in blocks
        )
        self.config = config

    def forward(self, hidden: Tensor, lm_head: nn.Module) -> Tensor:
        """(…, H) normed last states → (…, K, V) logits, through ``lm_head`` where the heads share it."""
        rows = torch.stack([head(hidden) for head in self], dim=-2)
        return torch.as_tensor(lm_head(rows)) if self.config.shares_lm_head else rows


@dataclass(slots=True)
class MedusaState:
    """(H,) the feature of the last committed row; None before the first draft."""

    last: Tensor | None = None

    def rows(self, state: TargetState) -> list[Tensor]:
        """None a token (``core.Kept``): the last row, which is never a reused one, is all that the heads read."""
        return []


class MedusaDrafter:
    """Drafts with Medusa heads.

    Args:
        head: on the device of the target's final norm.
        target: gives that norm, the lm_head where it is shared, and the ids that are never proposed.
        name: where the heads come from.
        policy: marginals and budget → tree. The best-first tree replaces Medusa's static one of the same size.
        budget: N, root excluded.
        branch_k: ranks looked at per offset; None means as many as the budget, which is exact.
    """

    def __init__(
        self,
        head: MedusaHead,
        target: Target,
        *,
        name: str | None = None,
        policy: Callable[[BlockMarginals, int], TokenTree] = best_first,
        budget: int = DEFAULT_BUDGET,
        branch_k: int | None = None,
    ) -> None:
        if budget < 1 or (branch_k is not None and branch_k < 1):
            raise InputError(f"budget and branch_k must be at least 1, got {budget} and {branch_k}")
        self.head = head
        self.target = target
        self.name = name
        self.policy = policy
        self.budget = budget
        self.num_ranks = min(branch_k or budget, target.vocab_size)
        self._norm = target.final_norm
        self._banned = torch.tensor(target.banned_ids, device=target.lm_head_device, dtype=torch.long)

    @classmethod
    def bind(cls, checkpoint: Checkpoint[MedusaConfig, MedusaHead], target: Target, **options: Any) -> MedusaDrafter:
        """Check that a checkpoint fits the target and put it beside the final norm.

        Raises:
            HeadError: it does not fit.
        """
        checkpoint = fitted(checkpoint, target)
        config = checkpoint.config
        check_fit(checkpoint, target)
        if len(config.target_layer_ids) != 1:
            raise HeadError(f"Medusa heads read one layer, their config names {len(config.target_layer_ids)}; name one")
        device = target.lm_head_device
        return cls(checkpoint.build(dtype=target.dtype, device=device), target, name=checkpoint.name, **options)

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.head.config.target_layer_ids

    @property
    def num_parameters(self) -> int:
        """Of the heads, their own lm_heads among them (Table 2)."""
        return sum(p.numel() for p in self.head.parameters())

    @property
    def row_owner(self) -> MedusaHead:
        return self.head

    def start(self, state: TargetState) -> MedusaState:
        return MedusaState()

    def num_passes(self, tree: TokenTree) -> int:
        return 1 if len(tree) else 0

    def draft(self, root: int, state: TargetState, draft_state: MedusaState, *, max_depth: int) -> TokenTree:
        """One pass over the state that predicted the root, one tree.

        Raises:
            DraftError: the heads returned NaN.
        """
        if max_depth < 1:
            return EMPTY_TREE
        return self.policy(self.marginals(root, state, draft_state, max_depth), self.budget)

    @torch.inference_mode()
    def marginals(
        self, root: int, state: TargetState, draft_state: MedusaState, num_offsets: int, num_ranks: int | None = None
    ) -> BlockMarginals:
        """Top ranks of each head, at most ``num_ranks``; the heads never see the root.

        Raises:
            DraftError: the heads returned NaN.
        """
        if state.fresh:
            draft_state.last = state.take_features()[-1].clone()
        assert draft_state.last is not None
        normed = self._norm(draft_state.last[None]).to(self.target.lm_head_device)
        logits = self.head(normed, self.target.lm_head)[0].float()
        return truncate(best_ranks(logits, self._banned, min(num_ranks or self.num_ranks, self.num_ranks)), num_offsets)


def load_medusa(name: str) -> Checkpoint[MedusaConfig, MedusaHead]:
    """Open and check Medusa heads without touching their target.

    Raises:
        HeadError: as for block heads.
    """
    folder, raw = read_config(name)
    refuse_block(raw, name, read="medusa")
    tensors = read_tensors(folder, FILE if (folder / FILE).is_file() else None)
    config = MedusaConfig.from_checkpoint(raw, tensors)
    check_tensors(MedusaHead, config, tensors)
    return Checkpoint(name, config, raw, tensors, MedusaHead)


@binds(MedusaDrafter.bind)
def prepare(head: str | None, **settings: Any) -> Callable[..., Drafter]:
    """Registry entry: loads the checkpoint now, binds it to a target later.

    Raises:
        InputError: no heads were named.
    """
    read_settings(NoSettings, "medusa", settings)
    if head is None:
        raise InputError(
            "drafter 'medusa' needs Medusa heads: give --head; 'oneglance train recipes/reader-medusa.yaml' trains them"
        )
    return partial(MedusaDrafter.bind, load_medusa(head))
