"""The truncated geometric: runs of matches at one hazard, cut at the block or where the text ends (Lemma 1).

A round's ``horizon`` is the longest run that it could have shown: L, or less where the text ends inside the block or
the cap shortened the tree. A run that reaches its horizon is right-censored; a shorter one ended at a miss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oneglance.core import BLOCK_SIZE, InputError
from oneglance.stats.bootstrap import Array

L = BLOCK_SIZE - 1
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """Accepted lengths with the longest length that each could have had.

    Attributes:
        a: (R,) accepted length, bonus excluded.
        horizon: (R,) at least 1.
    """

    a: Ints
    horizon: Ints

    @property
    def is_censored(self) -> NDArray[np.bool_]:
        return self.a >= self.horizon

    @property
    def misses(self) -> Ints:
        """(R,) 1 where the run ended at a miss."""
        return (~self.is_censored).astype(np.int64)

    def take(self, rows: NDArray[np.generic]) -> Runs:
        return Runs(self.a[rows], self.horizon[rows])


def runs(a: ArrayLike, horizon: ArrayLike = L, *, num_offsets: int = L) -> Runs:
    """Checked runs; one horizon serves all.

    Raises:
        InputError: a length outside 0..horizon, a horizon outside 1..num_offsets, or shapes that differ.
    """
    length, longest = np.asarray(a), np.asarray(horizon)
    if not np.array_equal(length, np.round(length)) or not np.array_equal(longest, np.round(longest)):
        raise InputError("accepted lengths and horizons must be whole numbers")
    if longest.ndim == 0:
        longest = np.full(length.shape, longest)
    if length.ndim != 1 or length.shape != longest.shape:
        raise InputError(f"accepted lengths {length.shape} and horizons {longest.shape} must be two equal rows")
    wrong = np.flatnonzero((longest < 1) | (longest > num_offsets) | (length < 0) | (length > longest))
    if wrong.size:
        row = int(wrong[0])
        found = f"round {row} has accepted length {length[row]} with horizon {longest[row]}"
        raise InputError(f"{found}; need 0 ≤ a ≤ horizon and 1 ≤ horizon ≤ {num_offsets}")
    return Runs(length.astype(np.int64), longest.astype(np.int64))


def mean_length(p: ArrayLike, horizon: ArrayLike = L) -> Array:
    """M(p) = Σ_{ℓ=1..horizon} p^ℓ, elementwise; exact at p = 0 and 1."""
    prob, longest = np.broadcast_arrays(np.asarray(p, float), np.asarray(horizon))
    total = np.zeros(prob.shape)
    for offset in range(int(longest.max(initial=0)), 0, -1):
        total = np.where(offset <= longest, prob * (1.0 + total), total)
    return total


def mean_length_derivative(p: ArrayLike, horizon: ArrayLike = L) -> Array:
    """M'(p) = Σ ℓ p^(ℓ-1)."""
    prob, longest = np.broadcast_arrays(np.asarray(p, float), np.asarray(horizon))
    total = np.zeros(prob.shape)
    for offset in range(int(longest.max(initial=0)), 0, -1):
        total = np.where(offset <= longest, offset + prob * total, total)
    return total


def survival(p: float, num_offsets: int = L) -> Array:
    """(L+1,) P(a ≥ ℓ) for ℓ = 0..L."""
    result: Array = np.float_power(p, np.arange(num_offsets + 1))
    return result


def fit_hazard(observed: Runs) -> float:
    """Maximum-likelihood p of one hazard: matches over trials, since each censored run ends without a miss."""
    matches, misses = int(observed.a.sum()), int(observed.misses.sum())
    return matches / (matches + misses) if matches + misses else float("nan")


def log_likelihood(survived: Array, observed: Runs) -> float:
    """Log-likelihood of runs under any survival curve (L+1,): a miss at a + 1, or survival to the horizon."""
    ahead = np.append(survived, 0.0)
    ended = survived[observed.a] - ahead[observed.a + 1]
    chance = np.where(observed.is_censored, survived[observed.a], ended)
    with np.errstate(divide="ignore"):
        return float(np.log(chance).sum())


def sample(survived: Array, horizon: Ints, rng: np.random.Generator) -> Runs:
    """Runs drawn from a survival curve (L+1,), cut at their horizons."""
    below = rng.random(horizon.size)[:, None] < survived[None, 1:]  # (R, L)
    return Runs(np.minimum(below.sum(axis=1), horizon).astype(np.int64), horizon)
