"""Drafters that feed on their own output: several passes a round, as a chain or as a dynamic tree (EAGLE-2).

What reads the target's features, and what turns an output into logits, differs from head to head: ``eagle2``,
``eagle3``, ``vispec``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from oneglance.core import DEFAULT_BUDGET, EMPTY_TREE, Drafter, DraftError, InputError, TokenTree
from oneglance.drafters.block import DraftState
from oneglance.drafters.checkpoint import Checkpoint, check_fit, fitted
from oneglance.drafters.head import KeysValues
from oneglance.drafters.settings import Settings, check_budget
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState
from oneglance.tree import best_first, chain


class EagleSettings(Settings):
    """Shape of the search.

    Attributes:
        num_passes: passes a round, which is also the greatest depth; the default is the drafter's own.
        top_k: nodes that a pass of a tree extends, and children that each gets.
    """

    num_passes: int | None = Field(default=None, gt=0)
    top_k: int = Field(default=10, gt=0)


@dataclass(frozen=True)
class CountedTree(TokenTree):
    """A tree that knows how many passes made it."""

    num_passes: int = 0


@dataclass(slots=True)
class EagleState:
    """The head's cache of one sequence, committed rows only, and its output at the last of them.

    Attributes:
        cache: keys and values.
        num_tokens: committed tokens that were read; the cache has a row for each unless the head compresses some.
        last: (1, 1, H), None before the first draft.
        image: (H,) what drafted rows are told of the image before them, where a head does that.
    """

    cache: DraftState = field(default_factory=DraftState)
    num_tokens: int = 0
    last: Tensor | None = None
    image: Tensor | None = None

    @property
    def past(self) -> KeysValues | None:
        """Keys and values of the committed rows; None before there are any."""
        return self.cache.context()[0] if self.cache.length else None


@dataclass(slots=True)
class Candidates:
    """Every node that a search has seen. Node 0 is the root.

    Attributes:
        token_ids, parents, depths, scores: as in ``TokenTree``, from node 1 on; scores are cumulative log q.
    """

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def add(self, parent: int, token_ids: list[int], log_q: list[float]) -> list[int]:
        """Append the children of a node that may be proposed; their numbers."""
        base, depth = (self.scores[parent - 1], self.depths[parent - 1]) if parent else (0.0, 0)
        first = len(self.token_ids) + 1
        for token, score in zip(token_ids, log_q, strict=True):
            if score > -torch.inf:
                self.token_ids.append(token)
                self.parents.append(parent)
                self.depths.append(depth + 1)
                self.scores.append(base + score)
        return list(range(first, len(self.token_ids) + 1))

    def best(self, nodes: list[int], count: int) -> list[int]:
        """The best of some nodes, best first; of equals the older one."""
        return sorted(nodes, key=lambda node: (-self.scores[node - 1], node))[:count]

    def tree(self, budget: int, num_passes: int) -> CountedTree:
        """The best nodes of all, best first. A child never scores above its parent, so they are prefix-closed."""
        kept = self.best(list(range(1, len(self.token_ids) + 1)), budget)
        new = {0: 0} | {node: index for index, node in enumerate(kept, start=1)}
        return CountedTree(
            tuple(self.token_ids[node - 1] for node in kept),
            tuple(new[self.parents[node - 1]] for node in kept),
            tuple(self.depths[node - 1] for node in kept),
            tuple(self.scores[node - 1] for node in kept),
            num_passes,
        )


class EagleDrafter:
    """Searches with a head: the best ``top_k`` nodes of a level are extended, all nodes are ranked at the end.

    A subclass says how features become rows (``read``), what a drafted row is (``step``) and where logits come from.

    Args:
        head: on the device of the target's last kept layer.
        target: gives the embedding, unless the head has one, and the ids that are never proposed.
        name: where the head comes from.
        num_passes: of the head a round, the greatest depth; None for the tree's own.
        top_k: width of a level; 1 is a chain.
        budget: N, root excluded.
    """

    kind: ClassVar[str]
    weights: ClassVar[str]  # what --head takes, in words
    chain_passes: ClassVar[int]
    tree_passes: ClassVar[int]

    def __init__(
        self,
        head: Any,
        target: Target,
        *,
        name: str | None = None,
        num_passes: int | None = None,
        top_k: int = 10,
        budget: int = DEFAULT_BUDGET,
    ) -> None:
        self.head = head
        self.target = target
        self.name = name
        self.budget = budget
        self.depth = min(num_passes or self.tree_passes, budget)
        self._token_ids = self.token_ids
        self.top_k = min(top_k, len(self._token_ids))
        banned = torch.tensor(target.banned_ids, dtype=torch.long, device=self._token_ids.device)
        self._banned = torch.isin(self._token_ids, banned)

    @classmethod
    def bind(
        cls,
        checkpoint: Checkpoint[Any, Any],
        settings: Any,
        target: Target,
        *,
        policy: Callable[..., TokenTree] = best_first,
        budget: int = DEFAULT_BUDGET,
    ) -> Self:
        """Check that a checkpoint fits the target and put it beside the last kept layer.

        Raises:
            HeadError: it does not fit.
            InputError: a tree that this search does not make.
        """
        check_budget(budget)
        if policy not in (best_first, chain):
            raise InputError(f"drafter {cls.kind!r} makes best_first trees and chains; choose one of them with --tree")
        shape = cls.shape(settings, policy is chain, budget)
        checkpoint = fitted(checkpoint, target)
        cls.check(checkpoint, target)
        last = next(target.layers[max(checkpoint.config.target_layer_ids)].parameters())
        head = checkpoint.build(dtype=target.dtype, device=last.device)
        return cls(head, target, name=checkpoint.name, **shape)

    @classmethod
    def shape(cls, settings: Any, is_chain: bool, budget: int) -> dict[str, int]:
        """Passes, width and nodes of the search."""
        passes = settings.num_passes or (cls.chain_passes if is_chain else cls.tree_passes)
        return {"num_passes": passes, "top_k": 1 if is_chain else settings.top_k, "budget": budget}

    @classmethod
    def check(cls, checkpoint: Checkpoint[Any, Any], target: Target) -> None:
        """Compare a head with its target, as ``check_fit`` does."""
        check_fit(checkpoint, target)

    # What differs from head to head ------------------------------------------------------------------------------

    @property
    def token_ids(self) -> Tensor:
        """(R,) the target's id of each row of logits."""
        raise NotImplementedError

    def logits(self, output: Tensor) -> Tensor:
        """(1, n, H) output → (1, n, R)."""
        raise NotImplementedError

    def read(self, features: Tensor, following: list[int], state: TargetState, draft_state: EagleState) -> Tensor:
        """Take committed rows into the cache, each with the token after it; the root is the last one's.

        Args:
            features: (T, F), the head's own.
            following: the T tokens.
            state: the sequence.
            draft_state: ``num_tokens`` tokens are in it.

        Returns:
            (1, ≥1, H) outputs, the last row's last.
        """
        raise NotImplementedError

    def step(
        self,
        draft_state: EagleState,
        embedded: Tensor,
        hidden: Tensor,
        past: KeysValues | None,
        position_ids: Tensor,
        mask: Tensor,
    ) -> tuple[Tensor, KeysValues]:
        """A pass over drafted rows: embeddings of their tokens and the outputs at their parents, (1, n, H) each."""
        out: tuple[Tensor, KeysValues] = self.head(embedded, hidden, past, position_ids, mask)
        return out

    # What is the same --------------------------------------------------------------------------------------------

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        ids: tuple[int, ...] = self.head.config.target_layer_ids
        return ids

    @property
    def num_parameters(self) -> int:
        """Of the head without an embedding that it may bring (Table 2)."""
        bundled = [] if self.head.embed_tokens is None else [self.head.embed_tokens.weight]
        return sum(int(p.numel()) for p in self.head.parameters()) - sum(int(p.numel()) for p in bundled)

    def start(self, state: TargetState) -> EagleState:
        """An empty draft cache; the prompt's features are ingested by the first ``draft``."""
        return EagleState()

    def num_passes(self, tree: TokenTree) -> int:
        return tree.num_passes if isinstance(tree, CountedTree) else 0

    @torch.inference_mode()
    def draft(self, root: int, state: TargetState, draft_state: EagleState, *, max_depth: int) -> TokenTree:
        """A pass over the rows committed since the last call, then one a level.

        Raises:
            DraftError: the head's context is full, or it returned NaN.
        """
        depth = min(self.depth, max_depth)
        if depth < 1:
            return EMPTY_TREE
        if state.length + depth > self.head.config.max_position_embeddings:
            raise DraftError(f"the head's context of {self.head.config.max_position_embeddings} positions is full")
        if state.fresh:
            self._ingest(state, draft_state)
        assert draft_state.last is not None
        found = Candidates()
        level = self._extend(found, [0], draft_state.last)
        search = Search(self, draft_state, found)
        for _ in range(depth - 1):
            level = found.best(level, self.top_k)
            level = self._extend(found, level, search.run(level))
        return found.tree(self.budget, depth)

    def embed(self, token_ids: list[int]) -> Tensor:
        """(1, n, H) on the head's device."""
        table = self.target.embedding if self.head.embed_tokens is None else self.head.embed_tokens
        ids = torch.tensor([token_ids], device=table.weight.device)
        embedded: Tensor = table(ids).to(self.head.fc.weight.device)
        return embedded

    def _ingest(self, state: TargetState, draft_state: EagleState) -> None:
        features = state.take_features().to(self.head.fc.weight.device)
        first, count = draft_state.num_tokens, len(features)
        output = self.read(features, state.token_ids[first + 1 : first + 1 + count], state, draft_state)
        draft_state.num_tokens += count
        draft_state.last = output[:, -1:]

    def _extend(self, found: Candidates, nodes: list[int], output: Tensor) -> list[int]:
        """Add the ``top_k`` children of each node, from the outputs (1, n, H) at the nodes."""
        logits = self.logits(output)[0].float()
        logits[:, self._banned] = -torch.inf
        top = torch.topk(logits, self.top_k, dim=-1)
        log_q = (top.values - logits.logsumexp(-1, keepdim=True)).double().tolist()
        ids = self._token_ids[top.indices].tolist()
        added = [n for node, own, scores in zip(nodes, ids, log_q, strict=True) for n in found.add(node, own, scores)]
        if not added:
            raise DraftError("the head returned NaN or infinite values")
        return added


