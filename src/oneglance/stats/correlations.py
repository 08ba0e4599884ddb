"""What else might drive acceptance: correlations, task gaps, effects with entropy held fixed (Table 13, Fig. 7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import mannwhitneyu, rankdata

from oneglance.core import InputError
from oneglance.stats.bootstrap import (
    Array,
    Interval,
    Totals,
    clusters,
    resample_correlation,
    resample_difference,
    sandwich,
    t_intervals,
)
from oneglance.stats.curve import DECILES, entropy_bins


@dataclass(frozen=True, slots=True)
class Correlations:
    """Of accepted length with entropy H and a second signal v, by rounds, intervals by prompts (Table 13).

    Attributes:
        a_h, a_v: Pearson; rank_a_h, rank_a_v: Spearman.
        partial: of a and v with a linear effect of H taken out of both; rank_partial: the same of ranks.
    """

    a_h: Interval
    a_v: Interval
    rank_a_h: Interval
    rank_a_v: Interval
    partial: Interval
    rank_partial: Interval


@dataclass(frozen=True, slots=True)
class DecileGap:
    """Rounds of one entropy decile, split at the median of the second signal (Fig. 7).

    Attributes:
        mean_nats: entropy.
        low, high: mean a in the lower and the upper half; ratio: high over low, 1 where the signal adds nothing.
        num_rounds: in both.
    """

    mean_nats: float
    low: float
    high: float
    ratio: float
    num_rounds: int


@dataclass(frozen=True, slots=True)
class TaskGap:
    """Mean accepted length of one task less another's, and Mann-Whitney of their rounds.

    Attributes:
        difference: prompts resampled.
        p_rounds: two-sided Mann-Whitney over rounds, the paper's figure; it takes rounds as independent.
        p_prompts: the same over prompt means, where independence holds.
    """

    difference: Interval
    p_rounds: float
    p_prompts: float


@dataclass(frozen=True, slots=True)
class Effect:
    """A regression of a on an indicator, entropy held fixed.

    Attributes:
        total: coefficient without entropy; residual: with a linear term of it; within_bins: with a level for each
            entropy bin instead, which assumes no shape.
        entropy: slope of a on H in the linear regression.
    """

    total: Interval
    residual: Interval
    within_bins: Interval
    entropy: Interval


def partial_residuals(x: ArrayLike, given: ArrayLike) -> Array:
    """x less its least-squares line on ``given``."""
    values = np.asarray(x, float)
    design = np.stack([np.ones(values.size), np.asarray(given, float)], axis=1)
    left: Array = values - design @ np.linalg.lstsq(design, values)[0]
    return left


def correlate(a: ArrayLike, h_nats: ArrayLike, v: ArrayLike, prompts: ArrayLike, *, seed: int = 0) -> Correlations:
    """All correlations of Table 13; the partial ones resample residuals of the fit to all rounds."""
    plain = [np.asarray(column, float) for column in (a, h_nats, v)]
    ranked = [rankdata(column) for column in plain]

    def interval(x: ArrayLike, y: ArrayLike) -> Interval:
        return resample_correlation(x, y, prompts, seed=seed)

    def partial(columns: list[Array]) -> Interval:
        length, entropy, signal = columns
        return interval(partial_residuals(length, entropy), partial_residuals(signal, entropy))

    return Correlations(
        a_h=interval(plain[0], plain[1]),
        a_v=interval(plain[0], plain[2]),
        rank_a_h=interval(ranked[0], ranked[1]),
        rank_a_v=interval(ranked[0], ranked[2]),
        partial=partial(plain),
        rank_partial=partial(ranked),
    )


def decile_gaps(a: ArrayLike, h_nats: ArrayLike, v: ArrayLike, *, num_bins: int = DECILES) -> tuple[DecileGap, ...]:
    """Mean a of high against low v within each entropy bin; bins where v does not vary are left out.

    The outer bins are wide, so entropy itself still differs between the halves there; the partial correlation and
    ``residual_effect`` say whether a gap is more than that.
    """
    length, entropy, signal = (np.asarray(column, float) for column in (a, h_nats, v))
    codes = entropy_bins(entropy, num_bins)
    gaps = []
    for code in range(int(codes.max()) + 1):
        inside = codes == code
        is_high = signal[inside] > np.median(signal[inside])
        if not is_high.any():
            continue
        own = length[inside]
        low, high = float(own[~is_high].mean()), float(own[is_high].mean())
        ratio = high / low if low > 0 else float("nan")
        gaps.append(DecileGap(float(entropy[inside].mean()), low, high, ratio, own.size))
    return tuple(gaps)


def compare_tasks(
    a: ArrayLike, prompts: ArrayLike, other_a: ArrayLike, other_prompts: ArrayLike, *, seed: int = 0
) -> TaskGap:
    """Does one task accept more than another (Corollary, B.2)?"""
    one, two = np.asarray(a, float), np.asarray(other_a, float)
    means = [_prompt_means(one, prompts), _prompt_means(two, other_prompts)]
    return TaskGap(
        resample_difference(one, prompts, two, other_prompts, seed=seed),
        float(mannwhitneyu(one, two).pvalue),
        float(mannwhitneyu(*means).pvalue),
    )


def residual_effect(
    a: ArrayLike, h_nats: ArrayLike, is_treated: ArrayLike, prompts: ArrayLike, *, num_bins: int = DECILES
) -> Effect:
    """Effect of the right image (or any indicator) on a, with and without entropy held fixed (§6).

    Ordinary least squares over rounds with scores summed over prompts; both arms of a prompt carry its name.

    Raises:
        InputError: the indicator does not vary.
    """
    length, entropy, treated = (np.asarray(column, float) for column in (a, h_nats, is_treated))
    if np.ptp(treated) == 0:
        raise InputError("the indicator is the same in every round; both arms are needed")
    ones = np.ones(length.size)
    codes = entropy_bins(entropy, num_bins)
    levels = (codes[:, None] == np.arange(int(codes.max()) + 1)).astype(float)
    linear = least_squares(np.stack([ones, treated, entropy], axis=1), length, prompts)
    return Effect(
        total=least_squares(np.stack([ones, treated], axis=1), length, prompts)[1],
        residual=linear[1],
        within_bins=least_squares(np.column_stack([treated, levels]), length, prompts)[0],
        entropy=linear[2],
    )


def least_squares(design: Array, values: Array, prompts: ArrayLike) -> tuple[Interval, ...]:
    """Coefficients of an ordinary regression (R, K), with prompt-clustered intervals.

    Raises:
        InputError: the columns are collinear.
    """
    if np.linalg.matrix_rank(design) < design.shape[1]:
        raise InputError("the regression has collinear columns; entropy or the indicator does not vary enough")
    found: Array = np.linalg.lstsq(design, values)[0].astype(float)
    covariance, num_groups = sandwich(design.T @ design, design * (values - design @ found)[:, None], prompts)
    return t_intervals(found, covariance, num_groups)


def _prompt_means(values: Array, prompts: ArrayLike) -> Array:
    codes = clusters(prompts, values.size)
    own = Totals(np.bincount(codes, weights=values).astype(float), np.bincount(codes).astype(float))
    return own.sums / own.counts
