"""The width controller: whether a round drafts, and how wide its tree may get. Pure; learns from rounds as they pass.

Two decisions a round, from measured costs (``cost.Costs``) and from what earlier rounds did:

- before the draft, which is spent once it has run: is the answer likely to go on long enough, and are enough tokens
  accepted, for a drafted round to be cheaper than a single step?
- after it: of the widths that were measured, the one whose tokens are worth their time (``tree.best_end``). A head's
  own scores promise more than is accepted; ``Calibration`` learns by how much.

Whatever is decided, the text is the target's: a smaller tree is a tree, and no tree is plain decoding.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

from oneglance.core import BlockMarginals, TokenTree
from oneglance.cost import MAX_NODES, Costs, Exchange, Objective, RoundCost, throughput
from oneglance.tree import best_end, cost_aware, num_that_pay

STEP_NATS = 0.5  # between knots of the calibration
NUM_KNOTS = 25  # down to a mass of e^-12
PRIOR_HITS = 2.0  # accepted nodes a knot that agree with the head's scores, before any are seen
REFIT = 8  # trees between fits of the calibration
BUCKET = 64  # rows of context that share their costs
MEMORY = 500.0  # rounds: older ones fade out of calibration and exchange rate
RECENT = 20.0  # drafted rounds: older ones fade out of the acceptance length
NUM_LENGTHS = 64  # answers whose length is remembered
RANKS = (32, 64, MAX_NODES)  # candidates an offset; a tree of N nodes needs no more than N
COLD_TAU, COLD_NODES, COLD_LENGTH = 4.0, 15.0, 64  # until rounds and answers tell; they make a cold controller draft
WARM_ROUNDS = 8  # before an exchange rate exists
PROBE_SHARE = 0.01  # of the time, for drafts that are not expected to pay


Choice = Literal["plain", "draft", "probe"]
Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Calibration:
    """Plug-in mass of a node → probability that it is accepted: a monotone line in log-log, learned online.

    At each knot the accepted nodes are set against those that the scores promised, starting from agreement; so a cold
    calibration is the identity, and a head whose scores are honest keeps it.

    Args:
        hits, promised: (NUM_KNOTS,) decayed sums over nodes near each knot, from an earlier process.

    Attributes:
        num_learned: trees taken in by this one.
    """

    def __init__(self, hits: Sequence[float] | None = None, promised: Sequence[float] | None = None) -> None:
        self.knots = -STEP_NATS * np.arange(NUM_KNOTS)
        self.hits = np.zeros(NUM_KNOTS) if hits is None else np.array(hits, float)
        self.promised = np.zeros(NUM_KNOTS) if promised is None else np.array(promised, float)
        for values in (self.hits, self.promised):
            if values.shape != (NUM_KNOTS,) or not np.isfinite(values).all() or (values < 0).any():
                raise ValueError(f"a calibration holds {NUM_KNOTS} sums, none below 0")
        self.num_learned = 0
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
        self.num_learned += 1
        if self.num_learned % REFIT == 0:
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


@dataclass(frozen=True, slots=True)
class Outlook:
    """Where a generation stands before a round.

    Attributes:
        context: committed rows.
        produced: new tokens so far, the root among them.
        room: tokens that may still be kept.
        waiting: rows that the drafter must take in before it can draft.
    """

    context: int
    produced: int
    room: int
    waiting: int


@dataclass
class Controller:
    """Decides widths across the generations of one target and drafter; holds no state of any of them.

    Attributes:
        costs: measured.
        rule: ``exchange`` or ``throughput``, a key of ``RULES``.
        compares_all: every number of nodes by the convex fit, with CaDDTree's stop, instead of the measured widths.
        calibration: of the head's scores.
        num_rounds: learned from so far; a controller is cold until ``WARM_ROUNDS``.
    """

    costs: Costs
    rule: str = "exchange"
    compares_all: bool = False
    calibration: Calibration = field(default_factory=Calibration)
    num_rounds: int = 0

    def __post_init__(self) -> None:
        self._rate = Fading(MEMORY)  # tokens, ms
        self._tau = Fading(RECENT, 2 * COLD_TAU, 2.0)  # tokens, drafted rounds
        self._nodes = Fading(RECENT, 2 * COLD_NODES, 2.0)
        self._answers: deque[int] = deque(maxlen=NUM_LENGTHS)
        self._lengths = self._counts = np.zeros(0, np.int64)  # distinct lengths of answers, and how often each was
        self._costs_at = cache(lambda bucket: self.costs.at(bucket * BUCKET))
        self._elapsed_ms = self._lost_ms = 0.0

    @property
    def rate(self) -> float | None:
        """λ, tokens a millisecond of rounds so far, by the measured costs; None while cold."""
        return self._rate.ratio if self.num_rounds >= WARM_ROUNDS else None

    def choose(self, outlook: Outlook) -> Choice:
        """Whether to draft now, or to take a single step first.

        By the time to the end of the answer, over the lengths that earlier answers had. A draft that is not expected to
        pay runs all the same now and then, as long as such drafts have lost at most ``PROBE_SHARE`` of the time: else a
        head that begins to accept would never be noticed. One that wins pays for the next.
        """
        gain = self.gain_ms(outlook)
        if gain > 0:
            return "draft"
        is_affordable = self._lost_ms - gain <= PROBE_SHARE * self._elapsed_ms
        return "probe" if is_affordable and self._expects_a_whole_round(outlook) else "plain"

    def gain_ms(self, outlook: Outlook) -> float:
        """Milliseconds that drafting now is expected to save over a single step now and the better of both later."""
        cost = self._at(outlook.context)
        ingest = cost.ingest_ms * outlook.waiting
        drafted, tau, plain = cost.drafted_ms(self._nodes.ratio), self._tau.ratio, cost.plain_ms

        def to_the_end(left: Ints) -> Array:
            return np.asarray(ingest + drafted + min(drafted / tau, plain) * np.maximum(0.0, left - tau))

        left, counts = self._lengths_left(outlook)
        later = np.where(left > 1, np.minimum(to_the_end(left - 1), plain * (left - 1)), 0.0)
        return float(counts @ (plain + later - to_the_end(left)) / counts.sum())

    def _expects_a_whole_round(self, outlook: Outlook) -> bool:
        """Whether a draft is likely to teach anything: a round that the text's end cuts does not."""
        left, counts = self._lengths_left(outlook)
        return bool(counts @ left > COLD_TAU * counts.sum())

    def _lengths_left(self, outlook: Outlook) -> tuple[Ints, Ints]:
        """Tokens still to come and how often, by every answer longer than this one is; a long one is always among."""
        is_longer = self._lengths > outlook.produced
        left = np.append(self._lengths[is_longer] - outlook.produced, COLD_LENGTH)
        return np.minimum(left, outlook.room), np.append(self._counts[is_longer], 1)

    def _at(self, context: int) -> RoundCost:
        return self._costs_at(context // BUCKET)

    def policy(self, choice: Choice, context: int) -> Callable[[BlockMarginals, int], TokenTree]:
        """The tree policy of a round that drafts; a probe takes the head at its word, or it would learn nothing."""
        return partial(cost_aware, pick=partial(self.pick, choice=choice, context=context))

    def pick(self, scores: Iterable[float], *, choice: Choice, context: int) -> int:
        """How many nodes the round gets, from log scores, best first."""
        cost, mass = self._at(context), math.exp if choice == "probe" else self.calibration
        value = cost.value(RULES[self.rule](self), is_fitted=self.compares_all)
        if self.compares_all:
            return num_that_pay(scores, mass=mass, value=value)
        return best_end(scores, mass=mass, value=value, ends=cost.ends)

    @property
    def num_ranks(self) -> int:
        """Candidates an offset that trees as wide as the recent ones can use; more would only cost time."""
        return next((ranks for ranks in RANKS if ranks >= self._nodes.ratio), RANKS[-1])

    def learn(
        self, choice: Choice, outlook: Outlook, scores: Sequence[float], accepted: Sequence[int] | None, num_kept: int
    ) -> None:
        """Take in a round.

        Args:
            choice: what it was.
            outlook: before it.
            scores: (N,) log scores of the verified tree.
            accepted: 0-based nodes on the accepted path; None where the text ended or the gate cut the walk short.
            num_kept: tokens kept.
        """
        cost = self._at(outlook.context)
        self.num_rounds += 1
        if choice == "plain":
            self._rate.add(num_kept, cost.plain_ms)
            self._elapsed_ms += cost.plain_ms
            return
        round_ms = cost.drafted_ms(len(scores))
        whole_ms = round_ms + cost.ingest_ms * outlook.waiting
        self._rate.add(num_kept, round_ms)
        self._elapsed_ms += whole_ms
        if choice == "probe":
            self._lost_ms += whole_ms - num_kept * cost.plain_ms
        self._nodes.add(len(scores), 1)
        if accepted is not None:
            self._tau.add(len(accepted) + 1, 1)
            self.calibration.learn(scores, accepted)

    def finished(self, num_tokens: int) -> None:
        """An answer ended by itself, or at its cap, after that many tokens."""
        self._answers.append(num_tokens)
        self._lengths, self._counts = np.unique(self._answers, return_counts=True)

    def learned(self) -> dict[str, Any]:
        """What is kept beside the costs: the calibration. Lengths and rates belong to a workload and are not."""
        return {"hits": self.calibration.hits.tolist(), "promised": self.calibration.promised.tolist()}

    @classmethod
    def resume(cls, costs: Costs, learned: Mapping[str, Any]) -> Controller:
        """A controller with a kept calibration, else a cold one.

        Raises:
            ValueError: it is none.
        """
        return cls(costs, calibration=Calibration(**learned))


def _exchange(controller: Controller) -> Objective:
    return throughput if controller.rate is None else Exchange(controller.rate)


RULES: dict[str, Callable[[Controller], Objective]] = {
    "exchange": _exchange,
    "throughput": lambda controller: throughput,
}
