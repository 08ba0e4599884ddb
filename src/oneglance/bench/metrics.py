"""From records to rows: τ, milliseconds a token, speedup with its interval, identity, task score."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from oneglance.bench.record import Record
from oneglance.stats.bootstrap import NAN, Interval, resample_mean, resample_ratio
from oneglance.stats.geometric import L

__all__ = ["Record", "Row", "geomean", "paired_speedup", "summarise"]

MIN_PROMPTS = 5  # of an interval: a bootstrap of fewer draws the same few values again and looks precise
STAGES = ("draft", "build", "verify", "commit", "host")


@dataclass(frozen=True, slots=True)
class Row:
    """One system on one task.

    Attributes:
        n: prompts; replicates: how often each was decoded.
        tokens: mean new tokens a prompt.
        tau, tau_no_bonus: kept tokens a round, pooled over rounds, with and without the bonus; tau_low, tau_high: 95 %,
            prompts resampled. None for plain.
        ms_per_token: mean over all decoded tokens, from the end of the target's prefill.
        speedup: plain over this system's milliseconds, summed over the same prompts (ratio of means).
        ci_low, ci_high: 95 % paired bootstrap over prompts; nan for fewer than ``MIN_PROMPTS``.
        mean_of_ratios: mean over prompts of each prompt's own ratio.
        paper_window: the same ratio of means in the paper's window, which opens after the first draft.
        equal_length: the same ratio over equally many tokens of each pair; equal to ``speedup`` where texts do not
            differ.
        replicate_speedups: of each replicate alone.
        end_to_end: the same ratio with prefill.
        wins: prompts on which this system was faster than plain.
        identical: outputs equal to the independent reference, out of n times replicates.
        is_lossless: whether all of them were.
        passes, nodes: draft passes and verified nodes a round, root excluded.
        draft_ms, build_ms, verify_ms, commit_ms, host_ms: mean per round; build is None where a drafter's tree cannot
            be told from its pass.
        survival: share of rounds with a ≥ ℓ, ℓ = 1..L.
        prefill_share, vision_share: of end-to-end time.
        score: mean task score; metric: what it measures; character_error_rate where the task is a transcription.
        entropy_nats: mean next-token entropy of the target on this task.
        wordings: different wordings, for captions.
        end_to_end_ms: mean of a prompt, prefill included; first_ms: to its first token.
        weights, num_parameters: where the drafter comes from and how large it is, embeddings left out.
        is_outside: not decoded by our loop: no ratio with ours is made; ``tau`` is then the system's own count.
        failures: prompts without an answer; failure: why the first one has none.
        extra_input: what the system was given besides the prompt; its rows stand apart.
    """

    system: str
    task: str
    n: int
    tokens: float
    tau: float | None
    tau_no_bonus: float | None
    ms_per_token: float | None
    speedup: float | None
    ci_low: float | None
    ci_high: float | None
    mean_of_ratios: float | None
    wins: int | None
    identical: int
    score: float | None
    character_error_rate: float | None
    entropy_nats: float
    wordings: int
    replicates: int = 1
    tau_low: float | None = None
    tau_high: float | None = None
    paper_window: float | None = None
    equal_length: float | None = None
    end_to_end: float | None = None
    replicate_speedups: tuple[float, ...] = ()
    is_lossless: bool = True
    passes: float | None = None
    nodes: float | None = None
    draft_ms: float | None = None
    build_ms: float | None = None
    verify_ms: float | None = None
    commit_ms: float | None = None
    host_ms: float | None = None
    survival: tuple[float, ...] = ()
    prefill_share: float | None = None
    vision_share: float | None = None
    metric: str | None = None
    end_to_end_ms: float | None = None
    first_ms: float | None = None
    weights: str | None = None
    num_parameters: int | None = None
    is_outside: bool = False
    failures: int = 0
    failure: str | None = None
    extra_input: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(records: Sequence[Record]) -> list[Row]:
    """A row for each task and system, in order of appearance; speedups need the ``plain`` system among them."""
    tasks = list(dict.fromkeys(r.task for r in records))
    systems = list(dict.fromkeys(r.system for r in records))
    own = {(t, s): [r for r in records if r.task == t and r.system == s] for t in tasks for s in systems}
    return [_row(own[t, s], own.get((t, "plain"), [])) for t in tasks for s in systems if own[t, s]]


def paired_speedup(plain_ms: Sequence[float], other_ms: Sequence[float]) -> tuple[float, float, float]:
    """Ratio of summed times and its 95 % paired percentile bootstrap interval; nan bounds below ``MIN_PROMPTS``.

    Args:
        plain_ms, other_ms: decode times of the same prompts, in the same order.
    """
    found = resample_ratio(plain_ms, other_ms)
    return (found.value, found.low, found.high) if len(plain_ms) >= MIN_PROMPTS else (found.value, NAN, NAN)


def geomean(values: Sequence[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def pairs(one: Sequence[Record], two: Sequence[Record]) -> list[tuple[list[Record], list[Record]]]:
    """Records of the same prompt by two systems, with something decoded by both; a list of replicates each."""
    left, right = by_prompt(one), by_prompt(two)
    both = [(left[prompt], right[prompt]) for prompt in left if prompt in right]
    return [(a, b) for a, b in both if a[0].decoded > 0 and b[0].decoded > 0]


def by_prompt(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Replicates of each prompt."""
    found: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[record.prompt].append(record)
    return found


def mean_ms(records: Sequence[Record]) -> float:
    """Decode time of one prompt, over its replicates."""
    return float(np.mean([r.decode_ms for r in records]))


