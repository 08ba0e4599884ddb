"""The EAGLE-3 drafter: several passes a round, each feeding on the one before, as a chain or as a dynamic tree."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from oneglance.core import DEFAULT_BUDGET, EMPTY_TREE, Drafter, DraftError, InputError, OneglanceWarning, TokenTree
from oneglance.drafters.block import DraftState
from oneglance.drafters.checkpoint import Checkpoint, check_fit, fitted
from oneglance.drafters.eagle3_head import Eagle3Config, Eagle3Head, load_eagle3
from oneglance.drafters.head import KeysValues
from oneglance.drafters.settings import Settings, check_tree_options, read_settings
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState
from oneglance.tree import best_first, chain

CHAIN_PASSES, TREE_PASSES = 5, 8  # as deployed for chains, and EAGLE's tree of depth 7 below the first level


class Eagle3Settings(Settings):
    """Shape of the search.

    Attributes:
        num_passes: passes a round, which is also the greatest depth; default 5 for chains and 8 for trees.
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
        last: (1, 1, H), None before the first draft.
    """

    cache: DraftState = field(default_factory=DraftState)
    last: Tensor | None = None


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


class Eagle3Drafter:
    """Searches with an EAGLE-3 head: the best ``top_k`` nodes of a level are extended, all nodes are ranked at the end.

    Args:
        head: on the device of the target's last kept layer.
        target: gives the embedding, unless the head has one, and the ids that are never proposed.
        name: where the head comes from.
        num_passes: of the head a round; the greatest depth.
        top_k: width of a level; 1 is a chain.
        budget: N, root excluded.
    """

    def __init__(
        self,
        head: Eagle3Head,
        target: Target,
        *,
        name: str | None = None,
        num_passes: int = TREE_PASSES,
        top_k: int = 10,
        budget: int = DEFAULT_BUDGET,
    ) -> None:
        self.head = head
        self.target = target
        self.name = name
        self.budget = budget
        self.depth = min(num_passes, budget)
        self.top_k = min(top_k, head.config.draft_vocab_size)
        self._token_ids = head.token_ids
        banned = torch.tensor(target.banned_ids, dtype=torch.long, device=self._token_ids.device)
        self._banned = torch.isin(self._token_ids, banned)

    @classmethod
    def bind(
        cls,
        checkpoint: Checkpoint[Eagle3Config, Eagle3Head],
        settings: Eagle3Settings,
        target: Target,
        *,
        policy: Callable[..., TokenTree] = best_first,
        budget: int = DEFAULT_BUDGET,
        branch_k: int | None = None,
    ) -> Eagle3Drafter:
        """Check that a checkpoint fits the target and put it beside the last kept layer.

        Raises:
            HeadError: it does not fit.
            InputError: a tree that this search does not make.
        """
        check_tree_options("eagle3", budget, branch_k)
        if policy not in (best_first, chain):
            raise InputError("drafter 'eagle3' makes best_first trees and chains; choose one of them with --tree")
        checkpoint = fitted(checkpoint, target)
        config = checkpoint.config
        check_fit(checkpoint, target)
        if config.wants_mrope:
            warnings.warn(
                f"{checkpoint.name} asks for M-RoPE and is given token indices: same output, acceptance may drop",
                OneglanceWarning,
                stacklevel=2,
            )
        last = next(target.layers[max(config.target_layer_ids)].parameters())
        head = checkpoint.build(dtype=target.dtype, device=last.device)
        is_chain = policy is chain
        return cls(
            head,
            target,
            name=checkpoint.name,
            num_passes=settings.num_passes or (CHAIN_PASSES if is_chain else TREE_PASSES),
            top_k=1 if is_chain else settings.top_k,
            budget=budget,
        )

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.head.config.target_layer_ids

    @property
    def num_parameters(self) -> int:
        """Of the head without an embedding that it may bring; its lm_head is its own (Table 2)."""
        bundled = self.head.embed_tokens.weight.numel() if self.head.embed_tokens is not None else 0
        return sum(p.numel() for p in self.head.parameters()) - bundled

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
        """Rows of the committed tokens, each with the token after it; the root is the last one's."""
        features = state.take_features().to(self.head.fc.weight.device)
        cache, count = draft_state.cache, len(features)
        following = state.token_ids[cache.length + 1 : cache.length + 1 + count]
        rows = torch.arange(cache.length, cache.length + count, device=features.device)
        mask = torch.arange(cache.length + count, device=features.device) <= rows[:, None]
        output, own = self.head(self.embed(following), self.head.fuse(features[None]), _past(cache), rows, mask)
        cache.extend([own])
        draft_state.last = output[:, -1:]

    def _extend(self, found: Candidates, nodes: list[int], output: Tensor) -> list[int]:
        """Add the ``top_k`` children of each node, from the outputs (1, n, H) at the nodes."""
        logits = self.head.logits(output)[0].float()
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

    def __init__(self, drafter: Eagle3Drafter, draft_state: EagleState, found: Candidates) -> None:
        assert draft_state.last is not None
        self._drafter = drafter
        self._found = found
        self._past = _past(draft_state.cache)
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
        position = self._length + found.depths[nodes[0] - 1] - 1
        positions = torch.full((len(nodes),), position, device=device)
        embedded = self._drafter.embed([found.token_ids[node - 1] for node in nodes])
        output, own = self._drafter.head(embedded, hidden, self._past, positions, mask.to(device))
        assert self._past is not None
        self._past = torch.cat([self._past[0], own[0]], 2), torch.cat([self._past[1], own[1]], 2)
        self._outputs |= dict(zip(nodes, output[0], strict=True))
        return torch.as_tensor(output)


def _past(cache: DraftState) -> KeysValues | None:
    return cache.context()[0] if cache.length else None


def prepare(head: str | None, **settings: Any) -> Callable[..., Drafter]:
    """Registry entry: loads the checkpoint now, binds it to a target later.

    Raises:
        InputError: no head was named, or a bad setting.
    """
    chosen = read_settings(Eagle3Settings, "eagle3", settings)
    if head is None:
        raise InputError(
            "drafter 'eagle3' needs an EAGLE-3 head: give --head; 'oneglance heads' lists known ones, "
            "'oneglance train recipes/reader-eagle3.yaml' trains one"
        )
    return partial(Eagle3Drafter.bind, load_eagle3(head), chosen)
