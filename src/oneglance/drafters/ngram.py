"""Prompt lookup: the last tokens are looked up in everything so far, and what followed them is proposed (PLD).

No model and no pass: a lookup costs microseconds, and pays where answers repeat their prompt or themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pydantic import Field, model_validator

from oneglance.core import DEFAULT_BUDGET, Drafter, TokenTree
from oneglance.drafters.settings import Settings, check_budget, read_settings
from oneglance.drafters.taken import binds
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState
from oneglance.tree import from_path


class NgramSettings(Settings):
    """How much has to match, and how much is proposed.

    Attributes:
        max_ngram, min_ngram: tokens that must match, longest first.
        num_draft: tokens proposed, at most; the budget limits them too.
    """

    max_ngram: int = Field(default=3, gt=0)
    min_ngram: int = Field(default=1, gt=0)
    num_draft: int = Field(default=10, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> NgramSettings:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram {self.min_ngram} is above max_ngram {self.max_ngram}")
        return self


@dataclass(slots=True)
class NgramIndex:
    """Where each n-gram of a sequence occurs first.

    Attributes:
        first: n-gram → index of the token after its first occurrence that one followed which may be proposed.
        indexed: tokens that have been looked at as followers.
    """

    first: dict[tuple[int, ...], int] = field(default_factory=dict)
    indexed: int = 1


class NgramDrafter:
    """Proposes what followed the last n tokens at their first occurrence, in the prompt or in the text since.

    Args:
        target: names the ids that are never proposed: image and video placeholders, and ids without an lm_head row.
        settings: sizes.
        budget: nodes of the chain, at most.
        extra: tokens of a text that is looked up before the sequence itself, such as what a page says.
    """

    name: str | None = "ngram"
    target_layer_ids: tuple[int, ...] = ()
    num_parameters = 0

    def __init__(
        self, target: Target, settings: NgramSettings, *, budget: int = DEFAULT_BUDGET, extra: Sequence[int] = ()
    ) -> None:
        self.settings = settings
        self.extra = list(extra)
        self.num_draft = min(settings.num_draft, budget)
        self._vocab_size = target.vocab_size
        self._banned = frozenset(target.banned_ids)

    @classmethod
    def bind(
        cls,
        settings: NgramSettings,
        target: Target,
        *,
        budget: int = DEFAULT_BUDGET,
        extra: Sequence[int] = (),
    ) -> NgramDrafter:
        """One continuation is a chain: there is no tree policy to choose."""
        check_budget(budget)
        return cls(target, settings, budget=budget, extra=extra)

    def start(self, state: TargetState) -> NgramIndex:
        return NgramIndex()

    def num_passes(self, tree: TokenTree) -> int:
        return 0

    def draft(self, root: int, state: TargetState, draft_state: NgramIndex, *, max_depth: int) -> TokenTree:
        token_ids = [*self.extra, *state.token_ids] if self.extra else state.token_ids
        self._index(token_ids, draft_state)
        for size in range(min(self.settings.max_ngram, len(token_ids)), self.settings.min_ngram - 1, -1):
            follower = draft_state.first.get(tuple(token_ids[-size:]))
            if follower is not None:
                return from_path(self._proposable(token_ids[follower : follower + min(self.num_draft, max_depth)]))
        return from_path(())

    def _index(self, token_ids: Sequence[int], index: NgramIndex) -> None:
        for follower in range(index.indexed, len(token_ids)):
            if self._may_propose(token_ids[follower]):
                for size in range(self.settings.min_ngram, min(self.settings.max_ngram, follower) + 1):
                    index.first.setdefault(tuple(token_ids[follower - size : follower]), follower)
        index.indexed = len(token_ids)

    def _proposable(self, token_ids: Sequence[int]) -> list[int]:
        """The tokens before the first that may not be proposed."""
        stop = next((i for i, token in enumerate(token_ids) if not self._may_propose(token)), len(token_ids))
        return list(token_ids[:stop])

    def _may_propose(self, token: int) -> bool:
        return token < self._vocab_size and token not in self._banned


@binds(NgramDrafter.bind)
def prepare(**settings: object) -> Callable[..., Drafter]:
    """Registry entry: needs no checkpoint.

    Raises:
        InputError: a bad setting.
    """
    return partial(NgramDrafter.bind, read_settings(NgramSettings, "ngram", settings))