class Search:
    """The passes below the first: each sees the committed rows, and of the drafted ones its ancestors.

    Args:
        drafter: gives head and embeddings.
        draft_state: committed rows.
        found: the nodes so far.
    """

    def __init__(self, drafter: EagleDrafter, draft_state: EagleState, found: Candidates) -> None:
        assert draft_state.last is not None
        self._drafter = drafter
        self._found = found
        self._state = draft_state
        self._past = draft_state.past
        self._length = draft_state.cache.length
        self._outputs: dict[int, Tensor] = {0: draft_state.last[0, 0]}
        self._columns: dict[int, list[int]] = {0: []}  # of a node that was run: its ancestors and itself
        self._num_columns = 0

    def run(self, nodes: list[int]) -> Tensor:
        """(1, n, H) outputs at nodes of one level."""
        found, device = self._found, self._outputs[0].device
        parents = [found.parents[node - 1] for node in nodes]
        hidden = torch.stack([self._outputs[parent] for parent in parents])[None]
        for index, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
            self._columns[node] = [*self._columns[parent], self._num_columns + index]
        self._num_columns += len(nodes)
        mask = torch.zeros(len(nodes), self._length + self._num_columns, dtype=torch.bool)
        mask[:, : self._length] = True
        for index, node in enumerate(nodes):
            mask[index, [self._length + column for column in self._columns[node]]] = True
        position = self._state.num_tokens + found.depths[nodes[0] - 1] - 1
        positions = torch.full((len(nodes),), position, device=device)
        embedded = self._drafter.embed([found.token_ids[node - 1] for node in nodes])
        output, own = self._drafter.step(self._state, embedded, hidden, self._past, positions, mask.to(device))
        assert self._past is not None
        self._past = torch.cat([self._past[0], own[0]], 2), torch.cat([self._past[1], own[1]], 2)
        self._outputs |= dict(zip(nodes, output[0], strict=True))
        return torch.as_tensor(output)


def causal(past: int, count: int, device: torch.device) -> Tensor:
    """(count, past + count) True where a new row may look: at all rows before it, and at itself."""
    rows = torch.arange(past, past + count, device=device)
    return torch.arange(past + count, device=device) <= rows[:, None]


def prepared(
    drafter: type[EagleDrafter], load: Callable[[str], Checkpoint[Any, Any]], chosen: Settings, head: str | None
) -> Callable[..., Drafter]:
    """What binds a head's drafter to a target; the checkpoint is loaded now.

    Raises:
        InputError: no head was named.
    """
    if head is None:
        raise InputError(
            f"drafter {drafter.kind!r} needs {drafter.weights}: give --head; 'oneglance heads' lists known ones, "
            f"'oneglance train recipes/reader-{drafter.kind}.yaml' trains one"
        )
    return partial(drafter.bind, load(head), chosen)
