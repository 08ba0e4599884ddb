"""The block drafter: a head bound to a target, one pass a round, then a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from oneglance.core import DEFAULT_BUDGET, EMPTY_TREE, BlockMarginals, Drafter, DraftError, TokenTree
from oneglance.drafters.checkpoint import HeadCheckpoint, check_fit, fitted, load_checkpoint, read_config
from oneglance.drafters.head import BlockHead, KeysValues
from oneglance.drafters.rescorer import Rescorer, RescorerCheckpoint, find_rescorer
from oneglance.drafters.settings import Settings, check_budget, read_settings
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState
from oneglance.tree import best_first, truncate

CONDITIONED_RANKS = 64  # ranks an offset that a rescorer looks at: it compares each with each
GROWTH = 256  # rows by which the draft cache grows


@dataclass(slots=True)
class DraftState:
    """The head's keys and values of one sequence's context.

    Attributes:
        length: context rows ingested; the block goes to positions ``length`` … ``length`` + B - 1.
        buffers: per layer keys and values, (1, KV, capacity, D) each.
    """

    length: int
    buffers: list[KeysValues]

    def extend(self, rows: list[KeysValues]) -> None:
        """Append context rows, a pair a layer."""
        needed = self.length + rows[0][0].shape[2]
        self.reserve(needed, rows)
        for (keys, values), (new_keys, new_values) in zip(self.buffers, rows, strict=True):
            keys[:, :, self.length : needed] = new_keys
            values[:, :, self.length : needed] = new_values
        self.length = needed

    def reserve(self, needed: int, like: list[KeysValues] | None = None) -> None:
        """Have room for so many rows; ``like`` is a pair a layer, where there is no row yet to take the shape from."""
        if not self.buffers or self.buffers[0][0].shape[2] < needed:
            self._grow(like or self.buffers, -(-needed // GROWTH) * GROWTH)

    def context(self, size: int = 0) -> list[KeysValues]:
        """(1, KV, length + size, D) keys and values a layer, as views: the context, then the block's own rows."""
        end = self.length + size
        self.reserve(end)
        return [(keys[:, :, :end], values[:, :, :end]) for keys, values in self.buffers]

    def _grow(self, like: list[KeysValues], capacity: int) -> None:
        grown = []
        for index, pair in enumerate(like):
            new = tuple(t.new_zeros(t.shape[0], t.shape[1], capacity, t.shape[3]) for t in pair)
            if self.buffers:
                for buffer, old in zip(new, self.buffers[index], strict=True):
                    buffer[:, :, : self.length] = old[:, :, : self.length]
            grown.append((new[0], new[1]))
        self.buffers = grown


@dataclass(slots=True)
class BlockState(DraftState):
    """The draft cache of one generation, and the head that fills it.

    Attributes:
        head: it.
    """

    head: BlockHead

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
        watch: sees the logits (L, V) of every pass, where somebody keeps a log of rounds.
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
        self.watch: Callable[[Tensor], None] | None = None
        self._name = name
        self._banned = torch.tensor(target.banned_ids, device=target.lm_head_device, dtype=torch.long)

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
        return BlockDrafter(
            self.head,
            self.target,
            name=self._name,
            policy=policy,
            budget=budget,
            branch_k=self.branch_k,
            rescorer=self.rescorer,
        )

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

    def start(self, state: TargetState) -> BlockState:
        """A draft cache without the rows in ``state.fresh``: the first ``draft`` ingests those."""
        own, state.draft_rows = state.draft_rows, []
        return BlockState(own[0].shape[2] if own else 0, list(zip(own[::2], own[1::2], strict=True)), self.head)

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
    def marginals(self, root: int, state: TargetState, draft_state: BlockState, num_offsets: int) -> BlockMarginals:
        """Top ranks of q_1..q_L after ``root`` (Asm. 1); ingests fresh context rows.

        Raises:
            DraftError: the head's context is full, or it returned NaN.
        """
        size = min(self.head.config.block_size, self.head.config.max_position_embeddings - state.length)
        if size < 2:
            raise DraftError(f"the head's context of {self.head.config.max_position_embeddings} positions is full")
        draft_state.ingest(state)
        hidden = self._pass(root, draft_state, size)
        logits = self.target.lm_head(hidden.to(self.target.lm_head_device)).float()
        ids, log_q = candidates(logits, self._banned, self.num_ranks)
        if self.watch is not None:
            self.watch(logits)
        given = None
        if self.rescorer is not None and size > 2:
            states = hidden.to(self.target.lm_head_device)
            given = self.rescorer.rescore(states, ids, log_q, self.target.embedding)
        return truncate(as_marginals(ids, log_q, given), num_offsets)

    def _pass(self, root: int, draft_state: BlockState, size: int) -> Tensor:
        """(size-1, H) states of the mask slots."""
        ids = torch.full((1, size), self.head.config.mask_token_id, device=self.target.device)
        ids[0, 0] = root
        block = self.target.embedding(ids).to(self.head.fc.weight.device)
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
        logits[:, banned] = -torch.inf
    top = torch.topk(logits, min(num_ranks, logits.shape[-1]), dim=-1)
    ids, by_id = top.indices.sort(dim=-1)
    log_q = top.values.gather(-1, by_id) - logits.logsumexp(dim=-1, keepdim=True)
    log_q, order = log_q.sort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, order), log_q


def as_marginals(ids: Tensor, log_q: Tensor, log_q_given: Tensor | None = None) -> BlockMarginals:
    """Candidates on the host.

    Raises:
        DraftError: a row is no distribution.
    """
    token_ids, values, *more = to_host(ids, log_q, *(() if log_q_given is None else (log_q_given,)))
    given = more[0] if more else None
    if not np.isfinite(values[:, 0]).all() or (given is not None and np.isnan(given).any()):
        raise DraftError("the head returned NaN or infinite values")
    return BlockMarginals(token_ids, values.astype(np.float64), given)


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


def prepare(head: str | None, **settings: object) -> Callable[..., Drafter]:
    """Registry entry: loads the checkpoint now, binds it to a target later."""
    chosen, name = read_settings(BlockSettings, "block", settings), head or "builtin:reader"
    checkpoint = load_checkpoint(name)
    rescorer = find_rescorer(chosen.rescorer, read_config(name)[0])
    return partial(BlockDrafter.bind, checkpoint, rescorer=rescorer)
