"""Recipes for draft heads: everything that decides a training run, in one frozen, checked file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from oneglance.core import BLOCK_SIZE, InputError
from oneglance.files import parse_yaml
from oneglance.train.blocks import Reveal
from oneglance.train.objectives import OBJECTIVES, RANGES, Objective

Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """Frozen, and a key nobody knows is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class HeadShape(Section):
    """Geometry of a head trained from scratch; what is None is taken from the target.

    Attributes:
        num_layers: draft layers (the paper has 5).
        target_layer_ids: kept layers; None applies DFlash's rule for ``num_kept``.
        num_kept: kept layers where ``target_layer_ids`` is None.
        block_size: offsets that are predicted, and one: EAGLE's steps and Medusa's heads as well.
        draft_vocab_size: EAGLE-3 only: the ids most often written in the training answers; None is all of them.
        own_lm_head: Medusa only: each head has an lm_head of its own; else the target's serves.
        num_queries: ViSpec only: learned queries an image; None is ViSpec's two.
    """

    num_layers: int = Field(default=5, gt=0)
    target_layer_ids: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    num_kept: int = Field(default=5, gt=0)
    intermediate_size: int | None = Field(default=None, gt=0)
    num_attention_heads: int | None = Field(default=None, gt=0)
    num_key_value_heads: int | None = Field(default=None, gt=0)
    head_dim: int | None = Field(default=None, gt=0)
    rope_theta: float = Field(default=1e6, gt=0, allow_inf_nan=False)
    block_size: int = Field(default=BLOCK_SIZE, ge=2)
    mask_token_id: int | None = Field(default=None, ge=0)
    draft_vocab_size: int | None = Field(default=None, gt=0)
    own_lm_head: bool = False
    num_queries: int | None = Field(default=None, ge=2)


class Data(Section):
    """Where the traces lie, and how much of each sample is used.

    Attributes:
        train: a folder of traces, or several that are mixed.
        cache_features: keep features between epochs: in memory (true), on disk (disk: beside the traces where
            ``collect --cache-features`` left them, else in the run's folder), or not.
    """

    train: str | Annotated[tuple[str, ...], Field(min_length=1)]
    heldout: str | None = None
    max_length: int = Field(default=3072, gt=1)
    num_anchors: int = Field(default=512, gt=0)
    cache_features: bool | Literal["disk"] = False

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
    params: dict[str, float] = {}

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
    single_share: float = Field(default=0.5, ge=0, le=1)

    def build(self) -> Reveal:
        return Reveal(self.enabled, self.single_share)


class RescorerChoice(Section):
    """A rescorer that conditions each candidate on the token before it (kind ``conditioned``; beyond the paper).

    Attributes:
        freeze_head: train the rescorer alone, on the head of ``init``; else both, jointly.
    """

    kind: str = "previous_token"
    rank: int = Field(default=64, gt=0)
    factors: Literal["own", "embedding"] = "own"
    is_gated: bool = True
    freeze_head: bool = True


class Optimiser(Section):
    """AdamW with linear warm-up and cosine decay to ``final_share`` of the peak."""

    lr: float = Field(default=6e-4, gt=0, allow_inf_nan=False)
    betas: tuple[Share, Share] = (0.9, 0.95)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    clip: float = Field(default=1.0, gt=0)
    warmup_share: float = Field(default=0.04, ge=0, lt=1)
    final_share: float = Field(default=0.0, ge=0, le=1)
    batch_size: int = Field(default=4, gt=0)
    accumulate: int = Field(default=1, gt=0)
    epochs: float | None = Field(default=1.0, gt=0, allow_inf_nan=False)
    max_steps: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _ends(self) -> Optimiser:
        if self.epochs is None and self.max_steps is None:
            raise ValueError("give epochs or max_steps")
        return self


class Schedule(Section):
    """When to report, save and evaluate, in optimiser steps. What was evaluated is saved too.

    Attributes:
        keep: newest checkpoints that stay on disk; the best one by held-out top-1 stays as well.
        tau_prompts: held-out prompts a task that are decoded for τ.
        tau_budget: of the tree, for τ.
    """

    log_every: int = Field(default=10, gt=0)
    save_every: int = Field(default=200, gt=0)
    keep: int = Field(default=3, gt=0)
    evaluate_every: int = Field(default=200, gt=0)
    tau_prompts: int = Field(default=8, ge=0)
    tau_budget: int = Field(default=63, gt=0)


class HeadRecipe(Section):
    """A head training run.

    Attributes:
        kind: what is trained: the block head, or a baseline (``kinds.KINDS``).
        ours: values that the paper does not give and that are our choice, by dotted name.
        init: a DFlash head to warm-start from; tensors that do not fit are initialised anew, and said.
        precision: of the head's forward and backward; master weights are fp32 always.
        save_dtype: of the final head's tensors; checkpoints to resume from are fp32.
    """

    schema_version: Literal[1] = 1
    kind: Literal["head", "conditioned", "eagle2", "eagle3", "medusa", "vispec"] = "head"
    name: str
    target: str = "builtin:reader"
    target_dtype: str = "float32"
    seed: int = 0
    init: str | None = None
    precision: Literal["no", "bf16"] = "no"
    save_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    image_long_side: int | None = Field(default=768, gt=0)
    head: HeadShape = HeadShape()
    data: Data
    objective: ObjectiveChoice = ObjectiveChoice()
    reveal: RevealChoice = RevealChoice()
    rescorer: RescorerChoice | None = None
    optimiser: Optimiser = Optimiser()
    schedule: Schedule = Schedule()
    ours: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _fits_its_kind(self) -> HeadRecipe:
        if (self.kind == "conditioned") != (self.rescorer is not None):
            raise ValueError("kind conditioned and the section rescorer go together")
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
        raise InputError(f"cannot read recipe {path}: {str(error).splitlines()[0]}") from error
    if not isinstance(raw, dict):
        raise InputError(f"recipe {path} must be a mapping")
    for override in overrides:
        _apply(raw, override)
    try:
        return HeadRecipe(**raw)
    except (ValidationError, TypeError) as error:
        raise InputError(f"recipe {path}: {_first_problem(error)}") from error


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


def _first_problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)
