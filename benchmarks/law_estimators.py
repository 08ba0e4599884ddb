"""Which estimator of the entropy law should be the default? A simulation; prints the table of law_estimators.md.

Run it with ``python benchmarks/law_estimators.py [repeats]``. Each setting draws round logs of 60 prompts from a known
conditional mean, fits both estimators, and compares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from oneglance.stats.law import Method, fit_law

L = 15
NUM_PROMPTS = 60
METHODS: tuple[Method, ...] = ("ml", "ls")


@dataclass(frozen=True)
class Setting:
    """Hazards (R, L) of rounds with entropies (R,); the law's b0 and b1 where it is true."""

    name: str
    b0: float
    b1: float
    hazards: Callable[[np.ndarray, np.random.Generator], np.ndarray]
    is_law: bool
    spread: float = 0.0
    cut_share: float = 0.1


def of_law(b0: float, b1: float) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    return lambda logit, rng: np.repeat(expit(logit)[:, None], L, axis=1)


def copying(logit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Half of the rounds above a logit of 1.1 (entropy near zero) copy, whatever the law says."""
    p = np.where((logit > 1.1) & (rng.random(logit.size) < 0.5), 0.97, expit(logit))
    return np.repeat(p[:, None], L, axis=1)


def decaying(logit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Match probability falls by 3 % an offset."""
    return expit(logit)[:, None] * 0.97 ** np.arange(L)


SETTINGS = (
    Setting("the law, b1 = 0.63", 0.96, 0.63, of_law(0.96, 0.63), True),
    Setting("the law, b1 = 0.95", 1.226, 0.95, of_law(1.226, 0.95), True),
    Setting("the law, b1 = 1.71", 1.5, 1.71, of_law(1.5, 1.71), True),
    Setting("prompts differ (sd 0.3)", 1.226, 0.95, of_law(1.226, 0.95), True, spread=0.3),
    Setting("half of the rounds cut", 1.226, 0.95, of_law(1.226, 0.95), True, cut_share=0.5),
    Setting("copying floor", 1.226, 0.95, copying, False),
    Setting("hazard decays", 1.226, 0.95, decaying, False),
)


def draw(setting: Setting, num_rounds: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Entropy, accepted length, horizon, prompt."""
    prompts = rng.integers(0, NUM_PROMPTS, num_rounds)
    h = rng.exponential(0.6, num_rounds)
    own = rng.normal(0, setting.spread, NUM_PROMPTS)[prompts]
    hazards = setting.hazards(setting.b0 + own - setting.b1 * h, rng)
    a = np.cumprod(rng.random((num_rounds, L)) < hazards, axis=1).sum(axis=1)
    horizon = np.where(rng.random(num_rounds) < setting.cut_share, rng.integers(1, L, num_rounds), L)
    return h, np.minimum(a, horizon), horizon, prompts


def true_curve(setting: Setting, h: np.ndarray) -> np.ndarray:
    """Conditional mean at the grid's entropies, by exact sums over many draws of what is hidden."""
    rng = np.random.default_rng(12345)
    total = np.zeros(h.size)
    for _ in range(400):
        own = rng.normal(0, setting.spread, h.size) if setting.spread else 0.0
        total += np.cumprod(setting.hazards(setting.b0 + own - setting.b1 * h, rng), axis=1).sum(axis=1)
    return total / 400


def main(repeats: int) -> None:
    grid = -0.6 * np.log(1 - (np.arange(10) + 0.5) / 10)  # middles of the entropy deciles
    print("| setting | rounds | estimator | b1 bias | b1 sd | 95 % interval covers | rms error of E[a given H] |")
    print("|---|---|---|---|---|---|---|")
    for setting in SETTINGS:
        curve = true_curve(setting, grid)
        for num_rounds in (600, 2400):
            found: dict[str, list[tuple[float, bool, float]]] = {method: [] for method in METHODS}
            for seed in range(repeats):
                h, a, horizon, prompts = draw(setting, num_rounds, np.random.default_rng(seed))
                for method in METHODS:
                    fit = fit_law(h, a, horizon=horizon, prompts=prompts, method=method)
                    error = float(((fit.mean(grid) - curve) ** 2).mean())
                    found[method].append((fit.b1.value - setting.b1, setting.b1 in fit.b1, error))
            for method in METHODS:
                off, covers, error = (np.array(column) for column in zip(*found[method], strict=True))
                bias, covered = (f"{off.mean():+.3f}", f"{covers.mean():.3f}") if setting.is_law else ("", "")
                print(
                    f"| {setting.name} | {num_rounds} | {method} | {bias} | {off.std():.3f} | {covered} "
                    f"| {np.sqrt(error.mean()):.3f} |"
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
