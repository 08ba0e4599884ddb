"""Ways to choose how wide the next tree is, from measured costs (``cost.Costs``) and from what earlier trees accepted.

``standing`` keeps the one width that has brought the most tokens a millisecond; the others decide anew in every round
by the head's own scores (B.5). Pure; each learns from rounds as they pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Protocol

import numpy as np
from scipy.optimize import isotonic_regression

from oneglance.cost import BASE_NODES, MAX_NODES, Costs, Exchange, Objective, RoundCost, throughput
from oneglance.tree import best_end, num_that_pay

RANKS = (BASE_NODES, 32, 64, MAX_NODES)  # candidates an offset; a tree of N nodes needs no more than N

STEP_NATS = 0.5  # between knots of the calibration
NUM_KNOTS = 25  # down to a mass of e^-12
PRIOR_HITS = 2.0  # accepted nodes a knot that agree with the head's scores, before any are seen
REFIT = 8  # trees between fits of the calibration
MEMORY = 500.0  # trees: older ones fade out of the calibration

PRIOR_TOKENS = 32.0  # that agree with ``expected_tokens``, before any are seen
TRY_SHARE = 0.005  # of the time, for wider trees than the one that has brought the most
STANDING_MEMORY = 500.0  # trees: older ones fade out of what a width has brought
RECENT, COLD_NODES = 20.0, 16.0  # trees: older ones fade out of how wide they are; until two have been seen


def ranks_for(num_nodes: float) -> int:
    """Candidates an offset that a tree of so many nodes can use."""
    return next((ranks for ranks in RANKS if ranks >= num_nodes), RANKS[-1])


def expected_tokens(num_nodes: int) -> float:
    """Kept tokens a round, until trees tell: rather too many, for a tree that is too wide shows it, and no other."""
    return 1.5 + 0.8 * math.log2(num_nodes + 1)


class Fading:
    """A ratio of sums over events, in which old ones fade.

    Args:
        memory: events after which one counts 1/e.
        above, below: what both sums start from; fades as well.
    """

    def __init__(self, memory: float, above: float = 0.0, below: float = 0.0) -> None:
        self._keep = 1 - 1 / memory
        self.above, self.below = above, below

    def add(self, above: float, below: float) -> None:
        self.above = self._keep * self.above + above
        self.below = self._keep * self.below + below

    @property
    def ratio(self) -> float:
        return self.above / self.below


class WidthRule(Protocol):
    """Chooses among widths, and learns."""

    def num_ranks(self, cost: RoundCost) -> int:
        """Candidates an offset that the next tree can use; more would only cost time."""

    def pick(self, scores: Iterable[float], cost: RoundCost, *, rate: float | None, is_probe: bool) -> int:
        """How many nodes the round gets; takes no more scores than it must look at.

        Args:
            scores: log scores, best first.
            cost: of this round.
            rate: λ, tokens a millisecond of rounds so far; None while that is unknown.
            is_probe: the head is not expected to pay, and is tried all the same.
        """

    def learn(
        self, scores: Sequence[float], accepted: Sequence[int], num_kept: int, cost: RoundCost, *, is_whole: bool
    ) -> None:
        """Take in one verified tree.

        Args:
            scores: (N,) log scores.
            accepted: 0-based nodes on the accepted path.
            num_kept: tokens kept, which the end of the text may have cut.
            cost: of that round.
            is_whole: the target's own token ended the walk, not the end of the text.
        """

    def learned(self) -> dict[str, Any]:
        """What is worth keeping for later processes."""


class Standing:
    """One width for all rounds: of the measured ones that whose rounds have brought the most tokens a millisecond.

    A best-first tree begins with every narrower one, so each verified tree tells what all widths up to its own would
    have kept; ratios of neighbouring widths are learned from the same rounds. A wider tree is tried now and then, as
    long as such tries are expected to have lost at most ``TRY_SHARE`` of the time.

    Args:
        costs: measured.
        tokens: (E, 2) sums of an earlier process, see ``learned``.

    Raises:
        ValueError: those sums are none.
    """

    def __init__(self, costs: Costs, *, tokens: Sequence[Sequence[float]] | None = None) -> None:
        self._ends = costs.ends
        steps = [expected_tokens(wide) / expected_tokens(narrow) for narrow, wide in pairwise(self._ends)]
        sums = [(PRIOR_TOKENS * step, PRIOR_TOKENS) for step in steps] if tokens is None else tokens
        kept = np.array(sums, float).reshape(-1, 2)
        if len(kept) != len(steps) or not np.isfinite(kept).all() or (kept <= 0).any():
            raise ValueError(f"a standing width holds two positive sums for each of {len(steps)} steps")
        self._steps = [Fading(STANDING_MEMORY, above, below) for above, below in kept.tolist()]
        self._elapsed_ms = self._lost_ms = 0.0
        self._lent_ms = costs.at(0).drafted_ms(self._ends[0])  # for tries before anything has elapsed
        self._next_width: int | None = None

    def num_ranks(self, cost: RoundCost) -> int:
        return ranks_for(self._next(cost))

    def pick(self, scores: Iterable[float], cost: RoundCost, *, rate: float | None, is_probe: bool) -> int:
        return sum(1 for _ in islice(scores, self._next(cost)))

    def learn(
        self, scores: Sequence[float], accepted: Sequence[int], num_kept: int, cost: RoundCost, *, is_whole: bool
    ) -> None:
        held = [n for n in self._ends if n <= len(scores)]  # none where the end of the text left room for few
        if held:
            rates, ms = self._rates(cost), cost.drafted_ms(held[-1])
            self._elapsed_ms += ms
            self._lost_ms += _loss_ms(rates, held[-1], ms)
        tokens = [min(num_kept, 1 + sum(node < n for node in accepted)) for n in held]
        for step, (narrow, wide) in zip(self._steps, pairwise(tokens), strict=False):
            step.add(wide, narrow)
        self._next_width = None

    def learned(self) -> dict[str, Any]:
        return {"tokens": [[step.above, step.below] for step in self._steps]}

    def _next(self, cost: RoundCost) -> int:
        """The width that has brought the most, or a wider one that there is time to try; held until the next tree."""
        if self._next_width is None:
            rates = self._rates(cost)
            standing = max(rates, key=rates.__getitem__)
            tried = max((n for n in self._ends if n > standing), key=rates.__getitem__, default=standing)
            lost = self._lost_ms + _loss_ms(rates, tried, cost.drafted_ms(tried))
            is_affordable = lost <= self._lent_ms + TRY_SHARE * self._elapsed_ms
            self._next_width = tried if is_affordable else standing
        return self._next_width

    def _rates(self, cost: RoundCost) -> dict[int, float]:
        """Width → tokens a millisecond, in units of the narrowest width's tokens a round."""
        tokens, rates = 1.0, {}
        for n, step in zip(self._ends, [None, *self._steps], strict=True):
            tokens *= 1.0 if step is None else step.ratio
            rates[n] = tokens / cost.drafted_ms(n)
        return rates


