"""Ask a running ``oneglance serve`` with the openai client, and see what drafting brought.

oneglance serve
python examples/openai_client.py src/oneglance/assets/demo_page.png "Transcribe the document."
"""

import base64
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from openai import OpenAI


def main(path: Annotated[Path, typer.Argument(exists=True)], prompt: str) -> None:
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("ONEGLANCE_API_KEY", "none"),
    )
    image = base64.b64encode(path.read_bytes()).decode()
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
                    {"type": "text", "text": prompt},
                ],
            }
        ],
        stream=True,
        extra_body={"budget": 63},
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        metrics = (chunk.model_extra or {}).get("metrics")
        if metrics:
            drafted = metrics["speculative_decoding"]
            print(f"\n{drafted['num_rounds']} rounds, {drafted['tau']:.2f} tokens a round", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
