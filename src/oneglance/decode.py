"""The loop: draft, verify, accept, commit (Def. 1). Everything else wraps it from outside.

Plain decoding is the same loop with an empty tree. A failing drafter never reaches the loop: ``guard.Guarded`` turns
the failure into empty trees, once and for all of that generation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from oneglance.core import (
    EMPTY_TREE,
    AcceptRule,
    CutReason,
    Drafter,
    Observer,
    Round,
    TokenTree,
)
from oneglance.errors import warn_user
from oneglance.targets.base import Target
from oneglance.targets.device import synchronise
from oneglance.targets.loading import is_out_of_memory
from oneglance.targets.state import TargetState


class Keeper(Protocol):
    """Decides how many tokens are kept (``text.TextStream``)."""

    @property
    def cut(self) -> CutReason | None: ...

    @property
    def room(self) -> int: ...

    def push(self, token_ids: tuple[int, ...]) -> list[Any]: ...


def decode(
    target: Target,
    drafter: Drafter,
    accept: AcceptRule,
    state: TargetState,
    root: int,
    keeper: Keeper,
    *,
    warn: Callable[[str], None] | None = None,
) -> Iterator[Round]:
    """Decode from a prefilled state, a round at a time.

    Closing the iterator after any round, or an exception inside one (Ctrl-C included), leaves ``state`` committed up to
    the last whole round, with the last token kept by then as the pending root.

    Args:
        target: verifies and commits.
        drafter: proposes.
        accept: reads the target's tokens off verified rows.
        state: prefilled; ``state.token_ids`` ends with ``root``.
        root: the first token, already kept.
        keeper: ends the generation.
        warn: says what costs speed.
    """
    draft_state = drafter.start(state)
    observer = draft_state if isinstance(draft_state, Observer) else None
    verify = Verifier(target, warn)
    index, is_gated = 0, False
    while keeper.room:
        started_at = time.perf_counter()
        drafted = EMPTY_TREE if is_gated else drafter.draft(root, state, draft_state, max_depth=keeper.room - 1)
        drafted_at = time.perf_counter()
        try:
            tree, rows = verify(state, root, drafted)
            verified_at = time.perf_counter()
            verdict = accept(tree, rows, state.token_ids)
            kept = verdict.token_ids[: len(keeper.push(verdict.token_ids))]
            accepted_at = time.perf_counter()
            target.commit(state, verdict.path[: len(kept)], kept)
        except BaseException:
            target.rollback(state)
            raise
        ended_at = time.perf_counter()
        done = Round(
            index=index,
            root=root,
            tree=tree,
            verdict=verdict,
            token_ids=kept,
            cut=keeper.cut,
            num_draft_passes=0 if is_gated else drafter.num_passes(drafted),
            t_draft_ms=(drafted_at - started_at) * 1e3,
            t_verify_ms=(verified_at - drafted_at) * 1e3,
            t_commit_ms=(ended_at - accepted_at) * 1e3,
            t_host_ms=(ended_at - verified_at) * 1e3,
        )
        if observer is not None:
            observer.observe(done)
        yield done
        root = kept[-1] if kept else root  # nothing is kept where the root's own row is gated
        is_gated = verdict.is_gated
        index += 1


class Verifier:
    """Verify passes that fit into memory: one that does not is repeated with half the tree, then without one.

    What fitted last is the limit for the rest of the generation. The single step has no smaller form: its failure is
    the caller's.

    Args:
        target: verifies.
        warn: is told each time the limit falls.
    """

    def __init__(self, target: Target, warn: Callable[[str], None] | None = None) -> None:
        self._target = target
        self._warn = warn or warn_user
        self._limit: int | None = None

    def __call__(self, state: TargetState, root: int, tree: TokenTree) -> tuple[TokenTree, torch.Tensor]:
        """The tree that was verified, and its rows (N+1, V)."""
        tree = first_nodes(tree, self._limit)
        while True:
            try:
                rows = self._target.verify(state, root, tree)
                synchronise(rows.device)  # a pass that failed on the device says so here
                return tree, rows
            except (RuntimeError, MemoryError) as error:
                if not len(tree) or not is_out_of_memory(error):
                    raise
                self._limit = 0 if self._limit is not None else len(tree) // 2
            # outside the handler: the traceback no longer holds the pass's tensors
            self._warn("a verify pass ran out of memory; it is repeated with smaller trees: use a smaller budget")
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            tree = first_nodes(tree, self._limit)


def first_nodes(tree: TokenTree, limit: int | None) -> TokenTree:
    """The first nodes of a tree: prefix-closed as well, and the best ones where the tree is best-first."""
    if limit is None or len(tree) <= limit:
        return tree
    return TokenTree(tree.token_ids[:limit], tree.parents[:limit], tree.depths[:limit], tree.scores[:limit])
