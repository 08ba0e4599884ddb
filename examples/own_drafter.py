"""Write a drafter of your own: whatever it proposes, the text stays the target's.

This one remembers what followed each token in the answer so far. It keeps nothing for the next answer: a benchmark
decodes a prompt more than once, and would measure a drafter that has seen the answer.

python examples/own_drafter.py src/oneglance/assets/demo_page.png "Transcribe the document."

As a package with an entry point it is `--drafter bigrams` of every command: docs/architecture.md, "To add a drafter".
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

import oneglance
from oneglance.core import Drafter, Round, TokenTree
from oneglance.drafters.settings import Settings, read_settings
from oneglance.drafters.taken import binds
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState
from oneglance.tree import from_path

Followers = defaultdict[int, Counter[int]]


class Seen:
    """What the drafter keeps for one generation; the loop shows it each round."""

    def __init__(self) -> None:
        self.followers: Followers = defaultdict(Counter)

    def observe(self, done: Round) -> None:
        for token, following in zip((done.root, *done.token_ids), done.token_ids, strict=False):
            self.followers[token][following] += 1


class BigramDrafter:
    """A chain of each token's most frequent follower."""

    name = "bigrams"
    target_layer_ids = ()  # it reads no hidden states of the target
    num_parameters = 0  # for bench's table

    def __init__(self, length: int = 8) -> None:
        self.length = length

    def start(self, state: TargetState) -> Seen:
        return Seen()

    def draft(self, root: int, state: TargetState, draft_state: Seen, *, max_depth: int) -> TokenTree:
        followers, token = draft_state.followers, root
        chain: list[int] = []
        while len(chain) < min(self.length, max_depth) and followers[token]:
            token = followers[token].most_common(1)[0][0]
            chain.append(token)
        return from_path(chain)

    def num_passes(self, tree: TokenTree) -> int:
        return 0  # passes of a draft model; this one has none


class BigramSettings(Settings):
    length: int = Field(default=8, gt=0)


def bind(settings: BigramSettings, target: Target, *, budget: int) -> Drafter:
    """What it names of policy, budget and branch_k it takes; commands refuse the others."""
    return BigramDrafter(min(settings.length, budget))


@binds(bind)
def prepare(**settings: str) -> Callable[..., Drafter]:
    """What the entry point names; settings are what follows the name in ``bigrams:length=4``, as text."""
    return partial(bind, read_settings(BigramSettings, "bigrams", settings))


def main(path: Annotated[Path, typer.Argument(exists=True)], prompt: str) -> None:
    plain = oneglance.load(drafter="none", dtype="float32")
    drafted = oneglance.Decoder(plain.target, BigramDrafter())
    answer = drafted.generate(prompt, images=[path], max_new_tokens=64)
    same = answer.token_ids == plain.generate(prompt, images=[path], max_new_tokens=64).token_ids
    print(f"{answer.tau:.2f} tokens a round, {'identical' if same else 'DIFFERENT'}")
    raise typer.Exit(not same)


if __name__ == "__main__":
    typer.run(main)
