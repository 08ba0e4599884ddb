"""The block drafter: a head bound to a target, one pass a round, then a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from oneglance.core import DEFAULT_BUDGET, EMPTY_TREE, BlockMarginals, Drafter, DraftError, TokenTree
from oneglance.drafters.checkpoint import HeadCheckpoint, check_fit, fitted, load_checkpoint, read_config
from oneglance.drafters.head import BlockHead, KeysValues
from oneglance.drafters.rescorer import Rescorer, RescorerCheckpoint, find_rescorer
from oneglance.drafters.settings import Settings, check_budget, read_settings
from oneglance.drafters.static import Candidates, StaticDraft
from oneglance.drafters.taken import binds
from oneglance.targets.base import Target
from oneglance.targets.kv import RoomyLayer
from oneglance.targets.state import TargetState
from oneglance.tree import best_first, truncate

CONDITIONED_RANKS = 64  # ranks an offset that a rescorer looks at: it compares each with each


@dataclass(slots=True)
class DraftState:
    """The head's keys and values of one sequence's context.

    Attributes:
        length: context rows ingested; the block goes to positions ``length`` … ``length`` + B - 1.
        layers: their keys and values; none before the first row.
    """

    length: int = 0
    layers: list[RoomyLayer] = field(default_factory=list)

    def extend(self, rows: Sequence[KeysValues]) -> None:
        """Append context rows, a pair a layer."""
        if not self.layers:
            self.layers = [RoomyLayer() for _ in rows]
        for layer, (keys, values) in zip(self.layers, rows, strict=True):
            layer.update(keys, values)
        self.length = self.layers[0].get_seq_length()

    def context(self, size: int = 0) -> list[KeysValues]:
        """(1, KV, length + size, D) keys and values a layer, as views: the context, then the block's own rows."""
        end = self.length + size
        found = []
        for layer in self.layers:
            layer.reserve(end)
            assert layer.room is not None
            found.append((layer.room[0][:, :, :end], layer.room[1][:, :, :end]))
        return found


@dataclass(slots=True)
class BlockState(DraftState):
    """The draft cache of one generation, and the head that fills it.

    Attributes:
        head: it.
    """

    head: BlockHead = field(kw_only=True)

    def ingest(self, state: TargetState) -> None:
        """Take in the rows committed since the last call."""
        if not state.fresh:
            return
        features = state.take_features().to(self.head.fc.weight.device)
        positions = torch.arange(self.length, self.length + len(features), device=features.device)
        self.extend(self.head.project_context(features[None], positions))

    @torch.inference_mode()
    def rows(self, state: TargetState) -> list[Tensor] | None:
        """Keys and values of each layer, in turn (``core.Kept``)."""
        self.ingest(state)
        if self.length != state.length:  # an interruption lost features
            return None
        return [rows for pair in self.context() for rows in pair]


