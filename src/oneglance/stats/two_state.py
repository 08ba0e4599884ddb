"""Two-state survival (Asm. 3, Eq. 4): copying (D) or uncertain (U), a hidden chain that a miss ends.

Run lengths identify three of the five parameters' worth, no more: with S(0) = 1, every survival curve of the family
obeys S(ℓ+1) = tr(K) S(ℓ) - det(K) S(ℓ-1), so S(1), tr(K) and det(K) fix it, and the likelihood is flat over a surface
of parameter vectors. Where copying stretches the tail, a mixture of two hazards without any switching (T = 1) is among
them: run lengths cannot show that a round *changes* state. ``fit_two_state`` returns the vector nearest to verbatim
copying (largest ρ_D, then largest t_DD); ``Ridge`` says how far each parameter moves over the surface. Survival, mean
and likelihood are the same all over it.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cache
from itertools import product

import numpy as np
from scipy.optimize import minimize

from oneglance.stats.bootstrap import Array
from oneglance.stats.geometric import L, Runs, fit_hazard, log_likelihood

NUM_PARAMETERS = 5
NUM_IDENTIFIED = 3
TINY = 1e-12


@dataclass(frozen=True, slots=True)
class TwoState:
    """Parameters; D is the state of the larger match probability.

    Attributes:
        pi: probability of entering in D.
        rho_d, rho_u: match probability in each state.
        stay_d, stay_u: probability of staying in the state after a match (t_DD, t_UU).
    """

    pi: float
    rho_d: float
    rho_u: float
    stay_d: float
    stay_u: float

    def ordered(self) -> TwoState:
        """The same process with ρ_D ≥ ρ_U."""
        if self.rho_d >= self.rho_u:
            return self
        return TwoState(1 - self.pi, self.rho_u, self.rho_d, self.stay_u, self.stay_d)

    @property
    def entry(self) -> Array:
        """(2,) v·diag(ρ)."""
        return np.array([self.pi * self.rho_d, (1 - self.pi) * self.rho_u])

    @property
    def kernel(self) -> Array:
        """(2, 2) K = T·diag(ρ)."""
        turn = np.array([[self.stay_d, 1 - self.stay_d], [1 - self.stay_u, self.stay_u]])
        kernel: Array = turn * np.array([self.rho_d, self.rho_u])
        return kernel

    def survival(self, num_offsets: int = L) -> Array:
        """(L+1,) P(a ≥ ℓ), ℓ = 0..L (Eq. 4)."""
        kernel, mass = self.kernel, self.entry
        curve = np.ones(num_offsets + 1)
        for offset in range(1, num_offsets + 1):
            curve[offset] = mass.sum()
            mass = mass @ kernel
        return curve

    def mean(self, num_offsets: int = L) -> float:
        """E[a], the sum of the survival curve."""
        return float(self.survival(num_offsets)[1:].sum())


@dataclass(frozen=True, slots=True)
class Ridge:
    """Lowest and highest value of each parameter among vectors of one and the same survival curve."""

    pi: tuple[float, float]
    rho_d: tuple[float, float]
    rho_u: tuple[float, float]
    stay_d: tuple[float, float]
    stay_u: tuple[float, float]


@dataclass(frozen=True, slots=True)
class TwoStateFit:
    """A maximum-likelihood fit.

    Attributes:
        model: its parameters, the nearest to copying among equals.
        log_likelihood: at the maximum.
        starts, best_starts: how many there were, and how many reached the maximum to 0.01.
    """

    model: TwoState
    log_likelihood: float
    starts: int
    best_starts: int


def fit_two_state(observed: Runs, *, num_offsets: int = L, starts: int = 6) -> TwoStateFit:
    """Fit by maximum likelihood, climbing from several starts of a coarse grid."""
    model, losses = _search(observed, num_offsets, starts)
    model = _nearest_to_copying(model)
    reached = sum(loss < min(losses) + 0.01 for loss in losses)
    return TwoStateFit(model, log_likelihood(model.survival(num_offsets), observed), len(losses), reached)


def best_log_likelihood(observed: Runs, *, num_offsets: int = L, starts: int = 2) -> float:
    """The maximum alone, for the many refits of a bootstrap."""
    model, _ = _search(observed, num_offsets, starts)
    return log_likelihood(model.survival(num_offsets), observed)


def _search(observed: Runs, num_offsets: int, starts: int) -> tuple[TwoState, list[float]]:
    """The best model of all starts, and the loss that each start reached.

    A start is the best point of a coarse grid among those with one value of ρ_D; the best starts are climbed from.
    """
    exact, censored = _counts(observed, num_offsets)
    points, log_gap, log_kept = _grid(num_offsets)
    grid_loss = -(log_gap @ np.array(exact) + log_kept @ np.array(censored))
    blocks = [np.flatnonzero(points[:, 1] == rho_d) for rho_d in np.unique(points[:, 1])]
    best = sorted((int(block[np.argmin(grid_loss[block])]) for block in blocks), key=lambda i: float(grid_loss[i]))
    found = [
        minimize(_loss, points[i], args=(exact, censored), jac=True, method="L-BFGS-B", bounds=[(0.0, 1.0)] * 5)
        for i in best[:starts]
    ]
    losses = [float(run.fun) for run in found]
    model = TwoState(*(float(v) for v in found[int(np.argmin(losses))].x)).ordered()
    hazard = fit_hazard(observed)
    single = TwoState(0.5, hazard, hazard, 0.5, 0.5)
    # the family contains the single hazard, so it can never do worse
    return max((single, model), key=lambda m: log_likelihood(m.survival(num_offsets), observed)), losses


@cache
def _grid(num_offsets: int) -> tuple[Array, Array, Array]:
    """(P, 5) coarse parameters; (P, L+1) log P(a = ℓ) and (P, L+1) log P(a ≥ ℓ)."""
    rho, stay = (0.1, 0.3, 0.5, 0.65, 0.8, 0.9, 0.98), (0.05, 0.5, 0.9, 0.98)
    axes = ((0.05, 0.2, 0.5, 0.8, 0.95), rho, rho, stay, stay)
    points = np.array([p for p in product(*axes) if p[1] > p[2]])
    pi, rho_d, rho_u, stay_d, stay_u = points.T
    mass_d, mass_u = pi * rho_d, (1 - pi) * rho_u
    curve = [np.ones(len(points))]
    for _ in range(num_offsets):
        curve.append(mass_d + mass_u)
        mass_d, mass_u = (
            rho_d * (mass_d * stay_d + mass_u * (1 - stay_u)),
            rho_u * (mass_d * (1 - stay_d) + mass_u * stay_u),
        )
    kept = np.stack(curve, axis=1)
    gap = kept - np.column_stack([kept[:, 1:], np.zeros(len(points))])
    return points, np.log(np.maximum(gap, TINY)), np.log(np.maximum(kept, TINY))


def ridge(model: TwoState, *, grid: int = 200) -> Ridge:
    """The extent of each parameter among the vectors with the same survival curve."""
    points = np.vstack([astuple(model.ordered()), _equals(model.ordered(), grid)])  # (P, 5)
    low, high = points.min(axis=0), points.max(axis=0)
    return Ridge(*((float(a), float(b)) for a, b in zip(low, high, strict=True)))


def copy_threshold(b0: float, rho_u: float, num_offsets: int = L) -> float:
    """π* = (e^b0 - M(ρU)) / (L - M(ρU)): above it copying lifts the floor over the law's cap (Thm. 2 B)."""
    base = float(sum(rho_u**offset for offset in range(1, num_offsets + 1)))
    return float((np.exp(b0) - base) / (num_offsets - base))


