"""Exactness, measured: our output against an independent plain loop, token for token (Thm. 1, Table 7).

``reference`` decodes with the model's own forward, one token a pass. It shares no tree, mask, position or commit code
with the loop it judges. Each divergence is judged again in float64: a *tie* if both loops agree there, else a *bug*.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from oneglance.accept import Decision, argmax, gumbel
from oneglance.core import AcceptRule, Drafter, SamplingParams, TokenTree, Verdict
from oneglance.decoder import Decoder
from oneglance.targets import hf
from oneglance.targets.base import Target
from oneglance.targets.processing import processors
from oneglance.targets.state import Inputs

# A rounding flip needs a top-2 gap of the order of the perturbation, and that of the arithmetic: gap at most 10 times
# the one and 100 units in the last place of the largest logit. A wider gap is a bug whatever float64 says.
TIE_MARGIN = 10.0
ROUNDING_ULPS = 100.0
BindDrafter = Callable[[Target], Drafter]


@dataclass(frozen=True, slots=True)
class Reference:
    """Plain decoding of one prompt.

    Attributes:
        token_ids: (T,) new tokens.
        rows: (T, V) the model's logits before each, without processors.
        gaps: (T,) how far the second choice was behind, in logit units, after processors and with the noise of a draw.
    """

    token_ids: list[int]
    rows: Tensor
    gaps: list[float]


def plain_rows(target: Target, inputs: Inputs) -> Generator[Tensor, int, None]:
    """The model's own forward, one token a pass: yields (1, V) logits in float32 and is sent the next token."""
    model, cache = target.model, hf.new_cache(target.model.config)
    keyword = hf.cache_keyword(model)
    hf.forget_positions(model)
    arguments: dict[str, Any] = dict(inputs.tensors)
    ids = inputs.tensors["input_ids"]
    while True:
        with torch.inference_mode():
            output = model(**arguments, **{keyword: cache}, use_cache=True, logits_to_keep=1)
        token = yield output.logits[:, -1].float()
        arguments = {"input_ids": ids.new_tensor([[token]])}
        if "cross_attention_mask" in inputs.tensors:
            arguments["cross_attention_mask"] = inputs.tensors["cross_attention_mask"][:, -1:]


@torch.inference_mode()
def reference(
    target: Target, inputs: Inputs, *, max_new_tokens: int, params: SamplingParams | None = None
) -> Reference:
    """Plain decoding by the model's own forward, one token a pass, with nothing of ours in between.

    Args:
        target: only its HF model is used, and the processors of its generation config.
        inputs: an encoded prompt.
        max_new_tokens: cap, at least 1.
        params: how tokens are chosen, with a seed where they are drawn; greedily if not given. Stop strings are not
            looked at.
    """
    params = _capped(params or SamplingParams(), max_new_tokens)
    eos = set(target.eos_ids)
    processor = processors(target, inputs, params)
    steps = plain_rows(target, inputs)
    token_ids: list[int] = []
    rows, gaps = [], []
    context = inputs.tensors["input_ids"]
    row = next(steps)
    while True:
        rows.append(row[0])
        keys = row if processor is None else processor(context, row.clone())
        if params.temperature:
            assert params.seed is not None
            keys = keys.cpu().double() + gumbel(params.seed, context.shape[1], keys.shape[1])
        best = keys[0].topk(2).values.tolist()
        gaps.append((best[0] - best[1]) * (params.temperature or 1.0))
        token = argmax(keys).to(context.device)
        token_ids.append(int(token))
        if token_ids[-1] in eos or len(token_ids) == max_new_tokens:
            return Reference(token_ids, torch.stack(rows), gaps)
        context = torch.cat([context, token[None]], dim=1)
        row = steps.send(token_ids[-1])


@torch.inference_mode()
def hf_generate(target: Target, inputs: Inputs, *, max_new_tokens: int) -> list[int]:
    """New tokens of transformers' own ``generate(do_sample=False)``."""
    config = hf.greedy_config(target.model, max_new_tokens=max_new_tokens)
    hf.forget_positions(target.model)
    ids = inputs.tensors["input_ids"]  # without a mask, a padding token of the prompt would count as padding
    out = target.model.generate(**inputs.tensors, attention_mask=torch.ones_like(ids), generation_config=config)
    new: list[int] = out[0, len(inputs.token_ids) :].tolist()
    return new


class Watched:
    """An accept rule that measures how far packed rows are from the reference's rows at the same prefix.

    Attributes:
        perturbation: largest absolute logit difference seen while the prefixes agreed.
    """

    def __init__(self, rule: AcceptRule, truth: Reference, prompt_length: int) -> None:
        self._rule = rule
        self._truth = truth
        self._prompt_length = prompt_length
        self.perturbation = 0.0

    def first(self, row: Tensor, prefix: Sequence[int]) -> int:
        self._compare(row, 0)
        return self._rule.first(row, prefix)

    def __call__(self, tree: TokenTree, rows: Tensor, prefix: Sequence[int]) -> Verdict:
        verdict = self._rule(tree, rows, prefix)
        known = list(prefix[self._prompt_length :])
        for node, token in zip(verdict.path, verdict.token_ids, strict=True):
            if known != self._truth.token_ids[: len(known)]:
                break
            self._compare(rows[node], len(known))
            known.append(token)
        return verdict

    def _compare(self, row: Tensor, position: int) -> None:
        if position < len(self._truth.rows):
            difference = (row.float() - self._truth.rows[position].to(row.device)).abs()
            finite = difference[torch.isfinite(difference)]  # processors set some logits to -inf
            self.perturbation = max(self.perturbation, float(finite.max()) if len(finite) else 0.0)


