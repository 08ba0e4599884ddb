"""Which options of a decoder a drafter takes: those that its own functions name. What it does not name is refused."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, TypeVar, cast

from oneglance.core import InputError
from oneglance.tree import best_first

# what a binding may be given besides the target, and how it is called in a refusal
TREE_OPTIONS = {"policy": "tree policy", "budget": "budget", "branch_k": "branch_k"}

F = TypeVar("F", bound=Callable[..., Any])


def binds(bind: Callable[..., Any]) -> Callable[[F], F]:
    """Say of a factory which function its bindings call, so that what they take is known before weights are read.

    Args:
        bind: names ``policy``, ``budget`` and ``branch_k`` among its keyword parameters, as far as it looks at them.
    """

    def mark(factory: F) -> F:
        cast(Any, factory).bind = bind
        return factory

    return mark


def takes_head(factory: Callable[..., Any]) -> bool:
    """Whether a factory has weights to load: one that has none names no ``head``."""
    return "head" in signature(factory).parameters


def taken_by(factory: Callable[..., Any]) -> frozenset[str]:
    """Of ``head``, ``policy``, ``budget`` and ``branch_k`` those that a drafter takes, by its factory.

    All tree options where the factory does not say what it binds: its bindings refuse what they do not name.
    """
    named = _named(getattr(factory, "bind", _anything))
    tree = frozenset(TREE_OPTIONS) if named is None else named & TREE_OPTIONS.keys()
    return tree | {"head"} if takes_head(factory) else tree


def refusing(drafter: str, bind: Callable[..., Any]) -> Callable[..., Any]:
    """A binding that is given what it names, and refuses by name what else was chosen.

    Every decoder has a budget and a tree policy: where they are not named they are left out, and a policy that somebody
    chose is refused.

    Raises:
        InputError: when called, with an option that the binding does not name.
    """
    named = _named(bind)

    def bound(target: Any, **options: Any) -> Any:
        given = {name: value for name, value in options.items() if named is None or name in named}
        for name in options.keys() - given.keys():
            if name != "budget" and options[name] not in (None, best_first):
                raise InputError(f"drafter {drafter!r} takes no {TREE_OPTIONS.get(name, name)}; leave it out")
        return bind(target, **given)

    return bound


def _anything(**options: Any) -> None:
    """What a factory binds that does not say what."""


def _named(function: Callable[..., Any]) -> frozenset[str] | None:
    """The parameters that a function names, or None where it takes any."""
    parameters = signature(function).parameters.values()
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)
