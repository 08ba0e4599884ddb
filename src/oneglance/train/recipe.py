"""Recipes for draft heads: everything that decides a training run, in one frozen, checked file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from oneglance.core import BLOCK_SIZE, InputError
from oneglance.files import parse_yaml, reason
from oneglance.train.blocks import Reveal
from oneglance.train.keys import first_problem
from oneglance.train.objectives import OBJECTIVES, RANGES, Objective

Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """Frozen, and a key nobody knows is an error. What stands under a key is its line in docs/training.md."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class HeadShape(Section):
    """Geometry of a head trained from scratch; what is None is taken from the warm start, else from the target."""

    num_layers: int = Field(default=5, gt=0)
    """Draft layers (the paper has 5)."""
    target_layer_ids: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    """Kept layers, from 0; null applies DFlash's rule for `num_kept`."""
    num_kept: int = Field(default=5, gt=0)
    """Kept layers where `target_layer_ids` is null."""
    intermediate_size: int | None = Field(default=None, gt=0)
    """Width of the MLPs; null: the target's."""
    num_attention_heads: int | None = Field(default=None, gt=0)
    """Query heads; null: the target's."""
    num_key_value_heads: int | None = Field(default=None, gt=0)
    """Key and value heads; null: the target's."""
    head_dim: int | None = Field(default=None, gt=0)
    """Of an attention head; null: the target's."""
    rope_theta: float = Field(default=1e6, gt=0, allow_inf_nan=False)
    """Base of the rotary positions."""
    block_size: int = Field(default=BLOCK_SIZE, ge=2)
    """Offsets that are predicted, and one: EAGLE's steps and Medusa's heads as well."""
    mask_token_id: int | None = Field(default=None, ge=0)
    """Fills the block; null: a mask token of the tokenizer, else a spare row of the embedding."""
    draft_vocab_size: int | None = Field(default=None, gt=0)
    """EAGLE-3 only: the ids most often written in the training answers; null is all of them."""
    own_lm_head: bool = False
    """Medusa only: each head has an lm_head of its own; else the target's serves."""
    num_queries: int | None = Field(default=None, ge=2)
    """ViSpec only: learned queries an image; null is ViSpec's two."""


class Data(Section):
    """Where the traces lie, and how much of each sample is used."""

    train: str | Annotated[tuple[str, ...], Field(min_length=1)]
    """A folder of traces, or several that are mixed."""
    heldout: str | None = None
    """A folder of traces to judge by."""
    max_length: int = Field(default=3072, gt=1)
    """Tokens of a sample; longer answers are cut."""
    num_anchors: int = Field(default=512, gt=0)
    """Blocks that are cut from an answer, at most."""
    cache_features: bool | Literal["disk"] = False
    """Keep features between epochs: in memory (true), on disk (disk: beside the traces where
    `collect --cache-features` left them, else in the run's folder), or not."""

    @field_validator("train", mode="before")
    @classmethod
    def _names_a_folder(cls, value: Any) -> Any:
        if value in ("", [], ()):
            raise ValueError("name a folder of traces, or several")
        return value

    @property
    def train_folders(self) -> tuple[str, ...]:
        return (self.train,) if isinstance(self.train, str) else self.train


class ObjectiveChoice(Section):
    """A name in ``OBJECTIVES`` and its parameters."""

    name: str = "coverage"
    """How the slots of a block are weighed: coverage, survival, dpace, exp_decay, ce, kl or feature."""
    params: dict[str, float] = {}
    """Of the objective, such as `{decay: 0.8}`."""

    @model_validator(mode="after")
    def _known(self) -> ObjectiveChoice:
        if self.name not in OBJECTIVES:
            raise ValueError(f"unknown objective {self.name!r}; choose one of {', '.join(OBJECTIVES)}")
        for key, value in self.params.items():
            low, high = RANGES.get(key, (-math.inf, math.inf))
            if not low <= value <= high:
                raise ValueError(f"params.{key} is {value}; give one from {low} to {high}")
        self.build()
        return self

    def build(self) -> Objective:
        return OBJECTIVES[self.name](**self.params)


class RevealChoice(Section):
    """The reveal trick (§4.3)."""

    enabled: bool = True
    """Show a random prefix of some blocks."""
    single_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the blocks of which only the root is shown."""

    def build(self) -> Reveal:
        return Reveal(self.enabled, self.single_share)


class RescorerChoice(Section):
    """A rescorer that conditions each candidate on the token before it (kind ``conditioned``; beyond the paper)."""

    kind: str = "previous_token"
    """previous_token or two_tokens."""
    rank: int = Field(default=64, gt=0)
    """Of the factors of its bias."""
    factors: Literal["own", "embedding"] = "own"
    """Tables of its own, or projections of the target's embedding."""
    is_gated: bool = True
    """Let the head's state weigh the factors."""
    freeze_head: bool = True
    """Train the rescorer alone, on the head of `init`; else both, jointly."""


