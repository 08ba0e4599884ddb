"""Size and power of the tests of the entropy floor, at the paper's 122 rounds of 47 prompts.

Run it with ``python benchmarks/tail_tests.py [repeats]``; prints the table of tail_tests.md.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.special import expit, logit

from oneglance.stats.geometric import L, Runs, fit_hazard, sample, survival
from oneglance.stats.tail import chi_square, likelihood_ratio
from oneglance.stats.two_state import NUM_IDENTIFIED, NUM_PARAMETERS, TwoState, fit_two_state

NUM_ROUNDS, NUM_PROMPTS = 122, 47
HAZARD = 0.8
ALPHA = 0.05
COPYING = TwoState(pi=0.25, rho_d=0.97, rho_u=0.7, stay_d=0.98, stay_u=0.95)


def draw(setting: str, rng: np.random.Generator) -> Runs:
    horizon = np.full(NUM_ROUNDS, L)
    if setting == "two states":
        return sample(COPYING.survival(), horizon, rng)
    if setting == "one hazard":
        return sample(survival(HAZARD), horizon, rng)
    own = rng.normal(0, 0.7, NUM_PROMPTS)[rng.integers(0, NUM_PROMPTS, NUM_ROUNDS)]
    p = expit(logit(HAZARD) + own)
    return Runs(np.cumprod(rng.random((NUM_ROUNDS, L)) < p[:, None], axis=1).sum(axis=1), horizon)


def main(repeats: int) -> None:
    print(
        f"| rounds come from | LR, χ²₄ | LR, bootstrap | χ² of one hazard | χ² of two states, df - {NUM_PARAMETERS} | "
        f"χ² of two states, df - {NUM_IDENTIFIED} |"
    )
    print("|---|---|---|---|---|---|")
    for setting in ("one hazard", "one hazard a prompt (sd 0.7 in logit)", "two states"):
        rejected = np.zeros(5)
        for seed in range(repeats):
            observed = draw(setting, np.random.default_rng(seed))
            ratio = likelihood_ratio(observed, resamples=19, seed=seed)
            single, curve = survival(fit_hazard(observed)), fit_two_state(observed).model.survival()
            p = (
                ratio.p_chi2,
                ratio.p_bootstrap,
                chi_square(observed, single, fitted=1).p,
                chi_square(observed, curve, fitted=NUM_PARAMETERS).p,
                chi_square(observed, curve, fitted=NUM_IDENTIFIED).p,
            )
            rejected += np.array(p) <= ALPHA
        print(f"| {setting} | " + " | ".join(f"{share:.3f}" for share in rejected / repeats) + " |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
