"""How well a law describes its rounds: decile curve, the R²s, the noise ceiling, and the verdict (§6, Prop. 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression
from scipy.stats import rankdata

from oneglance.stats.bootstrap import Array, Interval, resample_correlation, resample_mean
from oneglance.stats.geometric import runs
from oneglance.stats.law import Law, checked_entropy

DECILES = 10
CEILING_BINS = 50
LONG_RUN = 8  # P(a ≥ 8)
MIN_ACCEPTING = 0.05
NOT_DEGENERATE = "not degenerate"
Verdict = Literal["holds", "inverted", "degenerate", "inconclusive"]


@dataclass(frozen=True, slots=True)
class EntropyBin:
    """Rounds of similar entropy.

    Attributes:
        low_nats, high_nats, mean_nats: of the entropies inside.
        num_rounds: inside.
        mean_a: measured, with its prompt-clustered interval.
        fitted: the law's mean over the same rounds, each at its own horizon.
    """

    low_nats: float
    high_nats: float
    mean_nats: float
    num_rounds: int
    mean_a: Interval
    fitted: float


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What any predictor that knows only entropy can explain (Prop. 2).

    Attributes:
        share: between over total variance in equal-count bins, the paper's estimate (it does not say how its fifty are
            cut); it grows with the number of bins.
        corrected: the same without the share that bins of pure noise would show (ω²-like, at least 0).
        num_bins: that were filled.
    """

    share: float
    corrected: float
    num_bins: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A law against its rounds (Table 12, Table 14).

    Attributes:
        law: the fit.
        bins: the decile curve.
        curve_r2: of decile means; isotonic_r2: of their best decreasing curve; round_r2: of rounds.
        ceiling: noise ceiling, and fraction: round_r2 over it.
        mean_a: pooled mean accepted length.
        rank_correlation: Spearman of a and H, interval by prompts.
        long_runs: share of rounds with a ≥ 8.
        verdict, criteria: whether the law holds here, and each criterion by name.
    """

    law: Law
    bins: tuple[EntropyBin, ...]
    curve_r2: float
    isotonic_r2: float
    round_r2: float
    ceiling: Ceiling
    fraction: float
    mean_a: Interval
    rank_correlation: Interval
    long_runs: float
    verdict: Verdict
    criteria: dict[str, bool]


def entropy_bins(h_nats: ArrayLike, num_bins: int = DECILES) -> NDArray[np.intp]:
    """(R,) bin of each round, low entropy first, equal counts; equal entropies share one, so bins may be fewer."""
    entropy = checked_entropy(h_nats)
    edges = np.quantile(entropy, np.linspace(0, 1, num_bins + 1)[1:-1])
    return np.unique(np.searchsorted(edges, entropy, side="left"), return_inverse=True)[1]


def r_squared(measured: ArrayLike, predicted: ArrayLike) -> float:
    """1 - residual over total sum of squares; nan where nothing varies."""
    seen, said = np.asarray(measured, float), np.asarray(predicted, float)
    total = float(((seen - seen.mean()) ** 2).sum())
    return 1.0 - float(((seen - said) ** 2).sum()) / total if total > 0 else float("nan")


def decreasing(means: ArrayLike, weights: ArrayLike) -> Array:
    """The best decreasing sequence: weighted isotonic regression."""
    result: Array = isotonic_regression(
        np.asarray(means, float), weights=np.asarray(weights, float), increasing=False
    ).x
    return result


def noise_ceiling(h_nats: ArrayLike, a: ArrayLike, *, num_bins: int = CEILING_BINS) -> Ceiling:
    """Between-bin over total variance of a (Prop. 2)."""
    values = np.asarray(a, float)
    codes = entropy_bins(h_nats, num_bins)
    counts = np.bincount(codes)
    means = np.bincount(codes, weights=values) / counts
    total = float(((values - values.mean()) ** 2).sum())
    between = float((counts * (means - values.mean()) ** 2).sum())
    left = values.size - counts.size
    if total == 0:
        return Ceiling(float("nan"), float("nan"), counts.size)
    noise = (total - between) / left if left > 0 else 0.0
    return Ceiling(between / total, max(0.0, (between - (counts.size - 1) * noise) / total), counts.size)


def rank_correlation(h_nats: ArrayLike, a: ArrayLike, prompts: ArrayLike, *, seed: int = 0) -> Interval:
    """Spearman's ρ of a and H; prompts resampled."""
    return resample_correlation(rankdata(h_nats), rankdata(a), prompts, seed=seed)


