"""Candidate trees: builders over offset-wise marginals, and packing for one verify pass. Pure functions.

The plug-in score of a prefix is the sum of log q over its offsets (Asm. 1), each given its parent where a rescorer ran.
``best_first`` returns the N best prefixes exactly; they are prefix-closed because a prefix never scores below its
extensions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import NamedTuple

import numpy as np

from oneglance.core import EMPTY_TREE, BlockMarginals, InputError, TokenTree

Successors = Callable[[int, int, int], tuple[Sequence[int], Sequence[float]]]
"""(depth of the parent, its rank, the rank before that) → ranks of its children, best first, and their log q."""


class Node(NamedTuple):
    """A node of a growing tree: its token, its parent's packed index, its depth, and its log score."""

    token_id: int
    parent: int
    depth: int
    score: float


def in_order(marginals: BlockMarginals) -> Iterator[Node]:
    """Prefixes in order of score, best first; a parent always comes before its children.

    Equal scores are ordered by their places among their siblings, so the order is deterministic.
    """
    token_ids, successors = marginals.token_ids.tolist(), successors_of(marginals)
    push, pop, last = heapq.heappush, heapq.heappop, len(token_ids)
    # (-score, places among siblings, parent, its score, its rank, the siblings' ranks and log q)
    heap: list[tuple[float, tuple[int, ...], int, float, int, Sequence[int], Sequence[float]]] = []
    ranks, log_q = successors(0, 0, 0) if last else ((), ())
    if len(ranks) and log_q[0] > -np.inf:
        heap.append((-log_q[0], (0,), 0, 0.0, 0, ranks, log_q))
    node = 0
    while heap:
        negative, places, parent, base, before, ranks, log_q = pop(heap)
        depth, place = len(places), places[-1]
        rank = ranks[place]
        node += 1
        yield Node(token_ids[depth - 1][rank], parent, depth, -negative)
        place += 1
        if place < len(ranks) and log_q[place] > -np.inf:
            push(heap, (-(base + log_q[place]), (*places[:-1], place), parent, base, before, ranks, log_q))
        if depth < last:
            ranks, log_q = successors(depth, rank, before)
            if log_q[0] > -np.inf:
                push(heap, (negative - log_q[0], (*places, 0), node, -negative, rank, ranks, log_q))


def best_first(marginals: BlockMarginals, budget: int) -> TokenTree:
    """The ``budget`` prefixes of highest score, best first, in O(N log N).

    Exact if the marginals hold at least ``budget`` ranks; with fewer (``--branch-k``) it is the best tree within those
    ranks.

    Args:
        marginals: top-K of each offset.
        budget: N, root excluded.
    """
    return _tree_of(list(islice(in_order(marginals), budget)))


def cost_aware(marginals: BlockMarginals, budget: int, *, pick: Callable[[Iterable[float]], int]) -> TokenTree:
    """The best-first tree, only as wide as it pays, in the order of ``best_first`` (B.5).

    Args:
        marginals: top-K of each offset.
        budget: the most nodes, root excluded.
        pick: log scores, best first → how many nodes to take; it need not look at all of them.
    """
    nodes: list[Node] = []

    def scores() -> Iterator[float]:
        for node in islice(in_order(marginals), budget):
            nodes.append(node)
            yield node.score

    return _tree_of(nodes[: pick(scores())])


def best_end(
    scores: Iterable[float],
    *,
    mass: Callable[[float], float],
    value: Callable[[int, float], float],
    ends: Sequence[int],
) -> int:
    """Which of a few widths is worth the most; costs may be any. Looks no further than a width that could still win.

    Args:
        scores: log scores, best first; fewer than a width run at its cost, as padding would.
        mass: log score of a node → probability that it is accepted, non-decreasing.
        value: (n, 1 + Φ(n)) → what a round with n nodes is worth (``cost.Objective``), increasing in Φ.
        ends: the widths, increasing.
    """
    tokens, last, size, count, highest = 1.0, 0.0, 0, 0, value(0, 1.0)
    own = iter(scores)
    for place, end in enumerate(ends):
        for score in islice(own, end - size):
            last = mass(score)
            tokens += last
            size += 1
        worth = value(end, tokens)
        if size and worth > highest:
            count, highest = size, worth
        if all(value(n, tokens + (n - size) * last) <= highest for n in ends[place + 1 :]):
            break
    return count


