"""A head for one's own images, in one go: collect, train, select, and τ before and after."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oneglance.core import InputError
from oneglance.targets.base import Target
from oneglance.train.collect import Collection, LocalAnswerer
from oneglance.train.memory import Memory, training_memory
from oneglance.train.prompts import QUESTIONS, Prompt, find_pictures
from oneglance.train.recipe import HeadRecipe, load_recipe
from oneglance.train.traces import read_traces
from oneglance.train.trainer import HeadTrainer

RECIPE = Path(__file__).parent.parent / "assets" / "fit-head.yaml"
FROM_SCRATCH = "head.num_layers=3"  # a warm start brings its own
NUM_MEASURED = 4
MEASURED_STEPS = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be asked, and trained.

    Attributes:
        train, heldout: prompts; no picture is in both.
        recipe: with its data folders.
    """

    train: list[Prompt]
    heldout: list[Prompt]
    recipe: HeadRecipe


@dataclass(frozen=True, slots=True)
class Cost:
    """Measured on a few samples, then multiplied.

    Attributes:
        collect_s, train_s: of the whole.
        steps: optimiser steps.
        memory: of training.
    """

    collect_s: float
    train_s: float
    steps: int
    memory: Memory

    def line(self) -> str:
        """For a terminal."""
        return (
            f"about {self.collect_s / 60:.1f} min to collect and {self.train_s / 60:.1f} min for {self.steps} steps of "
            f"training, without evaluation; {self.memory.line()}"
        )


def folders(out: Path) -> dict[str, Path]:
    """Where the traces of both parts and the training run go."""
    return {"train": out / "traces-train", "heldout": out / "traces-heldout", "run": out / "run"}


def make_plan(
    images: Path,
    out: Path,
    *,
    target: str,
    questions: Sequence[str] = QUESTIONS,
    heldout_share: float = 0.1,
    limit: int | None = None,
    overrides: Sequence[str] = (),
) -> Plan:
    """Split the pictures of a folder, by content, and fill in the recipe.

    Raises:
        InputError: fewer than two different pictures, or a bad override.
    """
    pictures = find_pictures(images)[:limit]
    if len(pictures) < 2:
        raise InputError(f"{images} holds {len(pictures)} different readable images; a head needs two at least")
    num_heldout = min(len(pictures) - 1, max(1, round(heldout_share * len(pictures))))
    filled = [f"data.{key}={folder}" for key, folder in folders(out).items() if key != "run"]
    changes = [*filled, f"target={target}", *overrides]
    recipe = load_recipe(RECIPE, changes)
    if recipe.init is None:
        recipe = load_recipe(RECIPE, [FROM_SCRATCH, *changes])
    return Plan(
        train=_prompts(pictures[num_heldout:], questions),
        heldout=_prompts(pictures[:num_heldout], questions),
        recipe=recipe,
    )


def collection(plan: Plan, part: str, answerer: LocalAnswerer) -> Collection:
    """The traces of one part of a plan."""
    folder = Path(plan.recipe.data.train_folders[0] if part == "train" else str(plan.recipe.data.heldout))
    return Collection(
        out=folder,
        prompts=plan.train if part == "train" else plan.heldout,
        target=answerer.target,
        long_side=plan.recipe.image_long_side,
        max_new_tokens=answerer.params.max_new_tokens,
        source={"images": part},
    )


def measure(plan: Plan, answerer: LocalAnswerer) -> Cost:
    """Answer a few prompts, which are kept, and train a few steps, which are not."""
    few = replace(plan, train=plan.train[:NUM_MEASURED])
    first = collection(few, "train", answerer)
    asked, started = len(first.todo), time.perf_counter()
    list(first.run(answerer))
    per_answer = (time.perf_counter() - started) / max(1, asked)
    rows = read_traces(plan.recipe.data.train_folders[0]).rows
    total = len(plan.train) + len(plan.heldout)
    with tempfile.TemporaryDirectory() as scratch:
        optimiser = plan.recipe.optimiser.model_copy(update={"epochs": None, "max_steps": MEASURED_STEPS})
        data = plan.recipe.data.model_copy(update={"heldout": None})
        schedule = plan.recipe.schedule.model_copy(update={"save_every": 10**9, "log_every": 1})
        short = plan.recipe.model_copy(update={"optimiser": optimiser, "data": data, "schedule": schedule})
        trainer = HeadTrainer(short, answerer.target, Path(scratch))
        last = list(trainer.run())[-1]
    own = plan.recipe.optimiser
    per_step = own.batch_size * own.accumulate
    epochs = own.epochs or 1.0
    steps = own.max_steps or max(1, round(epochs * len(plan.train) / per_step))
    return Cost(
        collect_s=per_answer * (total - len(rows)),
        train_s=steps * per_step / max(last.samples_per_s, 1e-9),
        steps=steps,
        memory=training_memory(plan.recipe, answerer.target, trainer.config, rows, parameters=trainer.num_parameters),
    )


def check_target(target: Target) -> None:
    """Refuse a target that takes no images.

    Raises:
        InputError: it is text-only.
    """
    if not target.takes_images:
        raise InputError(f"{target.name} is a text-only target; collect text prompts and train instead")


def _prompts(pictures: Sequence[tuple[str, Path]], questions: Sequence[str]) -> list[Prompt]:
    return [
        Prompt(f"{sha[:16]}-{index}", f"question-{index + 1}", question, (str(path),))
        for index, question in enumerate(questions)
        for sha, path in pictures
    ]


def as_dict(cost: Cost) -> dict[str, Any]:
    """For JSON."""
    parts = {"collect_s": cost.collect_s, "train_s": cost.train_s, "steps": cost.steps}
    return {**parts, "memory_bytes": cost.memory.needed, "free_bytes": cost.memory.available}