def assess(
    law: Law, h_nats: ArrayLike, a: ArrayLike, prompts: ArrayLike, *, horizon: ArrayLike | None = None, seed: int = 0
) -> Fit:
    """Everything that Table 12 says about one fit, and the verdict.

    The law *holds* where all of these do: the fit is not degenerate (it exists, and at least one round in twenty
    accepts something); b1 > 0 with an interval above zero; the rank correlation is negative with an interval below
    zero; the curve R² or the reached fraction of the ceiling is at least one half. It is *inverted* where b1 and the
    rank correlation both have the other sign, significantly. The paper speaks of five pre-registered conditions
    without naming them; these follow the authors' README, and the shares of one twentieth and one half of the curve
    R² are ours. Intervals instead of plain p values, because rounds of one prompt are not independent.
    """
    longest = law.num_offsets if horizon is None else horizon
    entropy, observed = checked_entropy(h_nats), runs(a, longest, num_offsets=law.num_offsets)
    values, names = observed.a.astype(float), np.asarray(prompts)
    fitted = law.mean(entropy, observed.horizon)
    codes = entropy_bins(entropy)
    bins = tuple(_bin(entropy, values, fitted, names, codes == code, seed) for code in range(int(codes.max()) + 1))
    means = [b.mean_a.value for b in bins]
    ceiling = noise_ceiling(entropy, values)
    round_r2 = r_squared(values, fitted)
    fraction = round_r2 / ceiling.share if ceiling.share > 0 else float("nan")
    curve_r2 = r_squared(means, [b.fitted for b in bins])
    correlation = rank_correlation(entropy, values, names, seed=seed)
    criteria = {
        NOT_DEGENERATE: law.degenerate is None and float((values > 0).mean()) >= MIN_ACCEPTING,
        "slope above zero": law.b1.low > 0,
        "rank correlation below zero": correlation.high < 0,
        "curve R² or fraction of the ceiling at least ½": curve_r2 >= 0.5 or fraction >= 0.5,
    }
    return Fit(
        law=law,
        bins=bins,
        curve_r2=curve_r2,
        isotonic_r2=r_squared(means, decreasing(means, [b.num_rounds for b in bins])),
        round_r2=round_r2,
        ceiling=ceiling,
        fraction=fraction,
        mean_a=resample_mean(values, names, seed=seed),
        rank_correlation=correlation,
        long_runs=float((values >= LONG_RUN).mean()),
        verdict=_verdict(law, correlation, criteria),
        criteria=criteria,
    )


def _bin(
    entropy: Array, values: Array, fitted: Array, names: NDArray[np.generic], inside: NDArray[np.bool_], seed: int
) -> EntropyBin:
    own = entropy[inside]
    return EntropyBin(
        low_nats=float(own.min()),
        high_nats=float(own.max()),
        mean_nats=float(own.mean()),
        num_rounds=int(inside.sum()),
        mean_a=resample_mean(values[inside], names[inside], resamples=1000, seed=seed),
        fitted=float(fitted[inside].mean()),
    )


def _verdict(law: Law, correlation: Interval, criteria: dict[str, bool]) -> Verdict:
    if not criteria[NOT_DEGENERATE]:
        return "degenerate"
    if all(criteria.values()):
        return "holds"
    if law.b1.high < 0 and correlation.low > 0:
        return "inverted"
    return "inconclusive"
