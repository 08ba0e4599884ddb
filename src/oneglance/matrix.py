"""The audit matrix (Table 7): what is compared with what, each drafter next to its drafter-free controls.

Every arm decodes the same prompts and its token ids are kept. A comparison counts identical outputs, and refuses arms
whose arithmetic differs in anything but what the row's name says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch

from oneglance.audit import BindDrafter, Case, first_difference, hf_generate, reference
from oneglance.calibrate import calibrate, settings_of
from oneglance.core import Drafter, InputError, SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target

SCHEMA_VERSION = 1
NUM_CALIBRATION = 5
Kind = Literal["control", "drafter", "precision"]
Answer = tuple[list[int], list[float]]  # token ids, and the top-2 gap of each row where it is known


@dataclass
class Recording:
    """What one arm wrote.

    Attributes:
        arm: its name, without the precision.
        settings: target, dtype, attention, device and threads.
        token_ids: case → new tokens.
        gaps: case → top-2 logit gap of each row, where the arm knows it.
        notes: what else is worth reading, such as δ.
    """

    arm: str
    settings: dict[str, Any]
    token_ids: dict[str, list[int]] = field(default_factory=dict)
    gaps: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class First:
    """Where one output left the other.

    Attributes:
        case: the prompt.
        position: 0-based index among the new tokens.
        expected, got: token ids; None past an end.
        gap: top-2 logit gap of the expected side there, None if unknown.
    """

    case: str
    position: int
    expected: int | None
    got: int | None
    gap: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the matrix.

    Attributes:
        name: what against what.
        kind: control, drafter or precision.
        arithmetic: the dtype of both sides, or both.
        identical, total: outputs.
        divergences: every first difference.
        control: the control of the same arithmetic that agreed least, for drafter rows.
    """

    name: str
    kind: Kind
    arithmetic: str
    identical: int
    total: int
    divergences: tuple[First, ...]
    control: str | None = None


def compare(name: str, kind: Kind, expected: Recording, got: Recording, *, differing: Sequence[str] = ()) -> Comparison:
    """Count identical outputs.

    Args:
        name: of the row.
        kind: what the row is for.
        expected, got: two arms over the same cases.
        differing: settings in which the arms differ on purpose, as the name says.

    Raises:
        InputError: the arms differ in other settings, or saw other cases.
    """
    for key in expected.settings.keys() | got.settings.keys():
        one, other = expected.settings.get(key), got.settings.get(key)
        if key not in differing and one != other:
            raise InputError(f"{name}: {key} is {one} on one side and {other} on the other; compare like with like")
    if expected.token_ids.keys() != got.token_ids.keys():
        raise InputError(f"{name}: the two arms decoded different prompts")
    found = []
    for case, ids in expected.token_ids.items():
        at = first_difference(ids, got.token_ids[case])
        if at is not None:
            gaps = expected.gaps.get(case, ())
            found.append(
                First(case, at, _at(ids, at), _at(got.token_ids[case], at), gaps[at] if at < len(gaps) else None)
            )
    dtypes = dict.fromkeys((expected.settings["dtype"], got.settings["dtype"]))
    total = len(expected.token_ids)
    return Comparison(name, kind, " vs ".join(dtypes), total - len(found), total, tuple(found))


def record(
    target: Target,
    drafters: Mapping[str, BindDrafter],
    cases: Iterable[Case],
    *,
    max_new_tokens: int,
    delta: float | None = None,
) -> Iterator[list[Recording]]:
    """Decode each case by each arm, in one precision.

    Args:
        target: in that precision.
        drafters: name → drafter for the target; the last one also runs with the gate.
        cases: prompts.
        max_new_tokens: cap.
        delta: of the gate; measured on the first prompts if not given.

    Yields:
        The same growing recordings after each case.
    """
    cases = list(cases)
    bound = {name: bind(target) for name, bind in drafters.items()}
    gated = list(bound)[-1]
    with arithmetic(target, threads=1):
        if delta is None:
            inputs = [case.inputs for case in cases[:NUM_CALIBRATION]]
            *_, measured = calibrate(target, bound[gated], inputs, max_new_tokens=max_new_tokens)
            delta = measured.delta
    arms = _arms(target, bound, gated, max_new_tokens, delta)
    recordings: dict[str, Recording] = {}
    for case in cases:
        for name, (settings, decode) in arms.items():
            with arithmetic(target, **settings):
                known = {**settings_of(target), "threads": torch.get_num_threads()}
                recording = recordings.setdefault(name, Recording(name, known))
                recording.token_ids[case.id], recording.gaps[case.id] = decode(case)
        recordings[f"{gated} + gate"].notes["delta"] = delta
        yield list(recordings.values())


