"""What stands between the loop and a drafter: whatever it does wrong costs speed, never a token."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from operator import index
from typing import Any

import torch

from oneglance.core import EMPTY_TREE, Drafter, DraftError, Kept, Observer, OneglanceError, Round, TokenTree
from oneglance.errors import warn_user
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState


class Guarded:
    """A drafter in one generation; when it fails or breaks its word, the rest of that generation is plain decoding.

    It is its own draft state, and keeps the drafter's.

    Args:
        drafter: proposes.
        target: verifies; no tree may hold a token that it does not have.
        warn: is told once, when drafting ends.

    Attributes:
        failure: why drafting ended, or None.
    """

    def __init__(self, drafter: Drafter, target: Target, warn: Callable[[str], None] | None = None) -> None:
        self._drafter = drafter
        self._target = target
        self._warn = warn or warn_user
        self.failure: str | None = None
        self.name = drafter.name
        self.target_layer_ids = drafter.target_layer_ids
        self.row_owner = getattr(drafter, "row_owner", None)
        self._budget: int | None = getattr(drafter, "budget", None)
        self._draft_state: Any = None

    def start(self, state: TargetState) -> Guarded:
        self._draft_state = self._attempt(lambda: self._drafter.start(state), None)
        return self

    def rows(self, state: TargetState) -> list[torch.Tensor] | None:
        """Of the draft state (``core.Kept``); None where there are none, or drafting ended."""
        if self._draft_state is None:
            self.start(state)
        if self.failure is not None or not isinstance(self._draft_state, Kept):
            return None
        rows: list[torch.Tensor] | None = self._attempt(lambda: self._draft_state.rows(state), None)
        return rows

    def draft(self, root: int, state: TargetState, draft_state: Any, *, max_depth: int) -> TokenTree:
        if self.failure is not None:
            state.fresh.clear()
            return EMPTY_TREE

        def step() -> TokenTree:
            tree = self._drafter.draft(root, state, self._draft_state, max_depth=max_depth)
            check_tree(tree, self._target, max_depth=max_depth, budget=self._budget)
            return tree

        tree: TokenTree = self._attempt(step, EMPTY_TREE)
        return tree

    def num_passes(self, tree: TokenTree) -> int:
        if self.failure is not None:
            return 0
        passes: int = self._attempt(lambda: index(self._drafter.num_passes(tree)), 0)
        return passes

    def observe(self, done: Round) -> None:
        if self.failure is None and isinstance(self._draft_state, Observer):
            self._attempt(lambda: self._draft_state.observe(done), None)

    def _attempt(self, step: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return step()
        except Exception as error:  # whatever a drafter raises, the target can go on without it
            says_it_all = isinstance(error, OneglanceError) and str(error)
            self.failure = str(error) if says_it_all else f"{type(error).__name__}: {error}".removesuffix(": ")
            whose = f"drafter {self.name}: " if self.name else ""
            self._warn(f"drafting ended, the rest is decoded plainly: {whose}{self.failure}")
            return otherwise


def check_tree(tree: TokenTree, target: Target, *, max_depth: int, budget: int | None) -> None:
    """Hold a drafter to what ``core.Drafter.draft`` promises.

    Raises:
        DraftError: this is no tree, or one that was not asked for.
    """
    if not isinstance(tree, TokenTree):
        raise DraftError(f"it proposed a {type(tree).__name__}, not a core.TokenTree")
    if not len(tree):
        return
    strange = [kind.__name__ for kind in set(map(type, tree.token_ids)) if not issubclass(kind, Integral)]
    if strange:
        raise DraftError(f"it proposed token ids of type {', '.join(strange)}, not int")
    vocab_size = target.vocab_size
    outside = [token for token in (min(tree.token_ids), max(tree.token_ids)) if not 0 <= token < vocab_size]
    if outside:
        raise DraftError(f"it proposed token {outside[0]}; the target's vocabulary has ids 0 to {vocab_size - 1}")
    if max(tree.depths) > max_depth:
        raise DraftError(f"it proposed {max(tree.depths)} tokens in a row where max_depth is {max_depth}")
    if budget is not None and len(tree) > budget:
        raise DraftError(f"it proposed {len(tree)} nodes where its budget is {budget}")
    if sum(map(len, tree.children)) < len(tree):
        raise DraftError("it proposed the same token twice below one node")
    if any(score != score for score in tree.scores):
        raise DraftError("it scored a node with nan")
