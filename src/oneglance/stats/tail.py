"""The grounded tail (Thm. 2, Prop. 3): does the entropy floor run longer than one hazard allows?

Rounds of the lowest entropy decile only. The paper's χ²₄ figure of the likelihood ratio is given next to a
parametric-bootstrap p, because under one hazard the second state's parameters do not exist and the χ² limit does not
apply (``benchmarks/tail_tests.md``). Both take rounds as independent, and rounds of prompts that merely differ in their
one hazard reject too; the prompt-disjoint comparison is there for that reason, though it cannot tell the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2

from oneglance.core import InputError
from oneglance.stats.bootstrap import Array, Interval, clusters, resample_mean
from oneglance.stats.geometric import L, Runs, fit_hazard, log_likelihood, runs, sample, survival
from oneglance.stats.law import Law, checked_entropy
from oneglance.stats.two_state import (
    NUM_IDENTIFIED,
    NUM_PARAMETERS,
    Ridge,
    TwoState,
    TwoStateFit,
    best_log_likelihood,
    copy_threshold,
    fit_two_state,
    ridge,
)

FLOOR_SHARE = 0.1
MIN_EXPECTED = 5.0


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """Pearson's χ² of run lengths in pooled cells.

    Attributes:
        statistic, df, p: df is cells less one less the parameters fitted to the same rounds; p is nan below df 1.
        cells: first length of each cell; smallest_expected: rounds in the emptiest of them, by the model.
    """

    statistic: float
    df: int
    p: float
    cells: tuple[int, ...]
    smallest_expected: float


@dataclass(frozen=True, slots=True)
class LikelihoodRatio:
    """Two-state against one hazard.

    Attributes:
        statistic: 2Δℓ.
        p_chi2: the paper's figure, χ² with four degrees of freedom; invalid as a test, kept for comparison.
        p_bootstrap: share of data sets drawn from the fitted hazard with a ratio at least as large.
        resamples: how many were drawn.
    """

    statistic: float
    p_chi2: float
    p_bootstrap: float
    resamples: int


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Both models frozen on some prompts and scored on others.

    Attributes:
        name: which split.
        single, two_state: χ² on the unseen rounds in the same cells.
        mean_single, mean_two_state: predicted mean accepted length; mean_seen: measured, prompts resampled.
        num_rounds: unseen.
    """

    name: str
    single: ChiSquare
    two_state: ChiSquare
    mean_single: float
    mean_two_state: float
    mean_seen: Interval
    num_rounds: int


@dataclass(frozen=True, slots=True)
class HeldOutSummary:
    """Prop. 3 (ii): wins of the two-state model over all splits, and mean held-out χ²."""

    splits: tuple[HeldOut, ...]
    wins: int
    mean_single: float
    mean_two_state: float


@dataclass(frozen=True, slots=True)
class Tail:
    """Everything Prop. 3 and Thm. 2 say about one task.

    Attributes:
        num_rounds, num_prompts: on the floor.
        floor_mean: measured mean a on the floor, prompts resampled.
        cap, loose_cap: M(σ(b0)) and e^b0 of the law fitted to all rounds.
        exceeds_cap: the floor's interval lies above e^b0.
        hazard: the fitted single hazard; chi_single, chi_two_state, ratio: the tests.
        chi_two_state_paper: the same χ² with the paper's five parameters, two more than run lengths can fit.
        fit: the two-state fit; ridge: what run lengths leave open.
        pi_star: threshold of the copying share; above_threshold: True or False where all of the ridge says so,
            None where run lengths cannot tell.
        held_out: prompt-disjoint comparison, None with fewer than ten prompts.
    """

    num_rounds: int
    num_prompts: int
    floor_mean: Interval
    cap: float
    loose_cap: float
    exceeds_cap: bool
    hazard: float
    chi_single: ChiSquare
    chi_two_state: ChiSquare
    chi_two_state_paper: ChiSquare
    ratio: LikelihoodRatio
    fit: TwoStateFit
    ridge: Ridge
    pi_star: float
    above_threshold: bool | None
    held_out: HeldOutSummary | None