class WatchedDecoder(Decoder):
    """A decoder whose accept rule is watched for one prompt."""

    def __init__(self, target: Target, drafter: Drafter, truth: Reference) -> None:
        super().__init__(target, drafter)
        self._truth = truth
        self.watched: Watched | None = None

    def accept_rule(
        self, inputs: Inputs, params: SamplingParams, watch: Callable[[Decision], None] | None = None
    ) -> AcceptRule:
        rule = super().accept_rule(inputs, params, watch)
        self.watched = Watched(rule, self._truth, len(inputs.token_ids))
        return self.watched


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
        gap: the reference's top-2 logit gap there.
        perturbation: largest packed-versus-unpacked difference on this prompt.
        verdict: tie if both loops agree there in float64, else bug.
    """

    case: str
    task: str
    arm: str
    position: int
    expected: int | None
    got: int | None
    gap: float
    perturbation: float
    verdict: Literal["tie", "bug"]


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
        hf: the reference against transformers' ``generate``.
        num_tokens: tokens compared.
        max_logit_perturbation: largest packed-versus-unpacked difference (logit units).
        min_gap: smallest top-2 gap of the reference.
        divergences: every one, judged.
    """

    overall: Tally = field(default_factory=Tally)
    per_task: dict[str, Tally] = field(default_factory=dict)
    per_arm: dict[str, Tally] = field(default_factory=dict)
    hf: Tally = field(default_factory=Tally)
    num_tokens: int = 0
    max_logit_perturbation: float = 0.0
    min_gap: float = float("inf")
    divergences: list[Divergence] = field(default_factory=list)

    @property
    def ties(self) -> int:
        return sum(d.verdict == "tie" for d in self.divergences)

    @property
    def bugs(self) -> int:
        """Divergences that are no ties, and references that transformers' ``generate`` does not share."""
        return len(self.divergences) - self.ties + self.hf.total - self.hf.identical

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

    Args:
        target: the frozen model.
        arms: name → drafter for a target (bound anew in float64 where a divergence is judged).
        cases: prompts.
        max_new_tokens: cap.
        compare_hf: also compare the reference with transformers' ``generate``; greedy text only.
        params: how tokens are chosen, with a seed where they are drawn; greedily if not given.

    Yields:
        The same growing report after each prompt.
    """
    params = _capped(params or SamplingParams(), max_new_tokens)
    report = AuditReport()
    drafters = {name: bind(target) for name, bind in arms.items()}
    for case in cases:
        truth = reference(target, case.inputs, max_new_tokens=max_new_tokens, params=params)
        report.min_gap = min(report.min_gap, *truth.gaps)
        if compare_hf and replace(params, seed=None) == SamplingParams(max_new_tokens=max_new_tokens):
            report.hf.add(hf_generate(target, case.inputs, max_new_tokens=max_new_tokens) == truth.token_ids)
        for name, drafter in drafters.items():
            got, perturbation = _decode(target, drafter, case, truth, params)
            report.num_tokens += len(truth.token_ids)
            report.max_logit_perturbation = max(report.max_logit_perturbation, perturbation)
            at = first_difference(truth.token_ids, got)
            for tally in (
                report.overall,
                report.per_task.setdefault(case.task, Tally()),
                report.per_arm.setdefault(name, Tally()),
            ):
                tally.add(at is None)
            if at is not None:
                verdict = judge(target, arms[name], case, at, truth, perturbation, params)
                report.divergences.append(
                    Divergence(
                        case=case.id,
                        task=case.task,
                        arm=name,
                        position=at,
                        expected=truth.token_ids[at] if at < len(truth.token_ids) else None,
                        got=got[at] if at < len(got) else None,
                        gap=truth.gaps[at] if at < len(truth.gaps) else float("nan"),
                        perturbation=perturbation,
                        verdict=verdict,
                    )
                )
        yield report


def judge(
    target: Target,
    bind: BindDrafter,
    case: Case,
    at: int,
    truth: Reference,
    perturbation: float,
    params: SamplingParams,
) -> Literal["tie", "bug"]:
    """Whether a divergence is rounding: both loops agree up to and at it in float64, and the gap was small."""
    if at >= len(truth.gaps):
        return "bug"
    finite = truth.rows[at][torch.isfinite(truth.rows[at])]
    rounding = ROUNDING_ULPS * torch.finfo(target.dtype).eps * float(finite.abs().max())
    if truth.gaps[at] > min(TIE_MARGIN * perturbation, rounding):
        return "bug"
    exact = type(target)(copy.deepcopy(target.model).double(), target.processor, name=target.name)
    inputs = Inputs(
        {k: v.double() if v.is_floating_point() else v for k, v in case.inputs.tensors.items()}, case.inputs.num_images
    )
    params = _capped(params, at + 1)
    truth64 = reference(exact, inputs, max_new_tokens=at + 1, params=params)
    got64, _ = _decode(exact, bind(exact), Case(case.id, case.task, inputs), truth64, params)
    return "tie" if first_difference(truth64.token_ids, got64) is None else "bug"


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Index of the first token that differs, or None."""
    for index, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return index
    return None if len(expected) == len(got) else min(len(expected), len(got))


def _decode(
    target: Target, drafter: Drafter, case: Case, truth: Reference, params: SamplingParams
) -> tuple[list[int], float]:
    decoder = WatchedDecoder(target, drafter, truth)
    stream = decoder.stream_inputs(case.inputs, params)
    for _ in stream:
        pass
    assert decoder.watched is not None
    return stream.generation.token_ids, decoder.watched.perturbation


def _capped(params: SamplingParams, max_new_tokens: int) -> SamplingParams:
    """``params`` with another cap: the tokens up to it stay the same."""
    minimum = params.min_new_tokens
    least = None if minimum is None else min(minimum, max_new_tokens)
    return replace(params, max_new_tokens=max_new_tokens, min_new_tokens=least)
