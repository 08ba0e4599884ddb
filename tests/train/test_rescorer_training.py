"""Training a rescorer: on a frozen head or jointly, saved beside the head, resumed, and learnt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from oneglance.core import InputError
from oneglance.drafters.checkpoint import load_checkpoint
from oneglance.drafters.rescorer import RESCORERS, find_rescorer
from oneglance.targets.base import Target
from oneglance.testing import tiny_target
from oneglance.train.recipe import (
    Data,
    HeadRecipe,
    HeadShape,
    Optimiser,
    RescorerChoice,
    RevealChoice,
    Schedule,
    load_recipe,
)
from oneglance.train.select import select
from oneglance.train.traces import Trace, append_traces
from oneglance.train.trainer import HeadTrainer

NUM_STEPS = 60
FAST = Optimiser(lr=2e-2, batch_size=4, epochs=None, max_steps=NUM_STEPS)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3_vl")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers whose next token follows from the last one, and whose choice of path nobody can know beforehand."""
    folder = tmp_path_factory.mktemp("traces")
    rng = torch.Generator().manual_seed(3)
    rows = []
    for index in range(12):
        tokens = [40]
        for _ in range(30):
            step = int(torch.randint(0, 2, (1,), generator=rng))
            tokens.append(60 + (7 * (tokens[-1] - 40) + 11 * step + 1) % 40)
        rows.append(Trace(f"t{index}", "text", f"p{index}", (), tuple(tokens)))
    list(append_traces(folder, rows))
    return folder


def recipe(traces: Path, **changes: object) -> HeadRecipe:
    base = {
        "name": "tiny",
        "data": Data(train=str(traces), num_anchors=8, cache_features=True),
        "head": HeadShape(num_layers=1, target_layer_ids=(1, 2), head_dim=8),
        "optimiser": Optimiser(lr=2e-3, batch_size=4, epochs=None, max_steps=NUM_STEPS),
        "schedule": Schedule(log_every=1, save_every=20),
        "reveal": RevealChoice(enabled=False),
        "save_dtype": "float32",
    }
    return HeadRecipe(**{**base, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def head(target: Target, traces: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("head")
    list(HeadTrainer(recipe(traces), target, out).run())
    return str(out / "head")


def frozen(traces: Path, start: str, **changes: object) -> HeadRecipe:
    choice = RescorerChoice(rank=16)
    return recipe(traces, **{"kind": "conditioned", "init": start, "rescorer": choice, "optimiser": FAST, **changes})


@pytest.mark.parametrize("kind", sorted(RESCORERS))
def test_a_frozen_heads_rescorer_learns_and_leaves_the_head(
    target: Target, traces: Path, head: str, kind: str, tmp_path: Path
) -> None:
    trainer = HeadTrainer(frozen(traces, head, rescorer=RescorerChoice(kind=kind, rank=16)), target, tmp_path)
    losses = [progress.loss for progress in trainer.run()]
    assert sum(losses[-5:]) / 5 < 0.7 * losses[0]  # what the last token says, no head can know
    before, after = load_checkpoint(head).tensors, load_checkpoint(str(tmp_path / "head")).tensors
    assert all(torch.equal(before[key], after[key]) for key in before)
    found = find_rescorer("auto", tmp_path / "head")
    assert found is not None
    assert (found.config.kind, bool(found.config.head_sha256)) == (kind, True)
    assert found.config.training["step"] == NUM_STEPS
    assert torch.equal(found.tensors["after.weight"], trainer.head.rescorer.after.weight.detach())


def test_a_killed_rescorer_run_resumes_on_the_unbroken_curve(
    target: Target, traces: Path, head: str, tmp_path: Path
) -> None:
    short = Optimiser(lr=2e-3, batch_size=2, epochs=None, max_steps=8)
    plan = frozen(traces, head, optimiser=short, schedule=Schedule(log_every=1, save_every=2))
    unbroken = [p.loss for p in HeadTrainer(plan, target, tmp_path / "a").run()]
    first = HeadTrainer(plan, target, tmp_path / "b").run()
    for _ in range(5):
        next(first)
    first.close()
    resumed = [p.loss for p in HeadTrainer(plan, target, tmp_path / "b").run(resume=True)]
    assert resumed == pytest.approx(unbroken[4:], rel=1e-5)


def test_head_and_rescorer_may_be_trained_together_and_selected(target: Target, traces: Path, tmp_path: Path) -> None:
    heldout = tmp_path / "heldout"
    list(append_traces(heldout, [Trace("h", "text", "another", (), tuple(60 + i % 9 for i in range(20)))]))
    plan = recipe(
        traces,
        data=Data(train=str(traces), heldout=str(heldout), num_anchors=8, cache_features=True),
        kind="conditioned",
        rescorer=RescorerChoice(rank=8, factors="embedding", freeze_head=False),
        optimiser=Optimiser(lr=2e-3, batch_size=4, epochs=None, max_steps=6),
        schedule=Schedule(log_every=6, save_every=3, evaluate_every=3, tau_prompts=1),
    )
    reports = list(HeadTrainer(plan, target, tmp_path / "run").run())
    assert reports[-1].tau is not None
    select(tmp_path / "run", step=3)
    found = find_rescorer("auto", tmp_path / "run" / "head")
    assert found is not None
    assert found.config.factors == "embedding"
    stored = load_checkpoint(str(tmp_path / "run" / "head"))
    found.build(stored.build(dtype=torch.float32, device=torch.device("cpu")), target)


def test_a_frozen_head_must_be_there_and_fit(target: Target, traces: Path, head: str, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("name: x\nkind: conditioned\ndata: {train: t}\nrescorer: {rank: 4}\n")
    with pytest.raises(InputError, match="set init"):
        load_recipe(path)
    wider = HeadShape(target_layer_ids=(1, 2), head_dim=8, intermediate_size=24)
    with pytest.raises(InputError, match="must fit the recipe whole"):
        HeadTrainer(frozen(traces, head, head=wider), target, tmp_path / "run")
