"""Baseline heads on the block head's trainer: the forward of decoding, exact resume, checkpoints that load."""

from pathlib import Path
from typing import Any

import pytest
import torch

from baselines import (
    eagle2_log_q,
    eagle2_raw,
    eagle3_log_q,
    eagle3_raw,
    tiny_eagle2,
    tiny_eagle3,
    tiny_medusa,
    tiny_vispec,
    vispec_log_q,
)
from helpers import hf_forward, hf_generate
from helpers import prompt as illustrated
from oneglance.core import InputError, SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters import prepare
from oneglance.drafters.checkpoint import save_checkpoint
from oneglance.drafters.eagle2 import Eagle2Drafter
from oneglance.drafters.eagle3 import Eagle3Drafter
from oneglance.drafters.medusa import MedusaDrafter
from oneglance.drafters.plain import NoDrafter
from oneglance.drafters.vispec import VispecDrafter
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import tiny_target
from oneglance.train.blocks import Reveal, build_blocks, generator
from oneglance.train.eagle3 import PackedEagle3, draft_vocabulary
from oneglance.train.kinds import kind_of, load_any
from oneglance.train.objectives import OBJECTIVES
from oneglance.train.recipe import Data, HeadRecipe, HeadShape, ObjectiveChoice, Optimiser, RevealChoice, Schedule
from oneglance.train.select import evaluate_head, select
from oneglance.train.step import Sample, run_target
from oneglance.train.traces import Trace, append_traces, read_traces
from oneglance.train.trainer import HeadTrainer, write_head

PROMPTS = ("Transcribe the page.", "List the values.", "Read it aloud")
SHAPES: dict[str, dict[str, Any]] = {
    "eagle3": {"target_layer_ids": (1, 2, 3), "head_dim": 8, "block_size": 5, "draft_vocab_size": 200},
    "medusa": {"num_layers": 1, "block_size": 4},
    "eagle2": {"head_dim": 8, "block_size": 5},
    "vispec": {"head_dim": 8, "block_size": 4},
}
OBJECTIVE = {"eagle3": "kl", "medusa": "ce", "eagle2": "feature", "vispec": "feature"}


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3_vl")


def answer(target: Target, prompt: str) -> tuple[int, ...]:
    stream = Decoder(target, NoDrafter()).stream_inputs(encode(target, prompt), SamplingParams(max_new_tokens=24))
    list(stream)
    return tuple(stream.generation.token_ids)


@pytest.fixture(scope="module")
def traces(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for name, prompts in (("train", PROMPTS), ("heldout", ("What is this?",))):
        rows = [Trace(f"{name}{i}", "text", p, (), answer(target, p)) for i, p in enumerate(prompts)]
        list(append_traces(folder / name, rows))
    return folder


def recipe(traces: Path, kind: str, *, shape: dict[str, Any] | None = None, **changes: Any) -> HeadRecipe:
    base: dict[str, Any] = {
        "name": "tiny",
        "kind": kind,
        "data": Data(train=str(traces / "train"), heldout=str(traces / "heldout"), num_anchors=6, cache_features=True),
        "head": HeadShape(**{**SHAPES[kind], **(shape or {})}),
        "objective": ObjectiveChoice(name=OBJECTIVE[kind]),
        "reveal": RevealChoice(enabled=False),
        "optimiser": Optimiser(lr=3e-3, batch_size=2, epochs=None, max_steps=6),
        "schedule": Schedule(log_every=1, save_every=2, evaluate_every=3, tau_prompts=1),
    }
    return HeadRecipe(**{**base, **changes})


@torch.no_grad()
def test_training_steps_are_the_passes_of_decoding(target: Target) -> None:
    """Every step at every anchor equals the head's definition on the tokens so far, which decoding equals as well."""
    head = tiny_eagle3(target, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3]})
    samples = [
        run_target(target, encode(target, p), answer(target, p)[:size], head.config.target_layer_ids)
        for p, size in ((PROMPTS[0], 9), (PROMPTS[2], 14))
    ]
    blocks = build_blocks(
        [(s.token_ids, s.prompt_length) for s in samples],
        num_anchors=3,
        block_size=5,
        mask_token_id=0,
        reveal=Reveal(enabled=False),
        rngs=[generator(i) for i in range(2)],
    )
    seen: list[torch.Tensor] = []

    class Watched(PackedEagle3):
        def forward(self, *args: torch.Tensor) -> torch.Tensor:
            seen.append(super().forward(*args))
            return seen[0]

    result = kind_of("eagle3").loss(Watched(head), target, samples, blocks, OBJECTIVES["ce"]())
    nll = 0.0
    for index, sample in enumerate(samples):
        for row, anchor in enumerate(blocks.anchors[index].tolist()):
            for step in range(4):
                label = int(blocks.labels[index, row, step + 1])
                if label < 0:
                    continue
                path = sample.token_ids[anchor + 1 : anchor + 1 + step]
                expected = eagle3_log_q(
                    target, head, sample.features[:anchor], sample.token_ids[: anchor + 1], path, banned=False
                )
                found = head.logits(seen[0][index, row, step]).log_softmax(-1)
                torch.testing.assert_close(found, expected[head.token_ids], atol=2e-4, rtol=1e-4)
                nll -= float(expected[label]) if label in head.token_ids else 0.0
    assert float(result.loss) == pytest.approx(nll, rel=1e-4)


