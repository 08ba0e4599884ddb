"""Read a page, and see what each round brought.

python examples/read_page.py src/oneglance/assets/demo_page.png "Transcribe the document."
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

import oneglance


def main(path: Annotated[Path, typer.Argument(exists=True)], prompt: str) -> None:
    decoder = oneglance.load()  # the built-in model; or load("OWNER/MODEL", "OWNER/HEAD")
    stream = decoder.stream(prompt, images=[path], max_new_tokens=256)
    for step in stream:
        print(step.text, end="", flush=True)
    answer = stream.generation
    accepted = [len(done.token_ids) for done in answer.rounds]
    print(
        f"\n{answer.num_tokens} tokens in {len(accepted)} rounds, {answer.tau:.2f} a round: {accepted}", file=sys.stderr
    )


if __name__ == "__main__":
    typer.run(main)
