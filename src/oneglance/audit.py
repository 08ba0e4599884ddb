"""Exactness, measured: our output against an independent plain loop, token for token (Thm. 1, Table 7).

Each divergence is judged again in float64: a *tie* if both loops agree there, else a *bug*. What a drafter read is
compared too: features of the wrong rows change no token, but they are as wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from typing import Any, Literal

import torch
from torch import Tensor

from oneglance.accept import Decision
from oneglance.core import AcceptRule, Drafter, Generation, SamplingParams, TokenTree, Verdict
from oneglance.decoder import Decoder
from oneglance.reference import Reference, capped, hf_generate, reference
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs, TargetState

__all__ = ["Reference", "audit", "hf_generate", "reference"]

# A rounding flip needs a top-2 gap of the order of the perturbation, and that of the arithmetic: gap at most 10 times
# the one and 100 units in the last place of the largest logit. A wider gap is a bug whatever float64 says.
TIE_MARGIN = 10.0
ROUNDING_ULPS = 100.0
# Features of the wrong row are as far off as they are long; rounding stays far below this share of their length.
FEATURE_ULPS, FEATURE_LIMIT = 2.0**15, 0.5
BindDrafter = Callable[[Target], Drafter]


class Traced(Decoder):
    """A decoder that keeps the row behind every token of the last prompt, for comparison with another's.

    Attributes:
        rows: (V,) each, as verified.
        gaps: margins, as the accept rule saw them.
        features: (T_i, F) each, as the drafter got them.
    """

    def __init__(self, target: Target, drafter: Drafter) -> None:
        reader = _Reading(drafter)
        super().__init__(target, reader)
        self.features = reader.features
        self.rows: list[Tensor] = []
        self.gaps: list[float] = []

    def accept_rule(
        self, inputs: Inputs, params: SamplingParams, watch: Callable[[Decision], None] | None = None
    ) -> AcceptRule:
        self.rows, self.gaps = [], []
        return _Tracing(super().accept_rule(inputs, params, lambda chosen: self.gaps.append(chosen.margin)), self.rows)

    def trace(self, inputs: Inputs, params: SamplingParams) -> tuple[Reference, Generation]:
        """Decode a prompt to its end."""
        done = self.stream_inputs(inputs, params).exhaust()
        size = len(ids := done.token_ids)
        return Reference(ids, torch.stack(self.rows[:size]).float(), self.gaps[:size]), done

    def feature_error(self, inputs: Inputs, token_ids: Sequence[int]) -> float:
        """How far what the drafter read is from one plain pass over prompt and answer, per row and relative to it.

        An answer is compared up to the first placeholder that it writes itself, which a prompt would take for an image.
        """
        if not self.features:
            return 0.0
        placeholders = set(self.target.placeholder_ids)
        told = list(takewhile(lambda token: token not in placeholders, token_ids[:-1]))  # the last one is in no cache
        state = self.target.prefill(self.target.extend(inputs, told), self.drafter.target_layer_ids)
        plain = state.take_features().double()
        got = torch.cat(self.features)[: len(plain)]
        plain = plain[: len(got)]
        return float(((got.double() - plain).norm(dim=-1) / plain.norm(dim=-1).clamp_min(1e-9)).max())


class _Reading:
    """A drafter, and a copy of all features that it takes."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name = drafter.name
        self.target_layer_ids = drafter.target_layer_ids
        self.num_passes = drafter.num_passes
        self.features: list[Tensor] = []

    def start(self, state: TargetState) -> Any:
        self.features.clear()
        return self._drafter.start(state)

    def draft(self, root: int, state: TargetState, draft_state: Any, *, max_depth: int) -> TokenTree:
        given = list(state.fresh)
        tree = self._drafter.draft(root, state, draft_state, max_depth=max_depth)
        if not state.fresh:  # else they are left for a later draft
            self.features.extend(given)
        return tree


class _Tracing:
    """An accept rule that keeps the rows its tokens were read off."""

    def __init__(self, rule: AcceptRule, rows: list[Tensor]) -> None:
        self._rule = rule
        self._rows = rows

    def first(self, row: Tensor, prefix: Sequence[int]) -> int:
        self._rows.append(row)
        return self._rule.first(row, prefix)

    def __call__(self, tree: TokenTree, rows: Tensor, prefix: Sequence[int]) -> Verdict:
        verdict = self._rule(tree, rows, prefix)
        self._rows.extend(rows[node].clone() for node in verdict.path)  # a view would keep the whole pass
        return verdict


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt of an audit."""

    id: str
    task: str
    inputs: Inputs


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where our output first left the reference.

    Attributes:
        case, task, arm: which prompt, its task, and which drafter configuration.
        position: 0-based index among the new tokens.
        expected, got: token ids of the reference and of ours; None past an end.
        gap: the reference's top-2 logit gap there; None past its end.
        perturbation: largest difference of the two loops' rows on this prompt, up to there.
        verdict: tie if both loops agree there in float64, else bug.
    """

    case: str
    task: str
    arm: str
    position: int
    expected: int | None
    got: int | None
    gap: float | None
    perturbation: float
    verdict: Literal["tie", "bug"]


