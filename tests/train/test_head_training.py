"""Training a head: the same forward as decoding, exact resume, a frozen target."""

import hashlib
import shutil
from pathlib import Path

import pytest
import torch

from oneglance.core import InputError, SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.checkpoint import check_fit, load_checkpoint
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import tiny_head, tiny_target
from oneglance.train.blocks import Reveal, build_blocks, generator
from oneglance.train.recipe import (
    Data,
    HeadRecipe,
    HeadShape,
    ObjectiveChoice,
    Optimiser,
    RevealChoice,
    Schedule,
    load_recipe,
)
from oneglance.train.step import PackedHead, run_target
from oneglance.train.traces import Trace, append_traces, check_disjoint, read_traces
from oneglance.train.trainer import HeadTrainer

PROMPTS = ("Transcribe the page.", "List the values.", "What is this?", "Read it aloud")


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3_vl")


def answer(target: Target, prompt: str) -> tuple[int, ...]:
    stream = Decoder(target, NoDrafter()).stream_inputs(encode(target, prompt), SamplingParams(max_new_tokens=36))
    list(stream)
    return tuple(stream.generation.token_ids)


@pytest.fixture
def traces(target: Target, tmp_path: Path) -> Path:
    rows = [Trace(f"t{i}", "text", prompt, (), answer(target, prompt)) for i, prompt in enumerate(PROMPTS)]
    list(append_traces(tmp_path / "traces", rows))
    return tmp_path / "traces"


