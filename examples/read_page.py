"""Read a page, and see what each round brought.

python examples/read_page.py src/oneglance/assets/demo_page.png "Transcribe the document."
"""

import sys

import oneglance


def main(path: str, prompt: str) -> None:
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
    main(*sys.argv[1:3])
