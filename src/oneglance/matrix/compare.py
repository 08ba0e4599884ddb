"""Comparing two arms, in two modes that are never mixed, and judging every difference.

*Free-running*: each arm follows its own tokens; the first token that differs counts, what comes after it says nothing.
*Teacher-forced*: plain decoding is led along the other arm's committed tokens and asked at each prefix what it would
have chosen; every position counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from oneglance.audit import Case, first_difference, perturbation, rounding_bound
from oneglance.core import InputError, SamplingParams
from oneglance.matrix.arms import Arm, Kind, Pair, arithmetic
from oneglance.reference import Reference, capped, reference
from oneglance.targets.base import Target

Mode = Literal["free-running", "teacher-forced"]
MODES: tuple[Mode, ...] = ("free-running", "teacher-forced")
SHOWN_PREFIX = 400  # characters
Found = tuple[list["Divergence"], float]  # what differed, and how far the logits were apart


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the two sides of a row chose differently.

    Attributes:
        case, task: which prompt.
        position: 0-based index among the new tokens.
        expected, got: token ids; None past an end.
        expected_text, got_text, prefix: the same as text, and the answer before them (its end).
        gap: top-2 logit gap of the expected side there; None where it is not known.
        perturbation: largest difference of the two sides' logits at the prefixes that they share.
        logits: side → its logits of the two candidates, [of expected, of got]; empty where rows are not known.
        verdict: tie or bug; None between precisions, where a difference is neither.
    """

    case: str
    task: str
    position: int
    expected: int | None
    got: int | None
    expected_text: str
    got_text: str
    prefix: str
    gap: float | None
    perturbation: float | None
    logits: dict[str, list[float]]
    verdict: Literal["tie", "bug"] | None


@dataclass
class Comparison:
    """One row of the matrix.

    Attributes:
        name, kind: what against what, and what for.
        mode: free-running or teacher-forced.
        arithmetic: dtype of the two sides.
        identical, total: outputs; teacher-forced, outputs of which every token is plain decoding's choice.
        agreeing, tokens: teacher-forced: tokens that are, of all.
        perturbation: largest difference of the two sides' logits at shared prefixes; None where it is not known.
        divergences: every one.
        control: the control of the same mode and arithmetic that agreed least, for drafter rows.
    """

    name: str
    kind: Kind
    mode: Mode
    arithmetic: str
    identical: int = 0
    total: int = 0
    agreeing: int = 0
    tokens: int = 0
    perturbation: float | None = None
    divergences: list[Divergence] = field(default_factory=list)
    control: str | None = None

    @property
    def ties(self) -> int:
        return sum(d.verdict == "tie" for d in self.divergences)

    @property
    def bugs(self) -> int:
        return sum(d.verdict == "bug" for d in self.divergences)

    @property
    def counted(self) -> str:
        """What agreed, of all: outputs, or teacher-forced tokens."""
        return f"{self.identical}/{self.total}" if self.mode == "free-running" else f"{self.agreeing}/{self.tokens}"

    @property
    def agreement(self) -> float:
        """The same as a share."""
        agreed, out_of = map(int, self.counted.split("/"))
        return agreed / max(1, out_of)

    def add(self, found: Sequence[Divergence], *, tokens: int, moved: float | None) -> None:
        """Count one prompt: what differed, tokens of the other side, how far the logits were apart."""
        self.total += 1
        self.identical += not found
        self.tokens += tokens
        self.agreeing += tokens - len(found)
        self.divergences += found
        if moved is not None:
            self.perturbation = max(self.perturbation or 0.0, moved)


def refuse_unlike(
    name: str, expected: Mapping[str, Any], got: Mapping[str, Any], *, differing: Sequence[str] = ()
) -> None:
    """Refuse to compare arms whose arithmetic differs in anything but what the row's name says.

    Raises:
        InputError: it does; the message names the setting.
    """
    for key in expected.keys() | got.keys():
        one, other = expected.get(key), got.get(key)
        if key not in differing and one != other:
            raise InputError(f"{name}: {key} is {one} on one side and {other} on the other; compare like with like")


