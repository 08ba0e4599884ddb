"""Train a draft head on traces (§4.3, appendix D). Only the head learns; the target is frozen.

Sample order, anchors and reveal lengths are functions of (seed, epoch, sample, step), so a run that was killed and
resumed draws what an unbroken one draws. The loss of a step is the weighted sum over all micro-batches and processes
divided by the global sum of weights: two processes equal one with twice the accumulation.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oneglance.core import InputError
from oneglance.drafters.head import DraftConfig
from oneglance.files import sole_writer
from oneglance.targets.base import Target
from oneglance.train.blocks import build_blocks, generator
from oneglance.train.caching import Layout, with_collected
from oneglance.train.checkpoints import Checkpoints, head_card
from oneglance.train.evaluate import Accuracy, heldout_accuracy, heldout_tau, serving
from oneglance.train.features import DiskStore, MemoryStore, NoStore, Store, key_of
from oneglance.train.initial import check_mask
from oneglance.train.kinds import kind_of
from oneglance.train.origin import check_ids, check_image_size, check_origin
from oneglance.train.processes import open_accelerator, prepare
from oneglance.train.recipe import HeadRecipe
from oneglance.train.runlog import log, open_run
from oneglance.train.sharded import gather
from oneglance.train.step import Sample, StepResult
from oneglance.train.traces import Trace, check_disjoint, counts, read_mixed, read_traces


@dataclass(frozen=True, slots=True)
class Progress:
    """What is reported after a step.

    Attributes:
        step: optimiser steps so far, of ``num_steps``.
        loss: weighted mean slot loss of the step.
        top1: (L,) share of right predictions at each offset in this step's blocks.
        samples_per_s: since the last report; 0 before the first step.
        heldout: accuracy on held-out traces, where this step was evaluated.
        tau: per task, where evaluated.
    """

    step: int
    num_steps: int
    loss: float
    top1: list[float]
    samples_per_s: float
    heldout: Accuracy | None = None
    tau: dict[str, float] | None = None


class HeadTrainer:
    """One training run.

    Args:
        recipe: decides everything.
        target: the frozen target.
        out: run folder: ``recipe.json``, ``log.jsonl``, ``checkpoints/``, ``head/``.
        trackers: experiment trackers of accelerate, such as ``tensorboard``.
        store: of features, for runs that share them; the recipe's own choice by default.

    Attributes:
        done: optimiser steps so far.
    """

    def __init__(
        self,
        recipe: HeadRecipe,
        target: Target,
        out: Path,
        *,
        trackers: Sequence[Any] = (),
        store: Store | None = None,
    ) -> None:
        self.recipe, self.target, self.out = recipe, target, out
        self.accelerator = open_accelerator(recipe, target, out, trackers)
        self.train_rows, self.heldout_rows = read_data(recipe, target)
        self.kind = kind_of(recipe.kind)
        head, self.reinitialised = self.kind.initial(recipe, target, self.train_rows)
        self.config: DraftConfig = head.config
        check_mask(self.config, target)
        check_layers(self.config, target)
        self.objective = recipe.objective.build()
        optimiser = recipe.optimiser
        packed = self.kind.pack(head.float())
        adam = torch.optim.AdamW(
            packed.parameters(), lr=optimiser.lr, betas=optimiser.betas, weight_decay=optimiser.weight_decay
        )
        is_first_shard = self.accelerator.is_fsdp2 and self.accelerator.is_main_process
        self._plain = copy.deepcopy(head).cpu() if is_first_shard else None
        self.packed, self.adam = prepare(self.accelerator, packed, adam)
        self.checkpoints = Checkpoints(out / "checkpoints", keep=recipe.schedule.keep)
        self._store = self._feature_store() if store is None else store
        self.done = 0

    @property
    def head(self) -> Any:
        """The head in training; its class is the kind's. Under FSDP its tensors lie in shards."""
        return self.accelerator.unwrap_model(self.packed).head

    def whole_head(self) -> Any:
        """The head with whole tensors, to save or to judge; all processes must call this together.

        Under FSDP it is a copy on the CPU, and None on all processes but the first.
        """
        if not self.accelerator.is_fsdp2:
            return self.head
        tensors = gather(self.head.state_dict(), keep=self.accelerator.is_main_process)
        if self._plain is not None:
            self._plain.load_state_dict(tensors)
        return self._plain

    @property
    def num_parameters(self) -> int:
        """That are trained; embedding and lm_head of the target are not among them (Table 2)."""
        return sum(parameter.numel() for parameter in self.head.parameters())

    @property
    def data(self) -> dict[str, Any]:
        """What it learns from and is judged by, for the head's card."""
        return {"train": counts(self.train_rows), "heldout": counts(self.heldout_rows)}

    @property
    def num_shards(self) -> int:
        """Processes that share weights, gradients and optimiser state."""
        return int(self.accelerator.num_processes) if self.accelerator.is_fsdp2 else 1

    @property
    def num_steps(self) -> int:
        return self.recipe.optimiser.num_steps(len(self.train_rows), int(self.accelerator.num_processes))

    def run(self, *, resume: bool = False) -> Iterator[Progress]:
        """Train to the end, yielding after each reported step, then write ``head/``.

        A fresh run from a warm start, or with held-out traces, first yields step 0: what the head does before training.

        Raises:
            InputError: the folder holds another run, or another process is training into it.
        """
        with sole_writer(self.out) if self.accelerator.is_main_process else nullcontext():
            yield from self._run(resume)

    def _run(self, resume: bool) -> Iterator[Progress]:
        self.done = start = self._begin(resume)
        if start == 0 and self.recipe.init and self.heldout_rows:
            yield self._report(0, 0.0, None, 0.0, True)
        reported, since = time.perf_counter(), 0
        for step in range(start, self.num_steps):
            result, loss = self._step(step)
            since += self.recipe.optimiser.batch_size * self.recipe.optimiser.accumulate
            self.done = done = step + 1
            last = done == self.num_steps
            evaluated = bool(self.heldout_rows) and (last or done % self.recipe.schedule.evaluate_every == 0)
            progress = None
            if last or evaluated or done % self.recipe.schedule.log_every == 0:
                rate = since * self.accelerator.num_processes / (time.perf_counter() - reported)
                progress = self._report(done, loss, result, rate, evaluated)
                reported, since = time.perf_counter(), 0
            if last or evaluated or done % self.recipe.schedule.save_every == 0:
                self._save(done, progress)
            if progress is not None:
                yield progress
        self._finish()

    def _begin(self, resume: bool) -> int:
        steps = self.checkpoints.steps()
        if self.accelerator.is_main_process:
            rows = {"train": len(self.train_rows), "heldout": len(self.heldout_rows)}
            rows["processes"] = self.accelerator.num_processes
            start = steps[-1] if steps and resume else 0
            open_run(self.out, self.recipe, rows=rows, start=start, resume=resume)
        self.accelerator.wait_for_everyone()
        return self.checkpoints.restore(self.kind, self.head, self.adam) if resume else 0

    def _finish(self) -> None:
        self._store.flush()
        head = self.whole_head()
        if self.accelerator.is_main_process:
            write_head(head, self.recipe, self.target, self.out / "head", step=self.num_steps, data=self.data)
        self.accelerator.wait_for_everyone()
        if self.accelerator.trackers:
            self.accelerator.end_training()

    def _step(self, step: int) -> tuple[StepResult, float]:
        optimiser = self.recipe.optimiser
        total: StepResult | None = None
        for micro in range(optimiser.accumulate):
            index = (step * optimiser.accumulate + micro) * self.accelerator.num_processes
            rows = self._rows(index + self.accelerator.process_index)
            last = micro == optimiser.accumulate - 1
            # shards add up each micro-batch at once: whole gradients are what FSDP is to save
            with nullcontext() if last or self.accelerator.is_fsdp2 else self.accelerator.no_sync(self.packed):
                result = self._forward(rows, step)
                self.accelerator.backward(result.loss)
            total = result if total is None else _added(total, result)
        assert total is not None
        sums = torch.stack([total.loss.detach().double(), total.weight.detach().double()])
        loss, weight = self.accelerator.reduce(sums, "sum").tolist()
        scale = self.accelerator.num_processes / weight  # distributed wrappers average gradients over processes
        for parameter in self.packed.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
        self.accelerator.clip_grad_norm_(self.packed.parameters(), optimiser.clip)
        for group in self.adam.param_groups:
            group["lr"] = learning_rate(
                optimiser.lr, step, self.num_steps, optimiser.warmup_share, optimiser.final_share
            )
        self.adam.step()
        self.adam.zero_grad()
        return total, loss / weight

    def _forward(self, rows: Sequence[Trace], step: int) -> StepResult:
        samples = [self.sample(row) for row in rows]
        blocks = build_blocks(
            [(s.token_ids, s.prompt_length) for s in samples],
            num_anchors=self.recipe.data.num_anchors,
            block_size=self.config.block_size,
            mask_token_id=self.config.mask_token_id,
            reveal=self.recipe.reveal.build(),
            rngs=[generator("blocks", self.recipe.seed, row.id, step) for row in rows],
        )
        with self.accelerator.autocast():
            return self.kind.loss(self.packed, self.target, samples, blocks, self.objective)

    def _rows(self, index: int) -> list[Trace]:
        """The rows of micro-batch ``index`` of the whole run; epochs are reshuffled."""
        size, count = self.recipe.optimiser.batch_size, len(self.train_rows)
        rows = []
        for position in range(index * size, (index + 1) * size):
            epoch, offset = divmod(position, count)
            order = generator("epoch", self.recipe.seed, epoch).permutation(count)
            rows.append(self.train_rows[order[offset]])
        return rows

    def sample(self, row: Trace) -> Sample:
        """What the head reads of a trace, from the store or made now."""
        key = key_of(row)
        stored = self._store.get(key)
        if stored is not None:
            return stored
        sample = self._layout.sample(self.target, row)
        self._store.put(key, sample)
        return sample

    def _feature_store(self) -> Store:
        data = self.recipe.data
        if data.cache_features is True:
            return MemoryStore()
        if not data.cache_features:
            return NoStore()
        own = DiskStore(
            self.out / "features" / f"process-{self.accelerator.process_index}", self._layout.settings(self.target)
        )
        folders = [Path(folder) for folder in (*data.train_folders, data.heldout) if folder]
        return with_collected(own, folders, self.target, self._layout)

    @property
    def _layout(self) -> Layout:
        data = self.recipe.data
        return Layout(
            self.config.target_layer_ids, self.recipe.image_long_side, data.max_length, soft=self.objective.soft
        )

    def _report(self, step: int, loss: float, result: StepResult | None, rate: float, evaluated: bool) -> Progress:
        accuracy = tau = None
        head = self.whole_head() if evaluated else None
        if head is not None and self.accelerator.is_main_process:
            if self._plain is not None:
                head = copy.deepcopy(head).to(self.target.device)
            accuracy = heldout_accuracy(self.kind, head, self.target, (self.sample(r) for r in self.heldout_rows))
            tau = heldout_tau(self.kind, head, self.target, self.heldout_rows, self.recipe)
        top1 = (result.hits / result.labelled.clamp(min=1)).tolist() if result else []
        progress = Progress(step, self.num_steps, loss, top1, rate, accuracy, tau)
        if self.accelerator.is_main_process:
            log(self.out, as_row(progress))
        if self.accelerator.trackers:
            self.accelerator.log(as_scalars(progress), step=step)
        return progress

    def _save(self, step: int, progress: Progress | None) -> None:
        main = self.accelerator.is_main_process
        head, state = self.whole_head(), gather(self.adam.state_dict(), keep=main)
        if main:
            card = head_card(self.recipe, self.config, self.target, step=step, data=self.data)
            heldout = progress.heldout if progress else None
            self.checkpoints.save(step, self.kind, head, state, card, top1=heldout.top1 if heldout else None)
        self.accelerator.wait_for_everyone()