def rows(recordings: Sequence[Recording]) -> list[Comparison]:
    """The matrix of all recordings: per precision its controls and drafters, then precision against precision."""
    by_dtype: dict[str, dict[str, Recording]] = {}
    for recording in recordings:
        by_dtype.setdefault(recording.settings["dtype"], {})[recording.arm] = recording
    found: list[Comparison] = []
    for arms in by_dtype.values():
        plain = arms["plain"]
        controls = [
            compare("plain, twice", "control", plain, arms["plain again"]),
            compare("generate against our loop", "control", arms["generate"], arms["loop"]),
            compare("plain against our loop", "control", plain, arms["loop"]),
            compare("sdpa against eager", "control", plain, arms["eager"], differing=["attention"]),
            compare("1 thread against 2", "control", plain, arms["two threads"], differing=["threads"]),
        ]
        worst = min(controls, key=lambda row: row.identical)
        label = f"{worst.name}: {worst.identical}/{worst.total}"
        fixed = {"plain", "plain again", "generate", "loop", "eager", "two threads"}
        drafted = [compare(name, "drafter", plain, arm) for name, arm in arms.items() if name not in fixed]
        found += controls
        found += [replace(row, control=label) for row in drafted]
    precise, *others = by_dtype.values()
    found += [compare("plain", "precision", precise["plain"], other["plain"], differing=["dtype"]) for other in others]
    return found


def markdown(comparisons: Sequence[Comparison]) -> str:
    """The matrix as a table."""
    lines = [
        "| row | arithmetic | identical | least control, same arithmetic | smallest / largest gap at a divergence |",
        "|---|---|---|---|---|",
    ]
    for row in comparisons:
        gaps = [first.gap for first in row.divergences if first.gap is not None]
        span = f"{min(gaps):.2g} / {max(gaps):.2g}" if gaps else ""
        lines.append(f"| {row.name} | {row.arithmetic} | {row.identical}/{row.total} | {row.control or ''} | {span} |")
    return "\n".join(lines)


def as_dict(comparisons: Sequence[Comparison], recordings: Sequence[Recording]) -> dict[str, Any]:
    """The JSON object of ``oneglance audit --matrix --json``: rows, and every arm's token ids."""
    return {
        "schema_version": SCHEMA_VERSION,
        "rows": [asdict(row) for row in comparisons],
        "recordings": [asdict(recording) for recording in recordings],
    }


@contextmanager
def arithmetic(target: Target, *, attention: str | None = None, threads: int = 1) -> Iterator[None]:
    """Run under another attention backend and number of threads, and put both back."""
    before, count = str(settings_of(target)["attention"]), torch.get_num_threads()
    target.model.set_attn_implementation(attention or before)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        target.model.set_attn_implementation(before)
        torch.set_num_threads(count)


def _arms(
    target: Target, bound: Mapping[str, Drafter], gated: str, max_new_tokens: int, delta: float
) -> dict[str, tuple[dict[str, Any], Callable[[Case], Answer]]]:
    """Name → settings that differ from one thread and the target's own attention, and how a case is decoded."""

    def plain(case: Case) -> Answer:
        truth = reference(target, case.inputs, max_new_tokens=max_new_tokens)
        return truth.token_ids, truth.gaps

    def generate(case: Case) -> Answer:
        return hf_generate(target, case.inputs, max_new_tokens=max_new_tokens), []

    def loop(case: Case, *, drafter: Drafter, gate: float = 0.0) -> Answer:
        params = SamplingParams(max_new_tokens=max_new_tokens, gate=gate)
        stream = Decoder(target, drafter).stream_inputs(case.inputs, params)
        for _ in stream:
            pass
        return stream.generation.token_ids, []

    return {
        "plain": ({}, plain),
        "plain again": ({}, plain),
        "generate": ({}, generate),
        "loop": ({}, partial(loop, drafter=NoDrafter())),
        "eager": ({"attention": "eager"}, plain),
        "two threads": ({"threads": 2}, plain),
        **{name: ({}, partial(loop, drafter=drafter)) for name, drafter in bound.items()},
        f"{gated} + gate": ({}, partial(loop, drafter=bound[gated], gate=delta)),
    }


def _at(ids: Sequence[int], index: int) -> int | None:
    return ids[index] if index < len(ids) else None
