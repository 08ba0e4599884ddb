"""What the law, the tail and the width replay say of a log: the objects that commands print and pages show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from oneglance.core import InputError
from oneglance.stats.bootstrap import Array
from oneglance.stats.calibration import Calibration, calibrate, calibrate_given
from oneglance.stats.correlations import TaskGap, compare_tasks
from oneglance.stats.curve import Fit, assess
from oneglance.stats.law import Law, Method, fit_law, fit_offset_slope
from oneglance.stats.replay import BUDGETS, MAX_BUDGET, ParetoPoint, Replay, pareto, replay
from oneglance.stats.rounds import RoundLog
from oneglance.stats.tail import Tail, assess_tail
from oneglance.stats.theory import (
    ADAEDL_GAMMA,
    SHAPES,
    Brackets,
    FanoCheck,
    TemperatureFamily,
    brackets,
    check_fano,
    temperature_family,
)
from oneglance.stats.width import Headroom, Peak, Regret, headroom, peak, regret, width_value

POOLED = "pooled"


@dataclass(frozen=True, slots=True)
class Derivatives:
    """The law's derivative identities at the mean entropy (Corollary, B.2).

    Attributes:
        h_nats: where.
        p_slope: ∂p/∂H = -b1 p (1 - p); mean_slope: ∂E/∂H of the truncated mean; endless: -b1 p / (1 - p), its limit
            for an endless block.
        truncation: p^L, what the block's end takes away.
    """

    h_nats: float
    p_slope: float
    mean_slope: float
    endless: float
    truncation: float


@dataclass(frozen=True, slots=True)
class Scale:
    """How a task's first offset uses the target's confidence (Prop. 1): s = κ / b1 of offset 1."""

    offset_slope: float
    s: dict[str, float]


@dataclass(frozen=True, slots=True)
class LawStudy:
    """Everything that ``oneglance law`` says.

    Attributes:
        fits: by task, and pooled.
        brackets: by task, at decile entropies.
        derivatives: by task.
        scales: by task, where ranks were logged.
        gaps: mean a of the second task less that of the first, by "first < second".
        fano: check of every row; None where the size of the vocabulary is not known.
        families: the temperature families that κ comes from.
        calibration: of plug-in scores, where the log has marginals; and of those that a rescorer conditioned.
        gamma: AdaEDL's constant, which the paper does not give: ours.
    """

    fits: dict[str, Fit]
    brackets: dict[str, Brackets]
    derivatives: dict[str, Derivatives]
    scales: dict[str, Scale]
    gaps: dict[str, TaskGap]
    fano: FanoCheck | None
    families: tuple[TemperatureFamily, ...]
    calibration: Calibration | None
    calibration_given: Calibration | None
    gamma: float = ADAEDL_GAMMA


@dataclass(frozen=True, slots=True)
class WidthStudy:
    """Everything that ``oneglance width`` says.

    Attributes:
        law: whose V(H) keys the entropy policy.
        peak: of V(H); headroom: Prop. 5.
        points: every policy at every budget.
        regret: of giving width by V(H) to half of the rounds, against what it was worth (Prop. 6).
        num_rounds, num_prompts: replayed.
    """

    law: Law
    peak: Peak
    headroom: Headroom
    points: tuple[ParetoPoint, ...]
    regret: Regret
    num_rounds: int
    num_prompts: int


def parts(log: RoundLog) -> Iterator[tuple[str, RoundLog]]:
    """Each task, then all together where there are several."""
    for task in log.tasks:
        yield task, log.of(task)
    if len(log.tasks) > 1:
        yield POOLED, log


def fit(log: RoundLog, *, method: Method) -> Law:
    """The law of these rounds, intervals by prompt."""
    return fit_law(log.h_nats, log.runs.a, horizon=log.runs.horizon, prompts=log.prompts, method=method)


def study_law(
    log: RoundLog,
    *,
    method: Method,
    budget: int | None = None,
    vocab_size: int | None = None,
    marginals: Array | None = None,
    seed: int = 0,
) -> LawStudy:
    """Fit and assess the law, per task and pooled.

    Args:
        log: drafted rounds.
        method: estimator.
        budget: N of the verification ceiling, which a chain of one has not; default the log's.
        vocab_size: for Fano's bound.
        marginals: (R, L, K) of the same rounds.
        seed: of the resampling.
    """
    fits, between, slopes, scales = {}, {}, {}, {}
    num_nodes = log.budget if budget is None else budget
    families = tuple(temperature_family(shape) for shape in SHAPES)
    for name, own in parts(log):
        law = fit(own, method=method)
        found = assess(law, own.h_nats, own.runs.a, own.prompts, horizon=own.runs.horizon, seed=seed)
        fits[name] = found
        if law.degenerate is None:
            if num_nodes > 1:
                between[name] = brackets(law, [b.mean_nats for b in found.bins], budget=num_nodes)
            slopes[name] = _derivatives(law, float(own.h_nats.mean()))
        scale = _scale(own, families)
        if scale is not None:
            scales[name] = scale
    return LawStudy(
        fits=fits,
        brackets=between,
        derivatives=slopes,
        scales=scales,
        gaps=_gaps(log, seed),
        fano=None if vocab_size is None else check_fano(log.h_nats, log.floats("p_max"), num_tokens=vocab_size),
        families=families,
        calibration=None if marginals is None else calibrate(log.ranks, marginals[:, :, 0]),
        calibration_given=None if marginals is None else calibrate_given(log),
    )


def study_tail(log: RoundLog, *, method: Method, resamples: int, seed: int = 0) -> Tail:
    """Test the floor of one task against its own law."""
    law = fit(log, method=method)
    return assess_tail(
        law, log.h_nats, log.runs.a, log.prompts, horizon=log.runs.horizon, resamples=resamples, seed=seed
    )


def study_width(
    log: RoundLog, marginals: Array, *, method: Method, budgets: Sequence[int] = BUDGETS, max_budget: int = MAX_BUDGET
) -> WidthStudy:
    """Replay every policy on these rounds.

    Args:
        log: drafted rounds; marginals: (R, L, K) of them.
        method: estimator of the law.
        budgets: mean nodes a round.
        max_budget: the most that one round can get.

    Raises:
        InputError: these rounds have no law, so there is no V(H).
    """
    law = fit(log, method=method)
    if law.degenerate is not None:
        raise InputError(f"there is no law, so no V(H) to replay: {law.degenerate}")
    walked: Replay = replay(
        list(marginals), log.ranks, log.h_nats, log.prompts, horizon=log.runs.horizon, max_budget=max_budget
    )
    budget = budgets[len(budgets) // 2]
    worth = walked.accepted(min(2 * budget, max_budget)) - walked.accepted(budget)
    estimate = width_value(law, log.h_nats)
    scale = float(worth.mean() / estimate.mean()) if estimate.mean() > 0 else 1.0  # V(H) is only proportional
    return WidthStudy(
        law=law,
        peak=peak(law),
        headroom=headroom(law, log.h_nats),
        points=pareto(walked, law, budgets=budgets),
        regret=regret(worth, scale * estimate, log.h_nats, max(1, len(log) // 2)),
        num_rounds=len(log),
        num_prompts=len(set(log.prompts.tolist())),
    )


def _derivatives(law: Law, h_nats: float) -> Derivatives:
    p = float(law.p(h_nats))
    return Derivatives(
        h_nats=h_nats,
        p_slope=float(law.p_slope(h_nats)),
        mean_slope=float(law.mean_slope(h_nats)),
        endless=-law.b1.value * p / (1 - p),
        truncation=p**law.num_offsets,
    )


def _scale(log: RoundLog, families: Sequence[TemperatureFamily]) -> Scale | None:
    first: Any = log.ranks[:, 0]
    known = first >= 0
    if not known.any():
        return None
    found = fit_offset_slope(log.h_nats[known], first[known] == 0, prompts=log.prompts[known])
    if found.degenerate is not None or found.b1.value == 0:
        return None
    return Scale(found.b1.value, {f.shape: f.drafter_scale(found.b1.value) for f in families})


def _gaps(log: RoundLog, seed: int) -> dict[str, TaskGap]:
    gaps = {}
    for one, two in combinations(log.tasks, 2):
        first, second = log.of(one), log.of(two)
        gaps[f"{one} < {two}"] = compare_tasks(second.runs.a, second.prompts, first.runs.a, first.prompts, seed=seed)
    return gaps
