"""Width policies replayed from logged marginals at equal budget (Prop. 4, Fig. 5).

A best-first tree only grows with its budget, so one number a depth tells everything about a round: the place of the
target's own prefix of that depth in best-first order. A tree of N nodes accepts as many tokens as there are places
≤ N. Policies then differ only in how they share out R · N nodes over R rounds:

- ``fixed``: N each, as in all main experiments;
- ``entropy``: in proportion to the law's V(H);
- ``entropy_learned``: the best sharing that sees only the entropy decile, learned on the other half of the prompts;
- ``scores``: the highest plug-in scores of all rounds, whichever round they are in (shared-budget best-first);
- ``oracle``: the best sharing in hindsight, to within one step of one round.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oneglance.core import InputError
from oneglance.stats.bootstrap import Array, clusters
from oneglance.stats.curve import entropy_bins
from oneglance.stats.geometric import Ints
from oneglance.stats.law import Law
from oneglance.stats.width import share_out, width_value

BUDGETS = (7, 15, 31, 47, 63)
MAX_BUDGET = 127
POLICIES = ("fixed", "entropy", "entropy_learned", "scores", "oracle")


@dataclass(frozen=True, slots=True)
class Replay:
    """Rounds ready to be replayed.

    Attributes:
        places: (R, L) 1-based place of the target's prefix of each depth, ``max_budget + 1`` where it is never met.
        scores: (R, max_budget) log scores in best-first order, -inf where the marginals end.
        h_nats, prompts: (R,) of the rounds.
    """

    places: Ints
    scores: Array
    h_nats: Array
    prompts: NDArray[np.str_]

    @property
    def max_budget(self) -> int:
        return int(self.scores.shape[1])

    def accepted(self, budgets: ArrayLike) -> Ints:
        """(R,) accepted length with that budget in each round, or one for all."""
        nodes = np.broadcast_to(np.asarray(budgets), self.places.shape[:1])
        result: Ints = (self.places <= nodes[:, None]).sum(axis=1)
        return result


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """One policy at one mean budget.

    Attributes:
        policy, budget: which, in nodes a round.
        used: nodes a round that it took, at most the budget.
        mean_a: accepted length a round.
        lift: over ``fixed`` at this budget.
    """

    policy: str
    budget: int
    used: float
    mean_a: float
    lift: float


def best_first_places(log_q: ArrayLike, ranks: ArrayLike, *, max_budget: int = MAX_BUDGET) -> tuple[Ints, Array]:
    """Walk one round's prefixes in best-first order.

    Args:
        log_q: (L, K) of the best K tokens of each offset, best first.
        ranks: (L,) rank of the target's own token; -1 where the text ends, K or more where the sidecar does.
        max_budget: how many prefixes.

    Returns:
        (L,) place of the target's prefix of each depth, ``max_budget + 1`` for never, and (max_budget,) scores. Equal
        scores are ordered by their ranks, as the tree builder does.
    """
    table, own = np.asarray(log_q, float).tolist(), np.asarray(ranks).tolist()
    places = np.full(len(own), max_budget + 1, np.int64)
    scores = np.full(max_budget, -np.inf)
    # (-score, ranks, score of the parent)
    heap: list[tuple[float, tuple[int, ...], float]] = [(-table[0][0], (0,), 0.0)]
    for place in range(1, max_budget + 1):
        if not heap or heap[0][0] == np.inf:
            break
        negative, prefix, base = heapq.heappop(heap)
        depth, rank = len(prefix), prefix[-1]
        scores[place - 1] = -negative
        if list(prefix) == own[:depth]:
            places[depth - 1] = place
        if rank + 1 < len(table[depth - 1]):
            heapq.heappush(heap, (-(base + table[depth - 1][rank + 1]), (*prefix[:-1], rank + 1), base))
        if depth < len(table):
            heapq.heappush(heap, (negative - table[depth][0], (*prefix, 0), -negative))
    return places, scores


def replay(
    log_q: Sequence[ArrayLike],
    ranks: ArrayLike,
    h_nats: ArrayLike,
    prompts: ArrayLike,
    *,
    horizon: ArrayLike | None = None,
    max_budget: int = MAX_BUDGET,
) -> Replay:
    """Walk every round of a log with its sidecar: R tables (L, K) and ranks (R, L), up to each round's horizon."""
    own = np.array(ranks, np.int64)
    if horizon is not None:
        own[np.arange(own.shape[1]) >= np.asarray(horizon)[:, None]] = -1
    if not len(log_q) or len(log_q) != len(own):
        raise InputError(f"{len(log_q)} marginals and {len(own)} rows of ranks; the sidecar must belong to the log")
    walked = [best_first_places(table, row, max_budget=max_budget) for table, row in zip(log_q, own, strict=True)]
    return Replay(
        np.stack([places for places, _ in walked]),
        np.stack([scores for _, scores in walked]),
        np.asarray(h_nats, float),
        np.asarray(prompts, np.str_),
    )


