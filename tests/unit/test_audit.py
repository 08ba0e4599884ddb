"""The audit itself: it passes what is exact, calls rounding a tie, and calls everything else a bug."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from helpers import prompt
from oneglance.accept import Sampled
from oneglance.audit import Case, Reference, audit, first_difference, hf_generate, reference
from oneglance.core import Drafter, SamplingParams, TokenTree
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.state import TargetState
from oneglance.testing import lucky_drafter, tiny_head, tiny_target
from oneglance.text import TextStream

CAP = 24


@pytest.fixture
def target() -> Target:
    return tiny_target("qwen3_vl")


def case(target: Target) -> Case:
    return Case("one", "text", encode(target, "Read this."))


def lucky(target: Target) -> Callable[[Target], Drafter]:
    """A drafter whose trees hold much of the answer, so that packed rows decide tokens."""
    inputs = case(target).inputs
    truth = reference(target, inputs, max_new_tokens=CAP)
    return lambda _: lucky_drafter(
        truth.token_ids, len(inputs.token_ids), seed=3, budget=31, vocab_size=target.vocab_size
    )


@pytest.mark.parametrize(
    ("expected", "got", "at"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([1], [1, 2], 1), ([], [], None), ([5], [6], 0)],
)
def test_first_difference(expected: list[int], got: list[int], at: int | None) -> None:
    assert first_difference(expected, got) == at


def test_the_reference_is_what_transformers_generates(target: Target) -> None:
    inputs = case(target).inputs
    truth = reference(target, inputs, max_new_tokens=CAP)
    generated = hf_generate(target, inputs, max_new_tokens=CAP)
    assert truth.token_ids == generated.token_ids
    assert generated.gaps == pytest.approx(truth.gaps, abs=1e-4)
    assert torch.allclose(generated.rows, truth.rows, atol=1e-4)
    assert truth.rows.shape == (len(truth.token_ids), target.vocab_size)
    assert torch.equal(truth.rows.argmax(-1), torch.tensor(truth.token_ids))
    assert min(truth.gaps) > 0


def test_exact_arms_pass(target: Target) -> None:
    arms = {
        "lucky": lucky(target),
        **{f"head/{n}": partial(BlockDrafter, tiny_head(target), budget=n) for n in (1, 31)},
    }
    (report,) = list(audit(target, arms, [case(target)], max_new_tokens=CAP))
    assert (report.overall.identical, report.overall.total, report.ties, report.bugs) == (3, 3, 0, 0)
    assert 0 < report.max_logit_perturbation < 1e-4
    assert report.as_dict()["per_task"] == {"text": {"identical": 3, "total": 3}}
    assert report.num_tokens == 3 * len(reference(target, case(target).inputs, max_new_tokens=CAP).token_ids)


def test_an_answer_that_writes_a_placeholder_is_audited(target: Target) -> None:
    """As a prompt it would have more image rows than images."""
    placeholder = target.placeholder_ids[0]
    params = SamplingParams(logit_bias={placeholder: 1e4})
    inputs = prompt(target, 1)
    assert reference(target, inputs, max_new_tokens=5, params=params).token_ids == [placeholder] * 5
    arms = {"head": partial(BlockDrafter, tiny_head(target), budget=15)}
    (report,) = list(
        audit(target, arms, [Case("one", "image", inputs)], max_new_tokens=5, params=params, compare_hf=False)
    )
    assert (report.overall.identical, report.bugs) == (1, 0)
    assert report.max_feature_error < 1e-4


@pytest.mark.parametrize(
    ("params", "total"),
    [(None, 1), (SamplingParams(seed=0), 1), (SamplingParams(seed=0, temperature=1.0), 0)],
    ids=["default", "a seed that greedy text has no use for", "drawn"],
)
def test_transformers_own_generate_is_compared_wherever_it_can_be(
    target: Target, params: SamplingParams | None, total: int
) -> None:
    (report,) = list(audit(target, {}, [case(target)], max_new_tokens=CAP, params=params))
    assert report.as_dict()["hf_generate"] == {"identical": total, "total": total}


def test_a_wrong_position_is_a_bug(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    right = type(target).packed_arguments

    def wrong(self: Target, state: TargetState, depths: torch.Tensor) -> dict[str, torch.Tensor]:
        return right(self, state, depths + (depths > 0) * 3)

    arm = lucky(target)
    monkeypatch.setattr(type(target), "packed_arguments", wrong)
    (report,) = list(audit(target, {"lucky": arm}, [case(target)], max_new_tokens=CAP))
    assert report.bugs == 1
    (divergence,) = report.divergences
    assert divergence.verdict == "bug"
    assert divergence.expected != divergence.got


def test_going_on_past_the_references_end_is_a_bug_without_a_gap(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = reference(target, case(target).inputs, max_new_tokens=CAP).token_ids
    target.model.generation_config.eos_token_id = free[5]
    size = free.index(free[5]) + 1

    def endless(*args: Any, **options: Any) -> TextStream:
        return TextStream(*args, **{**options, "eos_ids": ()})

    monkeypatch.setattr("oneglance.stream.TextStream", endless)
    (report,) = list(audit(target, {"none": lambda _: NoDrafter()}, [case(target)], max_new_tokens=CAP))
    (divergence,) = report.divergences
    assert (divergence.position, divergence.expected, divergence.got) == (size, None, free[size])
    assert (divergence.verdict, divergence.gap) == ("bug", None)


def flip(target: Target, at: int, truth: Reference, noise: float) -> Callable[..., torch.Tensor]:
    """A verify that adds ``noise`` to the second-best token of one row, in float32 only."""
    second = int(truth.rows[at].topk(2).indices[1])
    exact = Target.verify

    def noisy(self: Target, state: TargetState, root: int, tree: TokenTree) -> torch.Tensor:
        rows = exact(self, state, root, tree).clone()
        if self.dtype == torch.float32:
            rows[(rows - truth.rows[at]).abs().amax(-1) < 1e-3, second] += noise
        return rows

    return noisy


def test_rounding_at_a_near_tie_is_a_tie(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = case(target).inputs
    truth = reference(target, inputs, max_new_tokens=CAP)
    at = min(range(1, len(truth.gaps)), key=truth.gaps.__getitem__)
    first, second = truth.rows[at].topk(2).indices.tolist()
    arm = lucky(target)
    monkeypatch.setattr(Target, "verify", flip(target, at, truth, 1.01 * truth.gaps[at] + 1e-4))
    monkeypatch.setattr("oneglance.audit.ROUNDING_ULPS", 1e9)  # no gap of this target is as small as real rounding
    (report,) = list(audit(target, {"lucky": arm}, [case(target)], max_new_tokens=CAP))
    (divergence,) = report.divergences
    assert (divergence.position, divergence.expected, divergence.got) == (at, first, second)
    assert divergence.verdict == "tie"
    assert (report.ties, report.bugs) == (1, 0)


def test_a_gap_too_wide_for_rounding_is_a_bug(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same flip, judged by what float32 can do: a bug, although float64 agrees."""
    truth = reference(target, case(target).inputs, max_new_tokens=CAP)
    at = max(range(1, len(truth.gaps)), key=truth.gaps.__getitem__)
    arm = lucky(target)
    monkeypatch.setattr(Target, "verify", flip(target, at, truth, 1.01 * truth.gaps[at]))
    (report,) = list(audit(target, {"lucky": arm}, [case(target)], max_new_tokens=CAP))
    assert [d.verdict for d in report.divergences] == ["bug"]


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.9, "top_p": 0.95}, {"temperature": 1.3, "repetition_penalty": 1.2, "min_new_tokens": 9}],
)
def test_sampled_text_is_audited_as_greedy_text_is(target: Target, options: dict[str, float]) -> None:
    params = SamplingParams(**options, seed=5)  # type: ignore[arg-type]
    inputs = case(target).inputs
    truth = reference(target, inputs, max_new_tokens=CAP, params=params)
    assert truth.token_ids != reference(target, inputs, max_new_tokens=CAP).token_ids
    arms = {
        "head": lambda t: BlockDrafter(tiny_head(t), t, budget=7),
        "lucky": lambda t: lucky_drafter(
            truth.token_ids, len(inputs.token_ids), seed=1, budget=31, vocab_size=t.vocab_size
        ),
    }
    *_, report = audit(target, arms, [case(target)], max_new_tokens=CAP, params=params)
    assert (report.overall.identical, report.overall.total, report.hf.total) == (2, 2, 0)
    assert report.max_logit_perturbation < 1e-3, "rows are compared before processors"


def test_a_draw_that_is_wrong_is_a_bug(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise by the order of draws instead of the position."""
    right, calls = Sampled.decide, iter(range(1 << 30))
    monkeypatch.setattr(Sampled, "decide", lambda self, row, prefix: right(self, row, [0] * next(calls)))
    arms = {"head": lambda t: BlockDrafter(tiny_head(t), t, budget=7)}
    params = SamplingParams(temperature=1.0, seed=5)
    *_, report = audit(target, arms, [case(target)], max_new_tokens=CAP, params=params)
    assert (report.overall.identical, report.bugs) == (0, 1)
