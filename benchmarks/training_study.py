"""Heads trained alike but for one thing, compared on the same held-out prompts (docs/training.md).

    python benchmarks/training_study.py objectives --out runs/studies/objectives.jsonl
    python benchmarks/training_study.py objectives --out runs/studies/objectives.jsonl --table docs/training.md

A study of ``training_studies.yaml`` names a recipe, overrides that all arms share, and arms of further overrides; each
arm is trained once a seed. Features that two arms share are made once. A line of the file is one trained head; a run
that was killed goes on with the arms that are missing.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
import yaml

from oneglance.bench.manifest import manifest
from oneglance.files import append_lines, read_lines, spliced, write_atomically
from oneglance.stats.bootstrap import Totals, resample_lift
from oneglance.targets import open_target
from oneglance.targets.base import Target
from oneglance.train.evaluate import expected_accepted, heldout_accuracy, rounds_per_prompt
from oneglance.train.features import MemoryStore
from oneglance.train.memory import peak_bytes
from oneglance.train.recipe import HeadRecipe, load_recipe
from oneglance.train.trainer import HeadTrainer

STUDIES = Path(__file__).with_name("training_studies.yaml")
OFFSETS = (1, 2, 4, 8, 15)


@dataclass(frozen=True)
class Study:
    """Arms that differ in one thing.

    Attributes:
        overrides: of the recipe, for every arm.
        arms: name → further overrides. The first is what the others are compared with.
        untrained: arms that are only scored, as their ``init`` is.
    """

    recipe: str
    overrides: list[str]
    seeds: list[int]
    arms: dict[str, list[str]]
    untrained: list[str] = field(default_factory=list)

    def runs(self) -> Iterator[tuple[str, int, list[str]]]:
        for seed in self.seeds:
            for arm, overrides in self.arms.items():
                if arm not in self.untrained or seed == self.seeds[0]:
                    yield arm, seed, [*self.overrides, *overrides, f"seed={seed}", "schedule.tau_prompts=0"]


class SharedFeatures:
    """Memory stores by whatever decides a feature."""

    def __init__(self) -> None:
        self._stores: dict[tuple[Any, ...], MemoryStore] = {}

    def of(self, recipe: HeadRecipe) -> MemoryStore:
        key = (
            recipe.image_long_side,
            recipe.data.max_length,
            recipe.head.target_layer_ids,
            recipe.objective.build().soft,
        )
        return self._stores.setdefault(key, MemoryStore())


def train_arm(
    target: Target, recipe: HeadRecipe, out: Path, features: SharedFeatures, *, is_trained: bool
) -> dict[str, Any]:
    """Train one head and score it on the held-out traces."""
    trainer = HeadTrainer(recipe, target, out, store=features.of(recipe))
    begun, loss = time.perf_counter(), None
    if is_trained:
        for progress in trainer.run():
            loss = progress.loss
            print(f"  step {progress.step}/{progress.num_steps}  loss {progress.loss:.3f}", flush=True)
    minutes = (time.perf_counter() - begun) / 60
    samples = (trainer.sample(row) for row in trainer.heldout_rows)
    accuracy = heldout_accuracy(trainer.kind, trainer.head, target, samples)
    kept = rounds_per_prompt(
        trainer.kind,
        trainer.head,
        target,
        trainer.heldout_rows,
        long_side=recipe.image_long_side,
        budget=recipe.schedule.tau_budget,
    )
    return {
        "steps": trainer.num_steps if is_trained else 0,
        "loss": loss,
        "minutes": round(minutes, 2),
        "peak_memory_gb": round(peak_bytes(target.device) / 1e9, 2),
        "top1": accuracy.top1,
        "expected_accepted": expected_accepted(accuracy.top1),
        "kept": kept,
    }


def totals(row: dict[str, Any], task: str | None) -> Totals:
    """Kept tokens and rounds by prompt, of one task or of all."""
    prompts = [p for name, prompts in row["kept"].items() if task in (None, name) for p in prompts if p]
    return Totals(np.array([sum(p) for p in prompts], float), np.array([len(p) for p in prompts], float))


def pooled(rows: list[dict[str, Any]], task: str | None) -> Totals:
    """The same prompts under several seeds: sums over seeds, so that a prompt stays one unit."""
    parts = [totals(row, task) for row in rows]
    return Totals(sum(p.sums for p in parts), sum(p.counts for p in parts))


def table(study: Study, rows: list[dict[str, Any]]) -> str:
    """Markdown: an arm a line, pooled over its seeds, compared with the first arm on the same prompts."""
    by_arm = {arm: [row for row in rows if row["arm"] == arm] for arm in study.arms}
    first = next(iter(study.arms))
    tasks = list(by_arm[first][0]["kept"])
    head = ["arm", "seeds", *(f"top-1 @{k}" for k in OFFSETS), *(f"τ {task}" for task in tasks), f"τ over {first}"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for arm, own in by_arm.items():
        if not own:
            continue
        top1 = np.mean([row["top1"] for row in own], axis=0)
        taus = [pooled(own, task).mean for task in tasks]
        cells = [arm, str(len(own)), *(f"{top1[k - 1]:.3f}" if k <= len(top1) else "" for k in OFFSETS)]
        cells += [f"{tau:.2f}" for tau in taus]
        cells.append("" if arm == first else compared(own, by_arm[first], None))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *by_task(by_arm, first, tasks), provenance(rows, tasks)])


def by_task(by_arm: dict[str, list[dict[str, Any]]], first: str, tasks: list[str]) -> list[str]:
    """Each task's own ratio."""
    head = [f"τ over {first}", *tasks]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for arm, own in by_arm.items():
        if arm != first and own:
            lines.append("| " + " | ".join([arm, *(compared(own, by_arm[first], task) for task in tasks)]) + " |")
    return [*lines, ""]