def pareto(rounds: Replay, law: Law, *, budgets: Sequence[int] = BUDGETS) -> tuple[ParetoPoint, ...]:
    """Accepted length of every policy at every mean budget (Fig. 5)."""
    allocators: dict[str, Callable[[int], Ints]] = {
        "fixed": lambda n: np.full(len(rounds.places), n, np.int64),
        "entropy": lambda n: entropy_keyed(rounds, law, n),
        "entropy_learned": lambda n: entropy_learned(rounds, n),
        "scores": lambda n: score_keyed(rounds, n),
        "oracle": lambda n: oracle(rounds, n),
    }
    points = []
    for budget in budgets:
        if not 1 <= budget <= rounds.max_budget:
            raise InputError(f"budget {budget} is outside 1..{rounds.max_budget}, what was walked; choose one inside")
        fixed = float(rounds.accepted(budget).mean())
        for policy in POLICIES:
            nodes = allocators[policy](budget)
            mean = float(rounds.accepted(nodes).mean())
            lift = mean / fixed - 1 if fixed > 0 else float("nan")
            points.append(ParetoPoint(policy, budget, float(nodes.mean()), mean, lift))
    return tuple(points)


def entropy_keyed(rounds: Replay, law: Law, budget: int) -> Ints:
    """(R,) nodes in proportion to V(H)."""
    return share_out(width_value(law, rounds.h_nats), budget * len(rounds.places), rounds.max_budget)


def score_keyed(rounds: Replay, budget: int) -> Ints:
    """(R,) nodes of the globally highest plug-in scores."""
    flat = rounds.scores.ravel()
    count = min(budget * len(rounds.places), int(np.isfinite(flat).sum()))
    taken = np.argsort(-flat, kind="stable")[:count]
    return np.bincount(taken // rounds.max_budget, minlength=len(rounds.places)).astype(np.int64)


def oracle(rounds: Replay, budget: int) -> Ints:
    """(R,) nodes that accept the most in hindsight: steepest steps of each round's concave hull first."""
    costs = [np.append(0, row[row <= rounds.max_budget]).astype(float) for row in rounds.places]
    chosen = _steepest_steps(costs, [np.arange(c.size, dtype=float) for c in costs], budget * len(costs))
    return chosen.astype(np.int64)


def entropy_learned(rounds: Replay, budget: int) -> Ints:
    """(R,) nodes by entropy decile, each half of the prompts with what the other half taught."""
    bins = entropy_bins(rounds.h_nats)
    half = clusters(rounds.prompts, bins.size) % 2
    nodes = np.full(bins.size, budget, np.int64)
    grid = np.arange(rounds.max_budget + 1, dtype=float)
    for side in (0, 1):
        taught, used = bins[half != side], bins[half == side]
        if not taught.size or not used.size:
            continue  # a single prompt teaches nothing
        counts, known = np.bincount(used, minlength=bins.max() + 1), np.bincount(taught, minlength=bins.max() + 1)
        places = rounds.places[half != side]
        curves = [
            np.array([(places[taught == b] <= n).sum(axis=1).mean() for n in grid]) if known[b] else np.zeros(grid.size)
            for b in range(counts.size)
        ]
        chosen = _steepest_steps(
            [grid * count for count in counts], [c * n for c, n in zip(curves, counts, strict=True)], budget * used.size
        )
        per_round = chosen / np.maximum(counts, 1)
        nodes[half == side] = per_round[used].astype(np.int64)
    return nodes


def _steepest_steps(costs: Sequence[Array], values: Sequence[Array], total: float) -> Array:
    """Cost given to each item: steps of the concave hulls in order of value per cost, the last as far as it goes."""
    steps = []
    for item, (cost, value) in enumerate(zip(costs, values, strict=True)):
        hull = _concave_hull(cost, value)
        for here, there in pairwise(hull):
            paid = cost[there] - cost[here]
            steps.append(((value[there] - value[here]) / paid, item, paid))
    given, left = np.zeros(len(costs)), float(total)
    for _, item, paid in sorted(steps, key=lambda step: -step[0]):
        given[item] += min(paid, left)
        left -= min(paid, left)
    return given


def _concave_hull(cost: Array, value: Array) -> list[int]:
    """Indices of the upper concave hull of points in order of cost, up to the first of the highest value."""
    hull = [0]
    for point in range(1, int(np.argmax(value)) + 1):
        if cost[point] <= cost[hull[-1]]:
            continue
        while len(hull) > 1 and _slope(cost, value, hull[-2], hull[-1]) <= _slope(cost, value, hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _slope(cost: Array, value: Array, here: int, there: int) -> float:
    return float((value[there] - value[here]) / (cost[there] - cost[here]))
