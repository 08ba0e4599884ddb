"""Candidate trees: builders over offset-wise marginals, and packing for one verify pass. Pure functions.

The plug-in score of a prefix is the sum of log q over its offsets (Asm. 1). ``best_first`` returns the N best
prefixes exactly; they are prefix-closed because a prefix never scores below its extensions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from oneglance.core import EMPTY_TREE, BlockMarginals, InputError, TokenTree


def best_first(marginals: BlockMarginals, budget: int) -> TokenTree:
    """The ``budget`` prefixes of highest plug-in score, best first, in O(N log N).

    Equal scores are ordered by their rank tuples, so the tree is deterministic. Exact if the marginals hold at least
    ``budget`` ranks; with fewer (``--branch-k``) it is the best tree within those ranks.

    Args:
        marginals: top-K of each offset.
        budget: N, root excluded.
    """
    token_ids, log_q = marginals.token_ids.tolist(), marginals.log_q.tolist()
    num_offsets, num_ranks = marginals.log_q.shape
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    scores: list[float] = []
    # (-score, rank tuple, parent, score of the parent)
    heap: list[tuple[float, tuple[int, ...], int, float]] = []
    if num_offsets and num_ranks and log_q[0][0] > -np.inf:
        heap.append((-log_q[0][0], (0,), 0, 0.0))
    while heap and len(tokens) < budget:
        negative, ranks, parent, base = heapq.heappop(heap)
        depth, rank = len(ranks), ranks[-1]
        offset = log_q[depth - 1]
        tokens.append(token_ids[depth - 1][rank])
        parents.append(parent)
        depths.append(depth)
        scores.append(-negative)
        if rank + 1 < num_ranks and offset[rank + 1] > -np.inf:
            heapq.heappush(heap, (-(base + offset[rank + 1]), (*ranks[:-1], rank + 1), parent, base))
        if depth < num_offsets and log_q[depth][0] > -np.inf:
            heapq.heappush(heap, (negative - log_q[depth][0], (*ranks, 0), len(tokens), -negative))
    return TokenTree(tuple(tokens), tuple(parents), tuple(depths), tuple(scores))


def chain(marginals: BlockMarginals, budget: int) -> TokenTree:
    """The top-1 chain, at most ``budget`` deep: the width-1 mode of the same head (§5.3)."""
    return fixed_width(marginals, budget, width=1)


def fixed_width(marginals: BlockMarginals, budget: int, *, width: int = 4) -> TokenTree:
    """``width`` candidates at each offset, all below the offset's best prefix, level by level up to ``budget``."""
    token_ids, log_q = marginals.token_ids.tolist(), marginals.log_q.tolist()
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    scores: list[float] = []
    parent, base = 0, 0.0
    for depth, (row_ids, row_q) in enumerate(zip(token_ids, log_q, strict=True), start=1):
        first_child = len(tokens) + 1
        for token, score in list(zip(row_ids, row_q, strict=True))[:width]:
            if len(tokens) == budget or score == -np.inf:
                break
            tokens.append(token)
            parents.append(parent)
            depths.append(depth)
            scores.append(base + score)
        if len(tokens) < first_child:
            break
        parent, base = first_child, scores[first_child - 1]
    return TokenTree(tuple(tokens), tuple(parents), tuple(depths), tuple(scores))


POLICIES: dict[str, Callable[[BlockMarginals, int], TokenTree]] = {
    "best_first": best_first,
    "chain": chain,
    "fixed": partial(fixed_width, width=4),
}


def policy(name: str) -> Callable[[BlockMarginals, int], TokenTree]:
    """The tree policy of that name.

    Raises:
        InputError: there is none.
    """
    if name not in POLICIES:
        raise InputError(f"unknown tree policy {name!r}; choose one of {', '.join(POLICIES)}")
    return POLICIES[name]


@dataclass(frozen=True, slots=True)
class PackedTree:
    """A tree laid out for one packed pass.

    Attributes:
        token_ids: (N+1,) int64, root first.
        depths: (N+1,) int64, 0 for the root.
        visible: (N+1, N+1) bool, row i may see column j: the node itself and its ancestors.
    """

    token_ids: np.ndarray
    depths: np.ndarray
    visible: np.ndarray


def pack(root: int, tree: TokenTree) -> PackedTree:
    """Lay the root and the tree out for one pass (Def. 1)."""
    size = len(tree) + 1
    token_ids = np.fromiter((root, *tree.token_ids), dtype=np.int64, count=size)
    depths = np.fromiter((0, *tree.depths), dtype=np.int64, count=size)
    visible = np.zeros((size, size), dtype=bool)
    visible[0, 0] = True
    for index, parent in enumerate(tree.parents, start=1):
        visible[index] = visible[parent]
        visible[index, index] = True
    return PackedTree(token_ids, depths, visible)


def truncate(marginals: BlockMarginals, max_depth: int) -> BlockMarginals:
    """The first ``max_depth`` offsets."""
    return BlockMarginals(marginals.token_ids[:max_depth], marginals.log_q[:max_depth])


def from_path(token_ids: list[int] | tuple[int, ...]) -> TokenTree:
    """A chain of given tokens, without scores (baselines that propose one continuation)."""
    size = len(token_ids)
    if not size:
        return EMPTY_TREE
    return TokenTree(tuple(token_ids), tuple(range(size)), tuple(range(1, size + 1)))
