"""The training loop: a leader makes the steps, a helper adds micro-batches as it can.

Every optimiser step has a fixed number of micro-batches, drawn from (seed, step, index); the
helper draws from its own seeds. Gradient sums are added and divided by the step's token count.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Qwen3VLForConditionalGeneration

from oneglance.train.reader.data import Batch, Source
from oneglance.train.reader.model import Trainee, config
from oneglance.train.reader.recipe import Phase, Recipe
from oneglance.train.reader.shared import Shared
from oneglance.train.reader.tokens import Encoder, load_or_build

STATS: Final = ("tokens", "loss", "right", "char", "piece", "pointing", "micros", "samples", "seconds")
_MICROS: Final = STATS.index("micros")


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    step: int = 0
    samples: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Optimisers:
    """Muon for the target's hidden matrices, AdamW for everything else."""

    muon: torch.optim.Muon
    adam: torch.optim.AdamW

    @classmethod
    def of(cls, trainee: Trainee, weight_decay: float) -> Optimisers:
        """Sort the parameters."""
        hidden: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in trainee.named_parameters():
            inner = name.startswith("target.model") and parameter.ndim == 2 and "embed" not in name
            (hidden if inner else others).append(parameter)
        muon = torch.optim.Muon(hidden, lr=1e-3, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        return cls(muon, torch.optim.AdamW(others, lr=1e-3, betas=(0.9, 0.98), weight_decay=weight_decay))

    def step(self, lr: float) -> None:
        """One update at this learning rate."""
        for optimiser in (self.muon, self.adam):
            for group in optimiser.param_groups:
                group["lr"] = lr
            optimiser.step()  # type: ignore[no-untyped-call]

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])


def phase_at(recipe: Recipe, seconds: float) -> tuple[Phase, float] | None:
    """The phase at this time and the fraction of it that is over; None when all are."""
    for phase in recipe.phases:
        if seconds < phase.minutes * 60:
            return phase, seconds / (phase.minutes * 60)
        seconds -= phase.minutes * 60
    return None


def learning_rate(recipe: Recipe, phase: Phase, fraction: float, step: int) -> float:
    """Cosine between the phase's two ends, with a warm-up at the run's start."""
    first, last = phase.lr
    rate = last + (first - last) * 0.5 * (1 + math.cos(math.pi * fraction))
    return rate * min(1.0, (step + 1) / recipe.warmup_steps)


