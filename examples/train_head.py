"""Train a draft head on the target's own answers to your pictures, then read one of them with it.

Two pictures and two steps make no good head: give a folder of yours, more steps, and see docs/training.md.

python examples/train_head.py src/oneglance/assets runs/example-head 2
"""

from pathlib import Path
from typing import Annotated

import typer

import oneglance
from oneglance.train.collect import LocalAnswerer
from oneglance.train.fit import collection, make_plan
from oneglance.train.trainer import HeadTrainer

TARGET, QUESTION = "builtin:reader", "Transcribe the document."


def main(images: Annotated[Path, typer.Argument(exists=True)], out: Path, steps: int) -> None:
    changes = ["head.num_layers=1", "data.num_anchors=8", f"optimiser.max_steps={steps}"]
    plan = make_plan(images, out, target=TARGET, questions=[QUESTION], overrides=changes, max_new_tokens=48)
    plain = oneglance.load(TARGET, drafter="none")
    answerer = LocalAnswerer(plain, max_new_tokens=plan.max_new_tokens)
    for folder in plan.parts:
        for done in collection(plan, folder, answerer).run(answerer):
            print(f"{folder}: {done.done} of {done.total} answered")
    trainer = HeadTrainer(plan.recipe, plain.target, out / "run")
    for progress in trainer.run():
        print(f"step {progress.step}: loss {progress.loss:.3f}, held-out tau {progress.tau}")
    drafted = oneglance.load(TARGET, str(out / "run" / "head"))
    answer = drafted.generate(QUESTION, images=[plan.heldout[0].images[0]], max_new_tokens=48)
    print(f"{answer.tau:.2f} tokens a round with the new head")


if __name__ == "__main__":
    typer.run(main)
