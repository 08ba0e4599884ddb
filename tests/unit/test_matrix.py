"""The matrix counts what it says, refuses unlike arms, and shows a broken drafter path next to intact controls."""

from typing import Any

import pytest
import torch

from oneglance.audit import Case, reference
from oneglance.core import InputError, TokenTree
from oneglance.drafters.block import BlockDrafter
from oneglance.matrix import Comparison, Recording, as_dict, compare, markdown, record, rows
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import lucky_drafter, tiny_head, tiny_target

CAP = 16
SETTINGS = {"target": "t", "dtype": "float32", "attention": "sdpa", "device": "cpu", "threads": 1}


def recording(arm: str, ids: list[int], **settings: Any) -> Recording:
    return Recording(arm, {**SETTINGS, **settings}, {"a": ids, "b": [1]}, {"a": [0.5, 0.25, 0.125]})


def test_a_comparison_counts_and_locates() -> None:
    row = compare("x", "control", recording("p", [1, 2, 3]), recording("q", [1, 7]))
    assert (row.identical, row.total, row.arithmetic) == (1, 2, "float32")
    (first,) = row.divergences
    assert (first.case, first.position, first.expected, first.got, first.gap) == ("a", 1, 2, 7, 0.25)
    short = compare("x", "control", recording("p", [1, 2]), recording("q", [1, 2, 3]))
    assert (short.divergences[0].position, short.divergences[0].expected, short.divergences[0].got) == (2, None, 3)


@pytest.mark.parametrize(
    ("name", "value"), [("dtype", "bfloat16"), ("attention", "eager"), ("device", "cuda"), ("threads", 2)]
)
def test_unlike_arms_are_refused_unless_named(name: str, value: Any) -> None:
    one, other = recording("p", [1]), recording("q", [1], **{name: value})
    with pytest.raises(InputError, match=f"x: {name} is .* compare like with like"):
        compare("x", "drafter", one, other)
    assert compare("x", "precision", one, other, differing=[name]).identical == 2
    with pytest.raises(InputError, match="different prompts"):
        compare("x", "control", one, Recording("q", dict(SETTINGS)))


def cases(target: Target) -> list[Case]:
    return [Case(text, "text", encode(target, text)) for text in ("Read this.", "And that.", "More")]


def matrix(patch: pytest.MonkeyPatch | None = None) -> tuple[list[Comparison], list[Recording]]:
    recordings: list[Recording] = []
    for dtype in (torch.float32, torch.bfloat16):
        target = tiny_target("qwen3", dtype=dtype)
        wanted = reference(target, cases(target)[0].inputs, max_new_tokens=CAP).token_ids
        length = len(cases(target)[0].inputs.token_ids)
        drafters = {
            "head": lambda t: BlockDrafter(tiny_head(t), t, budget=7),
            "lucky": lambda t, w=wanted, n=length: lucky_drafter(w, n, seed=0, budget=15, vocab_size=t.vocab_size),
        }
        *_, done = record(target, drafters, cases(target), max_new_tokens=CAP)
        recordings += done
    return rows(recordings), recordings


@pytest.mark.filterwarnings("ignore:drafting ended")
def test_every_arm_and_its_controls() -> None:
    found, recordings = matrix()
    by_name = {(row.name, row.arithmetic): row for row in found}
    for name in ("plain, twice", "generate against our loop", "plain against our loop", "sdpa against eager"):
        assert by_name[name, "float32"].kind == "control"
        assert by_name[name, "float32"].identical == 3
    assert by_name["1 thread against 2", "float32"].total == 3
    for name in ("head", "lucky", "lucky + gate"):
        row = by_name[name, "float32"]
        assert (row.kind, row.identical, row.total) == ("drafter", 3, 3)
        assert row.control is not None
        assert row.control.endswith("/3")
        assert by_name[name, "bfloat16"].total == 3
    assert by_name["plain", "float32 vs bfloat16"].kind == "precision"
    table = markdown(found)
    assert table.count("\n") == len(found) + 1
    stored = as_dict(found, recordings)
    assert len(stored["recordings"]) == 2 * 9
    assert all(len(ids) for recording in stored["recordings"] for ids in recording["token_ids"].values())
    gate = next(r for r in recordings if r.arm == "lucky + gate" and r.settings["dtype"] == "bfloat16")
    assert gate.notes["delta"] > 0


@pytest.mark.filterwarnings("ignore:drafting ended")
def test_a_broken_packed_pass_stands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Target.verify

    def verify(self: Target, state: Any, root: int, tree: TokenTree) -> torch.Tensor:
        rows = right(self, state, root, tree)
        return rows.roll(1, dims=-1) if len(tree) else rows

    monkeypatch.setattr(Target, "verify", verify)
    found, _ = matrix()
    exact = [row for row in found if row.arithmetic == "float32"]
    assert all(row.identical == 3 for row in exact if row.kind == "control")
    assert all(row.identical == 0 for row in exact if row.name in ("head", "lucky"))
    assert all(row.divergences[0].gap is not None for row in exact if row.name == "head")
