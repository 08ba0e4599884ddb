"""Put the draft head under code that calls ``model.generate``: the same arguments, the same tokens.

python examples/drop_in.py src/oneglance/assets/demo_chart.png "List the chart values."
"""

from pathlib import Path
from typing import Annotated

import torch
import typer

import oneglance
from oneglance.targets.chat import encode


def main(path: Annotated[Path, typer.Argument(exists=True)], prompt: str) -> None:
    decoder = oneglance.load(dtype="float32")  # in bfloat16 near ties may fall either way: docs/exactness.md
    inputs = encode(decoder.target, prompt, images=[path]).tensors  # what your AutoProcessor returns
    theirs = decoder.target.model.generate(
        **inputs, attention_mask=torch.ones_like(inputs["input_ids"]), do_sample=False, max_new_tokens=64
    )
    ours = decoder.generate_ids(**inputs, do_sample=False, max_new_tokens=64)
    same = torch.equal(ours, theirs)
    print(f"{ours.shape[1] - inputs['input_ids'].shape[1]} new tokens, {'identical' if same else 'DIFFERENT'}")
    raise typer.Exit(not same)


if __name__ == "__main__":
    typer.run(main)
