"""No drafter: the loop with empty trees is plain decoding, one token a pass."""

from __future__ import annotations

from collections.abc import Callable

from oneglance.core import EMPTY_TREE, Drafter, TokenTree
from oneglance.drafters.settings import NoSettings, read_settings
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
    """Registry entry: needs no checkpoint and takes no options."""
    read_settings(NoSettings, "none", settings)
    return lambda target, **options: NoDrafter()
