"""A head for one's own images, in one go: collect, train, select, and τ before and after."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneglance.amounts import duration, listed, plural
from oneglance.core import InputError
from oneglance.files import read_object, write_atomically
from oneglance.targets.base import Target
from oneglance.train.checkpoints import Checkpoints
from oneglance.train.collect import Collection, LocalAnswerer, answered, skipped
from oneglance.train.memory import Memory, training_memory
from oneglance.train.prompts import QUESTIONS, SUFFIXES, Pictures, Prompt, look_for_pictures
from oneglance.train.recipe import HeadRecipe, load_recipe
from oneglance.train.runlog import check_run
from oneglance.train.traces import read_traces
from oneglance.train.trainer import HeadTrainer

RECIPE = Path(__file__).parent.parent / "assets" / "fit-head.yaml"
FROM_SCRATCH = "head.num_layers=3"  # a warm start brings its own
NUM_MEASURED = 4
MEASURED_STEPS = 2
RESULT = "fit.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be asked, and trained.

    Attributes:
        train, heldout: prompts; no picture is in both.
        recipe: with its data folders.
        out: traces, run and head go there.
        pictures: what the folder of images holds.
        questions: each is asked of each picture.
        max_new_tokens: cap of an answer.
    """

    train: list[Prompt]
    heldout: list[Prompt]
    recipe: HeadRecipe
    out: Path
    pictures: Pictures
    questions: tuple[str, ...]
    max_new_tokens: int

    @property
    def run(self) -> Path:
        """The folder of the training run."""
        return folders(self.out)["run"]

    @property
    def parts(self) -> dict[Path, list[Prompt]]:
        """Folder of traces → what is asked for it."""
        data = self.recipe.data
        return {Path(data.train_folders[0]): self.train, Path(str(data.heldout)): self.heldout}

    def line(self) -> str:
        """For a terminal: what was found, and what is left out."""
        used = {path for prompt in (*self.train, *self.heldout) for path in prompt.images}
        judged = len({path for prompt in self.heldout for path in prompt.images})
        left_out = len(self.pictures.found) - len(used)
        parts = [f"{plural(len(used) - judged, 'picture')} to learn from, {judged} to judge by"]
        parts += [f"{left_out} over --limit"] if left_out else []
        parts += [f"{len(paths)} {what} ({_names(paths)})" for what, paths in self._unused() if paths]
        return "; ".join(parts)

    def _unused(self) -> tuple[tuple[str, Sequence[Path]], ...]:
        return ("unreadable", self.pictures.unreadable), ("left out as copies of others", self.pictures.copies)

    def sha256(self) -> str:
        """Of all that decides the head; a local target's weights count by their files' sizes and times."""
        asked = [[(prompt.id, prompt.text) for prompt in part] for part in (self.train, self.heldout)]
        weights = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(_weights(self.recipe.target))]
        whole = [asked, self.recipe.model_dump(mode="json"), self.max_new_tokens, weights]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()


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
        collect = f"{duration(self.collect_s)} to collect and " if self.collect_s else ""
        return (
            f"about {collect}{duration(self.train_s)} for {plural(self.steps, 'step')} of training, without "
            f"evaluation; {self.memory.line()}"
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
    max_new_tokens: int = 256,
    overrides: Sequence[str] = (),
) -> Plan:
    """Split the pictures of a folder, by content, and fill in the recipe.

    Raises:
        InputError: fewer than two different pictures, none to judge by, or a bad override.
    """
    if heldout_share <= 0:
        raise InputError("--heldout-share 0 leaves no picture to judge the head by; give more, such as 0.1")
    pictures = look_for_pictures(images)
    used = pictures.found[:limit]
    if len(used) < 2:
        bad = f" ({len(pictures.unreadable)} unreadable: {_names(pictures.unreadable)})" if pictures.unreadable else ""
        raise InputError(
            f"{images} holds {plural(len(used), 'different readable picture')}{bad}; a head needs two at least, and a "
            f"good one thousands: put more there ({', '.join(sorted(SUFFIXES))}), or name another folder by --images"
        )
    num_heldout = min(len(used) - 1, max(1, round(heldout_share * len(used))))
    filled = [f"data.{key}={folder}" for key, folder in folders(out).items() if key != "run"]
    changes = [*filled, f"target={target}", *overrides]
    recipe = load_recipe(RECIPE, changes)
    if recipe.init is None:
        recipe = load_recipe(RECIPE, [FROM_SCRATCH, *changes])
    return Plan(
        train=_prompts(used[num_heldout:], questions),
        heldout=_prompts(used[:num_heldout], questions),
        recipe=recipe,
        out=out,
        pictures=pictures,
        questions=tuple(questions),
        max_new_tokens=max_new_tokens,
    )


