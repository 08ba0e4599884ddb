"""Is it worth it here: tree, chain, or neither?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from oneglance.bench.metrics import MIN_PROMPTS, mean_ms, pairs
from oneglance.bench.record import Record
from oneglance.stats.bootstrap import NAN, Interval, resample_mean, resample_ratio

Choice = Literal["tree", "chain", "off"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One system on these prompts.

    Attributes:
        tau: kept tokens a round, prompts resampled.
        speedup: over plain decoding, paired by prompt; no bounds of either below ``MIN_PROMPTS``.
        n: prompts.
    """

    tau: Interval
    speedup: Interval
    n: int


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do on prompts like these.

    Attributes:
        choice: the faster of tree and chain where its interval lies above 1, else off.
        reason: in one sentence.
        findings: by system.
    """

    choice: Choice
    reason: str
    findings: dict[str, Finding]


def advise(records: Sequence[Record], more: str = "ask more") -> Advice:
    """Judge a run of plain, chain and tree, all tasks together.

    Args:
        records: of the run.
        more: how to ask more, where there are too few prompts.
    """
    plain = [r for r in records if r.system == "plain"]
    findings = {}
    for system in ("tree", "chain"):
        own = [r for r in records if r.system == system]
        both = [(mean_ms(a), mean_ms(b)) for a, b in pairs(plain, own)]
        if both:
            kept = [(n, r.prompt) for r in own for n in r.kept]
            tau = resample_mean([n for n, _ in kept], [prompt for _, prompt in kept])
            gain = resample_ratio([a for a, _ in both], [b for _, b in both])
            if len(both) < MIN_PROMPTS:
                tau, gain = (replace(found, low=NAN, high=NAN) for found in (tau, gain))
            findings[system] = Finding(tau, gain, len(both))
    if not findings:
        return Advice("off", "every answer is a single token, so there is nothing to draft", {})
    if max(found.n for found in findings.values()) < MIN_PROMPTS:
        return Advice("off", f"fewer than {MIN_PROMPTS} prompts give no interval; {more}", findings)
    best = max(findings, key=lambda system: findings[system].speedup.value)
    found = findings[best].speedup
    if found.low > 1:
        choice: Choice = "tree" if best == "tree" else "chain"
        return Advice(choice, f"{best} is {found.value:.2f} times as fast, and its interval lies above 1", findings)
    says = "lies below 1" if found.high < 1 else "includes 1"
    return Advice(
        "off", f"the best of the two, {best}, is {found.value:.2f} times as fast; its interval {says}", findings
    )
