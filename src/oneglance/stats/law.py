"""The entropy law (Eq. 2): logit p = b0 - b1·H, E[a | H] = M(p), fitted to rounds.

Two estimators. ``ml`` maximises the likelihood of truncated-geometric runs with censoring, which is logistic
regression on every match and miss. ``ls`` minimises squares of a against M(p; horizon), so that a text's end shortens
the prediction as it shortens the run. ``ml`` is the default: on rounds that follow the law its slope varies by a fifth
to two fifths less, and both intervals cover. Where copying stretches the floor beyond any law, ``ls`` follows the
conditional mean more closely (rms 1.1 against 1.4 tokens) with a slope five times as unsteady.
``benchmarks/law_estimators.md`` has the simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares, minimize
from scipy.special import expit, logit

from oneglance.core import InputError
from oneglance.stats.bootstrap import LEVEL, NAN, Array, Interval, sandwich, t_intervals
from oneglance.stats.geometric import L, Runs, mean_length, mean_length_derivative, runs

Method = Literal["ml", "ls"]
DEFAULT_METHOD: Method = "ml"
TOO_STEEP = 50.0  # a coefficient of this size is a fit that ran off to separation
NOWHERE = Interval(NAN, NAN, NAN)


@dataclass(frozen=True, slots=True)
class Law:
    """A fitted law.

    Attributes:
        b0, b1: intercept at zero entropy and slope per nat, with intervals that sum scores over prompts.
        method: ``ml`` or ``ls``.
        num_rounds, num_prompts: what it was fitted to.
        num_offsets: L.
        degenerate: why there is no fit, or None.
    """

    b0: Interval
    b1: Interval
    method: Method
    num_rounds: int
    num_prompts: int
    num_offsets: int = L
    degenerate: str | None = None

    def p(self, h_nats: ArrayLike) -> Array:
        """Match probability at that entropy."""
        result: Array = expit(self.b0.value - self.b1.value * np.asarray(h_nats, float))
        return result

    def mean(self, h_nats: ArrayLike, horizon: ArrayLike | None = None) -> Array:
        """E[a | H], truncated at L or at each round's own horizon."""
        return mean_length(self.p(h_nats), self.num_offsets if horizon is None else horizon)

    def p_slope(self, h_nats: ArrayLike) -> Array:
        """∂p/∂H = -b1 p (1 - p) (Corollary, B.2)."""
        p = self.p(h_nats)
        return -self.b1.value * p * (1 - p)

    def mean_slope(self, h_nats: ArrayLike) -> Array:
        """∂E/∂H of the truncated mean; for L → ∞ it is -b1 E."""
        return mean_length_derivative(self.p(h_nats), self.num_offsets) * self.p_slope(h_nats)

    @property
    def cap(self) -> float:
        """M(σ(b0)), the law's mean at zero entropy: what no round can exceed on average (Thm. 2 A)."""
        return float(mean_length(expit(self.b0.value), self.num_offsets))

    @property
    def loose_cap(self) -> float:
        """e^b0, the cap without truncation."""
        return float(np.exp(self.b0.value))


def law(b0: float, b1: float, *, num_offsets: int = L) -> Law:
    """A law of given coefficients, as printed in a table."""
    return Law(Interval(b0, NAN, NAN), Interval(b1, NAN, NAN), DEFAULT_METHOD, 0, 0, num_offsets)