@torch.no_grad()
def test_soft_labels_are_the_targets_distribution_over_the_draft_vocabulary(target: Target) -> None:
    head = tiny_eagle3(target, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3]})
    sample = run_target(target, encode(target, PROMPTS[0]), answer(target, PROMPTS[0])[:4], (1, 2, 3), soft=True)
    blocks = build_blocks(
        [(sample.token_ids, sample.prompt_length)],
        num_anchors=1,
        block_size=2,
        mask_token_id=0,
        reveal=Reveal(enabled=False),
        rngs=[generator(0)],
    )
    anchor = int(blocks.anchors[0, 0])
    head.set_vocabulary(torch.cat([torch.tensor([sample.token_ids[anchor + 1]]), torch.arange(300)]).unique()[:232])
    result = kind_of("eagle3").loss(PackedEagle3(head), target, [sample], blocks, OBJECTIVES["kl"]())
    state = target.prefill(
        target.extend(encode(target, PROMPTS[0]), sample.token_ids[sample.prompt_length : anchor + 1])
    )
    p = state.last_row[head.token_ids].softmax(-1)
    log_q = eagle3_log_q(target, head, sample.features[:anchor], sample.token_ids[: anchor + 1], (), banned=False)
    assert float(result.loss) == pytest.approx(-float((p * log_q[head.token_ids]).sum()), rel=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("shares", [True, False])
def test_medusa_learns_from_the_rows_that_it_decodes_from(target: Target, shares: bool) -> None:
    head = tiny_medusa(target, shares_lm_head=shares, num_heads=3)
    sample = run_target(
        target, encode(target, PROMPTS[1]), answer(target, PROMPTS[1])[:8], head.config.target_layer_ids
    )
    blocks = build_blocks(
        [(sample.token_ids, sample.prompt_length)],
        num_anchors=2,
        block_size=4,
        mask_token_id=0,
        reveal=Reveal(enabled=False),
        rngs=[generator(1)],
    )
    kind = kind_of("medusa")
    result = kind.loss(kind.pack(head), target, [sample], blocks, OBJECTIVES["ce"]())
    drafter = MedusaDrafter(head, target, budget=300)
    loss = 0.0
    for anchor, labels in zip(blocks.anchors[0].tolist(), blocks.labels[0, :, 1:].tolist(), strict=True):
        if labels[0] < 0:
            continue
        so_far = sample.token_ids[sample.prompt_length : anchor]
        state = target.prefill(target.extend(encode(target, PROMPTS[1]), so_far), head.config.target_layer_ids)
        logits = head(target.text_model.get_submodule("norm")(state.fresh[0][-1]), target.lm_head)
        loss -= sum(float(logits[i].log_softmax(-1)[t]) for i, t in enumerate(labels) if t >= 0)
    assert float(result.loss) == pytest.approx(loss, rel=1e-4)
    assert drafter.target_layer_ids == (target.num_layers - 1,)


def illustrated_samples(target: Target, layer_ids: tuple[int, ...], *, soft: bool = False) -> list[Sample]:
    """A prompt with two pictures and one without any, of different lengths."""
    given = [(illustrated(target, 2), 7), (illustrated(target, 0), 12)]
    return [
        run_target(target, inputs, hf_generate(target, inputs, size), layer_ids, soft=soft) for inputs, size in given
    ]


def definition(kind: str, target: Target) -> tuple[Any, Any]:
    """A head and its slow form."""
    return (
        (tiny_eagle2(target), eagle2_log_q) if kind == "eagle2" else (tiny_vispec(target, num_queries=3), vispec_log_q)
    )


@torch.no_grad()
@pytest.mark.parametrize("objective", ["ce", "feature"])
@pytest.mark.parametrize("kind", ["eagle2", "vispec"])
def test_slots_are_those_of_the_definition(target: Target, kind: str, objective: str) -> None:
    """With labels alone a slot is the pass of decoding, fed on the passes before it. With features it is the first pass
    at its own place, and its loss is smooth L1 to the target's next feature and a tenth of the soft labels."""
    head, log_q = definition(kind, target)
    samples = illustrated_samples(target, head.config.target_layer_ids, soft=objective == "feature")
    blocks = build_blocks(
        [(s.token_ids, s.prompt_length) for s in samples],
        num_anchors=2,
        block_size=4,
        mask_token_id=0,
        reveal=Reveal(enabled=False),
        rngs=[generator(i) for i in range(2)],
    )
    seen: list[torch.Tensor] = []
    packed = kind_of(kind).pack(head)
    packed.register_forward_hook(lambda _, __, output: seen.append(output))
    result = kind_of(kind).loss(packed, target, samples, blocks, OBJECTIVES[objective]())
    losses, count = 0.0, 0
    for index, sample in enumerate(samples):
        inputs = illustrated(target, (2, 0)[index])
        hidden = hf_forward(
            target, inputs, list(sample.token_ids[sample.prompt_length :]), output_hidden_states=True
        ).hidden_states
        streams, top = hidden[0][0], hidden[-1][0]
        for row, anchor in enumerate(blocks.anchors[index].tolist()):
            for step in range(3):
                label = int(blocks.labels[index, row, step + 1])
                if label < 0:
                    continue
                count += 1
                known = anchor if objective == "ce" else anchor + step  # features that the slot reads
                path = sample.token_ids[anchor + 1 : anchor + 1 + step] if objective == "ce" else ()
                ids = sample.token_ids[: known + 1]
                expected = log_q(target, head, streams[:known], top[:known], ids, path, banned=False)
                output = seen[0][index, row, step]
                torch.testing.assert_close(target.lm_head(output).log_softmax(-1), expected, atol=5e-4, rtol=1e-4)
                if objective == "ce":
                    losses -= float(expected[label])
                else:
                    aim = top[anchor + step]
                    gap = (output - aim).abs()
                    distance = torch.where(gap < 1, gap**2 / 2, gap - 0.5).mean()
                    losses += float(distance - 0.1 * (target.lm_head(aim).softmax(-1) * expected).sum())
    assert float(result.weight) == count > 8
    assert float(result.loss) == pytest.approx(losses, rel=1e-4)


def test_every_parameter_of_a_batch_of_text_has_a_gradient(target: Target) -> None:
    """Distributed wrappers wait for all of them."""
    head = tiny_vispec(target).requires_grad_(True)
    inputs = illustrated(target, 0)
    sample = run_target(target, inputs, hf_generate(target, inputs, 8), head.config.target_layer_ids, soft=True)
    blocks = build_blocks(
        [(sample.token_ids, sample.prompt_length)],
        num_anchors=4,
        block_size=4,
        mask_token_id=0,
        reveal=Reveal(enabled=False),
        rngs=[generator(0)],
    )
    kind = kind_of("vispec")
    kind.loss(kind.pack(head), target, [sample], blocks, OBJECTIVES["feature"]()).loss.backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in head.parameters())
    assert not head.imadpt.q.grad.any()


