"""Training over several processes, and processes that are killed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.state import AcceleratorState
from accelerate.tracking import GeneralTracker

from oneglance.core import InputError
from oneglance.decoder import Decoder
from oneglance.drafters.plain import NoDrafter
from oneglance.engines.arms import free_port
from oneglance.targets.base import Target
from oneglance.testing import save_target, tiny_target
from oneglance.train.collect import Collection, LocalAnswerer
from oneglance.train.memory import training_memory
from oneglance.train.prompts import Prompt
from oneglance.train.recipe import HeadRecipe
from oneglance.train.runlog import read_log
from oneglance.train.traces import append_traces, read_traces
from oneglance.train.trainer import HeadTrainer
from train import kill_resume

HERE = Path(__file__).parent
DDP = HERE.parent.parent / "recipes" / "accelerate" / "ddp.yaml"
PLAN = {
    "name": "tiny",
    "head": {"num_layers": 1, "target_layer_ids": [1, 2], "head_dim": 8},
    "optimiser": {"lr": 0.003, "batch_size": 2, "epochs": None, "max_steps": 4},
    "schedule": {"log_every": 1},
}


@pytest.fixture(autouse=True)
def _own_accelerator() -> Iterator[None]:
    """Accelerate keeps one state a process, precision included."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def traces(target: Target, folder: Path) -> Path:
    prompts = [Prompt(f"p{i}", "text", f"Question number {i}, please") for i in range(6)]
    answerer = LocalAnswerer(Decoder(target, NoDrafter()), max_new_tokens=24)
    list(Collection(folder, prompts, target, None, 24, {}).run(answerer))
    return folder


