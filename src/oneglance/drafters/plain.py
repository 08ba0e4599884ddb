"""No drafter: the loop with empty trees is plain decoding, one token a pass."""

from __future__ import annotations

from collections.abc import Callable

from oneglance.core import EMPTY_TREE, Drafter, TokenTree
from oneglance.drafters.settings import NoSettings, read_settings
from oneglance.drafters.taken import binds
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


def bind(target: Target) -> NoDrafter:
    """Plain decoding of a target, which has no tree."""
    return NoDrafter()


@binds(bind)
def prepare(**settings: object) -> Callable[..., Drafter]:
    """Registry entry: needs no checkpoint.

    Raises:
        InputError: a setting was given.
    """
    read_settings(NoSettings, "none", settings)
    return bind