def compared(own: list[dict[str, Any]], base: list[dict[str, Any]], task: str | None) -> str:
    """Ratio of pooled τ on the same prompts, with its interval."""
    lift = resample_lift(pooled(own, task), pooled(base, task))
    return f"{lift.value + 1:.2f} [{lift.low + 1:.2f}, {lift.high + 1:.2f}]"


def provenance(rows: list[dict[str, Any]], tasks: list[str]) -> str:
    """What the figures rest on."""
    prompts = {task: len(rows[0]["kept"][task]) for task in tasks}
    counts = ", ".join(f"{task} {n}" for task, n in prompts.items())
    minutes = [row["minutes"] for row in rows if row["steps"]]
    shas = ", ".join(sorted({str(row["manifest"]["git_sha"]) for row in rows}))
    low, high = f"{min(minutes):.0f}", f"{max(minutes):.0f}"
    taken = low if low == high else f"{low} to {high}"
    return (
        f"{max(row['steps'] for row in rows)} steps an arm and seed, {taken} minutes on one thread; "
        f"held-out prompts: {counts}; τ by a best-first tree, prompts resampled for the intervals (95 %). "
        f"Code {shas}."
    )


def main(
    study: Annotated[str, typer.Argument(help="A name in training_studies.yaml.")],
    out: Annotated[Path, typer.Option(help="JSONL, a line a trained head.")],
    train: Annotated[list[str] | None, typer.Option(help="Folders of traces; default the recipe's.")] = None,
    heldout: Annotated[str | None, typer.Option(help="Held-out traces; default the recipe's.")] = None,
    threads: Annotated[int, typer.Option(help="Of each arm.")] = 1,
    table_in: Annotated[Path | None, typer.Option("--table", help="Only write the table into this page.")] = None,
) -> None:
    """Train the arms of a study that OUT does not hold yet, or write its table."""
    chosen = Study(**yaml.safe_load(STUDIES.read_text())[study])
    rows = read_lines(out)
    if table_in is not None:
        page = spliced(table_in.read_text(encoding="utf-8"), f"study: {study}", table(chosen, rows))
        write_atomically(table_in, page)
        return
    torch.set_num_threads(threads)
    done = {(row["arm"], row["seed"]) for row in rows}
    features, opened = SharedFeatures(), {}
    data = [f"data.train=[{','.join(train)}]"] if train else []
    data += [f"data.heldout={heldout}"] if heldout else []
    out.parent.mkdir(parents=True, exist_ok=True)
    for arm, seed, overrides in chosen.runs():
        if (arm, seed) in done:
            continue
        print(f"{arm}, seed {seed}", flush=True)
        recipe = load_recipe(chosen.recipe, [*data, *overrides])
        target = opened.setdefault(recipe.target, None) or open_target(recipe.target, dtype=recipe.target_dtype)
        opened[recipe.target] = target
        folder = out.parent / study / f"{arm.replace(' ', '-')}-{seed}"
        shutil.rmtree(folder, ignore_errors=True)  # of an arm that was killed
        scores = train_arm(target, recipe, folder, features, is_trained=arm not in chosen.untrained)
        row = {"study": study, "arm": arm, "seed": seed, "overrides": overrides, **scores}
        append_lines(out, [{**row, "manifest": manifest(recipe=json.loads(recipe.model_dump_json()))}])


if __name__ == "__main__":
    typer.run(main)
