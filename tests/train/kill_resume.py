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
from oneglance.train.runlog import LOG, read_log
from oneglance.train.traces import Trace, append_traces
from oneglance.train.trainer import HeadTrainer

NUM_STEPS = 12
TIMEOUT_S = 300


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


def survived(child: int, log: Path, kill: tuple[int, float] | None) -> bool:
    """Wait for the end of a child, or kill it; whether it came to its end.

    Args:
        child: its process id.
        log: what it writes.
        kill: after so many rows of the log, and so many seconds more; None never kills.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0, "the training process failed by itself"
            return True
        if kill and log.is_file() and log.read_bytes().count(b"\n") >= kill[0]:
            time.sleep(kill[1])
            break
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert kill, "the training process hangs"
    return False


def main(trials: int, seed: int) -> int:
    torch.set_num_threads(1)
    rng, target = random.Random(seed), tiny_target("qwen3")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_traces(target, folder / "traces")

        def train(out: Path) -> None:
            list(HeadTrainer(recipe(folder / "traces"), target, out).run(resume=True))

        assert survived(in_child(lambda: train(folder / "unbroken")), folder, None)
        expected = {row["step"]: row["loss"] for row in read_log(folder / "unbroken")}
        assert sorted(expected) == list(range(1, NUM_STEPS + 1))
        kills, worst, lost = 0, 0.0, 0
        for trial in range(trials):
            out = folder / f"trial{trial}"
            kill: tuple[int, float] | None = (rng.randrange(NUM_STEPS), rng.uniform(0, 0.1))
            while not survived(in_child(lambda out=out: train(out)), out / LOG, kill):
                kills += 1
                again = rng.random() < 0.5
                kill = (rng.randrange(NUM_STEPS), rng.uniform(0, 0.1)) if again else None
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
