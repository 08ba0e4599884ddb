"""From records to rows: τ, milliseconds a token, speedup with its interval, identity, task score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import bootstrap

RESAMPLES = 8000
SEED = 0


@dataclass(frozen=True, slots=True)
class Record:
    """One generation of one system.

    Attributes:
        system, task, prompt: what and which.
        token_ids: new tokens.
        kept: tokens kept in each round, bonus included.
        decode_ms: from the end of the target's prefill.
        prefill_ms: the target's prefill.
        identical: equal to the independent reference, token for token.
        right, total, char_errors, num_chars: task score, where the task has a grader.
        wording: of a caption, with what it names blanked out.
        entropy_nats: mean next-token entropy of the reference.
    """

    system: str
    task: str
    prompt: str
    token_ids: tuple[int, ...]
    kept: tuple[int, ...]
    decode_ms: float
    prefill_ms: float
    identical: bool
    entropy_nats: float
    right: int = 0
    total: int = 0
    char_errors: int = 0
    num_chars: int = 0
    wording: str = ""

    @property
    def decoded(self) -> int:
        """Tokens after the first, which belongs to prefill."""
        return len(self.token_ids) - 1


@dataclass(frozen=True, slots=True)
class Row:
    """One system on one task.

    Attributes:
        n: prompts.
        tokens: mean new tokens a prompt.
        tau, tau_no_bonus: kept tokens a round, pooled over rounds, with and without the bonus; None for plain.
        ms_per_token: mean over all decoded tokens.
        speedup: plain over this system's milliseconds, summed over the same prompts (ratio of means).
        ci_low, ci_high: 95 % paired bootstrap over prompts.
        mean_of_ratios: mean over prompts of each prompt's own ratio.
        wins: prompts on which this system was faster than plain.
        identical: outputs equal to the independent reference.
        score: share of right items; character_error_rate where the task is a transcription.
        entropy_nats: mean next-token entropy of the target on this task.
        wordings: different wordings, for captions.
    """

    system: str
    task: str
    n: int
    tokens: float
    tau: float | None
    tau_no_bonus: float | None
    ms_per_token: float
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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(records: Sequence[Record]) -> list[Row]:
    """A row for each task and system, in order of appearance; speedups need the ``plain`` system among them."""
    tasks = list(dict.fromkeys(r.task for r in records))
    systems = list(dict.fromkeys(r.system for r in records))
    return [_row([r for r in records if r.task == t and r.system == s], records) for t in tasks for s in systems]


def paired_speedup(plain_ms: Sequence[float], other_ms: Sequence[float]) -> tuple[float, float, float]:
    """Ratio of summed times and its 95 % paired percentile bootstrap interval; nan bounds for a single prompt.

    Args:
        plain_ms, other_ms: decode times of the same prompts, in the same order.
    """
    plain, other = np.asarray(plain_ms, float), np.asarray(other_ms, float)
    ratio = float(plain.sum() / other.sum())
    if len(plain) < 2:
        return ratio, float("nan"), float("nan")
    interval = bootstrap(
        (plain, other),
        lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis),
        n_resamples=RESAMPLES,
        paired=True,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return ratio, float(interval.low), float(interval.high)


def geomean(values: Sequence[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def _row(own: list[Record], records: Sequence[Record]) -> Row:
    task, system = own[0].task, own[0].system
    plain = {r.prompt: r for r in records if r.task == task and r.system == "plain"}
    kept = [n for r in own for n in r.kept]
    pairs = [(plain[r.prompt].decode_ms, r.decode_ms) for r in own if r.prompt in plain and r.decoded > 0]
    speedup = low = high = ratios = wins = None
    if system != "plain" and pairs:
        speedup, low, high = paired_speedup(*zip(*pairs, strict=True))
        ratios = float(np.mean([a / b for a, b in pairs]))
        wins = sum(b < a for a, b in pairs)
    total, chars = sum(r.total for r in own), sum(r.num_chars for r in own)
    return Row(
        system=system,
        task=task,
        n=len(own),
        tokens=float(np.mean([len(r.token_ids) for r in own])),
        tau=float(np.mean(kept)) if kept and system != "plain" else None,
        tau_no_bonus=float(np.mean(kept)) - 1 if kept and system != "plain" else None,
        ms_per_token=sum(r.decode_ms for r in own) / max(1, sum(r.decoded for r in own)),
        speedup=speedup,
        ci_low=low,
        ci_high=high,
        mean_of_ratios=ratios,
        wins=wins,
        identical=sum(r.identical for r in own),
        score=sum(r.right for r in own) / total if total else None,
        character_error_rate=sum(r.char_errors for r in own) / chars if chars else None,
        entropy_nats=float(np.mean([r.entropy_nats for r in own])),
        wordings=len({r.wording for r in own if r.wording}),
    )
