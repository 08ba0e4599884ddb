"""The truncated geometric against brute force and the paper's printed numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from oneglance.core import InputError
from oneglance.stats.geometric import (
    Runs,
    fit_hazard,
    log_likelihood,
    mean_length,
    mean_length_derivative,
    runs,
    sample,
    survival,
)

probabilities = st.floats(0, 1)
horizons = st.integers(1, 20)


@given(probabilities, horizons)
@settings(max_examples=60)
def test_mean_is_the_sum_of_powers(p: float, horizon: int) -> None:
    assert float(mean_length(p, horizon)) == pytest.approx(sum(p**k for k in range(1, horizon + 1)))
    assert float(mean_length_derivative(p, horizon)) == pytest.approx(
        sum(k * p ** (k - 1) for k in range(1, horizon + 1))
    )


@given(st.floats(0, 0.999), horizons)
def test_mean_is_the_closed_form_below_its_bound(p: float, horizon: int) -> None:
    mean = float(mean_length(p, horizon))
    assert mean == pytest.approx(p * (1 - p**horizon) / (1 - p))
    assert mean <= p / (1 - p) * (1 + 1e-12)


@given(st.lists(probabilities, min_size=1, max_size=50), horizons)
@settings(max_examples=25)
def test_the_mean_grows_with_p(p: list[float], horizon: int) -> None:
    assert np.all(np.diff(mean_length(np.sort(p), horizon)) >= 0)


def test_the_papers_truncation_errors() -> None:
    """§B.2: 0.002, 0.035, 0.206 at p = 0.65, 0.80, 0.90."""
    np.testing.assert_allclose(np.array([0.65, 0.80, 0.90]) ** 15, [0.0016, 0.0352, 0.2059], atol=5e-5)
    for p in (0.65, 0.80, 0.90):
        full = p / (1 - p)
        assert 1 - float(mean_length(p)) / full == pytest.approx(p**15)


def test_each_round_has_its_own_horizon() -> None:
    np.testing.assert_allclose(mean_length([0.5, 0.5, 1.0], [1, 2, 7]), [0.5, 0.75, 7.0])


def test_likelihood_by_hand() -> None:
    observed = Runs(np.array([0, 2, 3]), np.array([15, 2, 15]))  # a miss at once; cut after two; three, then a miss
    curve = survival(0.7)
    by_hand = np.log(0.3) + np.log(0.7**2) + np.log(0.7**3 * 0.3)
    assert log_likelihood(curve, observed) == pytest.approx(by_hand)
    assert fit_hazard(observed) == pytest.approx(5 / 7)


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(1, 15)), min_size=1, max_size=30))
@settings(max_examples=40)
def test_hazard_is_the_maximum(pairs: list[tuple[int, int]]) -> None:
    observed = Runs(np.array([min(a, h) for a, h in pairs]), np.array([h for _, h in pairs]))
    best = fit_hazard(observed)
    for p in np.linspace(0.05, 0.95, 10):
        with np.errstate(invalid="ignore"):
            assert log_likelihood(survival(best), observed) >= log_likelihood(survival(p), observed) - 1e-9


def test_samples_follow_the_curve() -> None:
    observed = sample(survival(0.7), np.full(40_000, 15), np.random.default_rng(0))
    assert observed.a.mean() == pytest.approx(float(mean_length(0.7)), abs=0.05)
    assert (observed.a >= 5).mean() == pytest.approx(0.7**5, abs=0.01)


@pytest.mark.parametrize(
    ("a", "horizon", "says"),
    [
        ([3], [2], "round 0 has accepted length 3 with horizon 2"),
        ([1, -1], 15, "round 1 has accepted length -1"),
        ([0], [0], "horizon 0"),
        ([0], [16], r"1 ≤ horizon ≤ 15"),
        ([1.5], 15, "whole numbers"),
        ([1, 2], [15], "two equal rows"),
    ],
)
def test_impossible_runs_are_refused(a: list[float], horizon: list[int] | int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        runs(a, horizon)


def test_caps_of_the_paper() -> None:
    """Thm. 2: e^1.226 = 3.41 and M(σ(1.226)) = 3.34; caps 3.22 and 4.50 belong to b0 = 1.169 and 1.504."""
    assert np.exp(1.226) == pytest.approx(3.4076, abs=1e-4)
    assert float(mean_length(expit(1.226))) == pytest.approx(3.3358, abs=1e-4)
    assert float(mean_length(expit(np.log(3.22)))) == pytest.approx(3.164, abs=1e-3)
    assert float(mean_length(expit(np.log(4.50)))) == pytest.approx(4.278, abs=1e-3)
