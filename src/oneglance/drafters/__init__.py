"""Drafters by name: what proposes candidate trees. A file each; all decode in the one loop."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from oneglance.core import Drafter, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

# name → "module:factory"; a factory takes (head: str, target_name: str) and returns bind(target, **options) → Drafter
DRAFTERS: dict[str, str] = {
    "block": "oneglance.drafters.block:prepare",
    "none": "oneglance.drafters.plain:prepare",
}


def prepare(name: str, head: str | None) -> Callable[..., Drafter]:
    """Load what a drafter needs before its target is opened.

    Args:
        name: a key of ``DRAFTERS`` or an ``oneglance.drafters`` entry point.
        head: checkpoint of the drafter, where it has one.

    Returns:
        ``bind(target, **options)``, which checks the fit and returns the drafter.

    Raises:
        InputError: there is no such drafter.
        HeadError: its checkpoint cannot be loaded.
    """
    known = {**DRAFTERS, **{point.name: point.value for point in entry_points(group="oneglance.drafters")}}
    if name not in known:
        raise InputError(f"unknown drafter {name!r}; choose one of {', '.join(sorted(known))}")
    module, attribute = known[name].split(":")
    factory: Any = getattr(import_module(module), attribute)
    bind: Callable[..., Drafter] = factory(head)
    return bind


def installed() -> tuple[str, ...]:
    """The names of all drafters, other packages' among them."""
    return (*DRAFTERS, *(point.name for point in entry_points(group="oneglance.drafters")))