def _row(own: list[Record], plain: list[Record]) -> Row:
    system = own[0].system
    total, chars = sum(r.total for r in own), sum(r.num_chars for r in own)
    failed = [r.failure for r in own if r.failure is not None]
    answered = [r for r in own if r.failure is None]
    has_ratio = system != "plain" and not own[0].is_outside
    metrics = {r.metric for r in own}
    return Row(
        system=system,
        task=own[0].task,
        n=len(by_prompt(own)),
        tokens=_mean([len(r.token_ids) for r in answered]) or 0.0,
        ms_per_token=sum(r.decode_ms for r in own) / max(1, sum(r.decoded for r in own)) if answered else None,
        identical=sum(r.identical for r in own),
        is_lossless=all(r.identical for r in own),
        score=sum(r.right for r in own) / total if total else None,
        character_error_rate=sum(r.char_errors for r in own) / chars if chars else None,
        entropy_nats=float(np.mean([r.entropy_nats for r in own])),
        wordings=len({r.wording for r in own if r.wording}),
        replicates=max(len(rs) for rs in by_prompt(own).values()),
        metric=metrics.pop() if len(metrics) == 1 else None,
        end_to_end_ms=_mean([r.end_to_end_ms for r in answered]),
        first_ms=_mean([r.prefill_ms for r in answered]),
        weights=own[0].weights,
        num_parameters=own[0].num_parameters,
        is_outside=own[0].is_outside,
        failures=len(failed),
        failure=failed[0] if failed else None,
        extra_input=own[0].extra_input,
        **(_counted(own) if own[0].is_outside else _rounds(own)),
        **_stages(own),
        **_shares(own),
        **(_speedups(own, plain) if has_ratio else _NO_SPEEDUP),
    )


_NO_SPEEDUP: dict[str, Any] = dict.fromkeys(("speedup", "ci_low", "ci_high", "mean_of_ratios", "wins"))


def _speedups(own: list[Record], plain: list[Record]) -> dict[str, Any]:
    both = pairs(plain, own)
    if not both:
        return _NO_SPEEDUP
    plain_ms, own_ms = [mean_ms(a) for a, _ in both], [mean_ms(b) for _, b in both]
    speedup, low, high = paired_speedup(plain_ms, own_ms)
    repeats = min(len(rs) for pair in both for rs in pair)
    return {
        "speedup": speedup,
        "ci_low": low,
        "ci_high": high,
        "mean_of_ratios": float(np.mean([a / b for a, b in zip(plain_ms, own_ms, strict=True)])),
        "wins": sum(b < a for a, b in zip(plain_ms, own_ms, strict=True)),
        "paper_window": sum(plain_ms)
        / sum(mean_ms(b) - float(np.mean([r.first_draft_ms for r in b])) for _, b in both),
        "equal_length": _equal_length(both),
        "end_to_end": _sum(both, 0, "end_to_end_ms") / _sum(both, 1, "end_to_end_ms"),
        "replicate_speedups": tuple(
            sum(a[i].decode_ms for a, _ in both) / sum(b[i].decode_ms for _, b in both) for i in range(repeats)
        ),
    }


def _sum(both: list[tuple[list[Record], list[Record]]], side: int, name: str) -> float:
    return float(sum(np.mean([getattr(r, name) for r in pair[side]]) for pair in both))


def _equal_length(both: list[tuple[list[Record], list[Record]]]) -> float:
    plain = own = 0.0
    for a, b in both:
        length = min(a[0].decoded, b[0].decoded)
        plain += float(np.mean([r.ms_until(length) for r in a]))
        own += float(np.mean([r.ms_until(length) for r in b]))
    return plain / own if own > 0 else NAN


def _counted(own: list[Record]) -> dict[str, Any]:
    """τ by a system's own count."""
    drafts = sum(r.drafts for r in own)
    no_bonus = sum(r.drafted for r in own) / drafts if drafts else None
    return {"tau": None if no_bonus is None else 1 + no_bonus, "tau_no_bonus": no_bonus}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _rounds(own: list[Record]) -> dict[str, Any]:
    """τ with its interval, survival, passes and nodes; nothing for plain decoding."""
    kept = [n for r in own for n in r.kept]
    if not kept or own[0].system == "plain":
        return {"tau": None, "tau_no_bonus": None}
    prompts = [r.prompt for r in own for _ in r.kept]
    tau: Interval = resample_mean(kept, prompts)
    accepted = np.array([n for r in own for n in r.accepted])
    return {
        "tau": tau.value,
        "tau_no_bonus": tau.value - 1,
        "tau_low": tau.low,
        "tau_high": tau.high,
        "passes": float(np.mean([n for r in own for n in r.passes])) if any(r.passes for r in own) else None,
        "nodes": float(np.mean([n for r in own for n in r.nodes])) if any(r.nodes for r in own) else None,
        "survival": tuple(float((accepted >= j).mean()) for j in range(1, L + 1)) if accepted.size else (),
    }


def _stages(own: list[Record]) -> dict[str, Any]:
    """Mean milliseconds of each stage, per round; the host's part is whatever the others leave of the window."""
    rounds = sum(len(r.kept) for r in own)
    if not rounds or not any(r.verify_ms for r in own):
        return {}
    sums = {name: [getattr(r, f"{name}_ms") for r in own] for name in STAGES}
    return {f"{n}_ms": None if None in values else float(sum(values)) / rounds for n, values in sums.items()}


def _shares(own: list[Record]) -> dict[str, Any]:
    whole = sum(r.end_to_end_ms for r in own)
    vision = [r.vision_ms for r in own]
    return {
        "prefill_share": sum(r.prefill_ms for r in own) / whole if whole else None,
        "vision_share": None if None in vision or not whole else float(sum(v or 0.0 for v in vision)) / whole,
    }