def num_that_pay(
    scores: Iterable[float], *, mass: Callable[[float], float], value: Callable[[int, float], float]
) -> int:
    """How many nodes make a round worth the most, of any number, at convex costs; looks one node past them.

    Masses fall, and what further nodes cost does not, so the value has one peak over n ≥ 1 and the first node that does
    not raise it ends the search. The single step, n = 0, lies off that curve (one row runs other kernels than two) and
    is compared at the end.

    Args:
        scores: log scores, best first.
        mass, value: as for ``best_end``.
    """
    tokens, count, highest = 1.0, 0, -np.inf
    for score in scores:
        tokens += mass(score)
        worth = value(count + 1, tokens)
        if worth <= highest:
            break
        count, highest = count + 1, worth
    return count if highest > value(0, 1.0) else 0


def _tree_of(nodes: Sequence[Node]) -> TokenTree:
    return TokenTree(*zip(*nodes, strict=True)) if nodes else EMPTY_TREE


def chain(marginals: BlockMarginals, budget: int) -> TokenTree:
    """The top-1 chain, at most ``budget`` deep: the width-1 mode of the same head (§5.3)."""
    return fixed_width(marginals, budget, width=1)


def fixed_width(marginals: BlockMarginals, budget: int, *, width: int = 4) -> TokenTree:
    """``width`` candidates at each offset, all below the offset's best prefix, level by level up to ``budget``."""
    token_ids, successors = marginals.token_ids.tolist(), successors_of(marginals)
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    scores: list[float] = []
    parent, base, best, before = 0, 0.0, 0, 0
    for depth, row_ids in enumerate(token_ids, start=1):
        first_child = len(tokens) + 1
        ranks, log_q = successors(depth - 1, best, before)
        for rank, score in list(zip(ranks, log_q, strict=True))[:width]:
            if len(tokens) == budget or score == -np.inf:
                break
            tokens.append(row_ids[rank])
            parents.append(parent)
            depths.append(depth)
            scores.append(base + score)
        if len(tokens) < first_child:
            break
        parent, base, best, before = first_child, scores[first_child - 1], ranks[0], best
    return TokenTree(tuple(tokens), tuple(parents), tuple(depths), tuple(scores))


def successors_of(marginals: BlockMarginals) -> Successors:
    """Independent offsets have the same children below every parent; conditioned ones are sorted when asked for."""
    ranks = range(marginals.log_q.shape[1])
    given, earlier, log_z = marginals.log_q_given, marginals.bias_earlier, marginals.log_z
    if given is None:
        rows = [(ranks, row) for row in marginals.log_q.tolist()]
        return lambda depth, rank, before: rows[depth]
    first = marginals.log_q[0].tolist() if len(marginals.log_q) else []

    @cache
    def one_back(depth: int, rank: int) -> tuple[Sequence[int], Sequence[float]]:
        return _sorted(given[depth - 1, rank]) if depth else (ranks, first)

    @cache
    def two_back(depth: int, rank: int, before: int) -> tuple[Sequence[int], Sequence[float]]:
        if depth < 2 or earlier is None or log_z is None:
            return one_back(depth, rank)
        return _sorted(given[depth - 1, rank] + earlier[depth - 2, before] - log_z[depth - 2, before, rank])

    return two_back if earlier is not None else lambda depth, rank, before: one_back(depth, rank)


def _sorted(row: np.ndarray) -> tuple[Sequence[int], Sequence[float]]:
    order = (-row).argsort(kind="stable")
    return order.tolist(), row[order].tolist()


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

    def first(table: np.ndarray | None, count: int) -> np.ndarray | None:
        return None if table is None else table[: max(count, 0)]

    return BlockMarginals(
        marginals.token_ids[:max_depth],
        marginals.log_q[:max_depth],
        first(marginals.log_q_given, max_depth - 1),
        first(marginals.bias_earlier, max_depth - 2),
        first(marginals.log_z, max_depth - 2),
    )


def from_path(token_ids: list[int] | tuple[int, ...]) -> TokenTree:
    """A chain of given tokens, without scores (baselines that propose one continuation)."""
    size = len(token_ids)
    if not size:
        return EMPTY_TREE
    return TokenTree(tuple(token_ids), tuple(range(size)), tuple(range(1, size + 1)))
