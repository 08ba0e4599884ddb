"""What probes and ablations say: the objects that ``probe``, ``ablate`` and ``transfer`` print (Tables 13 to 16)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oneglance.core import InputError
from oneglance.report.study import fit, parts
from oneglance.stats.bootstrap import (
    Interval,
    Totals,
    resample_lift,
    resample_mean,
    resample_share_gap,
    totals,
)
from oneglance.stats.correlations import Correlations, DecileGap, Effect, correlate, decile_gaps, residual_effect
from oneglance.stats.curve import Fit, assess
from oneglance.stats.law import Method
from oneglance.stats.rounds import RoundLog

RIGHT, MISMATCHED = "right", "mismatched"  # arms of the image probe
WHOLE = "fused"  # the untouched arm of an ablation


@dataclass(frozen=True, slots=True)
class ImageEffect:
    """Right against mismatched image at the same roots (§6).

    Attributes:
        lift: of mean a, right over mismatched less one; lift_tau: the same of a + 1.
        h_right, h_mismatched: mean entropy; h_change: right less mismatched, paired by root.
        effect: of the right image on a, with and without entropy held fixed; None where entropy leaves no room for it.
        num_roots, num_prompts: compared.
    """

    lift: Interval
    lift_tau: Interval
    h_right: Interval
    h_mismatched: Interval
    h_change: Interval
    effect: Effect | None
    num_roots: int
    num_prompts: int


@dataclass(frozen=True, slots=True)
class SaliencyEffect:
    """Entropy against image saliency (Table 13, Fig. 7).

    Attributes:
        correlations: of accepted length with both.
        gaps: by entropy decile.
        mean_gap: ratio of mean a, high over low saliency, averaged over deciles by rounds.
        mean_saliency: attention mass on the image.
        num_rounds, num_prompts: with a measured saliency.
    """

    correlations: Correlations
    gaps: tuple[DecileGap, ...]
    mean_gap: float
    mean_saliency: float
    num_rounds: int
    num_prompts: int


@dataclass(frozen=True, slots=True)
class Kept:
    """τ of an arm, and the share of the untouched arm's τ that it keeps.

    Attributes:
        tau: of the arm; share: over the same prompts' untouched τ.
        num_rounds, num_prompts: of the arm.
    """

    tau: Interval
    share: Interval
    num_rounds: int
    num_prompts: int


@dataclass(frozen=True, slots=True)
class Ablation:
    """Arms by task (Table 16).

    Attributes:
        kept: task → tree → arm.
        gaps: task → arm → share kept by the tree less share kept by the chain; negative where the tree loses more.
    """

    kept: dict[str, dict[str, dict[str, Kept]]]
    gaps: dict[str, dict[str, Interval]]


@dataclass(frozen=True, slots=True)
class TransferRow:
    """The law of one task of one log.

    Attributes:
        log, target, run, task: where it is from; target is None where nothing stands beside the log.
        sign: of b1, 0 where its interval holds zero.
        fit: the law and its verdict.
    """

    log: str
    target: str | None
    run: str
    task: str
    sign: int
    fit: Fit


@dataclass(frozen=True, slots=True)
class Transfer:
    """Fits across drafters, targets and modalities (Tables 14 and 15).

    Attributes:
        rows: fits, a log after the other, each task and then pooled.
        excluded: "log: task" → why there is no fit to read.
    """

    rows: tuple[TransferRow, ...]
    excluded: dict[str, str]


def study_image(log: RoundLog, *, seed: int = 0) -> dict[str, ImageEffect]:
    """The image's effect per task and pooled.

    Args:
        log: rows of the runs ``right`` and ``mismatched``, root by root.
        seed: of the resampling.

    Raises:
        InputError: the arms do not hold the same roots.
    """
    right, wrong = (RoundLog(tuple(row for row in log.drafted.rows if row.run == name)) for name in (RIGHT, MISMATCHED))
    if [_place(r) for r in right.rows] != [_place(r) for r in wrong.rows] or not len(right):
        raise InputError("the log does not hold both arms at the same roots; write it with 'oneglance probe image'")
    others = dict(parts(wrong))
    return {name: _image_effect(own, others[name], seed) for name, own in parts(right)}


def study_saliency(log: RoundLog, *, seed: int = 0) -> dict[str, SaliencyEffect]:
    """Correlations and decile gaps per task and pooled, of the rounds whose saliency was measured.

    Raises:
        InputError: there is none.
    """
    known = RoundLog(tuple(row for row in log.rows if row.saliency is not None))
    if not len(known):
        raise InputError(
            "the log holds no saliency; write it with 'oneglance rounds --saliency', on prompts with images"
        )
    return {name: _saliency_effect(own, seed) for name, own in parts(known)}


def study_ablation(
    lengths: Mapping[tuple[str, str, str], Mapping[str, Sequence[int]]], *, baseline: str, seed: int = 0
) -> Ablation:
    """Shares of τ kept, per task and pooled.

    Args:
        lengths: (task, tree, arm) → prompt → kept tokens of each round; the same prompts in every arm of a task.
        baseline: the untouched arm.
        seed: of the resampling.
    """
    tasks = list(dict.fromkeys(task for task, _, _ in lengths))
    trees = list(dict.fromkeys(tree for _, tree, _ in lengths))
    arms = list(dict.fromkeys(arm for _, _, arm in lengths))
    groups = {task: [task] for task in tasks} | ({"pooled": tasks} if len(tasks) > 1 else {})
    kept: dict[str, dict[str, dict[str, Kept]]] = {}
    gaps: dict[str, dict[str, Interval]] = {}
    for name, members in groups.items():
        own = {(t, a): _pooled([lengths[task, t, a] for task in members]) for t in trees for a in arms}
        kept[name] = {t: {a: _kept(own[t, a], own[t, baseline], seed) for a in arms} for t in trees}
        if len(trees) == 2:
            one, two = trees
            gaps[name] = {
                a: resample_share_gap(own[one, a], own[one, baseline], own[two, a], own[two, baseline], seed=seed)
                for a in arms
                if a != baseline
            }
    return Ablation(kept, gaps)


def lengths_of(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], dict[str, list[int]]]:
    """(task, tree, arm) → prompt → kept tokens of each round, from the lines that ``ablate`` writes."""
    lengths: dict[tuple[str, str, str], dict[str, list[int]]] = {}
    for line in lines:
        for tree, by_arm in line["rounds"].items():
            for arm, own in by_arm.items():
                if own:  # an answer of one token has no round, in no arm
                    lengths.setdefault((line["task"], tree, arm), {})[line["prompt"]] = own
    return lengths


def study_transfer(logs: Sequence[tuple[str, str | None, RoundLog]], *, method: Method, seed: int = 0) -> Transfer:
    """The law of every task of every log.

    Args:
        logs: label, target and drafted rounds.
        method: estimator.
        seed: of the resampling.
    """
    rows: list[TransferRow] = []
    excluded: dict[str, str] = {}
    for label, target, log in logs:
        for task, own in parts(log):
            found = assess(
                fit(own, method=method), own.h_nats, own.runs.a, own.prompts, horizon=own.runs.horizon, seed=seed
            )
            if found.verdict == "degenerate":
                excluded[f"{label}: {task}"] = found.law.degenerate or "fewer than one round in twenty accepts anything"
                continue
            rows.append(TransferRow(label, target, own.rows[0].run, task, _sign(found.law.b1), found))
    return Transfer(tuple(rows), excluded)


def _place(row: object) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in ("task", "prompt", "round", "horizon"))


def _image_effect(right: RoundLog, wrong: RoundLog, seed: int) -> ImageEffect:
    names, a, other = right.prompts, right.runs.a, wrong.runs.a
    both = np.concatenate
    is_right = both([np.ones(len(right)), np.zeros(len(wrong))])
    try:
        effect = residual_effect(both([a, other]), both([right.h_nats, wrong.h_nats]), is_right, both([names, names]))
    except InputError:  # entropy says which arm it is, or does not vary
        effect = None
    return ImageEffect(
        lift=resample_lift(totals(a, names), totals(other, names), seed=seed),
        lift_tau=resample_lift(totals(a + 1, names), totals(other + 1, names), seed=seed),
        h_right=resample_mean(right.h_nats, names, seed=seed),
        h_mismatched=resample_mean(wrong.h_nats, names, seed=seed),
        h_change=resample_mean(right.h_nats - wrong.h_nats, names, seed=seed),
        effect=effect,
        num_roots=len(right),
        num_prompts=len(set(names.tolist())),
    )


def _saliency_effect(log: RoundLog, seed: int) -> SaliencyEffect:
    a, h, v = log.runs.a, log.h_nats, log.floats("saliency")
    gaps = decile_gaps(a, h, v)
    known = [gap for gap in gaps if np.isfinite(gap.ratio)]
    weights = [gap.num_rounds for gap in known]
    return SaliencyEffect(
        correlations=correlate(a, h, v, log.prompts, seed=seed),
        gaps=gaps,
        mean_gap=float(np.average([gap.ratio for gap in known], weights=weights)) if known else float("nan"),
        mean_saliency=float(v.mean()),
        num_rounds=len(log),
        num_prompts=len(set(log.prompts.tolist())),
    )


def _pooled(lengths: Sequence[Mapping[str, Sequence[int]]]) -> Totals:
    """Totals by prompt, tasks one after the other."""
    own = [np.array(rounds, float) for part in lengths for rounds in part.values()]
    return Totals(np.array([r.sum() for r in own]), np.array([float(r.size) for r in own]))


def _kept(arm: Totals, baseline: Totals, seed: int) -> Kept:
    rounds = Totals(arm.counts, arm.counts)  # of mean one
    return Kept(_over(arm, rounds, seed), _over(arm, baseline, seed), int(arm.counts.sum()), arm.sums.size)


def _over(arm: Totals, other: Totals, seed: int) -> Interval:
    """Ratio of the means."""
    lift = resample_lift(arm, other, seed=seed)
    return replace(lift, value=1 + lift.value, low=1 + lift.low, high=1 + lift.high)


def _sign(b1: Interval) -> int:
    return int(b1.low > 0) - int(b1.high < 0)
