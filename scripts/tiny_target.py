"""Make an HF folder of a tiny target with random weights, and recordings for one that hears, for rows of docs/law.md.

python scripts/tiny_target.py mllama OUT     # or another family of oneglance.testing: qwen3_vl, llama, whisper, …
python scripts/tiny_target.py whisper OUT --noise 0.05     # each weight moved: a draft model that often agrees
python scripts/tiny_target.py tones OUT     # 40 WAV files of one second, and OUT/prompts.jsonl that names them
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.io import wavfile
from torch import nn

from oneglance.testing import FAMILIES, save_target, tiny_target

TONES = "tones"
RATE_HZ, NUM_RECORDINGS, NUM_TONES = 16_000, 40, 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the folder whole, or not at all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=(*FAMILIES, TONES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--noise", type=float, help="what is added to each weight, as a share of its matrix's spread")
    given = parser.parse_args(arguments)
    if given.kind == TONES and given.noise is not None:
        parser.error("--noise is of weights, and tones have none; leave it out")
    if given.out.exists():
        raise SystemExit(f"{given.out} exists; choose another folder, or use it as it is")
    partial = given.out.with_name(given.out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    if given.kind == TONES:
        record_tones(partial)
    else:
        make_target(given.kind, partial, noise=given.noise or 0.0)
    partial.rename(given.out)
    print(given.out)


def make_target(family: str, out: Path, *, noise: float) -> None:
    """The tiny target of a family, always of the same weights but for the noise."""
    target = tiny_target(family)
    if noise:
        move(target.model, noise)
    save_target(target, out)


@torch.no_grad()
def move(model: nn.Module, share: float) -> None:
    """Add noise to every matrix, of that share of its standard deviation."""
    chance = torch.Generator().manual_seed(1)
    for weights in model.parameters():
        if weights.ndim > 1:
            weights += share * weights.std() * torch.randn(weights.shape, generator=chance)


def record_tones(out: Path) -> None:
    """Recordings of a second, and a line of prompts each."""
    out.mkdir(parents=True)
    lines = []
    for number in range(NUM_RECORDINGS):
        name = f"{number:02d}.wav"
        wavfile.write(out / name, RATE_HZ, tones(number))
        lines.append(json.dumps({"id": name, "task": TONES, "audio": name}) + "\n")
    (out / "prompts.jsonl").write_text("".join(lines))


def tones(number: int) -> NDArray[np.int16]:
    """(RATE_HZ,) a few tones together, their heights and strengths drawn by ``number``."""
    chance = np.random.default_rng(number)
    heights_hz, strengths = chance.uniform(100, 3000, NUM_TONES), chance.uniform(0.2, 1, NUM_TONES)
    seconds = np.arange(RATE_HZ)[:, None] / RATE_HZ
    wave = np.sin(2 * np.pi * heights_hz * seconds) @ strengths
    return np.round(0.3 * np.iinfo(np.int16).max * wave / np.abs(wave).max()).astype(np.int16)


if __name__ == "__main__":
    main()
