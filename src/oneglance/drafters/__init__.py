"""Drafters by name: what proposes candidate trees. A file each; all decode in the one loop."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from inspect import signature
from typing import TYPE_CHECKING, Any

from oneglance.core import Drafter, InputError
from oneglance.drafters.settings import split

if TYPE_CHECKING:
    from collections.abc import Callable

# name → "module:factory"; a factory takes (head: str | None, **settings) and returns bind(target, **options) → Drafter
DRAFTERS: dict[str, str] = {
    "block": "oneglance.drafters.block:prepare",
    "none": "oneglance.drafters.plain:prepare",
    "ngram": "oneglance.drafters.ngram:prepare",
    "two_model": "oneglance.drafters.two_model:prepare",
    "eagle2": "oneglance.drafters.eagle2:prepare",
    "eagle3": "oneglance.drafters.eagle3:prepare",
    "medusa": "oneglance.drafters.medusa:prepare",
    "vispec": "oneglance.drafters.vispec:prepare",
}


def prepare(name: str, head: str | None) -> Callable[..., Drafter]:
    """Load what a drafter needs before its target is opened.

    Args:
        name: a key of ``DRAFTERS`` or an ``oneglance.drafters`` entry point; settings may follow, as in
            ``ngram:max_ngram=4``.
        head: checkpoint of the drafter, where it has one.

    Returns:
        ``bind(target, **options)``, which checks the fit and returns the drafter.

    Raises:
        InputError: there is no such drafter, or no such setting.
        HeadError: its checkpoint cannot be loaded.
    """
    bare, settings = split(name)
    known = _known()
    if bare not in known:
        raise InputError(f"unknown drafter {bare!r}; choose one of {', '.join(sorted(known))}")
    module, attribute = known[bare].split(":")
    factory: Any = getattr(import_module(module), attribute)
    try:
        signature(factory).bind(head, **settings)
    except TypeError as error:
        raise InputError(f"drafter {bare!r}: {error}; look at its settings in {known[bare]}") from error
    bind: Callable[..., Drafter] = factory(head, **settings)
    return bind


def installed() -> tuple[str, ...]:
    """The names of all drafters, other packages' among them."""
    return tuple(_known())


def _known() -> dict[str, str]:
    return {**DRAFTERS, **{point.name: point.value for point in entry_points(group="oneglance.drafters")}}