def as_row(progress: Progress) -> dict[str, Any]:
    """A line of ``log.jsonl``."""
    row: dict[str, Any] = {"step": progress.step}
    if progress.step:
        row |= {"loss": progress.loss, "top1": progress.top1, "samples_per_s": round(progress.samples_per_s, 2)}
    if progress.heldout is not None:
        row["heldout_top1"] = progress.heldout.top1
    if progress.tau is not None:
        row["heldout_tau"] = progress.tau
    return row


def as_scalars(progress: Progress) -> dict[str, float]:
    """For trackers: one number a name; offsets count from 1."""
    scalars = {"loss": progress.loss, "samples_per_s": progress.samples_per_s} if progress.step else {}
    scalars |= {f"top1/offset_{k}": share for k, share in enumerate(progress.top1, start=1)}
    if progress.heldout is not None:
        scalars |= {f"heldout_top1/offset_{k}": share for k, share in enumerate(progress.heldout.top1, start=1)}
    return scalars | {f"heldout_tau/{task}": tau for task, tau in (progress.tau or {}).items()}


def write_head(head: Any, recipe: HeadRecipe, target: Target, folder: Path, *, step: int, data: Any = None) -> None:
    """Write the final head, in the recipe's ``save_dtype``."""
    dtype = getattr(torch, recipe.save_dtype)
    card = head_card(recipe, head.config, target, step=step, dtype=recipe.save_dtype, data=data)
    kind_of(recipe.kind).save(serving(head, dtype), folder, card)