def test_the_second_stage_begins_where_the_first_ended(target: Target, traces: Path, tmp_path: Path) -> None:
    """Before it learns anything the ViSpec head is the EAGLE-2 head on text; what is new is named."""
    first = tiny_eagle2(target, bias=False, rms_norm_eps=1e-5)
    raw = {
        **eagle2_raw(target, bias=False, rms_norm_eps=1e-5),
        "architectures": ["LlamaForCausalLMEagle"],
        "head_dim": 8,
    }
    save_checkpoint(first, tmp_path / "first", raw)
    shape = {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    plan = recipe(traces, "vispec", shape=shape, init=str(tmp_path / "first"))
    trainer = HeadTrainer(plan, target, tmp_path / "run")
    assert {key.split(".")[0] for key in trainer.reinitialised} == {"imadpt", "img_fc"}
    config = trainer.head.config
    assert (config.has_bias, config.rms_norm_eps, config.rope_theta) == (False, 1e-5, 1e4)
    embedded, hidden = torch.randn(2, 3, target.hidden_size)
    told = trainer.head.told(hidden, torch.randn(target.hidden_size))
    assert torch.equal(told, hidden)
    assert torch.equal(trainer.head.fuse(embedded, told), first.fuse(embedded, hidden))
    second, stored = load_any(write_second(trainer, target, tmp_path / "second"))
    assert (type(second).__name__, stored.config.num_queries) == ("VispecKind", 2)
    again = recipe(traces, "vispec", shape=shape, init=str(tmp_path / "second"))
    assert HeadTrainer(again, target, tmp_path / "again").reinitialised == []
    with pytest.raises(InputError, match="compresses image rows"):
        HeadTrainer(recipe(traces, "vispec"), tiny_target("qwen3"), tmp_path / "text")


def test_a_warm_start_of_eagle3_keeps_its_rope(target: Target, traces: Path, tmp_path: Path) -> None:
    """Its weights compute nothing sensible under another."""
    save_checkpoint(tiny_eagle3(target), tmp_path / "start", eagle3_raw(target))
    shape = {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    shape["draft_vocab_size"] = target.vocab_size - 40
    plan = recipe(traces, "eagle3", shape=shape, init=str(tmp_path / "start"))
    head, anew = kind_of("eagle3").initial(plan, target, [])
    assert (head.config.rope_theta, anew) == (1e4, [])
    other = recipe(traces, "eagle3", shape={**shape, "rope_theta": 1e6}, init=str(tmp_path / "start"))
    with pytest.raises(InputError, match=r"head.rope_theta is 1000000.0, and the warm start .* has 10000.0"):
        kind_of("eagle3").initial(other, target, [])


def write_second(trainer: HeadTrainer, target: Target, folder: Path) -> str:
    write_head(trainer.head, trainer.recipe, target, folder, step=0)
    return str(folder)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_killed_run_resumes_and_its_head_decodes(target: Target, traces: Path, tmp_path: Path, kind: str) -> None:
    plan = recipe(traces, kind)
    unbroken = [p.loss for p in HeadTrainer(plan, target, tmp_path / "a").run()]
    first = HeadTrainer(plan, target, tmp_path / "b").run()
    for _ in range(5):
        next(first)
    first.close()
    resumed = [p.loss for p in HeadTrainer(plan, target, tmp_path / "b").run(resume=True)]
    assert resumed == pytest.approx(unbroken[4:], rel=1e-5)
    select(tmp_path / "a")
    _, stored = load_any(str(tmp_path / "a" / "head"))
    assert stored.card["training"]["recipe"]["kind"] == kind
    scores = evaluate_head(
        str(tmp_path / "a" / "head"), target, read_traces(traces / "heldout").rows, long_side=None, budget=15
    )
    assert len(scores[0].top1) == SHAPES[kind]["block_size"] - 1
    drafter = prepare(kind, str(tmp_path / "a" / "head"))(target, budget=15)
    row = read_traces(traces / "heldout").rows[0]
    stream = Decoder(target, drafter).stream_inputs(row.encode(target), SamplingParams(max_new_tokens=24))
    list(stream)
    assert stream.generation.token_ids == list(row.answer_ids)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "vispec" else kind for kind in SHAPES]
)
def test_a_head_that_overfits_accepts_whole_chains(target: Target, traces: Path, tmp_path: Path, kind: str) -> None:
    one = tmp_path / "one" / "train"
    rows = [r for r in read_traces(traces / "train").rows if not set(r.answer_ids) & set(target.banned_ids)]
    row = max(rows, key=lambda r: len(set(r.answer_ids)))
    list(append_traces(one, [row]))
    plan = recipe(
        tmp_path / "one",
        kind,
        shape={"head_dim": 16, "intermediate_size": 128, "draft_vocab_size": None, "own_lm_head": kind == "medusa"},
        data=Data(train=str(one), num_anchors=40, cache_features=True),
        objective=ObjectiveChoice(name="ce"),
        optimiser=Optimiser(lr=1e-2, batch_size=1, epochs=None, max_steps=160),
        schedule=Schedule(log_every=200, save_every=200),
    )
    trainer = HeadTrainer(plan, target, tmp_path / "run")
    list(trainer.run())
    depth = SHAPES[kind]["block_size"] - 1
    head = trainer.head.eval()
    fed = {"eagle2": Eagle2Drafter, "eagle3": Eagle3Drafter, "vispec": VispecDrafter}
    drafter: Any = (
        fed[kind](head, target, num_passes=depth, top_k=1) if kind in fed else MedusaDrafter(head, target, budget=15)
    )
    stream = Decoder(target, drafter).stream_inputs(
        row.encode(target), SamplingParams(max_new_tokens=len(row.answer_ids))
    )
    accepted = [len(step.round.token_ids) for step in stream if step.round is not None]
    assert stream.generation.token_ids == list(row.answer_ids)
    assert accepted[:-1] == [depth + 1] * (len(accepted) - 1)


