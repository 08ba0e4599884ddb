"""Systems of a benchmark: drafters behind the one seam, all decoding in the one loop.

A system is written ``NAME``, ``NAME:setting=value`` or ``NAME@WEIGHTS`` (both: settings first); what was written is its
name in every table, so that three sizes of a draft model are three systems. ``NAME:budget=31`` has a budget of its own,
``NAME:branch_k=8`` looks at fewer ranks. A drafter without a line in ``SYSTEMS`` is one by its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from oneglance.core import AnyBudget, Drafter, InputError
from oneglance.drafters import installed, prepare, weights_of
from oneglance.drafters.paced import at_budget
from oneglance.drafters.settings import check_budget, split
from oneglance.targets.base import Target
from oneglance.train.known import known_heads
from oneglance.tree import policy

# where weights come from if none are named
NONE, HEAD = "none", "head"  # has none; the block head of the benchmark (--head)
OWN = "own"  # what follows @, if anything: a drafter without a line in SYSTEMS knows what it needs


class System(NamedTuple):
    """How a name decodes.

    Attributes:
        drafter, policy: names in their registries.
        weights: ``NONE``, ``HEAD``, ``OWN``, or the kind of known head.
        make: the command that makes weights.
        budget: its own, whatever the benchmark's; None takes that.
        extra_input: what it is given besides the prompt; its binding then takes that text's tokens as ``extra``.
    """

    drafter: str
    policy: str = "best_first"
    weights: str = NONE
    make: str = ""
    budget: AnyBudget | None = None
    extra_input: str | None = None


TRAIN = "oneglance train recipes/reader-{}.yaml"
SYSTEMS: dict[str, System] = {
    "plain": System("none"),
    "plain-shaped": System("none"),  # what --fixed-shape costs: plain decoding in the shape of the others
    "chain": System("block:rescorer=none", "chain", HEAD),
    "tree": System("block:rescorer=none", "best_first", HEAD),
    "conditioned": System("block", "best_first", HEAD),  # with the rescorer beside the head, where there is one
    "auto": System("block:rescorer=none", "best_first", HEAD, budget="auto"),  # as wide as pays, cold at the start
    "ngram": System("ngram"),
    "ngram-ocr": System("ngram", extra_input="the page's text"),
    "two_model": System("two_model", "best_first", "two_model", "any smaller model of the same tokenizer serves"),
    "eagle3": System("eagle3", "chain", "eagle3", TRAIN.format("eagle3")),
    "eagle3_tree": System("eagle3", "best_first", "eagle3", TRAIN.format("eagle3")),
    "eagle2": System("eagle2", "chain", "eagle2", TRAIN.format("eagle2")),
    "eagle2_tree": System("eagle2", "best_first", "eagle2", TRAIN.format("eagle2")),
    "vispec": System("vispec", "best_first", "vispec", TRAIN.format("vispec")),
    "medusa": System("medusa", "best_first", "medusa", TRAIN.format("medusa")),
}


@dataclass(frozen=True, slots=True)
class Card:
    """What a drafter says of itself.

    Attributes:
        weights: where they come from, None without any.
        num_parameters: without embeddings (Table 2); None where a drafter from elsewhere does not say.
    """

    weights: str | None
    num_parameters: int | None


def extra_input(written: str) -> str | None:
    """What a system is given besides the prompt, by its name in a table; None where it is that alone."""
    name = written.partition("@")[0].partition(":")[0].partition("/")[0]
    return SYSTEMS[name].extra_input if name in SYSTEMS else None


def card(drafter: Drafter) -> Card:
    """The card of a bound drafter. Passes and nodes are counted round by round, in ``core.Round``."""
    return Card(weights_of(drafter), getattr(drafter, "num_parameters", None))


def prepare_systems(
    names: list[str], head: str | None, *, budget: int, target: str = "builtin:reader"
) -> dict[str, Callable[[Target], Drafter]]:
    """What binds each system to a target; checkpoints are loaded now.

    Args:
        names: systems as written.
        head: block head of those that have no weights of their own.
        budget: nodes, root excluded.
        target: decides which heads are known.

    Raises:
        InputError: an unknown system, one named twice, or one without weights; the message names what makes them.
    """
    if len(set(names)) != len(names):
        raise InputError(f"a system is named twice: {', '.join(names)}")
    return {name: _prepare(name, head, budget=budget, target=target) for name in names}


def _prepare(written: str, head: str | None, *, budget: int, target: str) -> Callable[[Target], Drafter]:
    spec, _, weights = written.partition("@")
    name, settings = split(spec)
    known = {**{other: System(other, weights=OWN) for other in _without_a_system()}, **SYSTEMS}
    if name not in known:
        raise InputError(f"unknown system {name!r}; choose from {', '.join(known)}")
    system = known[name]
    if weights and system.weights == NONE:
        raise InputError(f"system {name!r} has no weights; drop @{weights}")
    found = weights or (head if system.weights == HEAD else _known(target, system.weights))
    if found is None and system.weights not in (NONE, OWN):
        hint = "--head FOLDER" if system.weights == HEAD else f"{spec}@FOLDER ({system.make})"
        raise InputError(f"system {name!r} has no weights for target {target!r}; name them: {hint}")
    own = _number(written, "budget", settings.pop("budget", None))
    branch_k = _number(written, "branch_k", settings.pop("branch_k", None))
    drafter = ":".join([system.drafter, *(f"{key}={value}" for key, value in settings.items())])
    options: dict[str, Any] = {"policy": policy(system.policy), "budget": own or system.budget or budget}
    options |= {} if branch_k is None else {"branch_k": branch_k}
    return partial(at_budget, prepare(drafter, found), **options)


def _without_a_system() -> list[str]:
    """Drafters that no line of ``SYSTEMS`` decodes with: each is a system by its own name."""
    served = {system.drafter for system in SYSTEMS.values()}
    return [name for name in installed() if name not in served]


def _number(written: str, name: str, given: str | None) -> AnyBudget | None:
    """The budget or branch_k in a system's name.

    Raises:
        InputError: not a number, nor ``auto`` for a budget, or out of range.
    """
    if given is None:
        return None
    if given == "auto" and name == "budget":
        return "auto"
    try:
        own = int(given)
    except ValueError as error:
        also = " or auto" if name == "budget" else ""
        raise InputError(f"system {written!r}: {name} takes a number{also}, got {given!r}") from error
    check_budget(own)
    return own


def _known(target: str, kind: str) -> str | None:
    """The first head of that kind that is known for a target."""
    heads: Iterable[str] = (head.head for head in known_heads() if (head.target, head.kind) == (target, kind))
    return next(iter(heads), None)
