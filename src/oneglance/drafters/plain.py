"""No drafter: the loop with empty trees is plain decoding, one token a pass."""

from __future__ import annotations

from collections.abc import Callable

from oneglance.core import EMPTY_TREE, Drafter, InputError, TokenTree
from oneglance.drafters.settings import NoSettings, read_settings
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState


class NoDrafter:
    """Proposes nothing."""

    name: str | None = None
    target_layer_ids: tuple[int, ...] = ()
    num_parameters = 0

    def start(self, state: TargetState) -> None:
        return None

    def draft(self, root: int, state: TargetState, draft_state: None, *, max_depth: int) -> TokenTree:
        return EMPTY_TREE

    def num_passes(self, tree: TokenTree) -> int:
        return 0


def prepare(head: str | None, **settings: object) -> Callable[..., Drafter]:
    """Registry entry: needs no checkpoint, and a tree of any shape and size is the empty one.

    Raises:
        InputError: a head was given, or a setting.
    """
    if head is not None:
        raise InputError("drafter 'none' has no weights; drop --head")
    read_settings(NoSettings, "none", settings)
    return bind


def bind(target: Target, *, branch_k: int | None = None, **options: object) -> NoDrafter:
    """Plain decoding of a target.

    Raises:
        InputError: a rank limit, where nothing is ranked.
    """
    if branch_k is not None:
        raise InputError("drafter 'none' takes no branch_k; leave it out")
    return NoDrafter()