def recipe(traces: Path, **changes: object) -> HeadRecipe:
    base = {
        "name": "tiny",
        "data": Data(train=str(traces), num_anchors=6),
        "head": HeadShape(num_layers=2, target_layer_ids=(1, 2), head_dim=8),
        "optimiser": Optimiser(lr=3e-3, batch_size=2, epochs=None, max_steps=8),
        "schedule": Schedule(log_every=1, save_every=2),
    }
    return HeadRecipe(**{**base, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [None, 12])
def test_a_training_block_gives_the_logits_of_decoding(target: Target, window: int | None) -> None:
    head = tiny_head(target, kept=[1, 2])
    if window:
        config = head.config.model_copy(
            update={"layer_types": ("sliding_attention", "full_attention"), "sliding_window": window}
        )
        head.config = config
    inputs = encode(target, PROMPTS[0])
    tokens = answer(target, PROMPTS[0])
    sample = run_target(target, inputs, tokens, head.config.target_layer_ids)
    blocks = build_blocks(
        [(sample.token_ids, sample.prompt_length)],
        num_anchors=5,
        block_size=16,
        mask_token_id=head.config.mask_token_id,
        reveal=Reveal(enabled=False),
        rngs=[generator("t")],
    )
    embedded = target.embedding(blocks.token_ids).flatten(1, 2)
    states = PackedHead(head)(embedded, sample.features[None], blocks)
    logits = target.lm_head(states).unflatten(1, (-1, 16))[0, :, 1:]
    drafter = BlockDrafter(head, target, budget=target.vocab_size)
    for index, anchor in enumerate(blocks.anchors[0].tolist()):
        state = target.prefill(
            target.extend(inputs, tokens[: anchor - sample.prompt_length]), head.config.target_layer_ids
        )
        marginals = drafter.marginals(sample.token_ids[anchor], state, drafter.start(state), 15)
        expected = logits[index].detach().clone()
        expected[:, list(target.banned_ids)] = -torch.inf
        log_q = expected.log_softmax(-1).gather(1, torch.from_numpy(marginals.token_ids)).double()
        finite = torch.isfinite(log_q)
        assert (log_q - torch.from_numpy(marginals.log_q))[finite].abs().max() < 1e-4


def test_a_head_that_overfits_one_sample_accepts_whole_blocks(target: Target, traces: Path, tmp_path: Path) -> None:
    one = tmp_path / "one"
    proposable = [row for row in read_traces(traces).rows if not set(row.answer_ids) & set(target.banned_ids)]
    list(append_traces(one, [max(proposable, key=lambda row: len(row.answer_ids))]))
    trainer = HeadTrainer(
        recipe(
            one,
            head=HeadShape(num_layers=2, target_layer_ids=(1, 2), head_dim=16, intermediate_size=128),
            data=Data(train=str(one), num_anchors=40, cache_features=True),
            optimiser=Optimiser(lr=5e-3, batch_size=1, epochs=None, max_steps=100),
            schedule=Schedule(log_every=100, save_every=100),
            reveal=RevealChoice(enabled=False),
        ),
        target,
        tmp_path / "run",
    )
    list(trainer.run())
    row = read_traces(one).rows[0]
    decoder = Decoder(target, BlockDrafter(trainer.head.eval(), target, budget=15))
    stream = decoder.stream_inputs(row.encode(target), SamplingParams(max_new_tokens=len(row.answer_ids)))
    accepted = [len(step.round.token_ids) for step in stream if step.round is not None]
    assert stream.generation.token_ids == list(row.answer_ids)
    assert accepted[:-1] == [16] * (len(accepted) - 1)


def test_training_leaves_the_target_as_it_was(target: Target, traces: Path, tmp_path: Path) -> None:
    def digest() -> dict[str, str]:
        return {
            name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
            for name, tensor in target.model.state_dict().items()
        }

    before = digest()
    list(HeadTrainer(recipe(traces), target, tmp_path / "run").run())
    assert digest() == before


@pytest.mark.parametrize("name", ["coverage", "survival", "dpace", "exp_decay", "ce", "kl"])
def test_a_killed_run_resumes_on_the_unbroken_curve(target: Target, traces: Path, tmp_path: Path, name: str) -> None:
    plan = recipe(traces, objective=ObjectiveChoice(name=name))
    unbroken = [p.loss for p in HeadTrainer(plan, target, tmp_path / "a").run()]
    first = HeadTrainer(plan, target, tmp_path / "b").run()
    for _ in range(5):  # steps 2 and 4 are saved; the run dies in step 5
        next(first)
    first.close()
    resumed = [(p.step, p.loss) for p in HeadTrainer(plan, target, tmp_path / "b").run(resume=True)]
    assert resumed[0][0] == 5
    assert [loss for _, loss in resumed] == pytest.approx(unbroken[4:], rel=1e-5)
    assert unbroken[-1] < unbroken[0]


def test_accumulation_equals_a_larger_batch(target: Target, traces: Path, tmp_path: Path) -> None:
    whole = Optimiser(lr=3e-3, batch_size=4, epochs=None, max_steps=3)
    split = Optimiser(lr=3e-3, batch_size=2, accumulate=2, epochs=None, max_steps=3)
    a, b = (
        [p.loss for p in HeadTrainer(recipe(traces, optimiser=o), target, tmp_path / str(i)).run()]
        for i, o in enumerate((whole, split))
    )
    assert a == pytest.approx(b, rel=1e-4)


def test_a_saved_head_loads_and_fits(target: Target, traces: Path, tmp_path: Path) -> None:
    trainer = HeadTrainer(recipe(traces), target, tmp_path / "run")
    list(trainer.run())
    checkpoint = load_checkpoint(str(trainer.checkpoints.path(8)))
    check_fit(checkpoint, target)
    assert checkpoint.config == trainer.head.config


def test_a_checkpoint_that_has_no_room_leaves_the_older_ones(
    target: Target, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = HeadTrainer(recipe(traces), target, tmp_path / "run").run()
    next(reports), next(reports), next(reports)  # step 2 is saved
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("oneglance.train.checkpoints.shutil.disk_usage", lambda _: full)
    with pytest.raises(InputError, match=r"and 1\.0 KB are free .* go on with --resume"):
        list(reports)
    monkeypatch.undo()
    again = HeadTrainer(recipe(traces), target, tmp_path / "run")
    assert again.checkpoints.steps() == [2]
    assert [p.step for p in again.run(resume=True)] == [3, 4, 5, 6, 7, 8]


def test_short_answers_do_not_pay_for_anchors_that_they_cannot_have() -> None:
    def blocks(num_anchors: int, *lengths: int) -> torch.Size:
        rows = [(list(range(3 + length)), 3) for length in lengths]
        rngs = [generator(i) for i in range(len(rows))]
        options = {"block_size": 4, "mask_token_id": 99, "reveal": Reveal(enabled=False), "rngs": rngs}
        built = build_blocks(rows, num_anchors=num_anchors, **options)
        labelled = (built.labels >= 0).any(-1).sum(-1).tolist()
        assert labelled == [min(num_anchors, length - 1) for length in lengths]
        return built.token_ids.shape

    assert blocks(512, 5, 12) == (2, 16, 4)
    assert blocks(512, 2) == (1, 8, 4)
    assert blocks(6, 40, 3) == (2, 6, 4)


def test_heldout_samples_must_not_be_in_training(traces: Path) -> None:
    rows = read_traces(traces).rows
    check_disjoint(rows[:2], rows[2:])
    with pytest.raises(InputError, match="t1 shares its prompt with sample t1 of training"):
        check_disjoint(rows[:2], rows[1:])


@pytest.mark.parametrize("images", ["a", "b", "ba", "ca", "ab", "cdb"])
def test_one_shared_image_is_a_leak(images: str) -> None:
    train = [Trace("both", "t", "Compare", ("x", "y"), (1, 2), ("a", "b")), Trace("text", "t", "Hello", (), (1, 2))]
    check_disjoint(train, [Trace("new", "t", "Compare", ("x",), (1, 2), ("c",)), Trace("u", "t", "Bye", (), (1, 2))])
    with pytest.raises(InputError, match="new shares an image with sample both of training; keep the two sets"):
        check_disjoint(train, [Trace("new", "t", "Other", tuple(images), (1, 2), tuple(images))])


def test_recipes_reject_unknown_keys_and_apply_overrides(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("name: x\ndata: {train: somewhere}\n")
    assert load_recipe(path, ["optimiser.lr=0.5", "data.num_anchors=3"]).optimiser.lr == 0.5
    for override, message in (
        ("optimiser.speed=3", "^optimiser.speed: no such key; optimiser has lr, betas"),
        ("optimizer.lr=3", "^optimizer.lr: no such key; did you mean optimiser.lr[?]"),
        ("max_steps=3", "^max_steps: no such key; did you mean optimiser.max_steps[?]"),
        ("data.num_anchor=3", "^data.num_anchor: no such key; did you mean data.num_anchors[?]"),
        ("nonsense=3", "^nonsense: no such key; a recipe has schema_version, kind, name"),
        ("rescorer.rank=8", "recipe.yaml: the section rescorer is of kind conditioned; add kind: conditioned$"),
        ("lr", "no change to a recipe"),
        ("objective.name=magic", "unknown objective"),
        ("optimiser.lr=.inf", "optimiser.lr"),
        ("optimiser.betas=[2,3]", "optimiser.betas: .*less than 1"),
        ("optimiser.weight_decay=-0.1", "optimiser.weight_decay"),
        ("optimiser.clip=-1", "optimiser.clip: .*greater than 0"),
        ("optimiser.epochs=.inf", "optimiser.epochs"),
        ("head.num_attention_heads=0", "head.num_attention_heads"),
        ("head.num_key_value_heads=-1", "head.num_key_value_heads"),
        ("head.head_dim=0", "head.head_dim"),
        ("head.intermediate_size=0", "head.intermediate_size"),
        ("head.rope_theta=0", "head.rope_theta"),
        ("head.mask_token_id=-1", "head.mask_token_id"),
        ("head.target_layer_ids=[]", "head.target_layer_ids"),
        ("head.target_layer_ids=[-2]", "head.target_layer_ids"),
        ("objective={name: exp_decay, params: {gamma: 0}}", "params.gamma is 0.0; give one from 0.01"),
        ("objective.params={decay: 1.5}", "params.decay is 1.5; give one from 0.0 to 1.0"),
        ("objective.params={decay: .nan}", "params.decay is nan"),
        ("precision=fp16", "precision: .*'no' or 'bf16'"),
        ("optimiser.lr=-1", "^override 'optimiser.lr=-1': optimiser.lr: "),
        ("data.train=[]", "data.train: .*name a folder of traces, or several"),
        ("data.train=''", "data.train: .*name a folder of traces, or several"),
    ):
        with pytest.raises(InputError, match=message):
            load_recipe(path, [override])
    path.write_text("name: x\ndata: {train: somewhere}\noptimizer: {lr: 1}\n")
    with pytest.raises(InputError, match=r"^recipe .*recipe.yaml: optimizer: no such key; optimiser has lr, betas"):
        load_recipe(path, ["optimiser.lr=0.5"])
    with pytest.raises(InputError, match=r"^cannot read recipe none.yaml: No such file or directory$"):
        load_recipe("none.yaml")
