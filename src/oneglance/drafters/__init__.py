"""Drafters by name: what proposes candidate trees. A file each; all decode in the one loop."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from inspect import signature
from typing import TYPE_CHECKING, Any

from oneglance.core import Drafter, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

# name → "module:factory"; a factory takes (head: str | None, **settings), or without weights (**settings), and returns
# bind(target, **options) → Drafter
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
    from oneglance.drafters.settings import split
    from oneglance.drafters.taken import refusing, takes_head

    bare, settings = split(name)
    factory = _factory(bare)
    has_weights = takes_head(factory)
    if head is not None and not has_weights:
        raise InputError(f"drafter {bare!r} has no weights; drop --head")
    weights = (head,) if has_weights else ()
    try:
        signature(factory).bind(*weights, **settings)
    except TypeError as error:
        raise InputError(f"drafter {bare!r}: {error}; look at its settings in {_known()[bare]}") from error
    return refusing(bare, factory(*weights, **settings))


def takes(name: str) -> frozenset[str]:
    """Of ``head``, ``policy``, ``budget`` and ``branch_k`` those that a drafter takes. Loads no weights.

    Raises:
        InputError: there is no such drafter.
    """
    from oneglance.drafters.taken import taken_by

    return taken_by(_factory(name.partition(":")[0]))


def weights_of(drafter: Drafter) -> str | None:
    """Where a drafter's weights come from, for reports; None where it has none (its ``num_parameters`` are 0)."""
    return None if getattr(drafter, "num_parameters", None) == 0 else drafter.name


def installed() -> tuple[str, ...]:
    """The names of all drafters, other packages' among them."""
    return tuple(_known())


def _factory(bare: str) -> Callable[..., Any]:
    known = _known()
    if bare not in known:
        raise InputError(f"unknown drafter {bare!r}; choose one of {', '.join(sorted(known))}")
    module, attribute = known[bare].split(":")
    factory: Callable[..., Any] = getattr(import_module(module), attribute)
    return factory


def _known() -> dict[str, str]:
    return {**DRAFTERS, **{point.name: point.value for point in entry_points(group="oneglance.drafters")}}