@dataclass(frozen=True, slots=True)
class FeatureFault:
    """A drafter that read other features than the committed rows'.

    Attributes:
        case, task, arm: which prompt, its task, and which drafter configuration.
        error: largest relative difference of a row.
    """

    case: str
    task: str
    arm: str
    error: float


@dataclass
class Tally:
    """Identical outputs out of all."""

    identical: int = 0
    total: int = 0

    def add(self, identical: bool) -> None:
        self.identical += identical
        self.total += 1


@dataclass
class AuditReport:
    """What an audit found.

    Attributes:
        overall: prompts times arms.
        per_task, per_arm: the same, split.
        hf: transformers' ``generate`` against the reference.
        num_tokens: tokens compared.
        max_logit_perturbation: largest packed-versus-unpacked difference (logit units).
        min_gap: smallest top-2 gap of the reference.
        divergences: every one, judged.
        max_feature_error: largest relative difference of a feature row that a drafter read.
        feature_faults: where that was more than rounding.
    """

    overall: Tally = field(default_factory=Tally)
    per_task: dict[str, Tally] = field(default_factory=dict)
    per_arm: dict[str, Tally] = field(default_factory=dict)
    hf: Tally = field(default_factory=Tally)
    num_tokens: int = 0
    max_logit_perturbation: float = 0.0
    min_gap: float = float("inf")
    divergences: list[Divergence] = field(default_factory=list)
    max_feature_error: float = 0.0
    feature_faults: list[FeatureFault] = field(default_factory=list)

    @property
    def ties(self) -> int:
        return sum(d.verdict == "tie" for d in self.divergences)

    @property
    def bugs(self) -> int:
        """Divergences that are no ties, those of transformers' ``generate`` among them, and wrong features."""
        return len(self.divergences) - self.ties + len(self.feature_faults)

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of ``oneglance audit --json``."""
        return {
            "identical": self.overall.identical,
            "total": self.overall.total,
            "ties": self.ties,
            "bugs": self.bugs,
            "per_task": {k: asdict(v) for k, v in self.per_task.items()},
            "per_arm": {k: asdict(v) for k, v in self.per_arm.items()},
            "hf_generate": asdict(self.hf),
            "num_tokens": self.num_tokens,
            "max_logit_perturbation": self.max_logit_perturbation,
            "min_top2_gap": self.min_gap,
            "max_feature_error": self.max_feature_error,
            "feature_faults": [asdict(f) for f in self.feature_faults],
            "divergences": [asdict(d) for d in self.divergences],
        }


def audit(
    target: Target,
    arms: Mapping[str, BindDrafter],
    cases: Iterable[Case],
    *,
    max_new_tokens: int = 256,
    compare_hf: bool = True,
    params: SamplingParams | None = None,
) -> Iterator[AuditReport]:
    """Decode each prompt by each arm and compare with the reference.

    Where the target's packed passes have a fixed shape, the reference is the plain loop in passes of that shape: what
    the mode promises is that these two agree.

    Args:
        target: the frozen model.
        arms: name → drafter for a target (bound anew in float64 where a divergence is judged).
        cases: prompts.
        max_new_tokens: cap.
        compare_hf: also compare transformers' ``generate`` with the reference; greedy text of ordinary passes only.
        params: how tokens are chosen, with a seed where they are drawn; greedily if not given.

    Yields:
        The same growing report after each prompt.
    """
    params = capped(params or SamplingParams(), max_new_tokens)
    report = AuditReport()
    is_free = not target.passes.is_fixed
    others: dict[str, BindDecode] = {name: decode_by(bind) for name, bind in arms.items()}
    if compare_hf and is_free and replace(params, seed=None) == SamplingParams(max_new_tokens=max_new_tokens):
        others["generate"] = decode_hf
    loops = {name: Traced(target, bind(target)) for name, bind in arms.items()}
    decode_plain = decode_reference(target)
    for case in cases:
        truth = decode_plain(case.inputs, params)
        report.min_gap = min(report.min_gap, *truth.gaps)
        for name, decode in others.items():
            if name in loops:
                got, _ = loops[name].trace(case.inputs, params)
                _check_features(report, case, name, loops[name], got)
            else:
                got = decode(target)(case.inputs, params)
            moved = _count(report, case, name, truth, got)
            at = first_difference(truth.token_ids, got.token_ids)
            if at is not None:
                verdict = judge(target, decode, case.inputs, params, at, truth, moved)
                report.divergences.append(_divergence(case, name, at, truth, got, moved, verdict))
        yield report


def _count(report: AuditReport, case: Case, name: str, truth: Reference, got: Reference) -> float:
    """Tally one output; how far its rows are from the reference's."""
    moved = perturbation(truth, got)
    is_ours = name != "generate"
    for tally in _tallies(report, case, name) if is_ours else [report.hf]:
        tally.add(first_difference(truth.token_ids, got.token_ids) is None)
    if is_ours:
        report.num_tokens += len(truth.token_ids)
        report.max_logit_perturbation = max(report.max_logit_perturbation, moved)
    return moved


