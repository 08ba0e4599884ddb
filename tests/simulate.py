"""Simulated round logs with planted parameters, for the tests of ``stats/``."""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit


@dataclass(frozen=True)
class Rounds:
    """Arrays as a round log holds them."""

    h_nats: np.ndarray
    a: np.ndarray
    horizon: np.ndarray
    prompts: np.ndarray


def simulate_rounds(
    b0: float,
    b1: float,
    *,
    num_rounds: int,
    num_prompts: int,
    cut_share: float = 0.0,
    prompt_spread: float = 0.0,
    copy_share: float = 0.0,
    seed: int = 0,
) -> Rounds:
    """Rounds of the law, match by match: a coin at each offset until one fails.

    Args:
        b0, b1: the law.
        num_rounds, num_prompts: sizes.
        cut_share: share of rounds whose text ends inside the block, at a random offset.
        prompt_spread: standard deviation of each prompt's own intercept.
        copy_share: share of rounds below 0.1 nat that copy (every match has probability 0.97).
        seed: of everything.
    """
    rng = np.random.default_rng(seed)
    prompts = rng.integers(0, num_prompts, num_rounds)
    h_nats = rng.exponential(0.6, num_rounds)
    own = rng.normal(0, prompt_spread, num_prompts)[prompts]
    p = expit(b0 + own - b1 * h_nats)
    p = np.where((h_nats < 0.1) & (rng.random(num_rounds) < copy_share), 0.97, p)
    horizon = np.where(rng.random(num_rounds) < cut_share, rng.integers(1, 15, num_rounds), 15)
    run = np.cumprod(rng.random((num_rounds, 15)) < p[:, None], axis=1).sum(axis=1)
    return Rounds(h_nats, np.minimum(run, horizon), horizon, prompts)