def _counts(observed: Runs, num_offsets: int) -> tuple[list[float], list[float]]:
    """Rounds that missed after ℓ matches, and that were cut after ℓ, ℓ = 0..L."""
    cut = observed.is_censored
    exact = np.bincount(observed.a[~cut], minlength=num_offsets + 1).astype(float)
    censored = np.bincount(observed.a[cut], minlength=num_offsets + 1).astype(float)
    return exact.tolist(), censored.tolist()


def _loss(point: Array, exact: list[float], censored: list[float]) -> tuple[float, Array]:
    """Minus the log-likelihood and its gradient; plain floats, since arrays of two would be slower."""
    pi, rho_d, rho_u, stay_d, stay_u = point.tolist()
    k00, k01, k10, k11 = stay_d * rho_d, (1 - stay_d) * rho_u, (1 - stay_u) * rho_d, stay_u * rho_u
    alphas = [(pi * rho_d, (1 - pi) * rho_u)]
    curve = [1.0, alphas[0][0] + alphas[0][1]]
    for _ in range(len(exact) - 2):
        d, u = alphas[-1]
        alphas.append((d * k00 + u * k10, d * k01 + u * k11))
        curve.append(alphas[-1][0] + alphas[-1][1])
    curve.append(0.0)
    loss, pull = 0.0, [0.0] * len(curve)  # pull: derivative of the log-likelihood by each survival
    for length, (num_exact, num_censored) in enumerate(zip(exact, censored, strict=True)):
        if num_exact:
            gap = max(curve[length] - curve[length + 1], TINY)
            loss -= num_exact * float(np.log(gap))
            pull[length] += num_exact / gap
            pull[length + 1] -= num_exact / gap
        if num_censored:
            kept = max(curve[length], TINY)
            loss -= num_censored * float(np.log(kept))
            pull[length] += num_censored / kept
    d_k00 = d_k01 = d_k10 = d_k11 = 0.0
    back_d = back_u = 0.0
    for length in range(len(alphas), 0, -1):
        if length < len(alphas):
            d, u = alphas[length - 1]
            d_k00, d_k01 = d_k00 + d * back_d, d_k01 + d * back_u
            d_k10, d_k11 = d_k10 + u * back_d, d_k11 + u * back_u
        back_d, back_u = (
            pull[length] + k00 * back_d + k01 * back_u,
            pull[length] + k10 * back_d + k11 * back_u,
        )
    gradient = [
        rho_d * back_d - rho_u * back_u,
        pi * back_d + stay_d * d_k00 + (1 - stay_u) * d_k10,
        (1 - pi) * back_u + (1 - stay_d) * d_k01 + stay_u * d_k11,
        rho_d * d_k00 - rho_u * d_k01,
        rho_u * d_k11 - rho_d * d_k10,
    ]
    return loss, -np.array(gradient)