def _loss_ms(rates: Mapping[int, float], width: int, ms: float) -> float:
    """What a round of that width is expected to lose against the one that has brought the most."""
    return ms * (1 - rates[width] / max(rates.values()))


class Calibration:
    """Plug-in mass of a node → probability that it is accepted: a monotone line in log-log, learned online.

    At each knot the accepted nodes are set against those that the scores promised, starting from agreement; so a cold
    calibration is the identity, and a head whose scores are honest keeps it.

    Args:
        hits, promised: (NUM_KNOTS,) decayed sums over nodes near each knot, from an earlier process.

    Raises:
        ValueError: those sums are none.
    """

    def __init__(self, hits: Sequence[float] | None = None, promised: Sequence[float] | None = None) -> None:
        self.knots = -STEP_NATS * np.arange(NUM_KNOTS)
        self.hits = np.zeros(NUM_KNOTS) if hits is None else np.array(hits, float)
        self.promised = np.zeros(NUM_KNOTS) if promised is None else np.array(promised, float)
        for values in (self.hits, self.promised):
            if values.shape != (NUM_KNOTS,) or not np.isfinite(values).all() or (values < 0).any():
                raise ValueError(f"a calibration holds {NUM_KNOTS} sums, none below 0")
        self._num_learned = 0
        self._log_p = self._fit()

    def learn(self, scores: Sequence[float], accepted: Sequence[int]) -> None:
        """Take in one verified tree.

        Args:
            scores: (N,) log scores.
            accepted: 0-based nodes on the accepted path.
        """
        place = np.minimum(-np.asarray(scores, float) / STEP_NATS, NUM_KNOTS - 1.0)
        below = place.astype(int)
        share = place - below
        hit = np.zeros(len(place))
        hit[list(accepted)] = 1.0
        mass = np.exp(np.asarray(scores, float))
        for sums, amount in ((self.hits, hit), (self.promised, mass)):
            sums *= 1 - 1 / MEMORY
            np.add.at(sums, below, amount * (1 - share))
            np.add.at(sums, np.minimum(below + 1, NUM_KNOTS - 1), amount * share)
        self._num_learned += 1
        if self._num_learned % REFIT == 0:
            self._log_p = self._fit()

    def __call__(self, score: float) -> float:
        """Probability of a node of this log score."""
        place = -score / STEP_NATS
        below = int(place)
        if below >= NUM_KNOTS - 1:  # beyond the last knot it goes on in parallel to the identity
            return math.exp(score - float(self.knots[-1]) + self._log_p[-1])
        share = place - below
        return math.exp((1 - share) * self._log_p[below] + share * self._log_p[below + 1])

    def _fit(self) -> list[float]:
        """(NUM_KNOTS,) log-probabilities at the knots, non-increasing along them."""
        weights = self.promised + PRIOR_HITS
        log_p = self.knots + np.log((self.hits + PRIOR_HITS) / weights)
        line = isotonic_regression(log_p, weights=weights, increasing=False).x
        return [float(value) for value in np.minimum(line, 0.0)]


