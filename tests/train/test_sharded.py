"""Training whose weights, gradients and optimiser state lie in shards (FSDP2): the same steps, the same files."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from oneglance.core import InputError
from oneglance.decoder import Decoder
from oneglance.drafters.plain import NoDrafter
from oneglance.engines.arms import free_port
from oneglance.targets.base import Target
from oneglance.testing import tiny_target
from oneglance.train import step
from oneglance.train.collect import Collection, LocalAnswerer
from oneglance.train.kinds import KINDS
from oneglance.train.prompts import Prompt
from oneglance.train.recipe import HeadRecipe
from oneglance.train.runlog import read_log
from oneglance.train.trainer import HeadTrainer

HERE = Path(__file__).parent
CONFIGS = HERE.parent.parent / "recipes" / "accelerate"
NUM_STEPS = 4
NO_BLOCK: dict[str, Any] = {"reveal": {"enabled": False}}  # of kinds that see no block
CHANGES: dict[str, dict[str, Any]] = {
    "head": {"head": {"num_layers": 2, "target_layer_ids": [1, 2], "head_dim": 8}},
    "conditioned": {"rescorer": {"rank": 4, "freeze_head": False}},
    "eagle3": {
        **NO_BLOCK,
        "head": {"target_layer_ids": [1, 2, 3], "head_dim": 8, "block_size": 5, "draft_vocab_size": 200},
        "objective": {"name": "kl"},
    },
    "medusa": {**NO_BLOCK, "head": {"num_layers": 1, "block_size": 4, "own_lm_head": True}},
    "eagle2": {**NO_BLOCK, "head": {"head_dim": 8, "block_size": 5}, "objective": {"name": "feature"}},
    "vispec": {**NO_BLOCK, "head": {"head_dim": 8, "block_size": 4}, "objective": {"name": "feature"}},
}


def plan(data: Path, kind: str, *, accumulate: int = 1, **changes: Any) -> dict[str, Any]:
    base = {
        "name": "tiny",
        "kind": kind,
        "data": {"train": str(data / "train"), "heldout": str(data / "heldout"), "num_anchors": 6},
        "head": {"num_layers": 1, "target_layer_ids": [1, 2], "head_dim": 8},
        "optimiser": {"lr": 3e-3, "batch_size": 1, "accumulate": accumulate, "epochs": None, "max_steps": NUM_STEPS},
        "schedule": {"log_every": 1, "save_every": 2, "evaluate_every": 4, "tau_prompts": 1},
        "save_dtype": "float32",
    }
    return {**base, **CHANGES.get(kind, NO_BLOCK), **changes}


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3_vl")  # vispec takes no other


@pytest.fixture(scope="module")
def data(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces to train on and to judge by."""
    folder = tmp_path_factory.mktemp("traces")
    for name, count in (("train", 6), ("heldout", 2)):
        prompts = [Prompt(f"{name}{i}", "text", f"{name} question {i}, please") for i in range(count)]
        answerer = LocalAnswerer(Decoder(target, NoDrafter()), max_new_tokens=20)
        list(Collection(folder / name, prompts, target, 768, 20, {}).run(answerer))
    return folder


@pytest.fixture(autouse=True)
def _own_accelerator() -> Iterator[None]:
    """Accelerate keeps one state a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def sharded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process, launched by the shipped config as the only one of its world."""
    world = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": free_port()}
    world["OMP_NUM_THREADS"] = 1  # as the launcher sets it
    settings = load_config_from_file(str(CONFIGS / "fsdp.yaml")).fsdp_config
    given = {key.upper(): str(value).lower() for key, value in settings.items() if "wrap" not in key}
    given["FSDP_AUTO_WRAP_POLICY"] = settings["fsdp_auto_wrap_policy"]
    for key, value in {**world, **given, "MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_FSDP": "true"}.items():
        monkeypatch.setenv(key, str(value))
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def same_files(one: Path, other: Path, kind: str) -> None:
    """Heads and optimisers of two runs, tensor by tensor."""
    for path in sorted(one.glob("head/*.safetensors")):
        ours, theirs = load_file(path), load_file(other / "head" / path.name)
        assert ours.keys() == theirs.keys()
        for key, tensor in ours.items():
            torch.testing.assert_close(theirs[key], tensor, rtol=1e-3, atol=2e-5, msg=lambda m, k=key: f"{k}: {m}")
    last = f"checkpoints/step-{NUM_STEPS:07d}/optimiser.pt"
    ours, theirs = (torch.load(run / last, weights_only=True)["state"] for run in (one, other))
    assert ours.keys() == theirs.keys()
    for index, parts in ours.items():
        for name, tensor in parts.items():
            torch.testing.assert_close(theirs[index][name], tensor, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["head", "eagle3"])
