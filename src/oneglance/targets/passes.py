"""How packed passes are laid out: as many rows as the tree has, or always the same number (fixed shape).

A kernel picks its order of summation by the shape that it is given, so in bfloat16 a pass of one row and a pass of 64
give different logits for the same prefix. With a fixed shape every pass has M rows, plain decoding's too: the tree's,
and then padding that nothing sees. What is left is that a row must not depend on which slot it is in, nor on what its
ancestors' slots are: row-wise kernels do not at a fixed M (``probe.shape_dependence`` measures it), and attention is
reduced in float64, where the order of the sum is far below what the result is rounded to. That makes equal tokens near
certain, not proven.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from oneglance.core import InputError, TokenTree
from oneglance.targets import hf
from oneglance.targets.grouped import grouped_attention
from oneglance.targets.state import TargetState
from oneglance.targets.static import Execution
from oneglance.tree import PackedTree, pack

STEP = 16  # M is a multiple of it


class Passes(Protocol):
    """A way of running packed passes."""

    @property
    def name(self) -> str:
        """For reports: arms with other names are not compared."""

    @property
    def is_fixed(self) -> bool:
        """Whether plain decoding's passes have the very shape of the others, and are what text is compared with."""

    @property
    def execution(self) -> Execution | None:
        """What runs passes of static shapes, a drafter's as well; None where passes are run as they are."""

    def lay_out(self, root: int, tree: TokenTree) -> PackedTree:
        """The rows of one pass: the root and the tree first, in packed order."""

    def running(self, text_config: Any) -> AbstractContextManager[None]:
        """What holds while a pass runs."""

    def run(self, target: Any, state: TargetState, packed: PackedTree) -> tuple[Tensor, Sequence[Tensor]]:
        """One pass of a target: (M, V) logits, and a feature (1, M, H) a kept layer."""


class OwnForward:
    """Passes by transformers' own forward."""

    is_fixed = False
    execution = None

    def run(self, target: Any, state: TargetState, packed: PackedTree) -> tuple[Tensor, Sequence[Tensor]]:
        rows, features = target.forward_packed(state, packed)
        return rows, features


@dataclass(frozen=True)
class FreeShape(OwnForward):
    """N+1 rows, the attention backend that the target was opened with."""

    name: str = "free"

    def lay_out(self, root: int, tree: TokenTree) -> PackedTree:
        return pack(root, tree)

    def running(self, text_config: Any) -> AbstractContextManager[None]:
        return grouped_attention(text_config)


@dataclass(frozen=True)
class FixedShape(OwnForward):
    """M rows whatever the tree, attention in float64, threads as they were when this was made.

    Attributes:
        num_rows: M, the root included.
        threads: of the CPU.
    """

    is_fixed = True
    num_rows: int
    threads: int = field(default_factory=torch.get_num_threads)

    @classmethod
    def for_budget(cls, budget: int) -> FixedShape:
        """The smallest one that trees of ``budget`` nodes fit into."""
        return cls(-(-(budget + 1) // STEP) * STEP)

    @property
    def name(self) -> str:
        return f"fixed/{self.num_rows}"

    def lay_out(self, root: int, tree: TokenTree) -> PackedTree:
        """The tree, then padding that sees itself alone.

        Raises:
            InputError: the tree has more nodes than there are rows.
        """
        size = len(tree) + 1
        if size > self.num_rows:
            raise InputError(
                f"a tree of {size - 1} nodes does not fit into fixed passes of {self.num_rows} rows; "
                "use a smaller budget"
            )
        packed = pack(root, tree)
        visible = np.eye(self.num_rows, dtype=bool)
        visible[:size, :size] = packed.visible
        padding = (0, self.num_rows - size)
        return PackedTree(
            np.pad(packed.token_ids, padding, constant_values=root), np.pad(packed.depths, padding), visible
        )

    @contextmanager
    def running(self, text_config: Any) -> Iterator[None]:
        before = torch.get_num_threads()
        if before != self.threads:
            torch.set_num_threads(self.threads)
        try:
            with hf.attention_in_float64(text_config):
                yield
        finally:
            if before != self.threads:
                torch.set_num_threads(before)