def _equals(model: TwoState, grid: int = 200) -> Array:
    """(P, 5) parameter vectors with this survival curve, one for each pair of ρ on a grid that allows it."""
    first = float(model.entry.sum())
    trace, det = float(np.trace(model.kernel)), float(np.linalg.det(model.kernel))
    axis = np.linspace(0.0, 1.0, grid + 1)[1:]
    rho_d, rho_u = (rho[np.tril_indices(grid, -1)] for rho in np.meshgrid(axis, axis, indexing="ij"))
    both = 1 + det / (rho_d * rho_u)  # t_DD + t_UU
    stay_d = (trace - rho_u * both) / (rho_d - rho_u)
    pi = (first - rho_u) / (rho_d - rho_u)
    points: Array = np.stack([pi, rho_d, rho_u, stay_d, both - stay_d], axis=1)
    return points[((points >= 0) & (points <= 1)).all(axis=1)]


def _nearest_to_copying(model: TwoState) -> TwoState:
    """The equal of largest ρ_D, then of largest t_DD: the answer does not depend on where the search began."""
    if model.rho_d - model.rho_u < 1e-6:
        return model
    points = np.vstack([astuple(model), _equals(model)])
    best = points[np.lexsort((points[:, 3], points[:, 1]))[-1]]
    return TwoState(*(float(v) for v in best))
