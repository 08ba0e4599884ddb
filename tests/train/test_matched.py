"""Matched training: what is held equal, and how two heads are compared."""

from pathlib import Path

import pytest

from baselines import tiny_eagle3
from oneglance.commands.opening import numbers
from oneglance.core import InputError, SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.eagle3 import Eagle3Drafter
from oneglance.drafters.plain import NoDrafter
from oneglance.testing import tiny_head, tiny_target
from oneglance.train.matched import by_turns, matched_recipe, probe, probe_sizes, scores
from oneglance.train.recipe import Data, HeadRecipe, load_recipe
from oneglance.train.traces import Trace
from oneglance.tree import chain

RECIPES = Path(__file__).parents[2] / "recipes"


def test_only_head_and_objective_differ() -> None:
    ours = load_recipe(RECIPES / "matched.yaml")
    theirs = matched_recipe(ours, layer_ids=(1, 17, 32), draft_vocab_size=32000)
    differing = {key for key in HeadRecipe.model_fields if getattr(ours, key) != getattr(theirs, key)}
    assert differing == {"name", "kind", "head", "objective"}
    assert (theirs.kind, theirs.head.block_size, theirs.head.num_layers) == ("eagle3", 8, 1)
    assert (theirs.objective.name, theirs.objective.params) == ("kl", {"decay": 0.8})
    with pytest.raises(InputError, match="of kind eagle3"):
        matched_recipe(theirs)
    with pytest.raises(InputError, match="matched heads start from scratch"):
        matched_recipe(load_recipe(RECIPES / "qwen3-vl-8b.yaml"))
    assert matched_recipe(HeadRecipe(name="x", data=Data(train="t"))).reveal.enabled is False


def test_ratios_are_those_of_the_rounds() -> None:
    target = tiny_target("qwen3")
    rows = [Trace(f"r{i}", "ab"[i % 2], text, (), (1, 2)) for i, text in enumerate(("one", "two two", "three", "four"))]
    drafters = {
        "plain": NoDrafter(),
        "tree": BlockDrafter(tiny_head(target), target, budget=200),
        "chain": BlockDrafter(tiny_head(target), target, policy=chain),
        "eagle3 chain 3": Eagle3Drafter(tiny_eagle3(target), target, num_passes=3, top_k=1),
    }
    answered = list(probe(target, drafters, rows, long_side=None, max_new_tokens=12))
    plain = [
        list(Decoder(target, NoDrafter()).stream_inputs(r.encode(target), SamplingParams(max_new_tokens=12)))
        for r in rows
    ]
    lengths = [sum(len(step.pieces) for step in steps) for steps in plain]
    for one, length in zip(answered, lengths, strict=True):
        assert one.identical
        assert {g.num_tokens for g in one.done.values()} == {length}
    found = scores("corpus", answered, [2, 4])
    parts = [(None, 2), (None, 4), ("a", 2), ("b", 2)]
    assert [(s.arm, s.task, s.n) for s in found] == [(arm, *part) for part in parts for arm in drafters]
    for score in found:
        chosen = [one for one in answered if score.task in (None, one.task)][: score.n]
        part, ours, plainly = ([one.done[arm] for one in chosen] for arm in (score.arm, "tree", "plain"))
        num_rounds = sum(len(g.rounds) for g in part)
        tokens = sum(g.num_tokens - 1 for g in part)
        assert score.tau == pytest.approx(tokens / num_rounds)
        assert score.passes == pytest.approx(sum(r.num_draft_passes for g in part for r in g.rounds) / num_rounds)
        assert score.identical == score.n
        if score.arm == "plain":
            assert score.tau == 1.0
            assert score.speedup is None
        else:
            assert score.speedup is not None
            times = [sum(g.decode_ms for g in own) for own in (plainly, part)]
            assert score.speedup.value == pytest.approx(times[0] / times[1])
        if score.arm == "tree":
            assert score.tau_ratio is None
            continue
        assert score.tau_ratio is not None
        assert score.time_ratio is not None
        assert score.tau_ratio.value == pytest.approx(num_rounds / sum(len(g.rounds) for g in ours))
        assert score.tau_ratio.low <= score.tau_ratio.value <= score.tau_ratio.high
        assert score.time_ratio.value == pytest.approx(sum(g.decode_ms for g in part) / sum(g.decode_ms for g in ours))
        assert 0 <= score.passes <= (1 if score.arm == "chain" else 3)


def test_a_small_probe_has_prompts_of_each_task() -> None:
    rows = [Trace(str(i), task, "p", (), (1, 2)) for i, task in enumerate("aaabbc")]
    assert [row.task for row in by_turns(rows)] == list("abcaba")
    assert {row.id for row in by_turns(rows)} == {row.id for row in rows}


def test_probe_sizes() -> None:
    assert probe_sizes(None, 256) == [16, 32, 64, 128, 256]
    assert probe_sizes(None, 100) == [16, 32, 64, 100]
    assert probe_sizes(None, 7) == [7]
    assert probe_sizes(None, 999) == [16, 32, 64, 128, 256]
    assert probe_sizes([8, 4], 9) == [4, 8]
    with pytest.raises(InputError, match="a probe of 10 prompts was asked for and the traces hold 9"):
        probe_sizes([10], 9)


def test_numbers_of_options() -> None:
    assert numbers("--depths", "3, 7,", least=1) == [3, 7]
    assert numbers("--layers", "0,1,2", least=0) == [0, 1, 2]
    for text, message in (
        ("3,x", "takes numbers such as 3,7"),
        (",", "takes numbers"),
        ("0", "must be at least 1, got"),
    ):
        with pytest.raises(InputError, match=f"--depths {message}"):
            numbers("--depths", text, least=1)
    with pytest.raises(InputError, match="--depths must be at least 1 and at most 15, got '3,16'"):
        numbers("--depths", "3,16", least=1, most=15)