class BlockDrafter:
    """Drafts with a block head: marginals in one pass, then a tree policy (§3.2, §4.1).

    Args:
        head: the head, on the device of the target's last kept layer.
        target: gives embedding, lm_head and the ids that are never proposed.
        name: where the head comes from.
        policy: marginals and budget → tree.
        budget: N, root excluded.
        branch_k: ranks looked at per offset; None means as many as the budget, which is exact, and with a rescorer at
            most ``CONDITIONED_RANKS``, which is not above that.
        rescorer: conditions each offset's candidates on the token before them; None leaves offsets independent.

    Attributes:
        watch: sees the logits (L, V) and the marginals of every pass, where somebody keeps a log of rounds.
    """

    def __init__(
        self,
        head: BlockHead,
        target: Target,
        *,
        name: str | None = None,
        policy: Callable[[BlockMarginals, int], TokenTree] = best_first,
        budget: int = DEFAULT_BUDGET,
        branch_k: int | None = None,
        rescorer: Rescorer | None = None,
    ) -> None:
        check_budget(budget, branch_k)
        self.head = head
        self.target = target
        self.policy = policy
        self.budget = budget
        self.branch_k = branch_k
        ranks = branch_k or (budget if rescorer is None else min(budget, CONDITIONED_RANKS))
        self.num_ranks = min(ranks, target.vocab_size)
        self.rescorer = rescorer
        self.watch: Callable[[Tensor, BlockMarginals], None] | None = None
        self._name = name
        self._banned = torch.tensor(target.banned_ids, device=target.lm_head_device, dtype=torch.long)
        execution = target.passes.execution
        self._static = None if execution is None else StaticDraft(head, self._embed, self._rank, execution)

    @classmethod
    def bind(
        cls,
        checkpoint: HeadCheckpoint,
        target: Target,
        *,
        rescorer: RescorerCheckpoint | None = None,
        **options: object,
    ) -> BlockDrafter:
        """Check that a checkpoint fits the target and put it beside the last kept layer.

        Args:
            checkpoint: the head.
            target: what it drafts for.
            rescorer: made for this head, or None.
            options: of the drafter.

        Raises:
            HeadError: it does not fit, or the rescorer does not.
        """
        check_fit(fitted(checkpoint, target), target)
        last = next(target.layers[max(checkpoint.config.target_layer_ids)].parameters())
        head = checkpoint.build(dtype=target.dtype, device=last.device)
        conditioned = rescorer.build(head, target) if rescorer else None
        return cls(head, target, name=checkpoint.name, rescorer=conditioned, **options)  # type: ignore[arg-type]

    def with_budget(self, budget: int) -> BlockDrafter:
        """The same head with trees of another size."""
        return self.with_policy(self.policy, budget)

    def with_policy(self, policy: Callable[[BlockMarginals, int], TokenTree], budget: int) -> BlockDrafter:
        """The same head with trees of another kind and size."""
        other = BlockDrafter(
            self.head,
            self.target,
            name=self._name,
            policy=policy,
            budget=budget,
            branch_k=self.branch_k,
            rescorer=self.rescorer,
        )
        other._static = self._static  # what has been compiled or recorded serves all sizes
        return other

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.head.config.target_layer_ids

    @property
    def num_parameters(self) -> int:
        """Of head and rescorer; embedding and lm_head are the target's (Table 2)."""
        own = [*self.head.parameters()]
        own += self.rescorer.parameters() if self.rescorer is not None else []
        return sum(parameter.numel() for parameter in own)

    @property
    def row_owner(self) -> BlockHead:
        return self.head

    @property
    def score_source(self) -> str:
        """Where scores come from: what was learned of one kind says nothing of another."""
        return "marginals" if self.rescorer is None else self.rescorer.config.kind

    def start(self, state: TargetState) -> BlockState:
        """A draft cache without the rows in ``state.fresh``: the first ``draft`` ingests those."""
        own, state.draft_rows = state.draft_rows, []
        started = BlockState(head=self.head)
        if own:
            started.extend(list(zip(own[::2], own[1::2], strict=True)))
        return started

    def num_passes(self, tree: TokenTree) -> int:
        return 1 if len(tree) else 0

    @torch.inference_mode()
    def draft(self, root: int, state: TargetState, draft_state: BlockState, *, max_depth: int) -> TokenTree:
        """One pass, one tree. Ingests the rows committed since the last call.

        Raises:
            DraftError: the head's context is full, or it returned NaN.
        """
        if max_depth < 1:
            return EMPTY_TREE
        marginals = self.marginals(root, state, draft_state, min(max_depth, self.head.config.num_offsets))
        return self.policy(marginals, self.budget)

    @torch.inference_mode()
    def marginals(
        self, root: int, state: TargetState, draft_state: BlockState, num_offsets: int, num_ranks: int | None = None
    ) -> BlockMarginals:
        """Top ranks of q_1..q_L after ``root`` (Asm. 1); ingests fresh context rows.

        Args:
            root: pending token.
            state: of the target.
            draft_state: from ``start``.
            num_offsets: L at most.
            num_ranks: K at most; None as many as the budget asks for.

        Raises:
            DraftError: the head's context is full, or it returned NaN.
        """
        size = min(self.head.config.block_size, self.head.config.max_position_embeddings - state.length)
        if size < 2:
            raise DraftError(f"the head's context of {self.head.config.max_position_embeddings} positions is full")
        ranks = min(num_ranks or self.num_ranks, self.num_ranks)
        if self._static is not None and size == self.head.config.block_size:
            found = self._static(root, state, draft_state, ranks)
        else:
            draft_state.ingest(state)
            found = self._rank(self._pass(root, draft_state, size), ranks)
        best = as_marginals(found.ids, found.log_q, *found.given)
        if self.watch is not None:
            self.watch(found.logits, best)
        return truncate(best, num_offsets)

    def _rank(self, hidden: Tensor, num_ranks: int) -> Candidates:
        """The best tokens of each mask slot, from (L, H) states."""
        states = hidden.to(self.target.lm_head_device)
        logits = self.target.lm_head(states).float()
        ids, log_q = candidates(logits, self._banned, num_ranks)
        given: tuple[Tensor, ...] = ()
        if self.rescorer is not None and len(states) > 1:
            given = self.rescorer.rescore(states, ids, log_q, self.target.embedding)
        return Candidates(logits, ids, log_q, given)

    def _embed(self, token_ids: Tensor) -> Tensor:
        return torch.as_tensor(self.target.embedding(token_ids)).to(self.head.fc.weight.device)

    def _pass(self, root: int, draft_state: BlockState, size: int) -> Tensor:
        """(size-1, H) states of the mask slots."""
        ids = torch.full((1, size), self.head.config.mask_token_id, device=self.target.device)
        ids[0, 0] = root
        block = self._embed(ids)
        positions = torch.arange(draft_state.length, draft_state.length + size, device=block.device)
        masks = [self._window_mask(layer, positions) for layer in range(len(self.head.layers))]
        slots = slice(draft_state.length, draft_state.length + size)
        hidden: Tensor = self.head(block, draft_state.context(size), positions, masks, slots)
        return hidden[0, 1:]

    def _window_mask(self, layer: int, positions: Tensor) -> Tensor | None:
        """A sliding layer sees its window of the context and is causal inside the block; a full one sees all."""
        window = self.head.config.window(layer)
        if window is None:
            return None
        columns = torch.arange(int(positions[-1]) + 1, device=positions.device)
        return (columns <= positions[:, None]) & (columns > positions[:, None] - window)