def _divergence(
    case: Case, arm: str, at: int, truth: Reference, got: Reference, moved: float, verdict: Literal["tie", "bug"]
) -> Divergence:
    return Divergence(
        case=case.id,
        task=case.task,
        arm=arm,
        position=at,
        expected=truth.token_ids[at] if at < len(truth.token_ids) else None,
        got=got.token_ids[at] if at < len(got.token_ids) else None,
        gap=truth.gaps[at] if at < len(truth.gaps) else None,
        perturbation=moved,
        verdict=verdict,
    )


# A way of decoding: bound to a target, again where a divergence is judged
Decode = Callable[[Inputs, SamplingParams], Reference]
BindDecode = Callable[[Target], Decode]


def decode_reference(target: Target) -> Decode:
    """Plainly: by the model's own forward, or by single rows in passes of the fixed shape."""
    return lambda inputs, params: reference(target, inputs, max_new_tokens=params.max_new_tokens, params=params)


def decode_hf(target: Target) -> Decode:
    """By transformers' ``generate``."""
    return lambda inputs, params: hf_generate(target, inputs, max_new_tokens=params.max_new_tokens)


def decode_by(bind: BindDrafter) -> BindDecode:
    """By our loop."""

    def bound(target: Target) -> Decode:
        decoder = Traced(target, bind(target))
        return lambda inputs, params: decoder.trace(inputs, params)[0]

    return bound


def judge(
    target: Target,
    other: BindDecode,
    inputs: Inputs,
    params: SamplingParams,
    at: int,
    truth: Reference,
    moved: float,
) -> Literal["tie", "bug"]:
    """Whether a divergence is rounding: both loops agree up to and at it in float64, and the gap was small."""
    if at >= len(truth.gaps) or truth.gaps[at] > rounding_bound(target, truth.rows[at], moved):
        return "bug"
    exact = target.in_float64()
    wide = inputs.in_float64()
    params = capped(params, at + 1)
    one, two = (bind(exact)(wide, params).token_ids for bind in (decode_reference, other))
    return "tie" if one == two else "bug"


def rounding_bound(target: Target, row: Tensor, moved: float) -> float:
    """The widest top-2 gap of a row (V,) that rounding may close, where rows were seen to move by ``moved``."""
    largest = float(row[torch.isfinite(row)].abs().max())
    return min(TIE_MARGIN * moved, ROUNDING_ULPS * torch.finfo(target.dtype).eps * largest)


def perturbation(one: Reference, other: Reference) -> float:
    """Largest difference of two decodings' logits up to and at their first different token."""
    at = first_difference(one.token_ids, other.token_ids)
    size = min(len(one.rows), len(other.rows), len(one.rows) if at is None else at + 1)
    difference = (one.rows[:size] - other.rows[:size].to(one.rows.device)).abs()
    finite = difference[torch.isfinite(difference)]
    return float(finite.max()) if len(finite) else 0.0


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Index of the first token that differs, or None."""
    for index, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return index
    return None if len(expected) == len(got) else min(len(expected), len(got))


def _check_features(report: AuditReport, case: Case, arm: str, loop: Traced, got: Reference) -> None:
    error = loop.feature_error(case.inputs, got.token_ids)
    report.max_feature_error = max(report.max_feature_error, error)
    if not error <= min(FEATURE_LIMIT, FEATURE_ULPS * torch.finfo(loop.target.dtype).eps):
        report.feature_faults.append(FeatureFault(case.id, case.task, arm, error))


def _tallies(report: AuditReport, case: Case, arm: str) -> list[Tally]:
    return [
        report.overall,
        report.per_task.setdefault(case.task, Tally()),
        report.per_arm.setdefault(arm, Tally()),
    ]
