"""Between systems of one run: margins in both conventions, the drift of the plain arm, and labelled projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from oneglance.bench.metrics import mean_ms, paired_speedup, pairs
from oneglance.bench.record import Record
from oneglance.core import InputError
from oneglance.stats.bootstrap import NAN


@dataclass(frozen=True, slots=True)
class Margin:
    """How far ours is ahead of another system, over the prompts that both decoded.

    Attributes:
        task, ours, other: what.
        n: prompts; wins: of ours.
        over_ours: other / ours - 1, the convention of Table 1; low, high: its 95 % paired bootstrap over prompts.
        over_other: (other - ours) / other, the convention of Table 8.
    """

    task: str
    ours: str
    other: str
    n: int
    wins: int
    over_ours: float
    low: float
    high: float
    over_other: float


@dataclass(frozen=True, slots=True)
class Drift:
    """How steady the plain arm was.

    Attributes:
        halves: milliseconds a token of the second half of a task's prompts over the first, by task.
        spread: largest over smallest milliseconds a token of the tasks, less one; the paper's arms agree within 1 %.
    """

    halves: dict[str, float]
    spread: float


@dataclass(frozen=True, slots=True)
class Projection:
    """What a system would take a token, if it accepted as much as was claimed for it: not a measurement.

    Attributes:
        system, task: whose rounds are charged.
        tau: the charge; measured_tau: what it accepted here.
        ms_per_round: measured here.
        ms_per_token, speedup: projected from the two.
        label: says so wherever this goes.
    """

    system: str
    task: str
    tau: float
    measured_tau: float
    ms_per_round: float
    ms_per_token: float
    speedup: float
    label: str = "projection, not measured"


def margins(records: Sequence[Record], ours: str) -> list[Margin]:
    """Ours against every other drafting system that was given the same input, per task."""
    names = list(dict.fromkeys(r.system for r in records if not r.is_outside and r.extra_input is None))
    if ours not in names:
        return []
    found = []
    for task in dict.fromkeys(r.task for r in records):
        own = [r for r in records if r.task == task and r.system == ours]
        for other in names:
            if other in (ours, "plain"):
                continue
            both = pairs([r for r in records if r.task == task and r.system == other], own)
            if both:
                found.append(_margin(task, ours, other, [(mean_ms(a), mean_ms(b)) for a, b in both]))
    return found


def drift(records: Sequence[Record]) -> Drift | None:
    """Of the plain arm; None where there is none."""
    plain = [r for r in records if r.system == "plain" and r.decoded > 0]
    if not plain:
        return None
    speeds: dict[str, list[float]] = {}
    for record in plain:
        speeds.setdefault(record.task, []).append(record.decode_ms / record.decoded)
    halves = {
        task: float(np.median(own[(len(own) + 1) // 2 :]) / np.median(own[: len(own) // 2]))
        for task, own in speeds.items()
        if len(own) >= 4
    }
    means = [float(np.mean(own)) for own in speeds.values()]
    return Drift(halves, max(means) / min(means) - 1)


def project(records: Sequence[Record], charges: Mapping[str, float]) -> list[Projection]:
    """Charge systems with a given τ at the cost of their own rounds.

    Raises:
        InputError: a system that did not run, or no plain arm.
    """
    names = {r.system for r in records}
    for system in charges:
        if system not in names or system == "plain":
            raise InputError(
                f"--charge-tau names {system!r}, which is not among the drafting systems; add it to --systems"
            )
    if charges and "plain" not in names:
        raise InputError("--charge-tau needs the plain system for the speedup; add it to --systems")
    found = []
    for system, tau in charges.items():
        for task in dict.fromkeys(r.task for r in records):
            own = [r for r in records if r.system == system and r.task == task and r.kept]
            plain = [r for r in records if r.system == "plain" and r.task == task and r.decoded > 0]
            if not own or not plain:
                continue
            rounds = sum(len(r.kept) for r in own)
            ms_per_round = sum(r.decode_ms for r in own) / rounds
            plain_ms = sum(r.decode_ms for r in plain) / sum(r.decoded for r in plain)
            measured = sum(sum(r.kept) for r in own) / rounds
            per_token = ms_per_round / tau
            found.append(Projection(system, task, tau, measured, ms_per_round, per_token, plain_ms / per_token))
    return found


def charges(values: Sequence[str]) -> dict[str, float]:
    """``SYSTEM=TAU`` each.

    Raises:
        InputError: it is not that, or τ is below 1.
    """
    found: dict[str, float] = {}
    for value in values:
        name, _, tau = value.partition("=")
        try:
            found[name] = float(tau)
        except ValueError as error:
            raise InputError(f"--charge-tau takes SYSTEM=TAU such as chain=3.5, got {value!r}") from error
        if not found[name] >= 1:
            raise InputError(f"--charge-tau: τ counts the bonus token, so it is at least 1, got {value!r}")
    return found


def _margin(task: str, ours: str, other: str, both: list[tuple[float, float]]) -> Margin:
    others, own = [a for a, _ in both], [b for _, b in both]
    value, low, high = paired_speedup(others, own)
    return Margin(
        task=task,
        ours=ours,
        other=other,
        n=len(both),
        wins=sum(b < a for a, b in both),
        over_ours=value - 1,
        low=low - 1,
        high=high - 1,
        over_other=1 - 1 / value if value > 0 else NAN,
    )