class ByScores:
    """A width of its own for each round: the one whose tokens, as its scores promise them, are worth the most.

    Args:
        objective: λ → what a round's tokens and milliseconds are worth.
        compares_all: every number of nodes by the convex fit, with CaDDTree's stop, instead of the measured widths.
        sums: of the calibration, from an earlier process.
    """

    def __init__(
        self,
        objective: Callable[[float | None], Objective],
        *,
        compares_all: bool = False,
        **sums: Sequence[float],
    ) -> None:
        self.calibration = Calibration(**sums)
        self._objective = objective
        self._compares_all = compares_all
        self._nodes = Fading(RECENT, 2 * COLD_NODES, 2.0)

    def num_ranks(self, cost: RoundCost) -> int:
        return ranks_for(self._nodes.ratio)

    def pick(self, scores: Iterable[float], cost: RoundCost, *, rate: float | None, is_probe: bool) -> int:
        mass = (
            math.exp if is_probe else self.calibration
        )  # a probe takes the head at its word, or it would teach nothing
        value = cost.value(self._objective(rate), is_fitted=self._compares_all)
        if self._compares_all:
            return num_that_pay(scores, mass=mass, value=value)
        return best_end(scores, mass=mass, value=value, ends=cost.ends)

    def learn(
        self, scores: Sequence[float], accepted: Sequence[int], num_kept: int, cost: RoundCost, *, is_whole: bool
    ) -> None:
        self._nodes.add(len(scores), 1)
        if is_whole:
            self.calibration.learn(scores, accepted)

    def learned(self) -> dict[str, Any]:
        return {"hits": self.calibration.hits.tolist(), "promised": self.calibration.promised.tolist()}


def _exchange(rate: float | None) -> Objective:
    return throughput if rate is None else Exchange(rate)


def _throughput(rate: float | None) -> Objective:
    return throughput


RULES: dict[str, Callable[[Costs, Mapping[str, Any]], WidthRule]] = {
    "standing": lambda costs, kept: Standing(costs, **kept),
    "exchange": lambda costs, kept: ByScores(_exchange, **kept),
    "throughput": lambda costs, kept: ByScores(_throughput, **kept),
    "exchange/all": lambda costs, kept: ByScores(_exchange, compares_all=True, **kept),
    "throughput/all": lambda costs, kept: ByScores(_throughput, compares_all=True, **kept),
}
