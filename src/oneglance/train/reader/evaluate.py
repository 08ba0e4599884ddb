"""Greedy answers to held-out prompts, graded per family.

`python -m oneglance.train.reader.evaluate run/a/checkpoint.pt --num 8 [--show]`
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration

from oneglance.tasks.base import TASKS, Example
from oneglance.tasks.grading import Grade, grade
from oneglance.tasks.synthetic import examples
from oneglance.train.reader.data import CELL, PATCH, patchify
from oneglance.train.reader.export import target_of
from oneglance.train.reader.recipe import Shape
from oneglance.train.reader.tokens import Encoder

MAX_TOKENS: Final = 160
BATCH: Final = 8


@torch.inference_mode()
def answers(target: Qwen3VLForConditionalGeneration, encoder: Encoder, batch: Sequence[Example]) -> list[str]:
    """Greedy answers to examples of one prompt and page size."""
    width, height = batch[0].image.size
    ids = torch.tensor([encoder.prompt(batch[0].prompt, width * height // CELL**2)] * len(batch))
    output: Tensor = target.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == encoder.image_id).int(),
        pixel_values=torch.cat([two_frames(example) for example in batch]),
        image_grid_thw=torch.tensor([[1, height // PATCH, width // PATCH]] * len(batch)),
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        eos_token_id=encoder.end_id,
        pad_token_id=encoder.end_id,
    )
    rows = output[:, ids.shape[1] :].tolist()
    return [encoder.tokenizer.decode(row, skip_special_tokens=True) for row in rows]


def two_frames(example: Example) -> Tensor:
    """A page as the processor gives it: each patch twice, for two temporal frames. (P, 1536)"""
    patches = torch.from_numpy(patchify(example.image))
    return patches.view(len(patches), 3, 1, -1).expand(-1, -1, 2, -1).flatten(1)


def run(target: Qwen3VLForConditionalGeneration, encoder: Encoder, task: str, num: int) -> list[tuple[Example, str]]:
    """Held-out examples of a family with their answers."""
    groups: dict[str, list[Example]] = defaultdict(list)
    for example in examples(task, split="eval", limit=num):
        groups[example.prompt].append(example)
    done = []
    for group in groups.values():
        for start in range(0, len(group), BATCH):
            batch = group[start : start + BATCH]
            done += list(zip(batch, answers(target, encoder, batch), strict=True))
    return done


def summary(task: str, grades: list[Grade]) -> str:
    """One line of figures."""
    total, right = sum(g.total for g in grades), sum(g.right for g in grades)
    line = f"{task:10s} n={len(grades)} right {right}/{total} = {right / max(total, 1):.3f}"
    if chars := sum(g.num_chars for g in grades):
        line += f" cer {sum(g.char_errors for g in grades) / chars:.4f}"
    if wordings := {g.wording for g in grades if g.wording}:
        line += f" wordings {len(wordings)}"
    return line


def main() -> None:
    """Parse the arguments and print a line per family."""
    parser = argparse.ArgumentParser(description="Grade a checkpoint on held-out prompts.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--num", type=int, default=8)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--show", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    target, encoder = target_of(args.checkpoint, Shape())
    for task in args.tasks:
        done = run(target, encoder, task, args.num)
        print(summary(task, [grade(example, answer) for example, answer in done]), flush=True)
        for example, answer in done[: args.show]:
            print("  wanted", repr(example.answer))
            print("  given ", repr(answer))


if __name__ == "__main__":
    main()
