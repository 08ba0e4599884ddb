"""How wide the gate must be: what packed passes do to logits, measured on caches that they wrote (§4.2, Thm. 1).

Rounds are decoded, then the same tokens are run by the model's own forward, one a pass. The rows that chose each token
are compared, speculative cache against plain cache at the same prefix. A choice can change only where its margin is
under twice the largest difference: that is δ.

What remains: a gated choice is a single step, yet it reads a cache that packed passes wrote. ``single`` is that
difference, measured the same way; where it is not 0, a margin under twice as much can still change a gated choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from oneglance.accept import Greedy
from oneglance.core import EMPTY_TREE, Drafter, InputError, SamplingParams, TokenTree, Verdict
from oneglance.files import parse_json
from oneglance.reference import plain_rows
from oneglance.stream import Run
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs, TargetState

SCHEMA_VERSION = 1


@dataclass
class Calibration:
    """Measured differences, in logit units.

    Attributes:
        settings: target, dtype, attention and device; δ holds for no others.
        packed: largest difference of rows of packed passes.
        single: largest difference of single steps on the same caches: what the gate cannot remove.
        num_rows: rows of packed passes compared.
        num_prompts: prompts decoded.
    """

    settings: dict[str, str]
    packed: float = 0.0
    single: float = 0.0
    num_rows: int = 0
    num_prompts: int = 0
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def delta(self) -> float:
        """The gate: twice the largest difference, since both of two tokens can move."""
        return 2 * self.packed

    def as_dict(self) -> dict[str, Any]:
        """The JSON object that ``calibrate-gate`` writes and ``--gate`` reads."""
        return {"schema_version": SCHEMA_VERSION, "delta": self.delta, **asdict(self)}


def settings_of(target: Target) -> dict[str, str]:
    """What rounding depends on."""
    attention = getattr(target.text_config, "_attn_implementation", "sdpa")
    dtype = str(target.dtype).removeprefix("torch.")
    where = {"target": target.name, "dtype": dtype, "attention": str(attention), "device": target.device.type}
    return {**where, "passes": target.passes.name}


def calibrate(
    target: Target, drafter: Drafter, prompts: Iterable[Inputs], *, max_new_tokens: int
) -> Iterator[Calibration]:
    """Compare packed rows with plain ones, prompt by prompt.

    Args:
        target: in the dtype and attention of later runs.
        drafter: with the tree and budget of later runs.
        prompts: encoded.
        max_new_tokens: tokens a prompt; differences grow with the cache, so no fewer than in later runs.

    Yields:
        The same growing calibration after each prompt.

    Raises:
        InputError: drafting fails.
    """
    result = Calibration(settings_of(target))
    for inputs in prompts:
        rule, stepping = _Rows(), _Stepping(target, drafter)
        run = Run(target, stepping, lambda _, r=rule: r, inputs, SamplingParams(max_new_tokens), lambda _: None)  # type: ignore[misc]
        for _ in run.steps():
            pass
        if run.drafter.failure is not None:
            raise InputError(f"drafting ended, so there is nothing to measure: {run.drafter.failure}")
        steps = plain_rows(target, inputs)
        row = next(steps)
        for position, token in enumerate(run.text.token_ids, start=len(inputs.token_ids)):
            if position in rule.packed:
                result.num_rows += 1
                result.packed = max(result.packed, _difference(rule.packed[position], row[0]))
            if position in stepping.single:
                result.single = max(result.single, _difference(stepping.single[position], row[0]))
            row = steps.send(token)
        result.num_prompts += 1
        yield result


def delta_of(path: Path, target: Target) -> float:
    """δ of a calibration file.

    Raises:
        InputError: no calibration, or one of another target, dtype, attention or device.
    """
    try:
        stored = parse_json(path.read_text(encoding="utf-8"))
        delta, measured = float(stored["delta"]), {"passes": "free", **stored["settings"]}
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise InputError(f"{path} is no calibration; oneglance calibrate-gate writes one") from error
    for name, value in settings_of(target).items():
        if measured.get(name) != value:
            raise InputError(f"{path} was measured with {name} {measured.get(name)}, this is {value}; calibrate anew")
    return delta


class _Rows(Greedy):
    """Greedy, and keeps the packed row of every choice by the position of the chosen token."""

    def __init__(self) -> None:
        super().__init__()
        self.packed: dict[int, Tensor] = {}

    def __call__(self, tree: TokenTree, rows: Tensor, prefix: Sequence[int]) -> Verdict:
        verdict = super().__call__(tree, rows, prefix)
        if len(tree):
            self.packed |= {len(prefix) + step: rows[node] for step, node in enumerate(verdict.path)}
        return verdict


class _Stepping:
    """A drafter before each of whose drafts the target's single step is measured and undone."""

    def __init__(self, target: Target, drafter: Drafter) -> None:
        self._target = target
        self._drafter = drafter
        self.name = drafter.name
        self.target_layer_ids = drafter.target_layer_ids
        self.single: dict[int, Tensor] = {}

    def start(self, state: TargetState) -> Any:
        return self._drafter.start(state)

    def draft(self, root: int, state: TargetState, draft_state: Any, *, max_depth: int) -> TokenTree:
        self.single[len(state.token_ids)] = self._target.verify(state, root, EMPTY_TREE)[0]
        self._target.rollback(state)
        return self._drafter.draft(root, state, draft_state, max_depth=max_depth)

    def num_passes(self, tree: TokenTree) -> int:
        return self._drafter.num_passes(tree)


def _difference(row: Tensor, plain: Tensor) -> float:
    return float((row.float() - plain).abs().max())
