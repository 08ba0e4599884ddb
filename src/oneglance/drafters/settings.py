"""Settings of a drafter, written after its name: ``ngram:max_ngram=4:num_draft=12``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oneglance.core import MAX_BUDGET, InputError
from oneglance.errors import problem
from oneglance.hub import has_owner

# What a tree can have, for pydantic's models; ``check_budget`` says it to people
Budget = Annotated[int, Field(ge=1, le=MAX_BUDGET)]
BranchK = Annotated[int, Field(ge=1, le=sys.maxsize)]


class Settings(BaseModel):
    """Frozen, and a name nobody knows is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NoSettings(Settings):
    """A drafter without settings of its own."""


S = TypeVar("S", bound=Settings)


def split(name: str) -> tuple[str, dict[str, str]]:
    """A drafter's name and what follows it.

    Raises:
        InputError: a setting is not of the form name=value.
    """
    bare, *pairs = name.split(":")
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"drafter {name!r}: settings look like {bare}:name=value, got {pair!r}")
        if key in settings:
            raise InputError(f"drafter {name!r}: {key} is given twice; leave one out")
        settings[key] = value
    return bare, settings


def wants_block_head(drafter: str) -> bool:
    """Whether the drafter is the block head, whatever its settings: the one that built-in targets bring along."""
    return split(drafter)[0] == "block"


def head_for(target: str, head: str | None, drafter: str, written: Callable[..., str]) -> str | None:
    """The weights to load: those that were named, or the built-in target's own block head. Reads nothing.

    Args:
        target: its name; the built-in one has no head on the hub.
        head: as named.
        drafter: settings may follow.
        written: how messages write an argument, from its name and, where it has one, its value.

    Raises:
        InputError: none was named where one is needed, or one of the hub without its target.
    """
    takes_own = wants_block_head(drafter)
    if head is None and takes_own and not target.startswith("builtin:"):
        raise InputError(
            f"target {target!r} needs a draft head: give {written('head')}, or {written('drafter', 'none')} for plain "
            "decoding; oneglance heads lists heads, oneglance fit-head makes one"
        )
    check_home(target, head, written)
    return head or (target if takes_own else None)


def check_home(target: str, head: str | None, written: Callable[..., str]) -> None:
    """Refuse a head of the hub for the built-in target, before anything is downloaded.

    Raises:
        InputError: it is one; the message asks for its target.
    """
    if head is not None and target.startswith("builtin:") and has_owner(head) and not os.path.exists(head):
        raise InputError(
            f"there is no folder {head!r} here, and no head of the hub is made for {target}; name its own target by "
            f"{written('target')} (oneglance heads lists both), or give a folder"
        )


def read_settings(kind: type[S], drafter: str, given: Mapping[str, object]) -> S:
    """Check settings.

    Raises:
        InputError: an unknown name, with those that there are, or a bad value.
    """
    try:
        return kind(**given)
    except ValidationError as error:
        raise InputError(f"drafter {drafter!r}: {problem(error, kind, noun='setting')}") from error


def check_budget(budget: Any, branch_k: Any = None, *, written: Callable[[str], str] = str) -> None:
    """Refuse what no tree can have. The one place that knows the ranges.

    Args:
        budget, branch_k: of a tree.
        written: name of an option → how whoever gave it writes it.

    Raises:
        InputError: no whole number, or one out of range.
    """
    for name, value, highest in (("budget", budget, MAX_BUDGET), ("branch_k", branch_k, sys.maxsize)):
        if value is None and name == "branch_k":
            continue
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise InputError(f"{written(name)} must be a whole number, got {value!r}")
        if value < 1:
            hint = f"; for plain decoding use {written('drafter')} none" if name == "budget" else ""
            raise InputError(f"{written(name)} must be at least 1, got {value}{hint}")
        if value > highest:
            raise InputError(
                f"{written(name)} is at most {highest}, got {value}; wider trees cost more than they bring"
            )