def test_shards_are_gathered_and_spread_again(
    target: Target, data: Path, tmp_path: Path, sharded: None, kind: str
) -> None:
    recipe = HeadRecipe(**plan(data, kind))
    first = HeadTrainer(recipe, target, tmp_path / "shards")
    assert all(isinstance(p, DTensor) for p in first.packed.parameters())
    reports = first.run()
    assert [next(reports).step for _ in range(3)] == [1, 2, 3]  # step 2 is saved; the run dies in step 4
    reports.close()
    shutil.copytree(tmp_path / "shards", tmp_path / "moved")
    last = list(HeadTrainer(recipe, target, tmp_path / "shards").run(resume=True))[-1]
    torch.distributed.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    for name in [key for key in os.environ if key.startswith(("FSDP_", "ACCELERATE_")) or key.endswith("RANK")]:
        os.environ.pop(name)  # the fixture's monkeypatch puts them back
    whole = list(HeadTrainer(recipe, target, tmp_path / "whole").run())
    assert [r["loss"] for r in read_log(tmp_path / "shards")] == pytest.approx([p.loss for p in whole], rel=1e-5)
    assert last.heldout is not None
    assert last.heldout == whole[-1].heldout
    assert last.tau == whole[-1].tau
    same_files(tmp_path / "whole", tmp_path / "shards", kind)
    moved = list(HeadTrainer(recipe, target, tmp_path / "moved").run(resume=True))  # what is stored is whole
    assert [(p.step, p.loss) for p in moved] == [(p.step, pytest.approx(p.loss, rel=1e-5)) for p in whole[2:]]
    counts = tmp_path / "moved" / "rows.json"
    counts.write_text(counts.read_text().replace('"processes": 1', '"processes": 2'))
    with pytest.raises(InputError, match="begun in 2 processes; go on with as many"):
        list(HeadTrainer(recipe, target, tmp_path / "moved").run(resume=True))


@pytest.mark.slow
def test_two_processes_with_shards_equal_one_with_twice_the_accumulation(
    target: Target, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through ``accelerate launch`` and the shipped config: every kind, each killed and gone on with."""
    chunked = [kind for kind in ("eagle3", "medusa") if kind in KINDS]
    runs = {**{kind: kind for kind in KINDS}, **{f"{kind}-chunked": kind for kind in chunked}}
    for name, kind in runs.items():
        (tmp_path / f"{name}.recipe.json").write_text(json.dumps(plan(data, kind, accumulate=2)))
        (tmp_path / f"{name}.stop").write_text("3")
    settings = yaml.safe_load((CONFIGS / "fsdp.yaml").read_text()) | {"use_cpu": True, "num_processes": 2}
    (tmp_path / "fsdp.yaml").write_text(yaml.safe_dump(settings))
    words = ["-m", "accelerate.commands.launch", "--config_file", str(tmp_path / "fsdp.yaml"), str(HERE / "spread.py")]
    done = subprocess.run(
        [sys.executable, *words, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, kind in runs.items():
        monkeypatch.setattr(step, "CHUNK", 4 if "chunked" in name else 128)
        single = HeadTrainer(HeadRecipe(**plan(data, kind, accumulate=4)), target, tmp_path / "one" / name)
        reports = list(single.run())
        rows = read_log(tmp_path / "two" / name)
        assert [row["loss"] for row in rows] == pytest.approx([p.loss for p in reports], rel=1e-5), name
        assert reports[-1].heldout is not None
        assert rows[-1]["heldout_top1"] == pytest.approx(reports[-1].heldout.top1)
        assert rows[-1]["heldout_tau"] == reports[-1].tau
        same_files(tmp_path / "one" / name, tmp_path / "two" / name, kind)
        kept = [int((tmp_path / "two" / name / f"kept-{rank}").read_text()) for rank in (0, 1)]
        assert sum(kept) == single.num_parameters
        assert max(kept) < 0.6 * single.num_parameters


def test_the_shipped_configs_are_accelerates() -> None:
    kinds = {path.stem: load_config_from_file(str(path)).distributed_type.value for path in CONFIGS.glob("*.yaml")}
    assert kinds == {"ddp": "MULTI_GPU", "fsdp": "FSDP"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "not under DeepSpeed"),
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "not under Megatron-LM"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}, "set fsdp_version: 2"),
        ({"FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP"}, "TRANSFORMER_BASED_WRAP or NO_WRAP"),
        ({"FSDP_TRANSFORMER_CLS_TO_WRAP": "Layer"}, "leave out fsdp_transformer_layer_cls_to_wrap"),
        ({"FSDP_OFFLOAD_PARAMS": "true"}, "set fsdp_offload_params: false"),
        ({}, "start it by accelerate launch or torchrun"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "set precision in the recipe"),
        ({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, "set optimiser.accumulate in the recipe"),
    ],
)
def test_what_training_does_not_follow_is_refused(
    target: Target, data: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], message: str
) -> None:
    base = {"FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "ACCELERATE_USE_FSDP": "true"}
    for key, value in {**base, **settings}.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(InputError, match=message):
        HeadTrainer(HeadRecipe(**plan(data, "head")), target, data / "run")