@dataclass(slots=True)
class Run:
    """A run's live state, the leader's or the helper's."""

    recipe: Recipe
    trainee: Trainee
    source: Source
    shared: Shared
    optimisers: Optimisers
    progress: Progress = field(default_factory=Progress)

    @classmethod
    def start(cls, recipe: Recipe, *, is_leader: bool) -> Run:
        """A fresh run."""
        torch.manual_seed(recipe.seed)
        if recipe.init:
            shutil.copy(recipe.init / "tokenizer.json", recipe.out / "tokenizer.json")
        encoder = Encoder(load_or_build(recipe.out / "tokenizer.json", recipe.shape.vocab_size))
        target = Qwen3VLForConditionalGeneration(config(recipe.shape, encoder))
        if recipe.init:
            weights = load_file(recipe.init / "model.safetensors")
            target.load_state_dict(weights | {"lm_head.weight": weights["model.language_model.embed_tokens.weight"]})
        trainee = Trainee(target)
        shared = Shared(recipe.out / "shared.bin", list(trainee.parameters()), len(STATS), is_leader=is_leader)
        return cls(recipe, trainee, Source(recipe, encoder), shared, Optimisers.of(trainee, recipe.weight_decay))

    @property
    def checkpoint(self) -> Path:
        """Where the run is saved."""
        return self.recipe.out / "checkpoint.pt"

    def resume(self) -> None:
        """Take the saved state."""
        saved = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        self.trainee.load_state_dict(saved["trainee"])
        self.optimisers.load(saved["optimisers"])
        self.progress = Progress(**saved["progress"])

    def save(self, name: str = "checkpoint.pt") -> None:
        """Write the state in one move."""
        path, progress = self.recipe.out / name, self.progress
        state = {
            "trainee": self.trainee.state_dict(),
            "optimisers": self.optimisers.state(),
            "progress": {"step": progress.step, "samples": progress.samples, "seconds": progress.seconds},
        }
        torch.save(state, path.with_suffix(".tmp"))
        os.replace(path.with_suffix(".tmp"), path)

    def train(self) -> None:
        """Lead: train until the last phase is over."""
        log = _Log(self.recipe.out / "train.log")
        saved = self.progress.seconds
        while now := phase_at(self.recipe, self.progress.seconds):
            phase, fraction = now
            lr = learning_rate(self.recipe, phase, fraction, self.progress.step)
            log.add(self._step(phase, lr), self.progress, lr)
            if self.progress.seconds - saved > self.recipe.save_minutes * 60:
                self.save()
                saved = self.progress.seconds
        self.save()
        self.shared.finish()

    def _step(self, phase: Phase, lr: float) -> dict[str, float]:
        """One optimiser step; returns its summed statistics."""
        began = time.perf_counter()
        self.trainee.freeze(phase)
        stats, extra = torch.zeros(len(STATS)), None
        while stats[_MICROS] < phase.micro_per_step:
            if found := self.shared.take(self.progress.step):
                extra = found[0] if extra is None else extra + found[0]
                stats += found[1]
            else:
                batch = self.source.batch(phase, self.progress.step, int(stats[_MICROS]))
                stats += self._backward(phase, batch)
        flat = self._take_grads()
        flat = flat if extra is None else flat + extra
        flat /= max(stats[0].item(), 1.0)
        flat *= min(1.0, self.recipe.clip / (flat.norm().item() + 1e-9))
        self._apply(flat, lr)
        self.shared.publish(self.progress.step + 1, self.recipe.phases.index(phase))
        stats[-1] = time.perf_counter() - began
        return dict(zip(STATS, stats.tolist(), strict=True))

    def help(self) -> None:
        """Help: add micro-batches with the newest parameters until the leader ends."""
        while self.shared.step == 0:
            time.sleep(0.2)
        left, stats, index = torch.zeros(0), torch.zeros(len(STATS)), 0
        while not self.shared.is_finished:
            if (step := self.shared.fetch()) is None:
                continue
            phase = self.recipe.phases[self.shared.phase]
            self.trainee.freeze(phase)
            index += 1
            stats = stats + self._backward(phase, self.source.batch(phase, step, 1000 + index))
            left = left + self._take_grads() if len(left) else self._take_grads()
            if self.shared.leave(left, stats, step):
                left, stats = torch.zeros(0), torch.zeros(len(STATS))

    def _take_grads(self) -> Tensor:
        """All gradients in one row, which starts anew; zeros where there are none."""
        rows = []
        for parameter in self.trainee.parameters():
            rows.append(torch.zeros(parameter.numel()) if parameter.grad is None else parameter.grad.flatten())
            parameter.grad = None
        return torch.cat(rows)

    def _apply(self, flat: Tensor, lr: float) -> None:
        start = 0
        for parameter in self.trainee.parameters():
            if parameter.requires_grad:
                parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        self.optimisers.step(lr)
        for parameter in self.trainee.parameters():
            parameter.grad = None

    def _backward(self, phase: Phase, batch: Batch) -> Tensor:
        """Add one micro-batch's gradient; returns its statistics."""
        with torch.autocast("cpu", torch.bfloat16):
            cells, deep = self.trainee.vision(batch)
            char = self.trainee.char_loss(cells, batch)
            piece = self.trainee.piece_loss(cells, batch)
            loss, tokens, right, pointing = cells.sum() * 0, 256, 0, cells.sum() * 0
            if not batch.vision_only and not phase.heads_only:
                loss, tokens, right, pointing = self.trainee.answer_loss(cells, deep, batch)
            extra = phase.char_weight * char + phase.piece_weight * piece + phase.pointer_weight * pointing
        (loss + tokens * extra).backward()  # type: ignore[no-untyped-call]
        losses = (tokens, loss.item(), right, char.item(), piece.item(), pointing.item())
        return torch.tensor([*losses, 1.0, len(batch.ids), 0.0])


class _Log:
    """A line of averages every few steps, on the screen and in a file."""

    EVERY: Final = 20

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sums = dict.fromkeys(STATS, 0.0)

    def add(self, stats: dict[str, float], progress: Progress, lr: float) -> None:
        """Count a step and perhaps write a line."""
        progress.step += 1
        progress.samples += int(stats["samples"])
        progress.seconds += stats["seconds"]
        for name in STATS:
            self.sums[name] += stats[name]
        if progress.step % self.EVERY:
            return
        s = self.sums
        line = (
            f"step {progress.step} {progress.seconds:.0f}s samples {progress.samples} lr {lr:.2e} "
            f"loss {s['loss'] / s['tokens']:.3f} acc {s['right'] / s['tokens']:.3f} "
            f"char {s['char'] / s['micros']:.3f} piece {s['piece'] / s['micros']:.3f} "
            f"pointing {s['pointing'] / s['micros']:.3f} "
            f"{s['samples'] / s['seconds']:.1f}/s"
        )
        print(line, flush=True)
        with self.path.open("a") as file:
            file.write(line + "\n")
        self.sums = dict.fromkeys(STATS, 0.0)
