"""The loop: draft, verify, accept, commit (Def. 1). Everything else wraps it from outside.

Plain decoding is the same loop with an empty tree. A failing drafter never reaches the loop: ``Guarded`` turns the
failure into empty trees, once and for all of that generation.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from oneglance.core import EMPTY_TREE, AcceptRule, CutReason, Drafter, OneglanceWarning, Round, TokenTree
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState


class Keeper(Protocol):
    """Decides how many tokens are kept (``text.TextStream``)."""

    @property
    def cut(self) -> CutReason | None: ...

    @property
    def room(self) -> int: ...

    def push(self, token_ids: tuple[int, ...]) -> list[Any]: ...


def decode(
    target: Target, drafter: Drafter, accept: AcceptRule, state: TargetState, root: int, keeper: Keeper
) -> Iterator[Round]:
    """Decode from a prefilled state, a round at a time.

    Closing the iterator after any round leaves ``state`` committed up to that round, with its last kept token as the
    pending root.

    Args:
        target: verifies and commits.
        drafter: proposes.
        accept: reads the target's tokens off verified rows.
        state: prefilled; ``state.token_ids`` ends with ``root``.
        root: the first token, already kept.
        keeper: ends the generation.
    """
    draft_state = drafter.start(state)
    index = 0
    while keeper.room:
        started = time.perf_counter()
        tree = drafter.draft(root, state, draft_state, max_depth=keeper.room - 1)
        drafted = time.perf_counter()
        rows = target.verify(state, root, tree)
        verified = time.perf_counter()
        verdict = accept(tree, rows, state.token_ids)
        kept = verdict.token_ids[: len(keeper.push(verdict.token_ids))]
        target.commit(state, verdict.path[: len(kept)], kept)
        ended = time.perf_counter()
        yield Round(
            index=index,
            root=root,
            tree=tree,
            verdict=verdict,
            token_ids=kept,
            cut=keeper.cut,
            num_draft_passes=drafter.num_passes(tree),
            t_draft_ms=(drafted - started) * 1e3,
            t_verify_ms=(verified - drafted) * 1e3,
            t_host_ms=(ended - verified) * 1e3,
        )
        root = kept[-1]
        index += 1


class Guarded:
    """A drafter whose failures cost speed, never a token: the rest of the generation is plain decoding.

    Attributes:
        failure: why drafting ended, or None.
    """

    def __init__(self, drafter: Drafter, warn: Callable[[str], None] | None = None) -> None:
        self._drafter = drafter
        self._warn = warn or _warn
        self.failure: str | None = None
        self.name = drafter.name
        self.target_layer_ids = drafter.target_layer_ids

    def start(self, state: TargetState) -> Any:
        return self._attempt(lambda: self._drafter.start(state), None)

    def draft(self, root: int, state: TargetState, draft_state: Any, *, max_depth: int) -> TokenTree:
        if self.failure is not None:
            state.fresh.clear()
            return EMPTY_TREE
        tree: TokenTree = self._attempt(
            lambda: self._drafter.draft(root, state, draft_state, max_depth=max_depth), EMPTY_TREE
        )
        return tree

    def num_passes(self, tree: TokenTree) -> int:
        return self._drafter.num_passes(tree)

    def _attempt(self, step: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return step()
        except Exception as error:  # whatever a drafter raises, the target can go on without it
            self.failure = str(error) or type(error).__name__
            self._warn(f"drafting ended, the rest is decoded plainly: {self.failure}")
            return otherwise


def _warn(message: str) -> None:
    warnings.warn(message, OneglanceWarning, stacklevel=2)
