"""The two-state floor: closed form against simulation, identifiability, tests, held-out comparison."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad
from scipy.stats import chi2

from oneglance.core import InputError
from oneglance.stats.geometric import Runs, fit_hazard, log_likelihood, mean_length, sample, survival
from oneglance.stats.law import fit_law, law
from oneglance.stats.tail import (
    assess_tail,
    chi_square,
    expected_counts,
    floor_rounds,
    held_out,
    likelihood_ratio,
    pool,
)
from oneglance.stats.two_state import TwoState, _counts, _equals, _loss, copy_threshold, fit_two_state, ridge
from simulate import simulate_rounds

COPYING = TwoState(pi=0.4, rho_d=0.97, rho_u=0.5, stay_d=0.95, stay_u=0.8)
units = st.floats(0.02, 0.98)
models = st.builds(TwoState, units, units, units, units, units)


def simulate(model: TwoState, num_rounds: int, seed: int, *, horizon: int = 15) -> np.ndarray:
    """Runs of the chain, state by state."""
    rng = np.random.default_rng(seed)
    lengths = np.zeros(num_rounds, int)
    for i in range(num_rounds):
        in_d = rng.random() < model.pi
        while lengths[i] < horizon and rng.random() < (model.rho_d if in_d else model.rho_u):
            lengths[i] += 1
            in_d = rng.random() < (model.stay_d if in_d else 1 - model.stay_u)
    return lengths


def by_paths(model: TwoState, length: int) -> float:
    """P(a ≥ length), summed over all paths of states."""
    total = 0.0
    for states in itertools.product((0, 1), repeat=length):
        rho = (model.rho_d, model.rho_u)
        turn = ((model.stay_d, 1 - model.stay_d), (1 - model.stay_u, model.stay_u))
        chance = (model.pi, 1 - model.pi)[states[0]]
        for here, there in itertools.pairwise(states):
            chance *= rho[here] * turn[here][there]
        total += chance * rho[states[-1]]
    return total


@given(models)
@settings(max_examples=20)
def test_survival_sums_over_paths(model: TwoState) -> None:
    curve = model.survival()
    for length in (1, 2, 5):
        assert curve[length] == pytest.approx(by_paths(model, length))
    assert np.all(np.diff(curve) <= 1e-12)
    np.testing.assert_allclose(model.ordered().survival(), curve)
    assert model.ordered().rho_d >= model.ordered().rho_u


def test_survival_against_simulation() -> None:
    lengths = simulate(COPYING, 20_000, 0)
    for offset in (1, 4, 15):
        assert (lengths >= offset).mean() == pytest.approx(COPYING.survival()[offset], abs=0.012)
    assert COPYING.mean() == pytest.approx(lengths.mean(), abs=0.15)


@given(units, units, units)
@settings(max_examples=20)
def test_equal_emissions_are_the_geometric(rho: float, pi: float, stay: float) -> None:
    model = TwoState(pi, rho, rho, stay, 1 - stay / 2)
    np.testing.assert_allclose(model.survival(), survival(rho), atol=1e-12)


def test_certain_copying_reaches_the_papers_limit() -> None:
    """ρ_D, t_DD → 1 gives πL + (1 - π)M(ρ_U), over e^b0 exactly above π* (Thm. 2 B)."""
    model = TwoState(0.3, 1.0, 0.6, 1.0, 1.0)
    assert model.mean() == pytest.approx(0.3 * 15 + 0.7 * float(mean_length(0.6)))
    star = copy_threshold(1.226, 0.6)
    assert 0 < star < 1
    for pi, is_above in ((star - 1e-6, False), (star + 1e-6, True)):
        assert bool(TwoState(pi, 1.0, 0.6, 1.0, 1.0).mean() > np.exp(1.226)) == is_above


@given(models)
@settings(max_examples=20)
def test_run_lengths_identify_three_numbers(model: TwoState) -> None:
    """Every equal found has the same survival curve; so do trace, determinant and first survival alone."""
    curve = model.survival()
    trace, det = np.trace(model.kernel), np.linalg.det(model.kernel)
    for length in range(1, 15):
        assert curve[length + 1] == pytest.approx(trace * curve[length] - det * curve[length - 1], abs=1e-12)
    for other in _equals(model.ordered(), 20):
        np.testing.assert_allclose(TwoState(*other).survival(), curve, atol=1e-9)


def test_ridge_shows_that_pi_is_open() -> None:
    found = ridge(COPYING)
    assert found.pi[0] <= COPYING.pi <= found.pi[1]
    assert found.pi[1] - found.pi[0] > 0.2


@given(models, st.integers(0, 99))
@settings(max_examples=15)
def test_gradient(model: TwoState, seed: int) -> None:
    rng = np.random.default_rng(seed)
    exact, censored = _counts(Runs(rng.integers(0, 8, 40), rng.integers(8, 16, 40)), 15)
    point = np.array([model.pi, model.rho_d, model.rho_u, model.stay_d, model.stay_u])
    loss, gradient = _loss(point, exact, censored)
    off = check_grad(
        lambda x: _loss(x, exact, censored)[0], lambda x: _loss(x, exact, censored)[1], point, epsilon=1e-7
    )
    assert off < 1e-3 * (1 + np.abs(gradient).max())
    assert np.isfinite(loss)


def test_planted_survival_comes_back_with_and_without_cuts() -> None:
    horizon = np.where(np.random.default_rng(1).random(6000) < 0.4, 4, 15)
    observed = sample(COPYING.survival(), horizon, np.random.default_rng(2))
    found = fit_two_state(observed)
    np.testing.assert_allclose(found.model.survival(), COPYING.survival(), atol=0.025)
    assert found.model.mean() == pytest.approx(COPYING.mean(), abs=0.2)
    assert found.log_likelihood >= log_likelihood(COPYING.survival(), observed)
    assert found.best_starts >= 2
    assert found.model.rho_d >= found.model.rho_u


def test_fits_do_not_depend_on_the_starts() -> None:
    observed = sample(COPYING.survival(), np.full(2000, 15), np.random.default_rng(3))
    one, two = (fit_two_state(observed, starts=starts) for starts in (2, 6))
    assert one.log_likelihood == pytest.approx(two.log_likelihood, abs=1e-3)
    np.testing.assert_allclose(one.model.survival(), two.model.survival(), atol=2e-3)
    assert one.model.rho_d == pytest.approx(two.model.rho_d, abs=0.006)
    assert one.model.rho_d == ridge(one.model).rho_d[1]  # of all equals, the nearest to copying


@given(st.integers(0, 50))
@settings(max_examples=10)
def test_two_states_never_fit_worse_than_one(seed: int) -> None:
    observed = sample(survival(0.7), np.full(60, 15), np.random.default_rng(seed))
    assert fit_two_state(observed, starts=2).log_likelihood >= log_likelihood(survival(fit_hazard(observed)), observed)


def test_expected_counts_by_hand() -> None:
    curve = survival(0.5, 3)  # 1, ½, ¼, ⅛
    np.testing.assert_allclose(expected_counts(curve, np.array([3, 3])), [1, 0.5, 0.25, 0.25])
    np.testing.assert_allclose(expected_counts(curve, np.array([1])), [0.5, 0.5, 0, 0])
    assert expected_counts(curve, np.array([1, 2, 3, 3])).sum() == pytest.approx(4)


def test_cells_are_pooled_to_five() -> None:
    assert pool([9, 4, 3, 2, 1, 0.5]) == (0, 1)
    assert pool([9, 4, 3, 6, 1, 0.5]) == (0, 1, 3)
    assert pool([1, 1]) == (0,)


def test_chi_square_by_hand() -> None:
    observed = Runs(np.array([0] * 30 + [1] * 10 + [2] * 10), np.full(50, 15))
    found = chi_square(observed, survival(0.5), fitted=1, cells=(0, 1, 2))
    assert found.statistic == pytest.approx(5**2 / 25 + 2.5**2 / 12.5 + 2.5**2 / 12.5, rel=1e-3)
    assert found.df == 1
    assert np.isnan(chi_square(observed, survival(0.5), fitted=2, cells=(0, 1, 2)).p)


@pytest.mark.parametrize(
    ("statistic", "df", "p"), [(105.3, 7, 8.65e-20), (86.5, 4, 7.29e-18), (29.6, 3, 1.68e-6), (6.1, 7, 0.528)]
)
def test_the_papers_tail_probabilities(statistic: float, df: int, p: float) -> None:
    assert chi2.sf(statistic, df) == pytest.approx(p, rel=0.01)


def test_the_papers_degrees_of_freedom() -> None:
    """Nine cells leave 7 for one hazard, 3 for five parameters, and 5 for the three that run lengths identify."""
    cells = tuple(range(9))
    observed = sample(survival(0.7), np.full(122, 15), np.random.default_rng(0))
    assert [chi_square(observed, survival(0.7), fitted=k, cells=cells).df for k in (1, 5, 3)] == [7, 3, 5]


def test_power_on_a_floor_of_the_papers_size() -> None:
    """122 rounds that copy are told from one hazard; the χ²₄ figure and the bootstrap agree when the case is clear."""
    observed = sample(COPYING.survival(), np.full(122, 15), np.random.default_rng(4))
    found = likelihood_ratio(observed, resamples=39)
    assert found.statistic > 10
    assert found.p_bootstrap == pytest.approx(1 / 40)
    assert found.p_chi2 < 0.05
    assert chi_square(observed, survival(fit_hazard(observed)), fitted=1).p < 0.05


def test_held_out_prefers_two_states_where_rounds_copy() -> None:
    observed = sample(COPYING.survival(), np.full(1000, 15), np.random.default_rng(5))
    found = held_out(observed, np.arange(1000) % 50)
    assert [split.name for split in found.splits] == ["first half", "second half", *(f"fold {k}" for k in range(1, 6))]
    assert found.wins >= 6
    assert found.mean_two_state < found.mean_single
    assert sum(split.num_rounds for split in found.splits[:2]) == 1000
    assert sum(split.num_rounds for split in found.splits[2:]) == 1000
    assert all(split.two_state.cells == split.single.cells for split in found.splits)
    assert all(min(s.two_state.smallest_expected, s.single.smallest_expected) >= 5 for s in found.splits)
    first = found.splits[0]
    assert first.mean_seen.low < first.mean_two_state < first.mean_seen.high
    with pytest.raises(InputError, match="9 prompts are too few"):
        held_out(observed, np.arange(1000) % 9)


def test_floor_is_the_bottom_decile() -> None:
    h = np.random.default_rng(0).permutation(200) / 100
    assert sorted(h[floor_rounds(h)]) == pytest.approx(np.arange(20) / 100)
    assert floor_rounds([0.0] * 5 + [1.0] * 5).size == 5  # ties come along


def test_a_whole_tail_with_copying_and_without() -> None:
    rounds = simulate_rounds(1.2, 0.9, num_rounds=3000, num_prompts=60, copy_share=0.5, seed=6)
    fit = fit_law(rounds.h_nats, rounds.a, horizon=rounds.horizon, prompts=rounds.prompts)
    found = assess_tail(fit, rounds.h_nats, rounds.a, rounds.prompts, horizon=rounds.horizon, resamples=19)
    assert found.num_rounds == 300
    assert found.exceeds_cap
    assert found.floor_mean.value > found.loose_cap > found.cap
    assert found.ratio.p_bootstrap == 0.05
    assert found.chi_single.p < 0.01
    assert found.chi_two_state.df == found.chi_two_state_paper.df + 2
    assert found.fit.model.mean() == pytest.approx(found.floor_mean.value, abs=0.3)
    assert found.held_out is not None
    assert found.above_threshold in (True, None)
    plain = simulate_rounds(1.2, 0.9, num_rounds=1500, num_prompts=40, seed=7)
    under = assess_tail(law(1.2, 0.9), plain.h_nats, plain.a, plain.prompts, horizon=plain.horizon, resamples=19)
    assert not under.exceeds_cap
    assert under.ratio.p_bootstrap > 0.05


def test_a_floor_without_a_miss_is_refused() -> None:
    with pytest.raises(InputError, match="no match or no miss"):
        assess_tail(law(1.0, 1.0), [0.0, 1.0], [15, 1], ["a", "b"])


@pytest.mark.slow
def test_size_of_the_bootstrap_and_of_chi_square_on_one_hazard() -> None:
    """Under one hazard the bootstrap p rejects at its level; χ²₄ rejects less often than it says."""
    rejected = {"bootstrap": 0, "chi2": 0}
    for seed in range(16):
        observed = sample(survival(0.77), np.full(122, 15), np.random.default_rng(1000 + seed))
        found = likelihood_ratio(observed, resamples=19, seed=seed)
        rejected["bootstrap"] += found.p_bootstrap <= 0.10
        rejected["chi2"] += found.p_chi2 <= 0.10
    assert rejected["bootstrap"] <= 5
    assert rejected["chi2"] <= rejected["bootstrap"]
