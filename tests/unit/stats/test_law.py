"""The entropy law: planted parameters, censoring, the R²s, the verdict, and the paper's figures."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit

from oneglance.core import InputError
from oneglance.stats.curve import (
    assess,
    decreasing,
    entropy_bins,
    noise_ceiling,
    r_squared,
)
from oneglance.stats.law import Law, fit_law, fit_offset_slope, law
from simulate import Rounds, simulate_rounds

METHODS = ("ml", "ls")


def fit(rounds: Rounds, method: str = "ml", **more: object) -> Law:
    return fit_law(rounds.h_nats, rounds.a, horizon=rounds.horizon, prompts=rounds.prompts, method=method, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("b0", "b1"), [(0.96, 0.63), (1.226, 0.95), (1.5, 1.71)])
def test_planted_coefficients_come_back_whatever_the_cuts(method: str, b0: float, b1: float) -> None:
    rounds = simulate_rounds(b0, b1, num_rounds=12_000, num_prompts=300, cut_share=0.3, seed=1)
    found = fit(rounds, method)
    assert found.b0.value == pytest.approx(b0, abs=0.06)
    assert found.b1.value == pytest.approx(b1, abs=0.06)
    assert b0 in found.b0
    assert b1 in found.b1
    assert (found.num_rounds, found.num_prompts) == (12_000, 300)


@pytest.mark.parametrize("method", METHODS)
def test_forgetting_the_cuts_pulls_the_intercept_down(method: str) -> None:
    """What the horizons are for: with 60 % of the rounds cut, taking every end for a miss is wrong by far."""
    rounds = simulate_rounds(1.3, 0.8, num_rounds=6000, num_prompts=200, cut_share=0.6, seed=2)
    naive = fit_law(rounds.h_nats, rounds.a, prompts=rounds.prompts, method=method)  # type: ignore[arg-type]
    assert naive.b0.high < 1.3 - 0.1
    assert 1.3 in fit(rounds, method).b0


def test_maximum_likelihood_is_logistic_regression_on_every_trial() -> None:
    """An independent optimum: no direction away from the estimate is better."""
    rounds = simulate_rounds(1.0, 0.7, num_rounds=500, num_prompts=50, cut_share=0.2, seed=3)
    found = fit(rounds)
    trials = [
        (h, k < a)
        for h, a, hz in zip(rounds.h_nats, rounds.a, rounds.horizon, strict=True)
        for k in range(min(a + 1, hz))
    ]

    def loss(b0: float, b1: float) -> float:
        return -sum(np.log(p if hit else 1 - p) for h, hit in trials for p in [expit(b0 - b1 * h)])

    best = loss(found.b0.value, found.b1.value)
    for step in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01)):
        assert loss(found.b0.value + step[0], found.b1.value + step[1]) > best


def test_least_squares_are_least() -> None:
    """Against a mean by hand, horizon by horizon."""
    rounds = simulate_rounds(1.0, 0.7, num_rounds=300, num_prompts=50, cut_share=0.5, seed=3)
    found = fit(rounds, "ls")

    def loss(b0: float, b1: float) -> float:
        p = expit(b0 - b1 * rounds.h_nats)
        means = [sum(q**k for k in range(1, horizon + 1)) for q, horizon in zip(p, rounds.horizon, strict=True)]
        return float(((rounds.a - np.array(means)) ** 2).sum())

    best = loss(found.b0.value, found.b1.value)
    for step in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01)):
        assert loss(found.b0.value + step[0], found.b1.value + step[1]) > best


def test_offset_slope() -> None:
    rng = np.random.default_rng(4)
    h = rng.exponential(0.6, 8000)
    found = fit_offset_slope(h, rng.random(8000) < expit(1.1 - 0.9 * h))
    assert found.b1.value == pytest.approx(0.9, abs=0.1)
    assert found.num_offsets == 1


@given(st.floats(-2, 3), st.floats(-2, 3), st.floats(0, 5))
@settings(max_examples=50)
def test_derivative_identities(b0: float, b1: float, h: float) -> None:
    """∂p/∂H = -b1 p(1-p), and ∂E/∂H = -b1 E for a block without end (Corollary, B.2)."""
    step = 1e-6
    here = law(b0, b1)
    assert float(here.p_slope(h)) == pytest.approx(float(here.p(h + step) - here.p(h - step)) / (2 * step), abs=1e-6)
    assert float(here.mean_slope(h)) == pytest.approx(
        float(here.mean(h + step) - here.mean(h - step)) / (2 * step), rel=1e-4, abs=1e-4
    )
    if b0 - b1 * h < 2:
        endless = law(b0, b1, num_offsets=400)
        assert float(endless.mean_slope(h)) == pytest.approx(-b1 * float(endless.mean(h)), rel=1e-6, abs=1e-9)


@given(st.floats(-2, 3), st.floats(0.01, 3), st.floats(0, 6))
def test_no_mean_exceeds_the_cap(b0: float, b1: float, h: float) -> None:
    here = law(b0, b1)
    assert float(here.mean(h)) <= here.cap + 1e-12
    assert here.cap <= here.loose_cap + 1e-12


def test_the_papers_caps() -> None:
    docvqa = law(1.226, 0.95)
    assert docvqa.cap == pytest.approx(3.34, abs=0.005)
    assert docvqa.loose_cap == pytest.approx(3.41, abs=0.005)
    assert docvqa.cap < 5.23  # the floor that the law cannot reach
    assert law(1.169, 1.0).loose_cap == pytest.approx(3.22, abs=0.005)
    assert law(1.504, 1.0).loose_cap == pytest.approx(4.50, abs=0.005)


def test_degenerate_rounds_have_no_fit_and_say_why() -> None:
    h, none = np.linspace(0, 2, 50), np.zeros(50, int)
    assert "ever accepted" in str(fit_law(h, none).degenerate)
    assert "no round ended at a miss" in str(fit_law(h, none + 15).degenerate)
    assert "same entropy" in str(fit_law(none, none + 1).degenerate)
    assert "separates" in str(fit_law(h, np.where(h < 1, 15, 0)).degenerate)
    result = assess(fit_law(h, none), h, none, np.arange(50))
    assert result.verdict == "degenerate"
    assert not result.criteria["not degenerate"]
    rare = np.where(np.arange(400) % 50 == 0, 1, 0)  # a lookup that hardly ever proposes
    h = np.random.default_rng(0).random(400)
    assert assess(fit_law(h, rare), h, rare, np.arange(400)).verdict == "degenerate"


def test_other_block_sizes() -> None:
    rng = np.random.default_rng(0)
    h = rng.exponential(0.6, 5000)
    a = np.cumprod(rng.random((5000, 7)) < expit(1.5 - 0.8 * h)[:, None], axis=1).sum(axis=1)
    found = fit_law(h, a, num_offsets=7)
    assert 1.5 in found.b0
    assert found.cap == pytest.approx(sum(expit(found.b0.value) ** k for k in range(1, 8)))
    assert assess(found, h, a, np.arange(5000) // 50).verdict == "holds"
    with pytest.raises(InputError, match="horizon ≤ 7"):
        fit_law(h, a, horizon=15, num_offsets=7)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="round 1 has entropy -1"):
        fit_law([0.0, -1.0], [1, 1])
    with pytest.raises(InputError, match="2 entropies and 1"):
        fit_law([0.0, 1.0], [1])
    with pytest.raises(InputError, match="unknown estimator"):
        fit_law([0.0, 1.0], [1, 2], method="map")  # type: ignore[arg-type]


def test_bins_are_equal_and_keep_ties_together() -> None:
    codes = entropy_bins(np.random.default_rng(0).permutation(1000).astype(float))
    np.testing.assert_array_equal(np.bincount(codes), np.full(10, 100))
    tied = np.concatenate([np.zeros(400), np.linspace(0.1, 1, 600)])
    codes = entropy_bins(tied)
    assert len(np.unique(codes[:400])) == 1
    assert np.all(np.diff(codes) >= 0)
    assert set(codes) == set(range(codes.max() + 1))


@given(st.lists(st.tuples(st.floats(0, 15), st.integers(1, 50)), min_size=1, max_size=12))
@settings(max_examples=50)
def test_isotonic_is_the_best_decreasing_curve(pairs: list[tuple[float, int]]) -> None:
    means, weights = np.array([m for m, _ in pairs]), np.array([w for _, w in pairs])
    curve = decreasing(means, weights)
    assert np.all(np.diff(curve) <= 1e-9)
    assert np.average(curve, weights=weights) == pytest.approx(np.average(means, weights=weights), abs=1e-9)
    rng = np.random.default_rng(len(pairs))
    for _ in range(5):
        other = np.sort(rng.uniform(0, 15, len(pairs)))[::-1]
        assert (weights * (means - curve) ** 2).sum() <= (weights * (means - other) ** 2).sum() + 1e-9


def test_ceiling_by_hand_and_on_noise() -> None:
    found = noise_ceiling([0, 0, 1, 1], [4, 2, 1, 1], num_bins=2)
    assert found.share == pytest.approx(4 / 6)  # bin means 3 and 1 around 2
    assert found.corrected == pytest.approx((4 - 1) / 6)  # a mean square of 1 within bins
    rng = np.random.default_rng(0)
    noise = noise_ceiling(rng.random(1000), rng.random(1000))
    assert noise.share == pytest.approx(49 / 999, abs=0.03)  # fifty bins explain that much of pure noise
    assert noise.corrected < 0.02
    assert noise.num_bins == 50


def test_ceiling_of_a_geometric_is_low_however_good_the_predictor() -> None:
    """Prop. 2: the fitted law is the truth here, and its round R² is still small."""
    rounds = simulate_rounds(1.0, 0.7, num_rounds=8000, num_prompts=200, seed=5)
    found = assess(fit(rounds), rounds.h_nats, rounds.a, rounds.prompts, horizon=rounds.horizon)
    assert found.curve_r2 > 0.95
    assert found.isotonic_r2 >= found.curve_r2
    assert found.round_r2 < 0.15
    assert found.fraction > 0.8
    assert found.round_r2 == pytest.approx(found.ceiling.corrected, abs=0.02)
    assert found.verdict == "holds"
    assert all(found.criteria.values())
    assert found.long_runs == pytest.approx((rounds.a >= 8).mean())
    assert found.rank_correlation.value == pytest.approx(stats.spearmanr(rounds.h_nats, rounds.a).statistic)
    assert sum(b.num_rounds for b in found.bins) == 8000


def test_verdicts() -> None:
    inverted = simulate_rounds(0.5, -0.8, num_rounds=1500, num_prompts=60, seed=6)
    flat = simulate_rounds(0.5, 0.0, num_rounds=600, num_prompts=30, seed=8)
    for rounds, verdict in ((inverted, "inverted"), (flat, "inconclusive")):
        found = assess(fit(rounds), rounds.h_nats, rounds.a, rounds.prompts, horizon=rounds.horizon)
        assert found.verdict == verdict


def test_no_verdict_without_its_interval() -> None:
    """Each criterion alone can withhold the verdict."""
    rounds = simulate_rounds(1.0, 0.7, num_rounds=2000, num_prompts=80, seed=9)
    fitted = fit(rounds)

    def verdict(law: Law, h_nats: np.ndarray = rounds.h_nats) -> str:
        return assess(law, h_nats, rounds.a, rounds.prompts, horizon=rounds.horizon).verdict

    assert verdict(fitted) == "holds"
    assert verdict(replace(fitted, b1=replace(fitted.b1, low=-0.1))) == "inconclusive"
    assert verdict(replace(fitted, b0=replace(fitted.b0, value=-3.0))) == "inconclusive"  # far off the curve
    backwards = rounds.h_nats.max() - rounds.h_nats
    rising = fit_law(backwards, rounds.a, horizon=rounds.horizon, prompts=rounds.prompts)
    assert verdict(rising, backwards) == "inverted"
    assert verdict(replace(rising, b1=replace(rising.b1, high=0.1)), backwards) == "inconclusive"


def test_r_squared() -> None:
    assert r_squared([1, 2, 3], [1, 2, 3]) == 1.0
    assert r_squared([1, 2, 3], [2, 2, 2]) == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(r_squared([2, 2], [1, 3]))


def test_sandwich_agrees_with_resampling_prompts() -> None:
    rounds = simulate_rounds(1.0, 0.8, num_rounds=800, num_prompts=60, prompt_spread=0.4, seed=11)
    found = fit(rounds).b1
    rng = np.random.default_rng(0)
    own = [np.flatnonzero(rounds.prompts == prompt) for prompt in np.unique(rounds.prompts)]
    slopes = []
    for _ in range(200):
        rows = np.concatenate([own[i] for i in rng.integers(0, len(own), len(own))])
        slopes.append(fit_law(rounds.h_nats[rows], rounds.a[rows]).b1.value)
    assert (found.high - found.low) / 4 == pytest.approx(np.std(slopes), rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_intervals_cover_where_rounds_of_a_prompt_are_alike(method: str) -> None:
    """95 % intervals of the slope, 40 prompts that each have an intercept of their own."""
    hits = 0
    for seed in range(100):
        rounds = simulate_rounds(1.0, 0.8, num_rounds=600, num_prompts=40, prompt_spread=0.3, cut_share=0.1, seed=seed)
        hits += 0.8 in fit(rounds, method).b1
    assert 0.90 <= hits / 100 <= 0.99
