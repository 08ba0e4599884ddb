"""Running the matrix: every arm decodes every prompt, pairs are compared at once, token ids are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oneglance.audit import BindDrafter, Case, first_difference
from oneglance.calibrate import calibrate
from oneglance.core import Generation, SamplingParams
from oneglance.matrix.arms import PLAIN, arithmetic, arms_for, pairs_for
from oneglance.matrix.compare import MODES, Comparison, Judge, divergence, refuse_unlike
from oneglance.targets.base import Target

NUM_CALIBRATION = 5


@dataclass
class Recording:
    """What one arm wrote.

    Attributes:
        arm: its name, without the precision.
        settings: target, dtype, attention, device, threads, tensor parallelism and the shape of packed passes.
        token_ids: case → new tokens.
        gaps: case → top-2 logit gap of each row.
        notes: what else is worth reading: rounds, τ, and for a gate δ, its rate and what it cannot remove.
    """

    arm: str
    settings: dict[str, Any]
    token_ids: dict[str, list[int]] = field(default_factory=dict)
    gaps: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)

    def add(self, case: str, token_ids: list[int], gaps: list[float], generation: Generation | None) -> None:
        """Keep one answer."""
        self.token_ids[case], self.gaps[case] = token_ids, gaps
        if generation is not None:
            notes, rounds = self.notes, generation.rounds
            notes["rounds"] = notes.get("rounds", 0) + len(rounds)
            notes["gated"] = notes.get("gated", 0) + sum(r.gated for r in rounds)
            notes["tokens"] = notes.get("tokens", 0) + sum(len(r.token_ids) for r in rounds)
            notes["tau"] = notes["tokens"] / max(1, notes["rounds"])
            notes["gate_rate"] = notes["gated"] / max(1, notes["tokens"])


@dataclass
class Matrix:
    """What one precision showed; ``merged`` puts several together.

    Attributes:
        comparisons: the rows.
        recordings: what the arms wrote.
        skipped: drafters that did not run → why.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    recordings: list[Recording] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def bugs(self) -> int:
        return sum(row.bugs for row in self.comparisons)

    @property
    def ties(self) -> int:
        return sum(row.ties for row in self.comparisons)


def record(
    target: Target,
    drafters: Mapping[str, BindDrafter],
    cases: Sequence[Case],
    *,
    gated: str | None = None,
    delta: float | None = None,
    max_new_tokens: int,
) -> Iterator[Matrix]:
    """Decode each case by each arm, in one precision, and compare.

    Args:
        target: in that precision; with a fixed shape, plain decoding has it too.
        drafters: name → drafter for the target.
        cases: prompts.
        gated: the drafter that also runs with the gate.
        delta: of the gate; measured on the first prompts if not given.
        max_new_tokens: cap.

    Yields:
        The same growing matrix after each case.

    Raises:
        InputError: two arms of a pair differ in what its name does not say.
    """
    params = SamplingParams(max_new_tokens=max_new_tokens)
    gates: dict[str, float] = {}
    notes: dict[str, float] = {}
    if gated is not None:
        notes = {"delta": delta} if delta is not None else _calibrated(target, drafters[gated], cases, max_new_tokens)
        gates = {gated: notes["delta"]}
    arms = {arm.name: arm for arm in arms_for(target, drafters, gates)}
    pairs = pairs_for(list(arms.values()))
    settings = {name: arm.settings(target) for name, arm in arms.items()}
    for pair in pairs:
        refuse_unlike(pair.name, settings[pair.expected], settings[pair.got], differing=pair.differing)
    dtype = settings[PLAIN]["dtype"]
    rows: dict[tuple[str, str], Comparison] = {
        (pair.name, mode): Comparison(pair.name, pair.kind, mode, dtype) for mode in MODES for pair in pairs
    }
    recordings = {name: Recording(name, settings[name]) for name in arms}
    if gated is not None:
        recordings[f"{gated} + gate"].notes |= notes
    matrix = Matrix(list(rows.values()), list(recordings.values()))
    decode = {name: arm.on(target) for name, arm in arms.items()}
    judge = Judge(target, arms, params)
    for case in cases:
        answers = {}
        for name, run in decode.items():
            answers[name], generation = run(case.inputs, params)
            recordings[name].add(case.id, answers[name].token_ids, answers[name].gaps, generation)
        for pair in pairs:
            one, other = answers[pair.expected], answers[pair.got]
            for mode, compare in (("free-running", judge.free_running), ("teacher-forced", judge.teacher_forced)):
                found, moved = compare(pair, case, one, other)
                rows[pair.name, mode].add(found, tokens=len(other.token_ids), moved=moved)
        yield matrix


def merged(matrices: Sequence[Matrix], target: Target, cases: Sequence[Case]) -> Matrix:
    """One matrix of all precisions, with the rows of precision against precision and each drafter's least control.

    Args:
        matrices: the most precise one first.
        target: for its tokenizer.
        cases: prompts, as recorded.
    """
    whole = Matrix()
    for matrix in matrices:
        for mode in MODES:
            own = [row for row in matrix.comparisons if row.mode == mode]
            worst = min((row for row in own if row.kind == "control"), key=lambda row: row.agreement)
            for row in own:
                if row.kind == "drafter":
                    row.control = f"{worst.name}: {worst.counted}"
        whole.comparisons += matrix.comparisons
        whole.recordings += matrix.recordings
        whole.skipped |= matrix.skipped
    precise, *others = [next(r for r in m.recordings if r.arm == PLAIN) for m in matrices]
    for other in others:
        refuse_unlike("plain", precise.settings, other.settings, differing=["dtype"])
        row = Comparison(
            "plain", "precision", "free-running", f"{precise.settings['dtype']} vs {other.settings['dtype']}"
        )
        for case in cases:
            one, two = precise.token_ids[case.id], other.token_ids[case.id]
            at = first_difference(one, two)
            found = []
            if at is not None:
                pair = (one[at] if at < len(one) else None, two[at] if at < len(two) else None)
                gaps = precise.gaps[case.id]
                gap = gaps[at] if at < len(gaps) else None
                found = [divergence(target, case, at, pair, one[:at], gap=gap)]
            row.add(found, tokens=len(two), moved=None)
        whole.comparisons.append(row)
    return whole


def _calibrated(target: Target, bind: BindDrafter, cases: Sequence[Case], max_new_tokens: int) -> dict[str, float]:
    """δ and what the gate cannot remove, on the first prompts."""
    inputs = [case.inputs for case in cases[:NUM_CALIBRATION]]
    with arithmetic(target):
        *_, measured = calibrate(target, bind(target), inputs, max_new_tokens=max_new_tokens)
    return {"delta": measured.delta, "single": measured.single}
