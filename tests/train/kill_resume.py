"""Kill a training run with SIGKILL at random moments and resume it, again and again; nothing may be lost.

``python tests/train/kill_resume.py --trials 50`` prints one line a trial and a JSON summary, and exits with 1 if a loss
curve differs from the unbroken one. The parent never trains, so that its forked children start from a clean torch.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from oneglance.core import SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import tiny_target
from oneglance.train.recipe import Data, HeadRecipe, HeadShape, Optimiser, Schedule
from oneglance.train.runlog import read_log
from oneglance.train.traces import Trace, append_traces
from oneglance.train.trainer import HeadTrainer

NUM_STEPS = 12


def write_traces(target: Target, folder: Path) -> None:
    for index in range(6):
        inputs = encode(target, f"Question {index}")
        stream = Decoder(target, NoDrafter()).stream_inputs(inputs, SamplingParams(max_new_tokens=24))
        list(stream)
        list(
            append_traces(
                folder, [Trace(f"t{index}", "text", f"Question {index}", (), tuple(stream.generation.token_ids))]
            )
        )


def recipe(folder: Path) -> HeadRecipe:
    return HeadRecipe(
        name="kill",
        data=Data(train=str(folder), num_anchors=4),
        head=HeadShape(num_layers=1, target_layer_ids=(1, 2), head_dim=8),
        optimiser=Optimiser(lr=3e-3, batch_size=2, epochs=None, max_steps=NUM_STEPS),
        schedule=Schedule(log_every=1, save_every=2, keep=2),
    )


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked process; its id."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(f"child failed: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child


def survived(child: int, after_s: float | None) -> bool:
    """Wait for the end of a child, or kill it after some time; whether it came to its end."""
    deadline = time.monotonic() + (after_s if after_s is not None else 120)
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0, "the training process failed by itself"
            return True
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert after_s is not None, "the training process hangs"
    return False


def main(trials: int, seed: int) -> int:
    torch.set_num_threads(1)
    rng, target = random.Random(seed), tiny_target("qwen3")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_traces(target, folder / "traces")

        def train(out: Path) -> None:
            list(HeadTrainer(recipe(folder / "traces"), target, out).run(resume=True))

        started = time.monotonic()
        assert survived(in_child(lambda: train(folder / "unbroken")), None)
        whole_s = time.monotonic() - started
        expected = {row["step"]: row["loss"] for row in read_log(folder / "unbroken")}
        assert sorted(expected) == list(range(1, NUM_STEPS + 1))
        kills, worst, lost = 0, 0.0, 0
        for trial in range(trials):
            out = folder / f"trial{trial}"
            while not survived(in_child(lambda out=out: train(out)), rng.uniform(0.2, 1.1) * whole_s):
                kills += 1
            got = [(row["step"], row["loss"]) for row in read_log(out)]
            lost += [step for step, _ in got] != sorted(expected)
            worst = max([worst, *(abs(loss - expected[step]) / expected[step] for step, loss in got)])
            print(f"trial {trial}: {kills} kills so far, largest relative difference {worst:.2g}", flush=True)
    print(json.dumps({"trials": trials, "kills": kills, "broken_curves": lost, "max_relative_difference": worst}))
    return int(lost > 0 or worst > 1e-5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.exit(main(arguments.trials, arguments.seed))
