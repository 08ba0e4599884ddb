"""Kill a training run with SIGKILL at random moments and resume it, again and again; nothing may be lost.

``python tests/train/kill_resume.py --trials 50 --out FILE`` prints one line a trial, writes a JSON summary with its
manifest, and exits with 1 if a row of the log is lost or stands twice, or a row or a trained tensor differs from the
unbroken run's. Trials are in turn from scratch and warm-started, which logs step 0, too. The parent never trains, so
that its forked children start from a clean torch.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from oneglance.bench.manifest import manifest
from oneglance.core import SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.checkpoint import save_checkpoint
from oneglance.drafters.plain import NoDrafter
from oneglance.files import write_atomically
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import tiny_head, tiny_head_config, tiny_target
from oneglance.train.recipe import Data, HeadRecipe, HeadShape, Optimiser, Schedule
from oneglance.train.runlog import LOG, RECIPE, read_log
from oneglance.train.traces import Trace, append_traces
from oneglance.train.trainer import HeadTrainer

ARMS = ("scratch", "warm")
NUM_STEPS = 12
TIMEOUT_S = 300


def write_traces(target: Target, folder: Path, indices: range) -> None:
    for index in indices:
        inputs = encode(target, f"Question {index}")
        stream = Decoder(target, NoDrafter()).stream_inputs(inputs, SamplingParams(max_new_tokens=24))
        list(stream)
        list(
            append_traces(
                folder, [Trace(f"t{index}", "text", f"Question {index}", (), tuple(stream.generation.token_ids))]
            )
        )


def recipe(folder: Path, arm: str) -> HeadRecipe:
    """``scratch`` or ``warm``: from the head that lies in the folder, scored before it learns anything."""
    is_warm = arm == "warm"
    return HeadRecipe(
        name="kill",
        init=str(folder / "start") if is_warm else None,
        save_dtype="float32",
        data=Data(train=str(folder / "train"), heldout=str(folder / "heldout") if is_warm else None, num_anchors=4),
        head=HeadShape(num_layers=1, target_layer_ids=(1, 2), head_dim=8),
        optimiser=Optimiser(lr=3e-3, batch_size=2, epochs=None, max_steps=NUM_STEPS),
        schedule=Schedule(log_every=1, save_every=2, keep=2, tau_prompts=1, tau_budget=7),
    )


def prepare(target: Target, folder: Path) -> None:
    """Traces to learn from and to judge by, and a head to start from."""
    write_traces(target, folder / "train", range(6))
    write_traces(target, folder / "heldout", range(6, 8))
    raw = tiny_head_config(target, num_layers=1, kept=[1, 2])
    save_checkpoint(tiny_head(target, num_layers=1, kept=[1, 2]), folder / "start", raw)


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


@dataclass
class Tally:
    """What the trials of an arm came to.

    Attributes:
        trials, kills: as done.
        resumed: starts that found a run there.
        lost_rows, double_rows: of the logs, against the unbroken run's.
        differing_rows: that say anything else than the unbroken run's, the rate aside.
        differing_tensors: of the final heads, bit for bit.
        max_relative_difference: of a step's loss.
    """

    trials: int = 0
    kills: int = 0
    resumed: int = 0
    lost_rows: int = 0
    double_rows: int = 0
    differing_rows: int = 0
    differing_tensors: int = 0
    max_relative_difference: float = 0.0

    def compare(self, out: Path, unbroken: Path) -> None:
        """Judge a finished run."""
        rows, wanted = rows_of(out), {row["step"]: row for row in rows_of(unbroken)}
        steps = [row["step"] for row in rows]
        self.lost_rows += len(wanted.keys() - set(steps))
        self.double_rows += len(steps) - len(set(steps))
        self.differing_rows += sum(row != wanted[row["step"]] for row in rows)
        for row in rows:
            if "loss" in row:
                loss = wanted[row["step"]]["loss"]
                self.max_relative_difference = max(self.max_relative_difference, abs(row["loss"] - loss) / loss)
        ours, theirs = (load_file(folder / "head" / "model.safetensors") for folder in (out, unbroken))
        assert ours.keys() == theirs.keys()
        self.differing_tensors += sum(not torch.equal(ours[name], theirs[name]) for name in ours)

    @property
    def is_clean(self) -> bool:
        return not (self.lost_rows or self.double_rows or self.differing_rows or self.differing_tensors)


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The log, without what no two runs share."""
    return [{key: value for key, value in row.items() if key != "samples_per_s"} for row in read_log(out)]


def trial(train: Callable[[Path], None], out: Path, rng: random.Random, tally: Tally) -> None:
    """Train into ``out``, killed once at least unless it ends before, and resumed until it is through."""
    kill: tuple[int, float] | None = (rng.randrange(NUM_STEPS), rng.uniform(0, 0.1))
    while True:
        tally.resumed += (out / RECIPE).is_file()
        if survived(in_child(lambda: train(out)), out / LOG, kill):
            break
        tally.kills += 1
        again = rng.random() < 0.5
        kill = (rng.randrange(NUM_STEPS), rng.uniform(0, 0.1)) if again else None
    tally.trials += 1


def main(trials: int, seed: int, out: Path | None) -> int:
    torch.set_num_threads(1)
    rng, target = random.Random(seed), tiny_target("qwen3")
    tallies = {arm: Tally() for arm in ARMS}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(target, folder)

        def trainer(arm: str) -> Callable[[Path], None]:
            return lambda run: deque(HeadTrainer(recipe(folder, arm), target, run).run(resume=True), maxlen=0)

        for arm in ARMS:
            unbroken = folder / f"unbroken-{arm}"
            assert survived(in_child(lambda arm=arm, unbroken=unbroken: trainer(arm)(unbroken)), folder, None)
            first = 0 if arm == "warm" else 1
            assert [row["step"] for row in read_log(unbroken)] == list(range(first, NUM_STEPS + 1))
        for index in range(trials):
            arm = ARMS[index % len(ARMS)]
            trial(trainer(arm), folder / f"trial{index}", rng, tallies[arm])
            tallies[arm].compare(folder / f"trial{index}", folder / f"unbroken-{arm}")
            print(f"trial {index}, {arm}: {asdict(tallies[arm])} so far", flush=True)
    parts = {arm: asdict(tally) for arm, tally in tallies.items()}
    result = {key: sum(part[key] for part in parts.values()) for key in asdict(Tally()) if not key.startswith("max")}
    result["max_relative_difference"] = max(tally.max_relative_difference for tally in tallies.values())
    if out is not None:
        kept = {"manifest": manifest(kind="kill-resume", seed=seed, steps=NUM_STEPS), **result, "arms": parts}
        write_atomically(out, json.dumps(kept, indent=2) + "\n")
    print(json.dumps(result))
    return int(not all(tally.is_clean for tally in tallies.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the summary here, with its manifest")
    arguments = parser.parse_args()
    sys.exit(main(arguments.trials, arguments.seed, arguments.out))
