"""Atomic training checkpoints: head, optimiser and position; the newest complete one is resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oneglance.amounts import size
from oneglance.core import InputError
from oneglance.drafters.checkpoint import SCHEMA_VERSION
from oneglance.drafters.head import DraftConfig
from oneglance.files import read_object
from oneglance.targets.base import FEATURE_POINT, Target
from oneglance.train.evaluate import expected_accepted
from oneglance.train.initial import FIXED
from oneglance.train.kinds import Kind, kind_of
from oneglance.train.recipe import HeadRecipe
from oneglance.train.sharded import load_optimiser, load_weights

GEOMETRY = FIXED | {"block_size": "block_size", "intermediate_size": "intermediate_size"}


class Checkpoints:
    """Numbered checkpoint folders; one that is incomplete has another name and is never resumed."""

    def __init__(self, folder: Path, *, keep: int = 3) -> None:
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, oldest first."""
        return sorted(int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*[0-9]"))

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:07d}"

    def save(
        self,
        step: int,
        kind: Kind,
        head: nn.Module,
        optimiser: dict[str, Any],
        card: dict[str, Any],
        *,
        top1: list[float] | None = None,
    ) -> None:
        """Write to a scratch folder, then rename.

        Args:
            step: optimiser steps so far.
            kind: of the head.
            head: trained.
            optimiser: its state.
            card: ``config.json``.
            top1: held-out accuracies of this step, where it was evaluated.

        Raises:
            InputError: there is no room; nothing is written then.
        """
        self._check_room(head, optimiser)
        scratch = self.folder / f"{self.path(step).name}.partial"
        shutil.rmtree(scratch, ignore_errors=True)
        kind.save(head, scratch, card)
        torch.save(optimiser, scratch / "optimiser.pt")
        (scratch / "state.json").write_text(json.dumps({"step": step, "heldout_top1": top1}))
        if self.path(step).exists():
            self._drop(step)
        scratch.rename(self.path(step))
        best = self.best()
        for old in self.steps()[: -self.keep]:
            if old != best:
                self._drop(old)

    def accuracies(self) -> dict[int, list[float]]:
        """Held-out top-1 at each offset, of the steps that have it."""
        found = {step: _top1(self.path(step)) for step in self.steps()}
        return {step: top1 for step, top1 in found.items() if top1}

    def best(self) -> int | None:
        """The step with the longest expected accepted chain, the newest of equals."""
        scores = {step: expected_accepted(top1) for step, top1 in self.accuracies().items()}
        return max(scores, key=lambda step: (scores[step], step)) if scores else None

    def _check_room(self, head: nn.Module, optimiser: dict[str, Any]) -> None:
        states = [value for parts in optimiser["state"].values() for value in parts.values()]
        tensors = [*head.state_dict().values(), *(value for value in states if isinstance(value, Tensor))]
        needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise InputError(
                f"a checkpoint takes {size(needed)} and {size(free)} are free at {self.folder}; make "
                "room (older checkpoints can go) and go on with --resume"
            )

    def _drop(self, step: int) -> None:
        """Rename first: a half-deleted checkpoint must not look complete."""
        doomed = self.folder / f"{self.path(step).name}.partial-old"
        shutil.rmtree(doomed, ignore_errors=True)
        self.path(step).rename(doomed)
        shutil.rmtree(doomed)

    def restore(self, kind: Kind, head: Any, optimiser: Any) -> int:
        """Load the newest checkpoint into head and optimiser; its step, or 0 where there is none."""
        steps = self.steps()
        if not steps:
            return 0
        path = self.path(steps[-1])
        stored = kind.load(str(path))
        if stored.config != head.config:
            raise InputError(f"{path} holds a head of another geometry than the recipe's; use another output folder")
        load_weights(head, stored.tensors)
        load_optimiser(optimiser, torch.load(path / "optimiser.pt", weights_only=True, mmap=True))
        return steps[-1]


def _top1(checkpoint: Path) -> list[float]:
    fix = f"remove {checkpoint}"
    top1 = read_object(checkpoint / "state.json", fix).get("heldout_top1") or []
    if not isinstance(top1, list) or not all(isinstance(share, int | float) and 0 <= share <= 1 for share in top1):
        raise InputError(f"{checkpoint / 'state.json'} holds no accuracies; {fix}")
    return top1


def head_card(
    recipe: HeadRecipe,
    config: DraftConfig,
    target: Target,
    *,
    step: int,
    dtype: str = "float32",
    data: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """``config.json`` of a trained head: its layout's keys, and our own, and its ``data``, under ``oneglance``."""
    return {
        **kind_of(recipe.kind).layout(recipe, target, config),
        "dtype": dtype,
        "oneglance": {
            "schema_version": SCHEMA_VERSION,
            "feature_point": FEATURE_POINT,
            **target.fingerprint(),
            "training": {"recipe": as_trained(recipe, config).model_dump(mode="json"), "step": step, "data": data},
        },
    }


def as_trained(recipe: HeadRecipe, config: DraftConfig) -> HeadRecipe:
    """The recipe with the head's real geometry where it left that to the target or to a warm start."""
    real = {key: getattr(config, name) for key, name in GEOMETRY.items() if hasattr(config, name)}
    real["num_kept"] = len(config.target_layer_ids)
    return recipe.model_copy(update={"head": recipe.head.model_copy(update=real)})