def floor_rounds(h_nats: ArrayLike, share: float = FLOOR_SHARE) -> NDArray[np.intp]:
    """Indices of the rounds of lowest entropy; rounds that tie with the last one come along."""
    entropy = checked_entropy(h_nats)
    return np.flatnonzero(entropy <= np.quantile(entropy, share))


def expected_counts(survived: Array, horizon: NDArray[np.int64]) -> Array:
    """(L+1,) expected number of rounds that show each length, each round cut at its own horizon."""
    num_offsets = survived.size - 1
    chance = survived - np.append(survived[1:], 0.0)
    counts = np.bincount(horizon, minlength=num_offsets + 1)  # rounds by horizon
    longer = counts[::-1].cumsum()[::-1] - counts  # rounds whose horizon is beyond this length
    result: Array = chance * longer + survived * counts
    return result


def pool(expected: ArrayLike, minimum: float = MIN_EXPECTED) -> tuple[int, ...]:
    """First length of each cell: lengths are joined upwards until a cell expects ``minimum`` rounds."""
    counts = np.asarray(expected, float)
    starts, total = [0], 0.0
    for length, count in enumerate(counts):
        if total >= minimum:
            starts.append(length)
            total = 0.0
        total += count
    if total < minimum and len(starts) > 1:
        starts.pop()
    return tuple(starts)


def chi_square(observed: Runs, survived: Array, *, fitted: int = 0, cells: Sequence[int] | None = None) -> ChiSquare:
    """Pearson's χ² of runs against a survival curve (L+1,).

    Args:
        observed: rounds.
        survived: of the model.
        fitted: parameters that were fitted to these rounds; 0 for a frozen model.
        cells: first length of each cell; None pools by this model's expected counts.
    """
    expected = expected_counts(survived, observed.horizon)
    starts = tuple(cells) if cells is not None else pool(expected)
    seen = np.add.reduceat(np.bincount(observed.a, minlength=expected.size).astype(float), starts)
    said = np.add.reduceat(expected, starts)
    statistic = float(((seen - said) ** 2 / np.maximum(said, 1e-9)).sum())
    df = len(starts) - 1 - fitted
    p = float(chi2.sf(statistic, df)) if df > 0 else float("nan")
    return ChiSquare(statistic, df, p, starts, float(said.min()))


def likelihood_ratio(observed: Runs, *, num_offsets: int = L, resamples: int = 999, seed: int = 0) -> LikelihoodRatio:
    """Two-state against one hazard, with the χ²₄ and the parametric-bootstrap p, (1 + hits) / (1 + resamples)."""
    curve = survival(fit_hazard(observed), num_offsets)
    statistic = _ratio(observed, num_offsets)
    rng = np.random.default_rng(seed)
    hits = sum(_ratio(sample(curve, observed.horizon, rng), num_offsets) >= statistic for _ in range(resamples))
    return LikelihoodRatio(
        statistic, float(chi2.sf(statistic, NUM_PARAMETERS - 1)), (1 + hits) / (1 + resamples), resamples
    )


def held_out(
    observed: Runs, prompts: ArrayLike, *, num_offsets: int = L, folds: int = 5, seed: int = 0
) -> HeldOutSummary:
    """Fit on some prompts, score on the others: two halves both ways, then folds (Prop. 3 ii and iii).

    Raises:
        InputError: fewer prompts than twice the folds.
    """
    names = np.asarray(prompts)
    codes = clusters(names, observed.a.size)
    num_prompts = int(codes.max()) + 1
    if num_prompts < 2 * folds:
        raise InputError(f"{num_prompts} prompts are too few for {folds} prompt-disjoint folds; need {2 * folds}")
    order = np.random.default_rng(seed).permutation(num_prompts)  # place of each prompt
    half = order[codes] % 2
    parts = [("first half", half == 0), ("second half", half == 1)]
    parts += [(f"fold {fold + 1}", order[codes] % folds == fold) for fold in range(folds)]
    splits = tuple(_score(name, observed, names, unseen, num_offsets, seed) for name, unseen in parts)
    return HeldOutSummary(
        splits,
        wins=sum(split.two_state.statistic < split.single.statistic for split in splits),
        mean_single=float(np.mean([split.single.statistic for split in splits])),
        mean_two_state=float(np.mean([split.two_state.statistic for split in splits])),
    )