def check_begun(plan: Plan) -> None:
    """Refuse a folder that was begun with something else, before anything is written to it.

    Raises:
        InputError: it has answers about other pictures or questions, or a run of another recipe.
    """
    has_steps = bool(Checkpoints(plan.run / "checkpoints").steps())
    for folder, prompts in plan.parts.items():
        texts, begun = {prompt.id: prompt.text for prompt in prompts}, answered(folder)
        strange = any(texts.get(key) != text for key, text in begun.items())
        if strange or (has_steps and texts.keys() - begun.keys() - skipped(folder)):
            raise InputError(
                f"{plan.out} was begun with other pictures, questions, --limit or --heldout-share; give the same again "
                "to go on with it, or choose another --out"
            )
    check_run(plan.run, plan.recipe, resume=True)


def collection(plan: Plan, folder: Path, answerer: LocalAnswerer) -> Collection:
    """The traces of one part of a plan."""
    return Collection(
        out=folder,
        prompts=plan.parts[folder],
        target=answerer.target,
        long_side=plan.recipe.image_long_side,
        max_new_tokens=plan.max_new_tokens,
        source={"images": folder.name.removeprefix("traces-")},
    )


def measure(plan: Plan, answerer: LocalAnswerer) -> Cost:
    """Answer a few prompts, which are kept, and train a few steps, which are not.

    Raises:
        InputError: no answer can be learned from.
    """
    rests = [made for folder in plan.parts if (made := collection(plan, folder, answerer)).todo]
    per_answer = _answer_few(rests[0], answerer) if rests else 0.0
    train, heldout = (collection(plan, folder, answerer) for folder in plan.parts)
    check_some(train)
    rows = read_traces(train.out).rows
    with tempfile.TemporaryDirectory() as scratch:
        optimiser = plan.recipe.optimiser.model_copy(update={"epochs": None, "max_steps": MEASURED_STEPS})
        data = plan.recipe.data.model_copy(update={"heldout": None})
        schedule = plan.recipe.schedule.model_copy(update={"save_every": 10**9, "log_every": 1})
        short = plan.recipe.model_copy(update={"optimiser": optimiser, "data": data, "schedule": schedule})
        trainer = HeadTrainer(short, answerer.target, Path(scratch))
        last = list(trainer.run())[-1]
    own = plan.recipe.optimiser
    steps = own.num_steps(len(rows) + len(train.todo))
    return Cost(
        collect_s=per_answer * (len(train.todo) + len(heldout.todo)),
        train_s=steps * own.batch_size * own.accumulate / max(last.samples_per_s, 1e-9),
        steps=steps,
        memory=training_memory(plan.recipe, answerer.target, trainer.config, rows, parameters=trainer.num_parameters),
    )


def check_some(made: Collection) -> None:
    """Refuse a part of the plan without a trace.

    Raises:
        InputError: with the reasons.
    """
    nothing = made.why_nothing()
    if nothing:
        raise InputError(nothing)


def check_target(target: Target) -> None:
    """Refuse a target that takes no images.

    Raises:
        InputError: it is text-only.
    """
    if not target.takes_images:
        raise InputError(f"{target.name} is a text-only target; collect text prompts and train instead")


def keep_result(plan: Plan, result: dict[str, Any]) -> None:
    """Remember what came of a plan."""
    write_atomically(plan.out / RESULT, json.dumps({"plan": plan.sha256(), **result}, indent=2) + "\n")


def kept_result(plan: Plan) -> dict[str, Any] | None:
    """What came of this very plan, where it was carried out and its head is still there.

    Raises:
        InputError: the file that says so is damaged.
    """
    if not (plan.out / RESULT).is_file() or not (plan.run / "head" / "config.json").is_file():
        return None
    found = read_object(plan.out / RESULT, "delete it")
    return found if found.pop("plan", None) == plan.sha256() else None


def _names(paths: Sequence[Path]) -> str:
    return listed([path.name for path in paths])


def _weights(target: str) -> Iterable[Path]:
    """Weight files of a target that lies in a folder."""
    return (path for path in Path(target).expanduser().glob("*") if path.suffix in (".safetensors", ".bin"))


def _answer_few(rest: Collection, answerer: LocalAnswerer) -> float:
    """Seconds a prompt. Prompts without a trace count, but not among the few."""
    start, already, started = rest.progress.done, rest.num_traces, time.perf_counter()
    with closing(rest.run(answerer)) as steps:  # closed early, it lets go of the folder
        next((None for _ in steps if rest.num_traces - already >= NUM_MEASURED), None)
    return (time.perf_counter() - started) / max(1, rest.progress.done - start)


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