def fit_law(
    h_nats: ArrayLike,
    a: ArrayLike,
    *,
    horizon: ArrayLike | None = None,
    prompts: ArrayLike | None = None,
    method: Method = DEFAULT_METHOD,
    num_offsets: int = L,
    level: float = LEVEL,
) -> Law:
    """Fit the law to rounds.

    Args:
        h_nats: (R,) entropy at the root.
        a: (R,) accepted length.
        horizon: (R,) or one number: the longest length each round could have had; None for L.
        prompts: (R,) names; None takes rounds as independent.
        method: estimator.
        num_offsets: L.
        level: of the intervals.
    """
    entropy = checked_entropy(h_nats)
    observed = runs(a, num_offsets if horizon is None else horizon, num_offsets=num_offsets)
    if entropy.shape != observed.a.shape:
        raise InputError(f"{entropy.size} entropies and {observed.a.size} accepted lengths; give as many of each")
    if method not in ("ml", "ls"):
        raise InputError(f"unknown estimator {method!r}; choose ml or ls")
    names = np.arange(entropy.size) if prompts is None else np.asarray(prompts)
    result = Law(NOWHERE, NOWHERE, method, entropy.size, len(np.unique(names)), num_offsets)
    reason = _no_fit(entropy, observed)
    if reason is not None:
        return replace(result, degenerate=reason)
    design = np.stack([np.ones(entropy.size), -entropy], axis=1)  # (R, 2)
    found = _maximum_likelihood(design, observed)
    if method == "ls":
        found = _least_squares(design, observed, found)
    if not np.all(np.isfinite(found)) or np.abs(found).max() > TOO_STEEP:
        return replace(result, degenerate="entropy separates matches from misses, so the slope has no finite estimate")
    bread, scores = (_likelihood_scores if method == "ml" else _square_scores)(design, observed, found)
    covariance, num_groups = sandwich(bread, scores, names)
    b0, b1 = t_intervals(found, covariance, num_groups, level=level)
    return replace(result, b0=b0, b1=b1)


def fit_offset_slope(h_nats: ArrayLike, is_match: ArrayLike, *, prompts: ArrayLike | None = None) -> Law:
    """The law of one offset: logistic regression of its match on entropy (offset 1 gives s = κ / b1, Prop. 1)."""
    matched = np.asarray(is_match).astype(int)
    return fit_law(h_nats, matched, horizon=1, prompts=prompts, num_offsets=1)


def checked_entropy(h_nats: ArrayLike) -> Array:
    """(R,) entropies.

    Raises:
        InputError: one is negative or not finite.
    """
    entropy = np.asarray(h_nats, float)
    wrong = np.flatnonzero(~np.isfinite(entropy) | (entropy < 0))
    if wrong.size:
        raise InputError(f"round {int(wrong[0])} has entropy {entropy[wrong[0]]}; need a finite number of nats ≥ 0")
    return entropy


def _no_fit(entropy: Array, observed: Runs) -> str | None:
    if entropy.size < 2 or np.ptp(entropy) == 0:
        return "all rounds have the same entropy, so there is no slope"
    if observed.a.sum() == 0:
        return "no token was ever accepted"
    if observed.misses.sum() == 0:
        return "no round ended at a miss"
    return None


def _maximum_likelihood(design: Array, observed: Runs) -> Array:
    matches, trials = observed.a, observed.a + observed.misses

    def loss(b: Array) -> float:
        z = design @ b
        return float((trials * np.logaddexp(0.0, z) - matches * z).sum())

    def gradient(b: Array) -> Array:
        result: Array = design.T @ (trials * expit(design @ b) - matches)
        return result

    def curvature(b: Array) -> Array:
        p = expit(design @ b)
        result: Array = design.T @ (design * (trials * p * (1 - p))[:, None])
        return result

    start = np.array([logit(matches.sum() / trials.sum()), 0.0])
    found = minimize(loss, start, jac=gradient, hess=curvature, method="trust-exact", options={"maxiter": 100})
    result: Array = found.x
    return result


def _least_squares(design: Array, observed: Runs, start: Array) -> Array:
    def residuals(b: Array) -> Array:
        result: Array = mean_length(expit(design @ b), observed.horizon) - observed.a
        return result

    def jacobian(b: Array) -> Array:
        return design * _mean_by_logit(design @ b, observed)[:, None]

    found = least_squares(residuals, np.clip(start, -TOO_STEEP, TOO_STEEP), jac=jacobian, x_scale="jac")
    result: Array = found.x
    return result


def _mean_by_logit(z: Array, observed: Runs) -> Array:
    p = expit(z)
    result: Array = mean_length_derivative(p, observed.horizon) * p * (1 - p)
    return result


def _likelihood_scores(design: Array, observed: Runs, found: Array) -> tuple[Array, Array]:
    trials, p = observed.a + observed.misses, expit(design @ found)
    bread = design.T @ (design * (trials * p * (1 - p))[:, None])
    return bread, design * (observed.a - trials * p)[:, None]


def _square_scores(design: Array, observed: Runs, found: Array) -> tuple[Array, Array]:
    z = design @ found
    slope = design * _mean_by_logit(z, observed)[:, None]
    left = observed.a - mean_length(expit(z), observed.horizon)
    return slope.T @ slope, slope * left[:, None]
