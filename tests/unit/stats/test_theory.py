"""Fano, the temperature family and the brackets of Fig. 4."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import entropy

from oneglance.core import InputError
from oneglance.stats.law import law
from oneglance.stats.theory import (
    adaedl_lower_bound,
    brackets,
    check_fano,
    fano_bound,
    shape_logits,
    temperature_family,
    verification_ceiling,
)


@given(st.integers(0, 1000), st.integers(2, 60), st.floats(0.01, 20))
@settings(max_examples=50)
def test_every_distribution_obeys_fano(seed: int, num_tokens: int, scale: float) -> None:
    p = softmax(np.random.default_rng(seed).normal(0, scale, (3, num_tokens)), axis=1)
    found = check_fano(entropy(p, axis=1), p.max(axis=1), num_tokens=num_tokens, tolerance_nats=1e-9)
    assert found.violations == ()
    assert found.smallest_slack_nats >= -1e-9


def test_fano_is_tight_where_the_rest_is_flat() -> None:
    p = np.array([0.6, *[0.1] * 4])
    assert float(fano_bound(0.6, 5)) == pytest.approx(entropy(p))


def test_rows_that_no_distribution_has_are_named() -> None:
    # fine; more entropy than two tokens can have; less than its top probability allows; no probability
    found = check_fano([0.3, 0.9, 0.1, 0.2], [0.9, 0.9, 0.5, 1.2], num_tokens=2)
    assert found.violations == (1, 2, 3)
    assert found.num_rows == 4
    assert check_fano([0.0], [1.0], num_tokens=10).violations == ()


@pytest.mark.parametrize(
    ("shape", "kappa", "r2"), [("zipf", 3.23, 0.879), ("geometric", 3.44, 0.910), ("near_binary", 3.82, 0.800)]
)
def test_temperature_family(shape: str, kappa: float, r2: float) -> None:
    """The paper: κ ≈ 3.2 to 3.9, R² 0.84 to 0.90; the figures here are for V = 1000 and log-spaced temperatures."""
    found = temperature_family(shape)
    assert found.kappa == pytest.approx(kappa, abs=0.05)
    assert found.r2 == pytest.approx(r2, abs=0.01)
    assert 3.2 < found.kappa < 3.9
    assert found.num_points > 100


def test_drafter_scale() -> None:
    found = temperature_family("zipf")
    assert found.drafter_scale(0.95) == pytest.approx(found.kappa / 0.95)
    assert pytest.approx(0.94, abs=0.01) == 3.2 / 3.4  # s = 3.4 on captioning needs an offset-1 slope near one


def test_unknown_shapes_and_empty_windows_are_refused() -> None:
    with pytest.raises(InputError, match="zipf, geometric, near_binary"):
        shape_logits("flat")
    with pytest.raises(InputError, match="fewer than three"):
        temperature_family("zipf", betas=[100.0])


def test_ceiling_and_lower_bound() -> None:
    assert 2 * np.log(31) == pytest.approx(6.868, abs=5e-4)
    np.testing.assert_allclose(verification_ceiling([1.0, 2.0, 0.0, 0.1], 31), [6.868, 3.434, 15, 15], atol=1e-3)
    np.testing.assert_allclose(adaedl_lower_bound([0.0, 0.5, 2.0, 9.0]), [1, 0.5, 0, 0])
    assert float(adaedl_lower_bound(1.0, gamma=0.25)) == 0.5


@pytest.mark.parametrize(("b0", "b1"), [(0.96, 0.63), (1.226, 0.95), (1.504, 1.71)])
def test_published_laws_lie_within_their_brackets(b0: float, b1: float) -> None:
    found = brackets(law(b0, b1), np.linspace(0.01, 3, 50), budget=31)
    assert found.holds.mean() > 0.9
    assert np.all(found.fitted <= found.upper)
