"""What probes and ablations rest on: attention against HF's own weights, forced rounds against decoding, swapped states
against a pass of their own, and planted effects."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers import picture
from oneglance.bench.cases import Case
from oneglance.bench.conditioning import (
    Conditioned,
    check_twin,
    only_layers,
    other_images,
    text_only,
    zeroed,
)
from oneglance.bench.forced import derange, follow, roots_of
from oneglance.bench.roundlog import record
from oneglance.core import Generation, InputError, SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.report.causes import study_ablation, study_image, study_saliency, study_transfer
from oneglance.report.figures import saliency_split
from oneglance.stats.rounds import RoundLog, RoundRow
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.passes import FixedShape
from oneglance.targets.saliency import ImageAttention
from oneglance.targets.state import Inputs
from oneglance.testing import lucky_drafter, tiny_head, tiny_target
from oneglance.tree import chain, from_path
from simulate import simulate_rounds

NEW = 24


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3_vl")


@pytest.fixture(scope="module")
def inputs(target: Target) -> Inputs:
    return encode(target, "What is here?", images=[picture(1)])


def decoded(target: Target, drafter: Any, inputs: Inputs, **options: Any) -> Generation:
    stream = Decoder(target, drafter).stream_inputs(inputs, SamplingParams(NEW, **options))
    for _ in stream:
        pass
    return stream.generation


@torch.inference_mode()
def hf_pass(target: Target, inputs: Inputs, **options: Any) -> Any:
    """The unmodified model over a whole sequence."""
    is_image = (inputs.tensors["input_ids"] == target.model.config.image_token_id).int()
    return target.model(**{"mm_token_type_ids": is_image, **inputs.tensors}, **options)


@pytest.mark.parametrize("model_type", ["qwen3_vl", "qwen2_5_vl"])
def test_saliency_is_the_models_own_attention_on_the_image(model_type: str) -> None:
    target = tiny_target(model_type)
    inputs = encode(target, "What is here?", images=[picture(1)])
    text = decoded(target, BlockDrafter(tiny_head(target), target, budget=7), inputs).token_ids
    state = target.prefill(inputs)
    target.verify(state, text[0], from_path(text[1:4]))
    target.commit(state, range(4), text[1:5])
    whole = target.extend(inputs, text[:5])
    target.model.set_attn_implementation("eager")
    try:
        out = hf_pass(target, whole, output_attentions=True)
    finally:
        target.model.set_attn_implementation("sdpa")
    is_image = [i in target.placeholder_ids for i in whole.token_ids]
    kept = (1, 3)
    expected = np.mean([float(out.attentions[i][0, :, -1, is_image].sum(-1).mean()) for i in kept])
    assert 0 < expected < 1
    before = (state.length, list(state.token_ids), state.cache.layers[0].keys.clone())
    assert ImageAttention(target, kept)(state, text[4]) == pytest.approx(expected, abs=1e-5)
    assert (state.length, state.token_ids) == before[:2]
    assert torch.equal(state.cache.layers[0].keys, before[2])
    assert state.pending is None
    shaped = target.with_passes(FixedShape.for_budget(15))
    assert ImageAttention(shaped, kept)(state, text[4]) == pytest.approx(expected, abs=1e-5)


def test_saliency_needs_image_rows(target: Target) -> None:
    for model_type in ("mllama", "qwen3"):
        with pytest.raises(InputError, match="no image rows"):
            ImageAttention(tiny_target(model_type), (0,))
    text = encode(target, "no image")
    assert ImageAttention(target, (0,))(target.prefill(text), 5) is None


def test_a_log_with_saliency_is_otherwise_the_same(target: Target, inputs: Inputs) -> None:
    drafter = BlockDrafter(tiny_head(target), target, budget=7)
    names = {"run": "r", "task": "t", "prompt": "p"}
    plain = record(Decoder(target, drafter), inputs, SamplingParams(NEW), **names)
    seen = record(
        Decoder(target, drafter), inputs, SamplingParams(NEW), saliency=ImageAttention(target, (1, 3)), **names
    )
    for one, two in zip(plain.rows, seen.rows, strict=True):
        timeless = {"t_draft_ms": 0.0, "t_verify_ms": 0.0, "t_host_ms": 0.0}
        assert replace(one, **timeless) == replace(two, saliency=None, **timeless)
        assert one.saliency is None
        assert two.horizon == 0 or 0 < two.saliency < 1


@pytest.mark.parametrize("model_type", ["qwen3_vl", "mllama"])
def test_along_its_own_text_forced_rounds_are_those_of_decoding(model_type: str) -> None:
    target = tiny_target(model_type)
    inputs = encode(target, "What is here?", images=[picture(1)])
    truth = decoded(target, BlockDrafter(tiny_head(target), target, budget=3), inputs)

    def lucky() -> Any:
        return lucky_drafter(
            truth.token_ids, len(inputs.token_ids), seed=4, budget=9, vocab_size=target.vocab_size - 20
        )

    names = {"run": "r", "task": "t", "prompt": "p"}
    own = record(Decoder(target, lucky()), inputs, SamplingParams(NEW), **names)
    assert own.generation.token_ids == truth.token_ids
    rows = follow(
        Decoder(target, lucky()),
        inputs,
        SamplingParams(NEW),
        truth.token_ids,
        roots_of(own.generation),
        **names,
    )
    assert max(row.a for row in rows) > 1
    for one, two in zip(own.rows, rows, strict=True):
        for name in ("position", "a", "a1", "horizon", "nodes", "round"):
            assert getattr(one, name) == getattr(two, name), name
        assert one.h_nats == pytest.approx(two.h_nats, abs=1e-4)


def test_another_image_is_followed_along_the_same_text(target: Target, inputs: Inputs) -> None:
    drafter = BlockDrafter(tiny_head(target), target, budget=7)
    done = decoded(target, drafter, inputs)
    other = encode(target, "What is here?", images=[picture(9)])
    rows = follow(
        Decoder(target, drafter),
        other,
        SamplingParams(NEW),
        done.token_ids,
        roots_of(done),
        run="r",
        task="t",
        prompt="p",
    )
    whole = target.extend(other, done.token_ids)
    logits = hf_pass(target, whole).logits[0].double()
    for row in rows:  # entropies are those of one unpacked pass over the text under the other image
        log_p = logits[row.position].log_softmax(-1)
        assert row.h_nats == pytest.approx(float(-(log_p.exp() * log_p).sum()), abs=1e-3)


def case(task: str, name: str, seed: int, size: int = 32) -> Case:
    return Case(name, task, "What?", lambda: [picture(seed, size, size)])


def test_images_move_within_their_task_and_none_stays() -> None:
    cases = [case("a", f"p{i}", i // 2, 32 + 16 * (i % 2)) for i in range(6)] + [
        case("b", f"q{i}", 50 + i) for i in range(3)
    ]
    moved = derange(cases, seed=1)
    assert [(c.task, c.id, c.text) for c in moved] == [(c.task, c.id, c.text) for c in cases]
    raw = [c.images()[0] for c in cases]
    for own, other in zip(cases, moved, strict=True):
        mine, theirs = own.images()[0], other.images()[0]
        assert theirs.size == mine.size
        assert theirs.tobytes() != mine.tobytes()
        assert any(
            r.resize(mine.size, 3).tobytes() == theirs.tobytes()
            for r, c in zip(raw, cases, strict=True)
            if c.task == own.task
        )
    assert [c.images()[0].tobytes() for c in derange(cases, seed=1)] == [c.images()[0].tobytes() for c in moved]
    with pytest.raises(InputError, match="--limit"):
        derange([case("a", "p", 1), case("a", "q", 1)])  # one picture, twice
    with pytest.raises(InputError, match="no image"):
        derange([Case("p", "a", "What?", list)])


def shown(target: Target, inputs: Inputs, reading: Any, *, layers: Sequence[int] = (1, 3)) -> torch.Tensor:
    """(T, F) what a drafter was given of a whole decoding, root by root."""
    got: list[torch.Tensor] = []

    class Reader:
        name, target_layer_ids = "reader", tuple(layers)

        def start(self, state: Any) -> None:
            return None

        def draft(self, root: int, state: Any, draft_state: None, *, max_depth: int) -> Any:
            if len(got) % 3 == 1:  # not every drafter takes at once what it is given
                got.append(torch.empty(0, len(layers) * target.hidden_size))
            else:
                got.append(state.take_features())
            return from_path(truth[len(state.token_ids) - len(inputs.token_ids) :][: min(2, max_depth)])

        def num_passes(self, tree: Any) -> int:
            return 1

    truth = decoded(target, BlockDrafter(tiny_head(target), target, budget=3), inputs).token_ids
    drafter: Any = Reader() if reading is None else Conditioned(Reader(), reading)
    done = decoded(target, drafter, inputs)
    assert done.token_ids == truth
    assert done.fell_back is None
    return torch.cat(got)


@pytest.mark.parametrize("model_type", ["qwen3_vl", "mllama"])
def test_what_a_drafter_reads_in_each_arm(model_type: str) -> None:
    target = tiny_target(model_type)
    layers = (0, 2)
    inputs = encode(target, "What is here?", images=[picture(1)])
    fused = shown(target, inputs, None, layers=layers)
    length, rows = len(inputs.token_ids), len(fused)
    assert rows > length + 5
    assert not shown(target, inputs, lambda state: zeroed(state), layers=layers).any()

    truth = decoded(target, BlockDrafter(tiny_head(target), target, budget=3), inputs).token_ids

    def features(model: Target, prompt: Inputs) -> torch.Tensor:
        """Of one pass over prompt and text."""
        return model.prefill(model.extend(prompt, truth[: rows - length]), layers).take_features()

    def close(one: torch.Tensor, two: torch.Tensor) -> None:
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-3)

    close(fused, features(target, inputs))
    other = encode(target, "What is here?", images=[picture(9)])
    mismatched = shown(target, inputs, other_images(target, other), layers=layers)
    close(mismatched, features(target, other))
    assert (mismatched - fused).abs().max() > 1e-2
    text = shown(target, inputs, text_only(target, target), layers=layers)
    is_text = torch.ones(rows, dtype=torch.bool)
    is_text[target.image_rows(inputs)] = False
    assert bool((~is_text).any()) is target.has_image_rows
    assert not text[~is_text].any()
    close(text[is_text], features(target, target.without_images(inputs)))


def test_layers_that_are_left_out_are_zeros(target: Target, inputs: Inputs) -> None:
    fused, part = shown(target, inputs, None), shown(target, inputs, only_layers((3,), (1, 3)))
    assert not part[:, :32].any()
    assert torch.equal(part[:, 32:], fused[:, 32:])


def test_readings_that_do_not_fit_are_refused(target: Target, inputs: Inputs) -> None:
    with pytest.raises(InputError, match="use a block head"):
        Conditioned(lucky_drafter([], 0, seed=0, budget=1, vocab_size=9), zeroed)
    with pytest.raises(InputError, match="one size"):
        other_images(target, encode(target, "longer prompt than that?", images=[picture(1)]))(target.prefill(inputs))
    check_twin(tiny_target("qwen3"), target, (1, 3))
    with pytest.raises(InputError, match="reads layer 3"):
        check_twin(tiny_target("qwen3", num_hidden_layers=3), target, (1, 3))
    with pytest.raises(InputError, match="64 numbers"):
        check_twin(tiny_target("qwen3", hidden_size=64), target, (1,))


def test_a_head_of_another_policy_shares_its_weights(target: Target, inputs: Inputs) -> None:
    drafter = BlockDrafter(tiny_head(target), target, budget=20)
    done = decoded(target, drafter.with_policy(chain, 4), inputs)
    assert done.token_ids == decoded(target, drafter, inputs).token_ids
    assert {tuple(r.tree.parents) for r in done.rounds if len(r.tree) == 4} == {(0, 1, 2, 3)}


def row(run: str, prompt: int, index: int, h: float, a: int, **more: Any) -> RoundRow:
    return RoundRow(
        run=run,
        task="t",
        prompt=f"p{prompt}",
        round=index,
        position=9 + index,
        h_nats=h,
        p_max=0.5,
        top2_gap=1.0,
        a=a,
        a1=a,
        horizon=15,
        cut="none",
        budget=31,
        nodes=31,
        **more,
    )


def test_an_image_that_acts_through_entropy_leaves_no_residual() -> None:
    rng = np.random.default_rng(0)

    def a_of(h: float, extra: float = 0.0) -> int:
        return int(rng.binomial(15, np.clip(0.5 - 0.2 * h + extra, 0, 1)))

    def log(extra: float) -> RoundLog:
        pairs = [(p, i, rng.uniform(0, 1), rng.uniform(0.2, 1)) for p in range(30) for i in range(12)]
        right = [row("right", p, i, h, a_of(h, extra)) for p, i, h, _ in pairs]
        wrong = [row("mismatched", p, i, h + more, a_of(h + more)) for p, i, h, more in pairs]
        return RoundLog((*right, *wrong))

    found = study_image(log(0.0))["t"]
    assert found.lift.low > 0
    assert -0.7 < found.h_change.value < -0.5
    assert found.h_change.high < 0
    assert found.h_mismatched.value - found.h_right.value == pytest.approx(-found.h_change.value)
    assert found.effect is not None
    assert found.effect.total.low > 1
    assert 0 in found.effect.residual
    beside = study_image(log(0.2))["t"].effect
    assert beside is not None
    assert 3 in beside.residual  # 0.2 of 15 offsets
    with pytest.raises(InputError, match="both arms at the same roots"):
        study_image(RoundLog(log(0.0).rows[:-1]))


def test_saliency_that_follows_entropy_adds_nothing_and_one_of_its_own_does() -> None:
    rng = np.random.default_rng(1)
    made = simulate_rounds(1.0, 1.0, num_rounds=1500, num_prompts=40, seed=2)

    def log(signal: Any) -> RoundLog:
        columns = zip(made.h_nats, made.a, made.prompts, signal, strict=True)
        return RoundLog(
            tuple(row("r", int(p), i, float(h), int(a), saliency=float(v)) for i, (h, a, p, v) in enumerate(columns))
        )

    follows = study_saliency(log(-made.h_nats + rng.normal(0, 0.5, 1500)))["t"]
    assert follows.correlations.a_v.low > 0
    assert 0 in follows.correlations.partial
    assert abs(follows.mean_gap - 1) < 0.2
    own = study_saliency(log(made.a + rng.normal(0, 2, 1500)))["t"]
    assert own.correlations.partial.low > 0.3
    assert own.mean_gap > 1.5
    pytest.importorskip("matplotlib", reason="the [report] extra is not installed")
    (axes,) = saliency_split({"t": own}).axes
    high, low = (line.get_ydata() for line in axes.lines)
    assert list(high) == [gap.high for gap in own.gaps]
    assert all(one > two for one, two in zip(high, low, strict=True))
    with pytest.raises(InputError, match="--saliency"):
        study_saliency(RoundLog((row("r", 0, 0, 1.0, 1),)))


def test_shares_of_tau_are_ratios_of_pooled_means() -> None:
    rng = np.random.default_rng(3)

    def arm(share: float) -> dict[str, list[int]]:
        return {f"p{i}": [1 + int(v) for v in rng.poisson(4 * share, 20)] for i in range(25)}

    lengths = {
        (task, tree, name): arm(share)
        for task in ("one", "two")
        for tree, shares in (("tree", {"fused": 1.0, "zeroed": 0.2}), ("chain", {"fused": 0.5, "zeroed": 0.2}))
        for name, share in shares.items()
    }
    found = study_ablation(lengths, baseline="fused")
    assert list(found.kept) == ["one", "two", "pooled"]

    def tau(task: str, tree: str, name: str) -> float:
        return float(np.mean([k for rounds in lengths[task, tree, name].values() for k in rounds]))

    for task in ("one", "two"):
        for tree, planted in (("tree", 1.8 / 5), ("chain", 1.8 / 3)):
            kept = found.kept[task][tree]["zeroed"]
            assert kept.tau.value == pytest.approx(tau(task, tree, "zeroed"))
            assert kept.share.value == pytest.approx(tau(task, tree, "zeroed") / tau(task, tree, "fused"))
            assert kept.share.low - 0.02 < planted < kept.share.high + 0.02
            assert found.kept[task][tree]["fused"].share.value == 1
        gap = found.gaps[task]["zeroed"]
        assert gap.value == pytest.approx(
            found.kept[task]["tree"]["zeroed"].share.value - found.kept[task]["chain"]["zeroed"].share.value
        )
        assert gap.high < 0


def test_transfer_names_signs_and_sets_degenerate_fits_apart() -> None:
    def log(b0: float, b1: float, seed: int) -> RoundLog:
        made = simulate_rounds(b0, b1, num_rounds=600, num_prompts=30, seed=seed)
        columns = zip(made.h_nats, made.a, made.prompts, strict=True)
        return RoundLog(tuple(row("r", int(p), i, float(h), int(a)) for i, (h, a, p) in enumerate(columns)))

    nothing = RoundLog(tuple(row("r", i % 9, i, 0.1 * i, 0) for i in range(60)))
    found = study_transfer(
        [("head", "target", log(1, 0.8, 0)), ("crossed", "other", log(-0.5, -0.8, 1)), ("ngram", None, nothing)],
        method="ml",
    )
    assert [(r.log, r.target, r.sign, r.fit.verdict) for r in found.rows] == [
        ("head", "target", 1, "holds"),
        ("crossed", "other", -1, "inverted"),
    ]
    assert found.excluded == {"ngram: t": "no token was ever accepted"}
