"""Choose a checkpoint of a run, and score heads on held-out traces (appendix D)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oneglance.core import InputError
from oneglance.drafters.checkpoint import check_fit, fitted
from oneglance.targets.base import Target
from oneglance.train.checkpoints import Checkpoints
from oneglance.train.evaluate import Accuracy, expected_accepted, heldout_accuracy, rounds_per_prompt
from oneglance.train.kinds import Kind, kind_of, load_any
from oneglance.train.runlog import read_recipe
from oneglance.train.step import run_target
from oneglance.train.traces import Trace

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint with held-out figures.

    Attributes:
        step: optimiser steps.
        top1: (L,) held-out accuracies.
        score: expected accepted length of the chain, see ``expected_accepted``.
    """

    step: int
    top1: list[float]
    score: float


def candidates(run: Path) -> list[Candidate]:
    """The evaluated checkpoints of a run, oldest first.

    Raises:
        InputError: there are none.
    """
    found = Checkpoints(run / "checkpoints").accuracies() if run.is_dir() else {}
    if not found:
        raise InputError(f"{run} has no checkpoint with held-out figures; set data.heldout in the recipe and train")
    return [Candidate(step, top1, expected_accepted(top1)) for step, top1 in found.items()]


def select(run: Path, *, step: int | None = None) -> Candidate:
    """Make the best checkpoint, the newest of equals, or a given one, the run's ``head/``.

    Raises:
        InputError: there is no such checkpoint.
    """
    found = candidates(run)
    wanted = [c for c in found if c.step == step] if step is not None else found
    if not wanted:
        raise InputError(
            f"step {step} was not kept or not evaluated; there are {', '.join(str(c.step) for c in found)}"
        )
    best = max(wanted, key=lambda c: (c.score, c.step))
    recipe = read_recipe(run)
    kind = kind_of(recipe.kind)
    stored = kind.load(str(Checkpoints(run / "checkpoints").path(best.step)))
    head = stored.build(dtype=getattr(torch, recipe.save_dtype), device=torch.device("cpu"))
    card = {**stored.card, "training": {**stored.card["training"], "heldout_top1": best.top1}}
    scratch = run / "head.partial"
    shutil.rmtree(scratch, ignore_errors=True)
    kind.save(head, scratch, {**stored.raw, "dtype": recipe.save_dtype, "oneglance": card})
    shutil.rmtree(run / "head", ignore_errors=True)
    scratch.rename(run / "head")
    return best


@dataclass(frozen=True, slots=True)
class TaskScore:
    """What a head does on one task.

    Attributes:
        n: prompts.
        top1: (L,) teacher-forced accuracies.
        chain: expected accepted length of the chain from them.
        rounds: decoded rounds.
        tau: kept tokens a round, bonus included.
        ci_low, ci_high: 95 % bootstrap interval of τ over prompts.
    """

    task: str
    n: int
    top1: list[float]
    chain: float
    rounds: int
    tau: float | None
    ci_low: float | None
    ci_high: float | None


def evaluate_head(
    name: str, target: Target, rows: Sequence[Trace], *, long_side: int | None, budget: int
) -> list[TaskScore]:
    """Score a head per task, then over all.

    Raises:
        HeadError: it does not fit the target.
    """
    kind, stored = load_any(name)
    stored = fitted(stored, target)
    check_fit(stored, target)
    head = stored.build(dtype=torch.float32, device=target.device)
    kept = rounds_per_prompt(kind, head, target, rows, long_side=long_side, budget=budget)
    tasks = list(dict.fromkeys(row.task for row in rows))
    scores = []
    for task in tasks:
        accuracy = _accuracy(kind, head, target, [row for row in rows if row.task == task], long_side)
        scores.append((accuracy, _score(task, accuracy, kept[task])))
    if len(tasks) > 1:
        pooled = _pooled([accuracy for accuracy, _ in scores])
        scores.append((pooled, _score("all", pooled, [rounds for task in tasks for rounds in kept[task]])))
    return [score for _, score in scores]


def tau_interval(prompts: Sequence[Sequence[int]], *, seed: int = 0) -> tuple[float, float] | None:
    """95 % percentile bootstrap of pooled τ, resampling prompts; None below two prompts with rounds."""
    sums = np.array([(sum(rounds), len(rounds)) for rounds in prompts if rounds], dtype=np.float64)
    if len(sums) < 2:
        return None
    drawn = np.random.default_rng(seed).integers(len(sums), size=(RESAMPLES, len(sums)))
    totals = sums[drawn].sum(axis=1)
    low, high = np.percentile(totals[:, 0] / totals[:, 1], [2.5, 97.5])
    return float(low), float(high)


def _accuracy(kind: Kind, head: Any, target: Target, rows: Sequence[Trace], long_side: int | None) -> Accuracy:
    samples = (
        run_target(target, row.encode(target, long_side=long_side), row.answer_ids, head.config.target_layer_ids)
        for row in rows
    )
    return heldout_accuracy(kind, head, target, samples)


def _score(task: str, accuracy: Accuracy, prompts: Sequence[Sequence[int]]) -> TaskScore:
    lengths = [n for rounds in prompts for n in rounds]
    low, high = tau_interval(prompts) or (None, None)
    return TaskScore(
        task=task,
        n=len(prompts),
        top1=accuracy.top1,
        chain=expected_accepted(accuracy.top1),
        rounds=len(lengths),
        tau=sum(lengths) / len(lengths) if lengths else None,
        ci_low=low,
        ci_high=high,
    )


def _pooled(parts: Sequence[Accuracy]) -> Accuracy:
    counts = np.array([part.counts for part in parts])
    hits = (np.array([part.top1 for part in parts]) * counts).sum(axis=0)
    totals = counts.sum(axis=0)
    return Accuracy((hits / np.maximum(totals, 1)).tolist(), totals.tolist())


def as_table(scores: Sequence[TaskScore]) -> list[dict[str, Any]]:
    """Scores as JSON objects."""
    from dataclasses import asdict

    return [asdict(score) for score in scores]
