"""Prompt-clustered intervals: against closed forms, and their coverage."""

import numpy as np
import pytest
from scipy import stats

from oneglance.core import InputError
from oneglance.stats.bootstrap import (
    Interval,
    Totals,
    resample_correlation,
    resample_difference,
    resample_lift,
    resample_mean,
    resample_ratio,
    sandwich,
    t_intervals,
    totals,
)


def clustered(num_prompts: int, rounds: int, seed: int, *, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Rounds that share their prompt's own mean; the overall mean is 0."""
    rng = np.random.default_rng(seed)
    prompts = np.repeat([f"p{i}" for i in range(num_prompts)], rounds)
    return np.repeat(rng.normal(0, spread, num_prompts), rounds) + rng.normal(0, 0.3, prompts.size), prompts


def test_totals_by_hand() -> None:
    own = totals([1, 2, 10], ["b", "b", "a"])
    np.testing.assert_array_equal(own.sums, [10, 3])
    np.testing.assert_array_equal(own.counts, [1, 2])
    assert own.mean == pytest.approx(13 / 3)


def test_mean_pools_rounds_and_knows_its_standard_error() -> None:
    values, prompts = clustered(60, 10, 0)
    found = resample_mean(values, prompts, resamples=2000)
    of_prompts = values.reshape(60, 10).mean(axis=1)
    assert found.value == pytest.approx(values.mean())
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * of_prompts.std() / np.sqrt(60), rel=0.1)


def test_the_sandwich_of_a_mean_is_the_variance_of_prompt_sums() -> None:
    values, prompts = clustered(50, 8, 1)
    scores = (values - values.mean())[:, None]
    covariance, num_groups = sandwich(np.array([[float(values.size)]]), scores, prompts)
    of_prompts = values.reshape(50, 8).mean(axis=1)
    assert num_groups == 50
    assert covariance[0, 0] == pytest.approx(of_prompts.var(ddof=1) / 50)
    (interval,) = t_intervals(np.array([values.mean()]), covariance, num_groups)
    by_scipy = stats.ttest_1samp(of_prompts, 0.0).confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((by_scipy.low, by_scipy.high))


def test_one_prompt_has_no_spread() -> None:
    assert np.isnan(resample_mean([1.0, 2.0], ["p", "p"]).low)
    covariance, num_groups = sandwich(np.eye(1), np.ones((3, 1)), ["p"] * 3)
    assert np.isnan(t_intervals(np.ones(1), covariance, num_groups)[0].low)


def test_correlation_against_resampling_whole_prompts() -> None:
    """Sums over prompts give the same interval as drawing prompts and computing r anew."""
    x, prompts = clustered(40, 5, 2)
    y = x + np.random.default_rng(3).normal(0, 1, x.size)
    found = resample_correlation(x, y, prompts)
    assert found.value == pytest.approx(stats.pearsonr(x, y).statistic)
    rng = np.random.default_rng(4)
    rows = np.arange(x.size).reshape(40, 5)
    drawn = [rows[rng.integers(0, 40, 40)].ravel() for _ in range(1000)]
    low, high = np.quantile([stats.pearsonr(x[r], y[r]).statistic for r in drawn], [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.03)
    assert np.isnan(resample_correlation(np.ones(4), [1, 2, 3, 4], ["a", "a", "b", "b"]).value)


def test_difference_and_lift() -> None:
    values, prompts = clustered(60, 6, 3, spread=0.2)
    other, others = clustered(40, 6, 4, spread=0.2)
    gap = resample_difference(values + 2.0, prompts, other, others, resamples=1000)
    assert gap.low > 0
    assert 2.0 in gap
    control = totals(values + 3.0, prompts)
    lift = resample_lift(Totals(control.sums * 1.1, control.counts), control, resamples=500)
    assert (lift.low, lift.value, lift.high) == pytest.approx((0.1, 0.1, 0.1))  # paired: the common part cancels
    ratio = resample_ratio([2.0, 4.0], [1.0, 2.0], resamples=200)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


def test_the_same_seed_gives_the_same_interval() -> None:
    values, prompts = clustered(20, 3, 5)
    assert resample_mean(values, prompts, resamples=300) == resample_mean(values, prompts, resamples=300)


def test_unequal_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="one name a round"):
        resample_mean([1.0, 2.0], ["a"])
    with pytest.raises(InputError, match="same prompts"):
        resample_ratio([1.0], [1.0, 2.0])
    with pytest.raises(InputError, match="same prompts"):
        resample_lift(totals([1.0], ["a"]), totals([1.0, 1.0], ["a", "b"]))


def test_interval() -> None:
    assert 0.5 in Interval(0.5, 0.1, 0.9)
    assert 1.0 not in Interval(0.5, 0.1, 0.9)


@pytest.mark.slow
def test_coverage_is_near_its_level_where_plain_intervals_fail() -> None:
    clustered_hits = plain_hits = 0
    for seed in range(100):
        values, prompts = clustered(40, 6, 100 + seed)
        clustered_hits += 0.0 in resample_mean(values, prompts, resamples=400)
        plain_hits += 0.0 in resample_mean(values, np.arange(values.size), resamples=400)
    assert 0.88 <= clustered_hits / 100 <= 0.99
    assert plain_hits / 100 < 0.75
