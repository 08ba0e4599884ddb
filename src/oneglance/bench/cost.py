"""What a round costs, part by part, in one process (Table 11), and round time against draft passes (§5.2)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import linregress

from oneglance.bench.cases import Case
from oneglance.bench.first import FirstToken
from oneglance.bench.record import Record
from oneglance.bench.runner import no_collections, no_old_objects
from oneglance.core import Generation, InputError, SamplingParams, TokenTree
from oneglance.decoder import Decoder
from oneglance.drafters.timing import MarginalDrafter, draft_costs, verify_costs
from oneglance.stats.bootstrap import NAN
from oneglance.targets.state import Inputs
from oneglance.tree import pack


@dataclass(frozen=True, slots=True)
class Cost:
    """One system's round, in milliseconds a round.

    Attributes:
        system, budget: which.
        t_plain_ms: the plain arm's whole step, host included.
        t_draft_ms: draft pass and tree; t_build_ms: of it, the tree, None where that cannot be told.
        t_verify_ms: the packed pass over N + 1 rows.
        t_host_ms: everything else: accept, commit, text.
        host_share: of the round.
        round_ms: all of it; rounds: how many.
        round_over_plain: round_ms over t_plain_ms: what τ must exceed for a speedup.
        passes: draft passes a round.
        tau: tokens a round.
    """

    system: str
    budget: int
    t_plain_ms: float
    t_draft_ms: float
    t_build_ms: float | None
    t_verify_ms: float
    t_host_ms: float
    host_share: float
    round_ms: float
    rounds: int
    round_over_plain: float
    passes: float
    tau: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit and what was measured against it.

    Attributes:
        name: of what.
        value: measured; None where it cannot be told for this system.
        limit, is_least: the limit, and whether it is the least or the most.
    """

    name: str
    value: float | None
    limit: float
    is_least: bool = False

    @property
    def is_met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.limit if self.is_least else self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Regression:
    """Round time on draft passes a round, over arms.

    Attributes:
        constant_ms, per_pass_ms: the line; nan where ``reason`` says why there is none.
        in_plain_steps: the constant over a plain step.
        r2, num_arms: of the fit.
    """

    constant_ms: float
    per_pass_ms: float
    in_plain_steps: float
    r2: float
    num_arms: int
    reason: str | None = None


def costs(records: Sequence[Record], budgets: dict[str, int]) -> list[Cost]:
    """Parts of a round of every drafting system, from a run with a plain arm.

    Raises:
        InputError: every answer ended with its first token, which prefill gives.
    """
    plain = [r for r in records if r.system == "plain"]
    if not any(r.kept for r in plain):
        raise InputError("no prompt had a round; choose prompts with longer answers")
    step = sum(r.decode_ms for r in plain) / sum(len(r.kept) for r in plain)
    found = []
    for system in dict.fromkeys(r.system for r in records if r.system != "plain"):
        own = [r for r in records if r.system == system]
        rounds = sum(len(r.kept) for r in own)
        build = None if any(r.build_ms is None for r in own) else sum(r.build_ms or 0.0 for r in own) / rounds
        draft = sum(r.draft_ms for r in own) / rounds + (build or 0.0)
        verify = sum(r.verify_ms for r in own) / rounds
        host = sum(r.commit_ms + r.host_ms for r in own) / rounds
        whole = sum(r.decode_ms for r in own) / rounds
        found.append(
            Cost(
                system=system,
                budget=budgets[system],
                t_plain_ms=step,
                t_draft_ms=draft,
                t_build_ms=build,
                t_verify_ms=verify,
                t_host_ms=host,
                host_share=host / whole,
                round_ms=whole,
                rounds=rounds,
                round_over_plain=whole / step,
                passes=sum(sum(r.passes) for r in own) / rounds,
                tau=sum(sum(r.kept) for r in own) / rounds,
            )
        )
    return found


@no_old_objects()
def efficiency(
    decoder: Decoder,
    drafter: MarginalDrafter,
    cases: Sequence[Case],
    params: SamplingParams,
    *,
    nodes: int,
    repeats: int,
) -> float:
    """What the two passes of a generation's rounds take, each timed alone, over what the loop takes: median of prompts.

    So it is the loop's speedup over that of a loop that costs nothing. A prompt is decoded before its passes are timed
    and once more after it, so that a machine that slows down does so in both; what the first draft takes in counts.

    Args:
        decoder, drafter: the loop, and what drafts in it.
        cases: the prompts, one with a round at least.
        params: of the loop.
        nodes: of a tree.
        repeats: of each packed pass.
    """
    ratios = []
    for case in cases:
        inputs = case.encode(decoder.target)
        before = _decoded(decoder, inputs, params)
        if not before.rounds:
            continue
        (verify,) = verify_costs(decoder.target, inputs, [nodes], repeats=repeats)
        draft = draft_costs(decoder.target, drafter, inputs)
        after = _decoded(decoder, inputs, params)
        alone = len(before.rounds) * (draft.ms + verify.ms) + draft.ingest_ms * len(inputs.token_ids)
        ratios.append(2 * alone / (before.decode_ms + after.decode_ms))
    return statistics.median(ratios)


def _decoded(decoder: Decoder, inputs: Inputs, params: SamplingParams) -> Generation:
    with no_collections():
        return decoder.stream_inputs(inputs, params).exhaust()


def bars(cost: Cost, *, pack_ms: float, efficiency: float | None, first: FirstToken) -> list[Bar]:
    """What a round may cost beside its two passes, and what the first token may.

    Args:
        cost: of the system.
        pack_ms: laying a tree of its budget out.
        efficiency: of its loop; None where its passes cannot be told apart.
        first: of the same target and drafter.
    """
    return [
        Bar("host_share", cost.host_share, 0.10),
        Bar("build_and_pack_ms", None if cost.t_build_ms is None else cost.t_build_ms + pack_ms, 0.4),
        Bar("efficiency", efficiency, 0.9, is_least=True),
        Bar("capture_over_prefill", first.capture_over_prefill, 1.05),
        Bar("ttft_over_hf", first.ttft_over_hf, 1.0),
    ]


def pack_cost(tree: TokenTree, *, repeats: int = 200) -> float:
    """Median milliseconds of laying a tree out."""
    took = []
    for _ in range(repeats):
        started = time.perf_counter()
        pack(0, tree)
        took.append((time.perf_counter() - started) * 1e3)
    return statistics.median(took)


def regress(found: Sequence[Cost]) -> Regression:
    """The paper's line: round time = constant + slope × sequential draft passes."""
    if len({round(cost.passes, 1) for cost in found}) < 2:
        reason = "all arms have the same number of draft passes; add a sequential drafter with --systems"
        return Regression(NAN, NAN, NAN, NAN, len(found), reason)
    line = linregress([cost.passes for cost in found], [cost.round_ms for cost in found])
    constant = float(line.intercept)
    r2 = float(line.rvalue**2)
    return Regression(constant, float(line.slope), constant / found[0].t_plain_ms, r2, len(found))