def assess_tail(
    law: Law,
    h_nats: ArrayLike,
    a: ArrayLike,
    prompts: ArrayLike,
    *,
    horizon: ArrayLike | None = None,
    resamples: int = 999,
    seed: int = 0,
) -> Tail:
    """Test the floor of one task against the law that was fitted to all of its rounds."""
    rows = floor_rounds(h_nats)
    longest = law.num_offsets if horizon is None else horizon
    observed = runs(a, longest, num_offsets=law.num_offsets).take(rows)
    names = np.asarray(prompts)[rows]
    if not observed.a.sum() or not observed.misses.sum():
        raise InputError("the floor has no match or no miss, so there is no run-length law to test; log more rounds")
    num_offsets, hazard = law.num_offsets, fit_hazard(observed)
    fit = fit_two_state(observed, num_offsets=num_offsets)
    open_range, floor_mean = ridge(fit.model), resample_mean(observed.a, names, seed=seed)
    num_prompts, curve = len(np.unique(names)), fit.model.survival(num_offsets)
    return Tail(
        num_rounds=rows.size,
        num_prompts=num_prompts,
        floor_mean=floor_mean,
        cap=law.cap,
        loose_cap=law.loose_cap,
        exceeds_cap=floor_mean.low > law.loose_cap,
        hazard=hazard,
        chi_single=chi_square(observed, survival(hazard, num_offsets), fitted=1),
        chi_two_state=chi_square(observed, curve, fitted=NUM_IDENTIFIED),
        chi_two_state_paper=chi_square(observed, curve, fitted=NUM_PARAMETERS),
        ratio=likelihood_ratio(observed, num_offsets=num_offsets, resamples=resamples, seed=seed),
        fit=fit,
        ridge=open_range,
        pi_star=copy_threshold(law.b0.value, fit.model.rho_u, num_offsets),
        above_threshold=_above(law, open_range, num_offsets),
        held_out=held_out(observed, names, num_offsets=num_offsets, seed=seed) if num_prompts >= 10 else None,
    )


def _above(law: Law, open_range: Ridge, num_offsets: int) -> bool | None:
    """π > π* everywhere on the ridge, nowhere, or undecided; π* falls as ρU grows."""
    if open_range.pi[0] > copy_threshold(law.b0.value, open_range.rho_u[0], num_offsets):
        return True
    if open_range.pi[1] < copy_threshold(law.b0.value, open_range.rho_u[1], num_offsets):
        return False
    return None


def _ratio(observed: Runs, num_offsets: int) -> float:
    single = log_likelihood(survival(fit_hazard(observed), num_offsets), observed)
    return max(0.0, 2 * (best_log_likelihood(observed, num_offsets=num_offsets) - single))


def _score(
    name: str, observed: Runs, names: NDArray[np.generic], unseen: NDArray[np.bool_], num_offsets: int, seed: int
) -> HeldOut:
    seen, new = observed.take(~unseen), observed.take(unseen)
    single = survival(fit_hazard(seen), num_offsets)
    model: TwoState = fit_two_state(seen, num_offsets=num_offsets).model
    two_state = model.survival(num_offsets)
    cells = pool(np.minimum(expected_counts(single, new.horizon), expected_counts(two_state, new.horizon)))
    return HeldOut(
        name=name,
        single=chi_square(new, single, cells=cells),
        two_state=chi_square(new, two_state, cells=cells),
        mean_single=_mean(single, new),
        mean_two_state=_mean(two_state, new),
        mean_seen=resample_mean(new.a, names[unseen], resamples=2000, seed=seed),
        num_rounds=new.a.size,
    )


def _mean(survived: Array, observed: Runs) -> float:
    """Mean accepted length that the curve predicts for rounds with these horizons."""
    return float(np.append(0.0, survived[1:].cumsum())[observed.horizon].mean())
