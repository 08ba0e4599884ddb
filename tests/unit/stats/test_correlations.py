"""Correlations, task gaps and effects with entropy held fixed: planted effects, and none where there is none."""

import numpy as np
import pytest
from scipy import stats

from oneglance.core import InputError
from oneglance.stats.correlations import (
    compare_tasks,
    correlate,
    decile_gaps,
    least_squares,
    partial_residuals,
    residual_effect,
)
from simulate import simulate_rounds


def through_entropy(seed: int, *, direct: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rounds in which a signal v moves entropy and only ``direct`` of it moves a."""
    rng = np.random.default_rng(seed)
    prompts = np.repeat(np.arange(100), 20)
    v = rng.normal(0, 1, prompts.size)
    h = np.exp(-0.5 * v + rng.normal(0, 0.5, v.size))
    return 4 - h + direct * v + rng.normal(0, 1, v.size), h, v, prompts


def test_correlations_are_scipys() -> None:
    a, h, v, prompts = through_entropy(0)
    found = correlate(a, h, v, prompts)
    assert found.a_h.value == pytest.approx(stats.pearsonr(a, h).statistic)
    assert found.a_v.value == pytest.approx(stats.pearsonr(a, v).statistic)
    assert found.rank_a_h.value == pytest.approx(stats.spearmanr(a, h).statistic)
    assert found.rank_a_v.value == pytest.approx(stats.spearmanr(a, v).statistic)
    r_av, r_ah, r_vh = (stats.pearsonr(*pair).statistic for pair in ((a, v), (a, h), (v, h)))
    by_formula = (r_av - r_ah * r_vh) / np.sqrt((1 - r_ah**2) * (1 - r_vh**2))
    assert found.partial.value == pytest.approx(by_formula)


def test_a_signal_that_acts_through_entropy_does_not_survive_it() -> None:
    a, h, v, prompts = through_entropy(1)
    found = correlate(a, h, v, prompts)
    assert found.a_v.low > 0.2
    assert 0.0 in found.partial
    assert abs(found.rank_partial.value) < 0.15
    gaps = decile_gaps(a + 3, h, v)
    assert len(gaps) == 10
    assert np.mean([g.ratio for g in gaps[1:-1]]) == pytest.approx(1.0, abs=0.03)  # the outer bins are wide
    assert sum(g.num_rounds for g in gaps) == a.size


def test_a_direct_effect_does() -> None:
    a, h, v, prompts = through_entropy(2, direct=0.6)
    assert correlate(a, h, v, prompts).partial.low > 0.2
    assert np.mean([g.ratio for g in decile_gaps(a + 3, h, v)]) > 1.1


def test_partial_residuals_are_orthogonal() -> None:
    a, h, _, _ = through_entropy(3)
    left = partial_residuals(a, h)
    assert abs(left.mean()) < 1e-9
    assert abs((left * h).sum()) < 1e-6


def test_bins_without_variation_are_left_out() -> None:
    h = np.linspace(0, 1, 100)
    assert decile_gaps(np.ones(100), h, np.zeros(100)) == ()


def test_tasks_differ_as_planted() -> None:
    low = simulate_rounds(0.5, 0.5, num_rounds=1200, num_prompts=60, seed=1)
    high = simulate_rounds(1.2, 0.5, num_rounds=1200, num_prompts=60, seed=2)
    found = compare_tasks(high.a, high.prompts, low.a, low.prompts)
    assert found.difference.value == pytest.approx(high.a.mean() - low.a.mean())
    assert found.difference.low > 0
    assert found.p_rounds == pytest.approx(stats.mannwhitneyu(high.a, low.a).pvalue)
    assert found.p_prompts < 1e-3
    same = compare_tasks(low.a, low.prompts, low.a, low.prompts)
    assert 0.0 in same.difference


def two_arms(seed: int, residual: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Right and mismatched image on the same prompts: the right one lowers entropy and adds ``residual`` to a."""
    rng = np.random.default_rng(seed)
    prompts = np.tile(np.repeat(np.arange(60), 10), 2)
    right = np.repeat([1.0, 0.0], 600)
    own = rng.normal(0, 0.3, 60)[prompts]
    h = rng.exponential(0.3 + 0.4 * (1 - right))
    return 4 - 1.5 * h + own + residual * right + rng.normal(0, 1, right.size), h, right, prompts


def test_the_image_acts_through_entropy() -> None:
    found = residual_effect(*two_arms(0, 0.0))
    assert found.total.low > 0.3
    assert 0.0 in found.residual
    assert 0.0 in found.within_bins
    assert -1.5 in found.entropy


def test_a_residual_effect_is_found() -> None:
    found = residual_effect(*two_arms(1, 0.4))
    assert 0.4 in found.residual
    assert found.residual.low > 0
    assert found.within_bins.low > 0


def test_regression_against_a_solved_case() -> None:
    design = np.column_stack([np.ones(4), [0.0, 1.0, 0.0, 1.0]])
    found = least_squares(design, np.array([1.0, 3.0, 1.0, 5.0]), ["a", "a", "b", "b"])
    assert [c.value for c in found] == pytest.approx([1.0, 3.0])


def test_what_cannot_be_estimated_is_refused() -> None:
    with pytest.raises(InputError, match="both arms"):
        residual_effect([1, 2], [0.1, 0.2], [1, 1], ["a", "b"])
    with pytest.raises(InputError, match="collinear"):
        residual_effect([1, 2, 3, 4], [1, 0, 1, 0], [1, 0, 1, 0], ["a", "b", "a", "b"])


@pytest.mark.slow
def test_coverage_of_the_residual_effect() -> None:
    hits = sum(0.2 in residual_effect(*two_arms(seed, 0.2)).residual for seed in range(100))
    assert hits >= 88
