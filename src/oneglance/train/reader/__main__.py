"""`python -m oneglance.train.reader recipes/reader-target.yaml [--resume]`: train the target.

It uses one thread. A second process with `--helper` adds its micro-batches to the same run.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import torch

from oneglance.core import InputError
from oneglance.files import sole_writer
from oneglance.train.reader.recipe import Recipe, load
from oneglance.train.reader.trainer import Run

HELP = "add --helper to work on that run, or give the recipe another out"


def main() -> int:
    """Parse the arguments, train, and return the exit code."""
    parser = argparse.ArgumentParser(description="Train the embedded target on the built-in suite.")
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--resume", action="store_true", help="go on from the recipe's checkpoint")
    parser.add_argument("--helper", action="store_true", help="add micro-batches to a running leader's steps")
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        recipe = load(args.recipe)
        with nullcontext() if args.helper else sole_writer(recipe.out, fix=HELP):
            train(recipe, is_helper=args.helper, resume=args.resume)
    except InputError as error:
        import_module("oneglance.cli").say("error", error)  # looked up by name: this room does not depend on it
        return 2
    return 0


def train(recipe: Recipe, *, is_helper: bool, resume: bool) -> None:
    """Lead a run to its end, or help with one."""
    recipe.out.mkdir(parents=True, exist_ok=True)
    run = Run.start(recipe, is_leader=not is_helper)
    if is_helper:
        run.help()
        return
    if resume:
        run.resume()
    run.train()


if __name__ == "__main__":
    sys.exit(import_module("oneglance.__main__").guarded(main))
