"""`python -m oneglance.train.reader recipes/reader-target.yaml [--resume]`: train the target.

It uses one thread. A second process with `--helper` adds its micro-batches to the same run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from oneglance.train.reader.recipe import load
from oneglance.train.reader.trainer import Run


def main() -> None:
    """Parse the arguments and train."""
    parser = argparse.ArgumentParser(description="Train the embedded target on the built-in suite.")
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--resume", action="store_true", help="go on from the recipe's checkpoint")
    parser.add_argument("--helper", action="store_true", help="add micro-batches to a running leader's steps")
    args = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load(args.recipe)
    recipe.out.mkdir(parents=True, exist_ok=True)
    run = Run.start(recipe, is_leader=not args.helper)
    if args.helper:
        run.help()
        return
    if args.resume:
        run.resume()
    run.train()


if __name__ == "__main__":
    main()