def launch(*words: object) -> str:
    """Run a module; what it says."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stderr


@pytest.mark.slow
def test_two_processes_equal_one_with_twice_the_accumulation(tmp_path: Path) -> None:
    target = tiny_target("qwen3")
    save_target(target, tmp_path / "target")
    plan = {**PLAN, "target": str(tmp_path / "target"), "data": {"train": str(traces(target, tmp_path / "traces"))}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(plan))
    settings = yaml.safe_load(DDP.read_text()) | {"use_cpu": True, "num_processes": 2, "main_process_port": free_port()}
    (tmp_path / "ddp.yaml").write_text(yaml.safe_dump(settings))
    words = ("accelerate.commands.launch", "--config_file", tmp_path / "ddp.yaml", "-m", "oneglance.train")
    said = launch(*words, tmp_path / "recipe.yaml", "--out", tmp_path / "two", "--device", "cpu")
    assert "2 processes under DDP, global batch 4" in said
    single = HeadRecipe(**{**plan, "optimiser": {**plan["optimiser"], "accumulate": 2}})
    one = [p.loss for p in HeadTrainer(single, target, tmp_path / "one").run()]
    got = [row["loss"] for row in read_log(tmp_path / "two")]
    assert got == pytest.approx(one, rel=1e-5)
    heads = [torch.load(tmp_path / n / "checkpoints/step-0000004/optimiser.pt")["state"] for n in ("one", "two")]
    for key in heads[0]:
        assert torch.allclose(heads[0][key]["exp_avg"], heads[1][key]["exp_avg"], rtol=1e-3, atol=1e-7)


@pytest.mark.slow
def test_killed_runs_lose_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "kill_resume.py"),
            "--trials",
            "4",
            "--seed",
            "5",
            "--out",
            str(tmp_path / "kills.json"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads((tmp_path / "kills.json").read_text())
    assert kept["trials"] == 4
    assert kept["kills"] >= 1
    assert {kept[key] for key in ("lost_rows", "double_rows", "differing_rows", "differing_tensors")} == {0}
    assert kept["arms"].keys() == {"scratch", "warm"}
    assert kept["manifest"]["kind"] == "kill-resume"


def test_a_warm_run_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    """Step 0, which is reported before anything is saved, stands once in the log."""
    target = tiny_target("qwen3")
    kill_resume.prepare(target, tmp_path)
    plan = kill_resume.recipe(tmp_path, "warm")
    plan = plan.model_copy(update={"optimiser": plan.optimiser.model_copy(update={"max_steps": 2})})
    killed = HeadTrainer(plan, target, tmp_path / "run").run()
    assert [next(killed).step, next(killed).step] == [0, 1]
    killed.close()
    list(HeadTrainer(plan, target, tmp_path / "run").run(resume=True))
    assert [row["step"] for row in read_log(tmp_path / "run")] == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")  # RMSNorm under autocast
def test_a_bfloat16_target_is_evaluated_in_its_dtype(tmp_path: Path) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    target = tiny_target("qwen3", dtype=torch.bfloat16)
    for name in ("train", "heldout"):
        traces(target, tmp_path / name)
    lines = (tmp_path / "heldout" / "traces.jsonl").read_text().replace("Question", "Riddle")
    (tmp_path / "heldout" / "traces.jsonl").write_text(lines)
    data = {"train": str(tmp_path / "train"), "heldout": str(tmp_path / "heldout")}
    plan = HeadRecipe(**{**PLAN, "data": data, "precision": "bf16", "schedule": {"log_every": 4, "tau_prompts": 1}})
    last = list(HeadTrainer(plan, target, tmp_path / "run").run())[-1]
    assert last.tau is not None
    assert last.tau["text"] >= 1


def test_memory_is_estimated_part_by_part(tmp_path: Path) -> None:
    target = tiny_target("qwen3")
    folder = traces(target, tmp_path / "traces")
    plan = HeadRecipe(**{**PLAN, "data": {"train": str(folder)}})
    trainer = HeadTrainer(plan, target, tmp_path / "run")
    memory = training_memory(plan, target, trainer.config, read_traces(folder).rows, parameters=trainer.num_parameters)
    list(trainer.run())
    states = [t for state in trainer.adam.optimizer.state.values() for t in state.values() if t.ndim]
    held = sum(p.numel() * 8 for p in trainer.head.parameters()) + sum(t.numel() * 4 for t in states)
    assert memory.parts["head and optimiser"] == held
    assert memory.advice() is None
    quarter = training_memory(
        plan, target, trainer.config, read_traces(folder).rows, parameters=trainer.num_parameters, shards=4
    )
    assert quarter.parts["head and optimiser"] == held // 4
    assert quarter.parts["gathered shards"] == trainer.num_parameters * 12
    small = type(memory)(memory.parts, memory.needed - 1, memory.target)
    assert "lower data.num_anchors" in (small.advice() or "")
    assert "alone do not fit" in (type(memory)(memory.parts, 1, memory.target).advice() or "")


class Notes(GeneralTracker):
    """A tracker of accelerate that remembers."""

    name = "notes"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    @property
    def tracker(self) -> None:
        return None

    def store_init_configuration(self, values: dict[str, object]) -> None:
        pass

    def log(self, values: dict[str, float], step: int | None = None, **_: object) -> None:
        self.rows.append((step, values))


def test_trackers_get_a_number_a_name(tmp_path: Path) -> None:
    target, notes = tiny_target("qwen3"), Notes()
    plan = HeadRecipe(**{**PLAN, "data": {"train": str(traces(target, tmp_path / "traces"))}})
    reports = list(HeadTrainer(plan, target, tmp_path / "run", trackers=[notes]).run())
    assert [step for step, _ in notes.rows] == [1, 2, 3, 4]
    assert notes.rows[2][1]["loss"] == reports[2].loss
    assert notes.rows[2][1]["top1/offset_15"] == reports[2].top1[14]


def test_tensorboard_reads_what_was_reported(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    target = tiny_target("qwen3")
    plan = HeadRecipe(**{**PLAN, "data": {"train": str(traces(target, tmp_path / "traces"))}})
    reports = list(HeadTrainer(plan, target, tmp_path / "run", trackers=["tensorboard"]).run())
    events = accumulator.EventAccumulator(str(tmp_path / "run" / plan.name))
    events.Reload()
    wanted = {"loss": [r.loss for r in reports], "top1/offset_15": [r.top1[14] for r in reports]}
    for name, values in wanted.items():
        found = events.Scalars(name)
        assert [event.step for event in found] == [1, 2, 3, 4]
        assert [event.value for event in found] == pytest.approx(values, rel=1e-6)


def test_a_run_is_not_resumed_on_other_data(tmp_path: Path) -> None:
    target = tiny_target("qwen3")
    folder = traces(target, tmp_path / "traces")
    plan = HeadRecipe(**{**PLAN, "data": {"train": str(folder)}, "schedule": {"log_every": 1, "save_every": 1}})
    started = HeadTrainer(plan, target, tmp_path / "run").run()
    next(started)
    started.close()
    row = read_traces(folder).rows[0]
    list(append_traces(folder, [replace(row, id="one more")]))
    with pytest.raises(InputError, match="have changed since it began"):
        list(HeadTrainer(plan, target, tmp_path / "run").run(resume=True))
