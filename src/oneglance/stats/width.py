"""What a wider tree is worth at an entropy: the law's V(H), its peak, regret, and when adapting can pay (B.5).

The written value E[a | H](1 - p) is p itself for an endless block: it has no peak, and the most certain rounds would
always come first. With the block's end it is M(p)(1 - p) = p(1 - p^L), which peaks at p = (L + 1)^(-1/L), 0.831 for
L = 15. A law reaches that at an entropy ≥ 0 only with b0 ≥ 1.594; no published fit does, so V falls with entropy
everywhere and there is no intermediate band.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logit
from scipy.stats import kurtosis, skew

from oneglance.core import InputError
from oneglance.stats.bootstrap import Array
from oneglance.stats.curve import CEILING_BINS, entropy_bins
from oneglance.stats.law import Law


@dataclass(frozen=True, slots=True)
class Peak:
    """Where V(H) is largest.

    Attributes:
        p, logit: match probability at the peak of p(1 - p^L).
        h_nats: entropy where the law has that p; None where it would be negative, so V only falls with entropy.
    """

    p: float
    logit: float
    h_nats: float | None


@dataclass(frozen=True, slots=True)
class Regret:
    """What choosing K rounds by estimated instead of realised value costs (Prop. 6).

    Attributes:
        regret: realised value of the best K less that of the K chosen.
        bound: Σ |V* - V̂| over the rounds that only one of the two chose. Always at least the regret.
        mean_bound: 2K E|V* - V̂| as the paper writes it, over all rounds. Not a bound: the rounds in dispute are
            picked for their errors, so their mean error can exceed the overall one.
        floor: E[Var(V* | H)] in entropy bins, which no rule that sees only H removes.
    """

    regret: float
    bound: float
    mean_bound: float
    floor: float


@dataclass(frozen=True, slots=True)
class Headroom:
    """How much moving width could gain under the law (Prop. 5).

    Attributes:
        gain: mean V of the best share of rounds less mean V of all, per slot moved.
        relative: the same over mean V.
        bimodality: Sarle's coefficient of the entropies; 5/9 for a uniform, 1 for two points.
        at_extremes: share of rounds with V under a tenth of its peak.
    """

    gain: float
    relative: float
    bimodality: float
    at_extremes: float


def width_value(law: Law, h_nats: ArrayLike) -> Array:
    """V(H) = M(p)(1 - p) = p(1 - p^L)  (Eq. 5, truncated)."""
    p = law.p(h_nats)
    return p * (1 - p**law.num_offsets)


def peak(law: Law) -> Peak:
    """Where the law's V(H) is largest."""
    best = float((law.num_offsets + 1) ** (-1 / law.num_offsets))
    odds = float(logit(best))
    slope = law.b1.value
    at = (law.b0.value - odds) / slope if slope != 0 else -1.0
    return Peak(best, odds, at if at >= 0 else None)


def regret(realised: ArrayLike, estimated: ArrayLike, h_nats: ArrayLike, num_chosen: int) -> Regret:
    """Regret of giving width to the ``num_chosen`` rounds of highest estimate, and Prop. 6's bounds.

    Args:
        realised: (R,) V*, what width was worth in each round.
        estimated: (R,) V̂(H).
        h_nats: (R,) entropy.
        num_chosen: K.
    """
    true, guess = np.asarray(realised, float), np.asarray(estimated, float)
    if not 1 <= num_chosen <= true.size or true.shape != guess.shape:
        raise InputError(f"cannot choose {num_chosen} of {true.size} rounds with {guess.size} estimates")
    best, chosen = (np.argsort(-v, kind="stable")[:num_chosen] for v in (true, guess))
    error = np.abs(true - guess)
    return Regret(
        max(0.0, float(true[best].sum() - true[chosen].sum())),
        float(error[np.setxor1d(best, chosen)].sum()),
        float(2 * num_chosen * error.mean()),
        conditional_variance(true, h_nats),
    )


def conditional_variance(values: ArrayLike, h_nats: ArrayLike, *, num_bins: int = CEILING_BINS) -> float:
    """E[Var(V | H)] in equal-count entropy bins."""
    data, codes = np.asarray(values, float), entropy_bins(h_nats, num_bins)
    means = np.bincount(codes, weights=data) / np.bincount(codes)
    return float(((data - means[codes]) ** 2).mean())


def headroom(law: Law, h_nats: ArrayLike, *, share: float = 0.5) -> Headroom:
    """What the law says moving width could gain on these entropies, at most (Prop. 5).

    The proposition has the gain vanish for two far modes, because V ≈ 0 at both. That needs a law that is sure at zero
    entropy: with the published b0 a certain round still has V near 0.75, and two modes give more headroom, not less.
    """
    values = np.sort(width_value(law, h_nats))[::-1]
    count = max(1, round(share * values.size))
    gain = float(values[:count].mean() - values.mean())
    top = peak(law).p
    largest = top * (1 - top**law.num_offsets)
    return Headroom(gain, gain / float(values.mean()), bimodality(h_nats), float((values < 0.1 * largest).mean()))


def bimodality(h_nats: ArrayLike) -> float:
    """Sarle's coefficient (skew² + 1) / kurtosis; nan where nothing varies."""
    entropy = np.asarray(h_nats, float)
    if np.ptp(entropy) == 0:
        return float("nan")
    return float((skew(entropy) ** 2 + 1) / kurtosis(entropy, fisher=False))


def share_out(weights: ArrayLike, total: int, most: int) -> NDArray[np.int64]:
    """Whole shares of ``total`` in proportion to weights, at most ``most`` each; what is cut off goes to the others.

    Raises:
        InputError: a weight is negative or not finite.
    """
    weight = np.asarray(weights, float)
    wrong = np.flatnonzero(~np.isfinite(weight) | (weight < 0))
    if wrong.size:
        raise InputError(f"round {int(wrong[0])} has weight {weight[wrong[0]]}; need a finite number ≥ 0")
    shares = np.zeros(weight.size, np.int64)
    left = min(total, most * weight.size)
    while left > 0:
        is_open = shares < most
        own = np.where(is_open, weight, 0.0)
        if own.sum() <= 0:
            own = is_open.astype(float)
        exact = np.minimum(left * own / own.sum(), most - shares)
        whole = np.floor(exact).astype(np.int64)
        if not whole.any():  # less than one each: one to those with the largest remainder
            first = np.argsort(-np.where(is_open, exact, -1.0), kind="stable")[: min(left, int(is_open.sum()))]
            whole[first] = 1
        shares += whole
        left -= int(whole.sum())
    return shares