class Judge:
    """Compares answers of one target, and judges in float64.

    Args:
        target: whose answers they are.
        arms: by name.
        params: how tokens were chosen.
    """

    def __init__(self, target: Target, arms: Mapping[str, Arm], params: SamplingParams) -> None:
        self.target = target
        self.arms = arms
        self.params = params

    @cached_property
    def exact(self) -> Target:
        return self.target.in_float64()

    def free_running(self, pair: Pair, case: Case, expected: Reference, got: Reference) -> Found:
        """The first difference, if there is one."""
        at, moved = first_difference(expected.token_ids, got.token_ids), perturbation(expected, got)
        if at is None:
            return [], moved
        is_close = at < len(expected.gaps) and self._is_close(expected, at, moved)
        verdict: Literal["tie", "bug"] = "tie" if is_close and self._agree_exactly(pair, case, at) else "bug"
        return [self._found(case, at, expected, got, moved, verdict)], moved

    def teacher_forced(self, pair: Pair, case: Case, expected: Reference, got: Reference) -> Found:
        """Every token of ``got`` that plain decoding would not have chosen after the same prefix."""
        if expected.token_ids == got.token_ids:
            return [], perturbation(expected, got)
        with arithmetic(self.target):
            forced = self._along(self.target, case, got.token_ids)
        moved = perturbation(Reference(got.token_ids, forced.rows, forced.gaps), got)
        found = []
        exact: list[int] | None = None
        for at, (choice, token) in enumerate(zip(forced.token_ids, got.token_ids, strict=True)):
            if choice == token:
                continue
            exact = exact or self._along(self.exact, case, got.token_ids).token_ids
            is_tie = self._is_close(forced, at, moved) and exact[at] in (choice, token)
            found.append(self._found(case, at, forced, got, moved, "tie" if is_tie else "bug"))
        return found, moved

    def _is_close(self, truth: Reference, at: int, moved: float) -> bool:
        return truth.gaps[at] <= rounding_bound(self.target, truth.rows[at], moved)

    def _agree_exactly(self, pair: Pair, case: Case, at: int) -> bool:
        """Whether both arms write the same up to and at this position, in float64."""
        params, inputs = capped(self.params, at + 1), case.inputs.in_float64()
        one, other = (self.arms[name].on(self.exact)(inputs, params)[0] for name in (pair.expected, pair.got))
        return one.token_ids == other.token_ids

    def _along(self, target: Target, case: Case, token_ids: Sequence[int]) -> Reference:
        inputs = case.inputs if target is self.target else case.inputs.in_float64()
        return reference(target, inputs, max_new_tokens=self.params.max_new_tokens, params=self.params, along=token_ids)

    def _found(
        self,
        case: Case,
        at: int,
        expected: Reference,
        got: Reference,
        moved: float,
        verdict: Literal["tie", "bug"],
    ) -> Divergence:
        pair = (_at(expected.token_ids, at), _at(got.token_ids, at))
        logits = {
            side: [float(answer.rows[at, token]) for token in pair if token is not None]
            for side, answer in (("expected", expected), ("got", got))
            if at < len(answer.rows)
        }
        gap = expected.gaps[at] if at < len(expected.gaps) else None
        return divergence(
            self.target, case, at, pair, got.token_ids[:at], gap=gap, perturbation=moved, logits=logits, verdict=verdict
        )


def divergence(
    target: Target,
    case: Case,
    at: int,
    pair: tuple[int | None, int | None],
    prefix: Sequence[int],
    *,
    gap: float | None,
    perturbation: float | None = None,
    logits: dict[str, list[float]] | None = None,
    verdict: Literal["tie", "bug"] | None = None,
) -> Divergence:
    """A divergence with its tokens as text as well."""

    def text(token_ids: Sequence[int | None]) -> str:
        return str(target.tokenizer.decode([token for token in token_ids if token is not None]))

    expected, got = pair
    return Divergence(
        case=case.id,
        task=case.task,
        position=at,
        expected=expected,
        got=got,
        expected_text=text([expected]),
        got_text=text([got]),
        prefix=text(prefix)[-SHOWN_PREFIX:],
        gap=gap,
        perturbation=perturbation,
        logits=logits or {},
        verdict=verdict,
    )


def _at(ids: Sequence[int], index: int) -> int | None:
    return ids[index] if index < len(ids) else None
