"""Intervals that respect prompts: rounds of one prompt are drawn together, or not at all.

``resample_*`` are percentile bootstraps over prompts; ``sandwich`` is the analytic covariance of an estimator whose
scores add up within a prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from oneglance.core import InputError

Array = NDArray[np.float64]

RESAMPLES = 8000  # the paper's number
LEVEL = 0.95
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its confidence interval; nan bounds where one prompt gives no spread."""

    value: float
    low: float
    high: float
    level: float = LEVEL

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over each prompt, the unit that is resampled.

    Attributes:
        sums: (G,) of the values.
        counts: (G,) rounds.
    """

    sums: Array
    counts: Array

    @property
    def mean(self) -> float:
        return float(self.sums.sum() / self.counts.sum())


def clusters(prompts: ArrayLike, size: int) -> NDArray[np.intp]:
    """(R,) prompt names of any kind as codes 0..G-1."""
    names = np.asarray(prompts)
    if names.shape != (size,):
        raise InputError(f"prompts has shape {names.shape}; one name a round is needed, ({size},)")
    return np.unique(names, return_inverse=True)[1]


def totals(values: ArrayLike, prompts: ArrayLike) -> Totals:
    """Sums and counts by prompt, in the order of the sorted prompt names."""
    data = np.asarray(values, float)
    codes = clusters(prompts, data.size)
    sums: Array = np.bincount(codes, weights=data).astype(float)
    return Totals(sums, np.bincount(codes).astype(float))


def resample_mean(
    values: ArrayLike, prompts: ArrayLike, *, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = 0
) -> Interval:
    """Mean over rounds (pooled, not averaged over prompts), prompts resampled."""
    own = totals(values, prompts)
    return _interval((own.sums, own.counts), _ratio, True, resamples, level, seed)


def resample_difference(
    values: ArrayLike,
    prompts: ArrayLike,
    other_values: ArrayLike,
    other_prompts: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """Mean of ``values`` minus mean of ``other_values``: two tasks with prompts of their own (Corollary, B.2)."""
    one, two = totals(values, prompts), totals(other_values, other_prompts)

    def statistic(i: NDArray[np.intp], j: NDArray[np.intp], axis: int = -1) -> Array:
        return _ratio(one.sums[i], one.counts[i], axis) - _ratio(two.sums[j], two.counts[j], axis)

    rows = np.arange(one.sums.size), np.arange(two.sums.size)
    return _interval(rows, statistic, False, resamples, level, seed)


def resample_lift(
    treated: Totals, control: Totals, *, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = 0
) -> Interval:
    """Ratio of two pooled means over the same prompts, minus one: the lift of the right image, the share of τ kept.

    Args:
        treated, control: of the same prompts, in the same order.
    """
    if treated.sums.size != control.sums.size:
        raise InputError(f"a paired ratio needs the same prompts, got {treated.sums.size} and {control.sums.size}")

    def statistic(a: Array, n: Array, b: Array, m: Array, axis: int = -1) -> Array:
        return _ratio(a, n, axis) / _ratio(b, m, axis) - 1.0

    data = (treated.sums, treated.counts, control.sums, control.counts)
    return _interval(data, statistic, True, resamples, level, seed)


def resample_share_gap(
    treated: Totals,
    control: Totals,
    other_treated: Totals,
    other_control: Totals,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """Share kept in one setting less share kept in another, over the same prompts: the tree-chain gap of Table 16.

    Args:
        treated, control, other_treated, other_control: of the same prompts, in the same order.
    """
    arms = (treated, control, other_treated, other_control)
    if len({arm.sums.size for arm in arms}) > 1:
        raise InputError(f"paired shares need the same prompts, got {', '.join(str(arm.sums.size) for arm in arms)}")

    def statistic(*columns: Array, axis: int = -1) -> Array:
        means = [_ratio(columns[i], columns[i + 1], axis) for i in range(0, len(columns), 2)]
        result: Array = means[0] / means[1] - means[2] / means[3]
        return result

    data = tuple(column for arm in arms for column in (arm.sums, arm.counts))
    return _interval(data, statistic, True, resamples, level, seed)


def resample_ratio(
    numerator: ArrayLike, denominator: ArrayLike, *, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = 0
) -> Interval:
    """Ratio of means over paired prompts, as in a speedup: (G,) over (G,)."""
    data = np.asarray(numerator, float), np.asarray(denominator, float)
    if data[0].shape != data[1].shape:
        raise InputError(f"a paired ratio needs the same prompts, got {data[0].size} and {data[1].size}")
    return _interval(data, _ratio, True, resamples, level, seed)


def resample_correlation(
    x: ArrayLike, y: ArrayLike, prompts: ArrayLike, *, resamples: int = 2000, level: float = LEVEL, seed: int = 0
) -> Interval:
    """Pearson's r over rounds, prompts resampled; of ranks it is Spearman's ρ, ranked once over all rounds."""
    one, two = (np.asarray(column, float) - np.mean(np.asarray(column, float)) for column in (x, y))
    if np.ptp(one) == 0 or np.ptp(two) == 0:
        return Interval(NAN, NAN, NAN, level)
    codes = clusters(prompts, one.size)
    moments = tuple(
        np.bincount(codes, weights=w).astype(float) for w in (np.ones(one.size), one, two, one**2, two**2, one * two)
    )

    def statistic(*columns: Array, axis: int = -1) -> Array:
        n, sx, sy, sxx, syy, sxy = (column.sum(axis=axis) for column in columns)
        spread = (sxx - sx**2 / n) * (syy - sy**2 / n)
        result: Array = (sxy - sx * sy / n) / np.sqrt(np.maximum(spread, 1e-300))
        return result

    return _interval(moments, statistic, True, resamples, level, seed)


def sandwich(bread: Array, scores: Array, prompts: ArrayLike) -> tuple[Array, int]:
    """Covariance of an estimator that sets the sum of scores to zero, with scores added up within prompts.

    Args:
        bread: (K, K) minus the derivative of the summed score, or its expectation.
        scores: (R, K) of each round at the estimate.
        prompts: (R,) names.

    Returns:
        (K, K) covariance with the small-sample factor G / (G - 1), and G.
    """
    codes = clusters(prompts, scores.shape[0])
    num_groups = int(codes.max()) + 1
    summed = np.stack([np.bincount(codes, weights=column) for column in scores.T], axis=1)  # (G, K)
    if num_groups < 2:
        return np.full(bread.shape, NAN), num_groups
    inverse = np.linalg.inv(bread)
    factor = num_groups / (num_groups - 1)
    return factor * inverse @ (summed.T @ summed) @ inverse, num_groups


def t_intervals(values: Array, covariance: Array, num_groups: int, *, level: float = LEVEL) -> tuple[Interval, ...]:
    """An interval a coefficient, with G - 1 degrees of freedom."""
    if num_groups < 2:
        return tuple(Interval(float(v), NAN, NAN, level) for v in values)
    width = float(stats.t.ppf(0.5 + level / 2, num_groups - 1)) * np.sqrt(np.diag(covariance))
    return tuple(Interval(float(v), float(v - w), float(v + w), level) for v, w in zip(values, width, strict=True))


def _ratio(sums: Array, counts: Array, axis: int = -1) -> Array:
    result: Array = sums.sum(axis=axis) / counts.sum(axis=axis)
    return result


def _interval(
    data: tuple[NDArray[np.generic], ...],
    statistic: Callable[..., Array],
    paired: bool,
    resamples: int,
    level: float,
    seed: int,
) -> Interval:
    value = float(statistic(*data))
    if min(column.size for column in data) < 2:
        return Interval(value, NAN, NAN, level)
    found = stats.bootstrap(
        data,
        statistic,
        n_resamples=resamples,
        paired=paired,
        vectorized=True,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
        batch=1000,
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high), level)
