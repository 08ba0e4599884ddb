"""What theory says beside the fit: Fano (Prop. 1 i), the temperature family (Prop. 1), and the brackets of Fig. 4."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr, logsumexp
from scipy.stats import linregress

from oneglance.core import InputError
from oneglance.stats.bootstrap import Array
from oneglance.stats.geometric import L
from oneglance.stats.law import Law

WINDOW_NATS = (0.05, 1.2)  # the resolvable window of Prop. 1
ADAEDL_GAMMA = 0.5  # ours, see adaedl_lower_bound
SHAPES = ("zipf", "geometric", "near_binary")


@dataclass(frozen=True, slots=True)
class FanoCheck:
    """Rows whose entropy and top probability cannot belong to one distribution.

    Attributes:
        num_rows: checked.
        violations: row indices, empty when the log is sound.
        smallest_slack_nats: distance of the closest row to the upper bound.
    """

    num_rows: int
    violations: tuple[int, ...]
    smallest_slack_nats: float


@dataclass(frozen=True, slots=True)
class TemperatureFamily:
    """logit of the top probability against entropy, over one shape's temperatures.

    Attributes:
        shape: of the logits.
        kappa: minus the slope, the target's self-confidence per nat.
        intercept, r2: of the same line.
        num_points: temperatures inside the window.
    """

    shape: str
    kappa: float
    intercept: float
    r2: float
    num_points: int

    def drafter_scale(self, offset_slope: float) -> float:
        """s = κ / b1, from the slope of offset 1 (not the b1 of Table 12)."""
        return self.kappa / offset_slope


@dataclass(frozen=True, slots=True)
class Brackets:
    """A law between its bounds on a grid of entropies (Fig. 4).

    Attributes:
        h_nats, lower, fitted, upper: (G,).
        holds: (G,) lower ≤ fitted ≤ upper.
    """

    h_nats: Array
    lower: Array
    fitted: Array
    upper: Array
    holds: NDArray[np.bool_]


def fano_bound(p_max: ArrayLike, num_tokens: int) -> Array:
    """The largest entropy in nats with that top probability: H_b(e) + e log(V - 1), e = 1 - p_max."""
    top = np.asarray(p_max, float)
    error = 1.0 - top
    result: Array = entr(error) + entr(top) + error * np.log(num_tokens - 1)
    return result


def check_fano(h_nats: ArrayLike, p_max: ArrayLike, *, num_tokens: int, tolerance_nats: float = 1e-4) -> FanoCheck:
    """Check every row: -log p_max ≤ H ≤ Fano's bound (Prop. 1 i).

    Args:
        h_nats, p_max: (R,) of the same rows of the target.
        num_tokens: size of the vocabulary.
        tolerance_nats: for rounding in the logged floats.
    """
    entropy, top = np.asarray(h_nats, float), np.asarray(p_max, float)
    slack = fano_bound(top, num_tokens) - entropy
    with np.errstate(divide="ignore"):
        too_low = entropy + np.log(top) < -tolerance_nats
    wrong = np.flatnonzero((slack < -tolerance_nats) | too_low | ~((top > 0) & (top <= 1 + 1e-6)))
    return FanoCheck(entropy.size, tuple(int(row) for row in wrong), float(slack.min(initial=np.inf)))


def shape_logits(shape: str, num_tokens: int = 1000) -> Array:
    """(V,) logits of a named shape at temperature one, best first: Zipf, constant gaps, or two tokens above a tail."""
    ranks = np.arange(1, num_tokens + 1, dtype=float)
    if shape == "zipf":
        zipf: Array = -np.log(ranks)
        return zipf
    if shape == "geometric":
        return 1.0 - ranks
    if shape == "near_binary":
        return np.where(ranks == 1, 0.0, np.where(ranks == 2, -0.9, -8.0))
    raise InputError(f"unknown shape {shape!r}; choose one of {', '.join(SHAPES)}")


def temperature_family(
    shape: str,
    *,
    num_tokens: int = 1000,
    betas: ArrayLike | None = None,
    window_nats: tuple[float, float] = WINDOW_NATS,
) -> TemperatureFamily:
    """Scale a shape by inverse temperatures and fit logit p_(1) on H inside the window (Prop. 1).

    κ and R² depend on how the temperatures are spaced; the paper does not say, ours are log-spaced.
    """
    logits = shape_logits(shape, num_tokens)
    scales = np.logspace(-2, 3, 2000) if betas is None else np.asarray(betas, float)
    log_p = scales[:, None] * logits  # (T, V)
    log_p -= logsumexp(log_p, axis=1, keepdims=True)
    entropy = entr(np.exp(log_p)).sum(axis=1)
    odds = log_p[:, 0] - logsumexp(log_p[:, 1:], axis=1)
    inside = (entropy >= window_nats[0]) & (entropy <= window_nats[1])
    if inside.sum() < 3:
        raise InputError("fewer than three temperatures fall inside the entropy window; give more betas")
    line = linregress(entropy[inside], odds[inside])
    return TemperatureFamily(shape, -float(line.slope), float(line.intercept), float(line.rvalue**2), int(inside.sum()))


def adaedl_lower_bound(h_nats: ArrayLike, *, gamma: float = ADAEDL_GAMMA) -> Array:
    """AdaEDL's bound 1 - √(γH) on the acceptance of one token, read as a bound on E[a | H].

    The paper draws the bound without its constant. γ = ½ is ours: Pinsker's inequality with the draft's divergence
    taken as the entropy. E[a] ≥ P(a ≥ 1), so the one-token bound is a bound on the mean. Raised to a whole chain it
    would reach L at H = 0, above every law with a finite intercept, so that reading cannot be the one of Fig. 4.
    """
    bound: Array = np.maximum(0.0, 1.0 - np.sqrt(gamma * np.asarray(h_nats, float)))
    return bound


def verification_ceiling(h_nats: ArrayLike, budget: int, *, num_offsets: int = L) -> Array:
    """2 log N / H, at most L (Fig. 4)."""
    with np.errstate(divide="ignore"):
        ceiling: Array = np.minimum(num_offsets, 2.0 * np.log(budget) / np.asarray(h_nats, float))
    return ceiling


def brackets(law: Law, h_nats: ArrayLike, *, budget: int = 31, gamma: float = ADAEDL_GAMMA) -> Brackets:
    """A law and its two bounds at the given entropies."""
    entropy = np.asarray(h_nats, float)
    lower = adaedl_lower_bound(entropy, gamma=gamma)
    upper = verification_ceiling(entropy, budget, num_offsets=law.num_offsets)
    fitted = law.mean(entropy)
    return Brackets(entropy, lower, fitted, upper, (lower <= fitted) & (fitted <= upper))
