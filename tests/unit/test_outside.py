"""Systems from outside: they take their turn, fail alone, and are never divided by ours."""

from __future__ import annotations

import pytest
from PIL import Image

from helpers import picture
from oneglance.bench.cases import Case
from oneglance.bench.metrics import summarise
from oneglance.bench.outside import Answered, Generate, open_outside, split
from oneglance.bench.runner import Bench
from oneglance.core import InputError, SamplingParams
from oneglance.drafters import prepare
from oneglance.engines.client import Answer, Client, Counters
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs
from oneglance.testing import tiny_target


def cases() -> list[Case]:
    def images(i: int) -> list[Image.Image]:
        return [picture(i)]

    return [Case(str(i), "t", f"Say {i}.", lambda i=i: images(i)) for i in range(2)]  # type: ignore[misc]


class Broken:
    def ask(self, case: Case, inputs: Inputs, *, max_new_tokens: int) -> Answered:
        raise IndexError("no such row\nand more")


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3_vl")


def test_transformers_takes_its_turn_and_gets_no_ratio(target: Target) -> None:
    outside = {"transformers": Generate(target), "broken": Broken()}
    bench = Bench(target, {"plain": prepare("none", None)}, SamplingParams(max_new_tokens=6), warmup=1, outside=outside)
    records = [record for made in bench.run(cases()) for record in made]
    assert [r.system for r in records] == ["plain", "transformers", "broken"] * 2
    plain, theirs, broken = summarise(records)
    assert (theirs.identical, theirs.is_outside, theirs.failures) == (2, True, 0)
    assert theirs.tokens == plain.tokens
    assert theirs.speedup is theirs.tau is None
    assert theirs.first_ms is not None
    assert theirs.end_to_end_ms is not None
    assert 0 < theirs.first_ms < theirs.end_to_end_ms
    assert (broken.identical, broken.failures, broken.failure) == (0, 2, "IndexError: no such row")
    assert broken.ms_per_token is None


def test_a_server_is_asked_and_its_own_counts_are_kept(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([Counters(10, 150, 40), Counters(12, 180, 45)])
    asked = []

    def ask(self: Client, prompt: str, **options: object) -> Answer:
        asked.append((prompt, options["max_new_tokens"]))
        return Answer("abc", None, 4, "stop", 5.0, 9.0)

    monkeypatch.setattr(Client, "counters", lambda self: next(counts))
    monkeypatch.setattr(Client, "ask", ask)
    served = open_outside(["server@http://127.0.0.1:9"], target)["server@http://127.0.0.1:9"]
    case = cases()[0]
    answer = served.ask(case, case.encode(target), max_new_tokens=8)
    assert asked == [("Say 0.", 8)]
    assert answer == Answered(tuple(target.tokenizer.encode("abc")), 5.0, 9.0, 2, 5)


def test_names_are_split_and_checked(target: Target) -> None:
    names = ["plain", "transformers", "eagle3@x", "server@http://h", "transformers-assisted@y"]
    assert split(names) == (["plain", "eagle3@x"], ["transformers", "server@http://h", "transformers-assisted@y"])
    for name, message in (
        ("transformers@x", "takes nothing after it"),
        ("server", "server@URL"),
        ("transformers-dflash", "transformers-dflash@FOLDER"),
        ("transformers-assisted@/nowhere", "cannot be opened"),
    ):
        with pytest.raises(InputError, match=message):
            open_outside([name], target)
