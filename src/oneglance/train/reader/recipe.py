"""The recipe of a training run: frozen, unknown keys rejected."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from oneglance.core import InputError
from oneglance.files import parse_yaml


class Strict(BaseModel):
    """A frozen model that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Shape(Strict):
    """Sizes of the target."""

    vocab_size: int = 1216
    num_layers: int = 8
    hidden_size: int = 192
    mlp_size: int = 512
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 32
    vision_depth: int = 4
    vision_hidden_size: int = 128
    vision_mlp_size: int = 512
    vision_heads: int = 4
    deepstack_layers: tuple[int, ...] = (1, 2)
    init_std: float = 0.04


class Phase(Strict):
    """A stretch of training with one mixture of sources."""

    minutes: float
    mixture: dict[str, float] = Field(description="weight of each source, by samples")
    vision_only: bool = False
    heads_only: bool = Field(default=False, description="train only the training-only heads on the vision cells")
    vision_share: float = Field(default=0.0, description="share of micro-batches without answers")
    drill_lines: tuple[int, int] = (1, 8)
    micro_per_step: int = 4
    char_weight: float = 1.0
    piece_weight: float = 0.5
    pointer_weight: float = 0.5
    lr: tuple[float, float] = Field(default=(2e-3, 2e-3), description="learning rate at both ends (cosine)")


class Recipe(Strict):
    """Everything that decides a run, besides the number of workers."""

    seed: int = 1
    out: Path
    shape: Shape = Shape()
    init: Path | None = Field(default=None, description="folder of an exported target to start from")
    phases: tuple[Phase, ...]
    square_batch: int = 8
    sheet_batch: int = 4
    weight_decay: float = 0.02
    warmup_steps: int = 100
    clip: float = 1.0
    save_minutes: float = 4.0


def load(path: Path) -> Recipe:
    """The recipe in a YAML file.

    Raises:
        InputError: it cannot be read, or is none.
    """
    try:
        return Recipe.model_validate(parse_yaml(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no recipe of this trainer: {error}; recipes/reader-target.yaml is one") from error