def candidates(logits: Tensor, banned: Tensor, num_ranks: int) -> tuple[Tensor, Tensor]:
    """The best ranks of each row's distribution; equal ones by id, so that no tree depends on how topk orders them.

    Args:
        logits: (L, V) float32; changed in place.
        banned: ids that are never proposed.
        num_ranks: K.

    Returns:
        (L, K) ids and their log q.
    """
    if len(banned):
        logits.index_fill_(1, banned, -torch.inf)
    top = torch.topk(logits, min(num_ranks, logits.shape[-1]), dim=-1)
    ids, by_id = top.indices.sort(dim=-1)
    log_q = top.values.gather(-1, by_id) - logits.logsumexp(dim=-1, keepdim=True)
    log_q, order = log_q.sort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, order), log_q


def as_marginals(ids: Tensor, log_q: Tensor, *given: Tensor) -> BlockMarginals:
    """Candidates on the host, and the tables of a rescorer.

    Raises:
        DraftError: a row is no distribution.
    """
    token_ids, values, *tables = to_host(ids, log_q, *given)
    if not np.isfinite(values[:, 0]).all() or any(np.isnan(table).any() for table in tables):
        raise DraftError("the head returned NaN or infinite values")
    return BlockMarginals(token_ids, values.astype(np.float64), *tables)


def to_host(*tensors: Tensor) -> list[np.ndarray]:
    """Tensors as arrays; from an accelerator all of them in one copy, which is one wait."""
    if tensors[0].device.type == "cpu":
        return [tensor.numpy() for tensor in tensors]
    return unpacked(packed_bytes(*tensors).cpu(), tensors)


def packed_bytes(*tensors: Tensor) -> Tensor:
    """The bytes of tensors, one after the other."""
    return torch.cat([tensor.contiguous().view(torch.uint8).flatten() for tensor in tensors])


def unpacked(data: Tensor, like: Sequence[Tensor]) -> list[np.ndarray]:
    """Arrays of the types and shapes of ``like`` from such bytes."""
    parts = data.split([tensor.nbytes for tensor in like])  # type: ignore[no-untyped-call]
    return [
        part.clone().view(tensor.dtype).view(tensor.shape).numpy() for part, tensor in zip(parts, like, strict=True)
    ]


def best_ranks(logits: Tensor, banned: Tensor, num_ranks: int) -> BlockMarginals:
    """``candidates`` on the host.

    Raises:
        DraftError: a row is no distribution.
    """
    return as_marginals(*candidates(logits, banned, num_ranks))


class BlockSettings(Settings):
    """Of the drafter ``block``.

    Attributes:
        rescorer: ``auto`` (the one beside the head, where there is one), ``none``, or a folder.
    """

    rescorer: str = "auto"


@binds(BlockDrafter.bind)
def prepare(head: str | None, **settings: object) -> Callable[..., Drafter]:
    """Registry entry: loads the checkpoint now, binds it to a target later."""
    chosen, name = read_settings(BlockSettings, "block", settings), head or "builtin:reader"
    checkpoint = load_checkpoint(name)
    rescorer = find_rescorer(chosen.rescorer, read_config(name)[0])
    return partial(BlockDrafter.bind, checkpoint, rescorer=rescorer)
