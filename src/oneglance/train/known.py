"""The draft heads that this project knows of: a data file, checked when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from oneglance.files import parse_yaml

PATH = Path(__file__).parent.parent / "assets" / "heads.yaml"


class KnownHead(BaseModel):
    """A head and the target it drafts for.

    Attributes:
        kind: the drafter that loads it.
        source: who made it.
        licence: of the weights; unknown where it was not confirmed.
        zero_shot: made for another (text-only) target of the same geometry.
        tau: per task, measured by this project at the budget given in ``tau_budget``; empty means unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str
    head: str
    kind: Literal["block", "eagle2", "eagle3", "vispec"]
    source: str
    licence: str = "unknown"
    zero_shot: bool = False
    tau: dict[str, float] = {}
    tau_budget: int | None = None
    note: str = ""

    def tau_text(self) -> str:
        """For a table."""
        return ", ".join(f"{task} {tau:.2f}" for task, tau in self.tau.items()) or "unknown"


def known_heads() -> list[KnownHead]:
    """All of them."""
    return [KnownHead(**row) for row in parse_yaml(PATH.read_text(encoding="utf-8"))]