def learning_rate(peak: float, step: int, num_steps: int, warmup_share: float, final_share: float) -> float:
    """Linear warm-up, then cosine to ``final_share`` of the peak; ``step`` is 0-based."""
    warmup = round(warmup_share * num_steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, num_steps - warmup)
    return peak * (final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * done)))


def _added(a: StepResult, b: StepResult) -> StepResult:
    return StepResult(a.loss.detach() + b.loss.detach(), a.weight + b.weight, a.hits + b.hits, a.labelled + b.labelled)


def read_data(recipe: HeadRecipe, target: Target) -> tuple[list[Trace], list[Trace]]:
    """The usable samples to learn from and to judge by.

    Raises:
        InputError: there are none, they are another target's answers, or the two sets share a sample.
    """
    data, fix = recipe.data, "train a head for that one (target={}), or collect this one's answers"
    train = _usable(read_mixed(data.train_folders))
    heldout = _usable(read_traces(data.heldout).rows) if data.heldout else []
    folders = [*data.train_folders, *([data.heldout] if data.heldout else [])]
    check_origin(folders, target, fix=fix)
    check_image_size(folders, target, recipe.image_long_side)
    check_ids([*train, *heldout], target)
    check_disjoint(train, heldout)
    return train, heldout


def check_layers(config: DraftConfig, target: Target) -> None:
    """Refuse kept layers that the target does not have.

    Raises:
        InputError: such a layer; HeadError for one that text-only prompts skip.
    """
    ids, last = config.target_layer_ids, target.num_layers - 1
    odd = [layer for layer in ids if not config.first_layer <= layer <= last]
    if odd or len(set(ids)) < len(ids):
        what = f"layer {odd[0]} of {target.num_layers}" if odd else f"{list(ids)}, which repeats a layer"
        raise InputError(f"head.target_layer_ids asks for {what}; name different ones of 0 to {last}")
    target.feature_points(ids)


def _usable(rows: list[Trace]) -> list[Trace]:
    """Samples with at least one anchor: two answer tokens."""
    return [row for row in rows if len(row.answer_ids) >= 2]
