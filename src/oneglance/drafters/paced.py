"""A drafter whose trees are as wide as they pay: ``--budget auto``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from oneglance.core import EMPTY_TREE, AnyBudget, Drafter, InputError, Kept, Round, TokenTree
from oneglance.cost import MAX_NODES, cache_file, read_costs, write_costs
from oneglance.drafters.timing import MarginalDrafter, measure, provenance
from oneglance.errors import warn_user
from oneglance.pace import Choice, Controller, Outlook
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState
from oneglance.tree import best_first

WORTH_KEEPING = 4  # trees; to write the file for fewer would cost a short answer more than it saves
DRAFTED_NOTHING = TokenTree()  # a draft ran and no node paid; equal to EMPTY_TREE, and not the same


class PacedState:
    """The drafter's own state of one generation, and what the controller is told about it.

    Args:
        state: of the target, prefilled.
        own: the drafter's.
        controller: learns.
        keep: called when an answer has ended.
    """

    def __init__(self, state: TargetState, own: Any, controller: Controller, keep: Callable[[], None]) -> None:
        self.own = own
        self._state = state
        self._controller = controller
        self._keep = keep
        self._num_prompt = state.length
        self._taken = state.length - sum(map(len, state.fresh))  # rows that the drafter has taken in
        self._before: tuple[Outlook, Choice] | None = None

    @property
    def num_tokens(self) -> int:
        """New tokens so far, the root among them."""
        return len(self._state.token_ids) - self._num_prompt

    def choose(self, room: int) -> Choice:
        """What the next round does."""
        length = self._state.length
        outlook = Outlook(length, self.num_tokens, room, length - self._taken)
        choice = self._controller.choose(outlook)
        if choice != "plain":
            self._taken = length
        self._before = outlook, choice
        return choice

    def rows(self, state: TargetState) -> list[torch.Tensor] | None:
        """The drafter's (``core.Kept``)."""
        return self.own.rows(state) if isinstance(self.own, Kept) else None

    def observe(self, done: Round) -> None:
        """Tell the controller (``core.Observer``)."""
        if self._before is not None:  # else the round was a single step that nobody chose
            outlook, choice = self._before
            accepted = [node - 1 for node in done.verdict.path[1:]]
            if not done.gated:
                self._controller.learn(
                    choice, outlook, done.tree.scores, accepted, len(done.token_ids), is_whole=done.cut is None
                )
            self._before = None
        if done.cut is not None:
            self._controller.finished(self.num_tokens)
            self._keep()


class Paced:
    """Another drafter's marginals, as best-first trees whose width a controller chooses; some rounds are not drafted.

    Args:
        drafter: gives marginals of at least ``MAX_NODES`` ranks, where the vocabulary has them.
        controller: decides, and learns across generations.
        path: where what it learns is kept; None keeps nothing.
    """

    def __init__(self, drafter: MarginalDrafter, controller: Controller, path: Path | None = None) -> None:
        self.drafter = drafter
        self.controller = controller
        self._path = path
        self._num_kept = controller.num_trees

    @property
    def name(self) -> str | None:
        return self.drafter.name

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.drafter.target_layer_ids

    @property
    def row_owner(self) -> object:
        return getattr(self.drafter, "row_owner", None)

    @property
    def num_parameters(self) -> int | None:
        return getattr(self.drafter, "num_parameters", None)

    def with_budget(self, budget: int) -> Drafter:
        """The drafter itself, with trees of one size.

        Raises:
            InputError: it has no such setting, or the budget is below 1.
        """
        resized = getattr(self.drafter, "with_budget", None)
        if resized is None:
            raise InputError(f"the drafter {self.name or 'none'} has no budget; leave it out")
        drafter: Drafter = resized(budget)
        return drafter

    def start(self, state: TargetState) -> PacedState:
        return PacedState(state, self.drafter.start(state), self.controller, self._keep)

    def num_passes(self, tree: TokenTree) -> int:
        return 1 if len(tree) or tree is DRAFTED_NOTHING else 0

    def draft(self, root: int, state: TargetState, draft_state: PacedState, *, max_depth: int) -> TokenTree:
        """A tree as wide as it pays; the empty tree where a single step is cheaper, without a pass.

        Raises:
            DraftError: the drafter cannot go on.
        """
        if max_depth < 1:
            return EMPTY_TREE
        choice = draft_state.choose(max_depth + 1)
        if choice == "plain":
            return EMPTY_TREE
        with torch.inference_mode():
            marginals = self.drafter.marginals(
                root, state, draft_state.own, max_depth, self.controller.num_ranks(state.length)
            )
            tree = self.controller.policy(choice, state.length)(marginals, MAX_NODES)
        return tree if len(tree) else DRAFTED_NOTHING

    def _keep(self) -> None:
        num_learned = self.controller.num_trees
        if self._path is None or num_learned - self._num_kept < WORTH_KEEPING:
            return
        self._num_kept = num_learned
        try:
            write_costs(self._path, self.controller.costs, self.controller.learned())
        except OSError as error:
            warn_user(f"cannot keep what was learned in {self._path}: {error.strerror}")
            self._path = None


def check_auto(policy: object, *, fixed_shape: bool) -> None:
    """Refuse what has no width to choose; needs no target.

    Raises:
        InputError: another tree than the best-first one, or passes that cost the same for every tree.
    """
    if policy is not best_first:
        raise InputError("budget auto grows the best-first tree; drop the other tree policy")
    if fixed_shape:
        raise InputError("passes of a fixed shape cost the same for every tree; give the budget as a number")


def at_budget(
    bind: Callable[..., Drafter], target: Target, *, budget: AnyBudget, keeps: bool = False, **options: Any
) -> Drafter:
    """Bind a drafter with trees of one size, or of whatever size pays here.

    Args:
        bind: of the drafter (``drafters.prepare``).
        target: what it drafts for.
        budget: N, or ``auto``: the costs of this machine, dtype and threads are measured once and kept, unless other
            work disturbed that.
        keeps: with ``auto``, go on with what earlier processes learned, and keep what this one does.
        options: of the drafter.

    Raises:
        InputError: the drafter or another option does not go with ``auto``.
    """
    if budget != "auto":
        return bind(target, budget=budget, **options)
    check_auto(options.get("policy", best_first), fixed_shape=target.passes.is_fixed)
    drafter = bind(target, budget=MAX_NODES, **options)
    if not isinstance(drafter, MarginalDrafter):
        raise InputError(f"budget auto needs a drafter with marginals (block, medusa), not {type(drafter).__name__}")
    return _paced(drafter, target, keeps=keeps)


def _paced(drafter: MarginalDrafter, target: Target, *, keeps: bool) -> Paced:
    where = provenance(target, drafter)
    path = cache_file(where)
    try:
        kept = read_costs(path, where)
        if kept is not None:
            costs, learned = kept
            return Paced(drafter, Controller.resume(costs, learned if keeps else {}), path if keeps else None)
    except (InputError, ValueError, TypeError, ArithmeticError) as error:
        warn_user(f"{error}; measuring anew")
    found = measure(target, drafter)
    controller = Controller(found.costs)
    if found.doubt is not None:
        warn_user(
            f"the times of passes do not fit together ({found.doubt}), so --budget auto reckons with them in this run "
            "and keeps none; let nothing else run on this machine, and the next run measures and keeps them"
        )
        return Paced(drafter, controller)
    try:
        write_costs(path, controller.costs, controller.learned())
    except OSError as error:
        warn_user(f"cannot keep the measured costs in {path}: {error.strerror}")
        keeps = False
    return Paced(drafter, controller, path if keeps else None)