class Optimiser(Section):
    """AdamW with linear warm-up and cosine decay to ``final_share`` of the peak."""

    lr: float = Field(default=6e-4, gt=0, allow_inf_nan=False)
    """Learning rate at its peak."""
    betas: tuple[Share, Share] = (0.9, 0.95)
    """AdamW's."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """AdamW's."""
    clip: float = Field(default=1.0, gt=0)
    """Norm to which gradients are clipped."""
    warmup_share: float = Field(default=0.04, ge=0, lt=1)
    """Share of the steps in which the rate rises."""
    final_share: float = Field(default=0.0, ge=0, le=1)
    """Of the peak, to which it falls by a cosine."""
    batch_size: int = Field(default=4, gt=0)
    """Samples a micro-batch and process."""
    accumulate: int = Field(default=1, gt=0)
    """Micro-batches a step."""
    epochs: float | None = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Passes over the samples."""
    max_steps: int | None = Field(default=None, gt=0)
    """Optimiser steps, instead of epochs."""

    @model_validator(mode="after")
    def _ends(self) -> Optimiser:
        if self.epochs is None and self.max_steps is None:
            raise ValueError("give epochs or max_steps")
        return self

    def num_steps(self, num_samples: int, num_processes: int = 1) -> int:
        """Optimiser steps over that many samples."""
        if self.max_steps is not None:
            return self.max_steps
        assert self.epochs is not None
        per_step = self.batch_size * self.accumulate * num_processes
        return max(1, math.ceil(self.epochs * num_samples / per_step))


class Schedule(Section):
    """When to report, save and evaluate, in optimiser steps. What was evaluated is saved too."""

    log_every: int = Field(default=10, gt=0)
    """Steps between reports."""
    save_every: int = Field(default=200, gt=0)
    """Steps between checkpoints."""
    keep: int = Field(default=3, gt=0)
    """Newest checkpoints that stay on disk; the best one by held-out top-1 stays as well."""
    evaluate_every: int = Field(default=200, gt=0)
    """Steps between evaluations on the held-out traces."""
    tau_prompts: int = Field(default=8, ge=0)
    """Held-out prompts a task that are decoded for τ."""
    tau_budget: int = Field(default=63, gt=0)
    """Nodes of the tree, for τ."""


class HeadRecipe(Section):
    """A head training run."""

    schema_version: Literal[1] = 1
    """Of recipes."""
    kind: Literal["head", "conditioned", "eagle2", "eagle3", "medusa", "vispec"] = "head"
    """What is trained: the block head, the same with a rescorer (`conditioned`), or a baseline."""
    name: str
    """The run goes to `runs/` and this, unless `--out` says otherwise."""
    target: str = "builtin:reader"
    """A folder, a hub id or `builtin:reader`; it is frozen."""
    target_dtype: str = "float32"
    """In which the target runs."""
    seed: int = 0
    """Of weights, order and anchors."""
    init: str | None = None
    """A head to start from; tensors that do not fit are initialised anew, and said."""
    precision: Literal["no", "bf16"] = "no"
    """Of the head's forward and backward, no (fp32) or bf16; master weights are fp32 always."""
    save_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Of the final head's tensors; checkpoints to resume from are fp32."""
    image_long_side: int | None = Field(default=768, gt=0)
    """Images are scaled down to it; null leaves them."""
    head: HeadShape = HeadShape()
    data: Data
    objective: ObjectiveChoice = ObjectiveChoice()
    reveal: RevealChoice = RevealChoice()
    rescorer: RescorerChoice | None = None
    optimiser: Optimiser = Optimiser()
    schedule: Schedule = Schedule()
    ours: tuple[str, ...] = ()
    """Keys whose values the paper does not give, and that are this project's choice."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> HeadRecipe:
        if (self.kind == "conditioned") != (self.rescorer is not None):
            raise ValueError(
                "the section rescorer is of kind conditioned; add kind: conditioned"
                if self.rescorer is not None
                else "kind conditioned trains a rescorer; add the section rescorer, such as rescorer: {rank: 64}"
            )
        if self.rescorer is not None and self.rescorer.freeze_head and self.init is None:
            raise ValueError("rescorer.freeze_head needs a trained head: set init, or rescorer.freeze_head=false")
        if self.kind not in ("head", "conditioned") and self.reveal.enabled:
            raise ValueError(f"kind {self.kind} sees no block to reveal; set reveal.enabled to false")
        if self.kind != "eagle3" and self.head.draft_vocab_size is not None:
            raise ValueError("head.draft_vocab_size is for kind eagle3")
        if self.kind != "medusa" and self.head.own_lm_head:
            raise ValueError("head.own_lm_head is for kind medusa")
        if self.kind != "vispec" and self.head.num_queries is not None:
            raise ValueError("head.num_queries is for kind vispec")
        if self.kind not in ("eagle2", "vispec") and self.objective.name == "feature":
            raise ValueError(f"kind {self.kind} predicts no feature; choose another objective than feature")
        return self


def load_recipe(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> HeadRecipe:
    """Read a recipe and apply ``section.key=value`` overrides.

    Raises:
        InputError: no such file, bad YAML, an unknown key or a bad value.
    """
    try:
        raw = parse_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read recipe {path}: {reason(error)}") from error
    if not isinstance(raw, dict):
        raise InputError(f"recipe {path} must be a mapping")
    for override in overrides:
        _apply(raw, override)
    try:
        return HeadRecipe(**raw)
    except ValidationError as error:
        raise InputError(first_problem(error, HeadRecipe, f"recipe {path}", overrides)) from error
    except TypeError as error:
        raise InputError(f"recipe {path}: {error}") from error


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals:
        raise InputError(f"override {override!r} is no change to a recipe; write section.key=value")
    *sections, last = key.split(".")
    node = raw
    for section in sections:
        node = node.setdefault(section, {})
        if not isinstance(node, dict):
            raise InputError(f"override {override!r}: {section} is not a section")
    try:
        node[last] = parse_yaml(value)
    except ValueError as error:
        raise InputError(f"override {override!r}: the value is no YAML ({error}); quote it") from error