def test_the_draft_vocabulary_is_what_answers_hold() -> None:
    rows = [Trace("a", "t", "", (), (7, 7, 7, 3, 3, 9)), Trace("b", "t", "", (), (9, 2))]
    assert draft_vocabulary(rows, 3, 20).tolist() == [3, 7, 9]
    assert draft_vocabulary(rows, 7, 20).tolist() == [0, 1, 2, 3, 4, 7, 9]


def test_what_a_kind_cannot_use_is_refused(target: Target, traces: Path, tmp_path: Path) -> None:
    for kind, changes, message in (
        ("eagle3", {"reveal": RevealChoice()}, "set reveal.enabled to false"),
        ("medusa", {"shape": {"draft_vocab_size": 3}}, "draft_vocab_size is for kind eagle3"),
        ("eagle3", {"shape": {"own_lm_head": True}}, "own_lm_head is for kind medusa"),
        ("eagle2", {"shape": {"num_queries": 2}}, "num_queries is for kind vispec"),
        ("eagle3", {"objective": ObjectiveChoice(name="feature")}, "eagle3 predicts no feature"),
    ):
        with pytest.raises(ValueError, match=message):
            recipe(traces, kind, **changes)
    for kind, shape, message in (
        ("eagle3", {"target_layer_ids": (1, 2)}, "reads three layers"),
        ("eagle3", {"draft_vocab_size": 10_000}, "above the target's 272 ids"),
        ("medusa", {"target_layer_ids": (1, 2)}, "read one layer"),
        ("eagle2", {"target_layer_ids": (1,)}, "leave out head.target_layer_ids"),
    ):
        with pytest.raises(InputError, match=message):
            HeadTrainer(recipe(traces, kind, shape=shape), target, tmp_path / "run")
