"""The matrix counts what it says, refuses unlike arms, judges what differs, and shows a broken drafter path."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from oneglance.audit import Case
from oneglance.bench.manifest import manifest
from oneglance.commands.matrix import check_out, prepare_others, written
from oneglance.core import InputError, SamplingParams, TokenTree
from oneglance.drafters.block import BlockDrafter
from oneglance.matrix import page
from oneglance.matrix.arms import Arm, Pair, arms_for, pairs_for
from oneglance.matrix.compare import Comparison, Judge, refuse_unlike
from oneglance.matrix.record import Matrix, merged, record
from oneglance.reference import Reference, reference
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.passes import FixedShape
from oneglance.testing import lucky_drafter, tiny_head, tiny_target

CAP = 10
SETTINGS = {
    "target": "t",
    "dtype": "float32",
    "attention": "sdpa",
    "device": "cpu",
    "threads": 1,
    "tensor_parallel": 1,
    "passes": "free",
}
FACTS = manifest(device="cpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "bfloat16"),
        ("attention", "eager"),
        ("device", "cuda"),
        ("threads", 2),
        ("tensor_parallel", 4),
        ("passes", "fixed/64"),
    ],
)
def test_unlike_arms_are_refused_unless_named(name: str, value: Any) -> None:
    other = {**SETTINGS, name: value}
    with pytest.raises(InputError, match=f"x: {name} is .* compare like with like"):
        refuse_unlike("x", SETTINGS, other)
    refuse_unlike("x", SETTINGS, other, differing=[name])


def test_an_arm_knows_what_its_rounding_depends_on() -> None:
    target = tiny_target("qwen3")
    arm = Arm("x", lambda t: lambda *_: (_, None), attention="eager", threads=2)  # type: ignore[arg-type, return-value]
    wanted = {**SETTINGS, "target": "tiny:qwen3", "attention": "eager", "threads": 2}
    assert arm.settings(target) == wanted
    fixed = target.with_passes(FixedShape(16, threads=3))
    assert replace(arm, is_shaped=True).settings(fixed) == {**wanted, "passes": "fixed/16", "threads": 3}
    assert arm.settings(fixed)["passes"] == "free", "the model's forward knows no shape of ours"
    target.model._tp_size = 4
    assert arm.settings(target)["tensor_parallel"] == 4


def cases(target: Target) -> list[Case]:
    return [Case(text, "text", encode(target, text)) for text in ("Read this.", "And that.", "More")]


def drafters(target: Target) -> dict[str, Any]:
    wanted = reference(target, cases(target)[0].inputs, max_new_tokens=CAP).token_ids
    length = len(cases(target)[0].inputs.token_ids)
    return {
        "head": lambda t: BlockDrafter(tiny_head(t), t, budget=7),
        "lucky": lambda t: lucky_drafter(wanted, length, seed=0, budget=15, vocab_size=t.vocab_size),
    }


def matrix(*dtypes: torch.dtype, gated: str | None = "lucky") -> Matrix:
    found = []
    for dtype in dtypes:
        target = tiny_target("qwen3", dtype=dtype)
        *_, last = record(target, drafters(target), cases(target), gated=gated, max_new_tokens=CAP)
        found.append(last)
    return merged(found, target, cases(target))


def rows(found: Matrix, mode: str = "free-running", arithmetic: str = "float32") -> dict[str, Comparison]:
    return {row.name: row for row in found.comparisons if row.mode == mode and row.arithmetic == arithmetic}


CONTROLS = [
    "plain, the same path twice",
    "plain against HF generate",
    "HF generate against our loop",
    "plain against our loop",
    "sdpa against eager",
    "1 thread against 2",
    "plain + gate (AR + gate)",
]


@pytest.mark.filterwarnings("ignore:drafting ended")
def test_every_arm_and_its_controls() -> None:
    found = matrix(torch.float32, torch.bfloat16)
    for mode, counted in (("free-running", "3/3"), ("teacher-forced", None)):
        own = rows(found, mode)
        assert list(own) == [*CONTROLS, "head", "lucky", "lucky + gate"]
        assert [row.kind for row in own.values()] == ["control"] * 7 + ["drafter"] * 3
        for row in own.values():
            assert row.identical == row.total == 3
            assert counted is None or row.counted == counted
            assert row.perturbation is not None
            assert row.perturbation < 1e-3
            assert (row.control is not None) == (row.kind == "drafter")
        assert set(rows(found, mode, "bfloat16")) == set(own)
    assert rows(found, "teacher-forced")["head"].tokens == rows(found, "teacher-forced")["head"].agreeing > 3
    precision = rows(found, arithmetic="float32 vs bfloat16")["plain"]
    assert (precision.kind, precision.total) == ("precision", 3)
    assert all(d.verdict is None for d in precision.divergences)
    assert not found.bugs
    gate = next(r for r in found.recordings if r.arm == "lucky + gate" and r.settings["dtype"] == "bfloat16")
    assert gate.notes["delta"] > 0
    assert 0 <= gate.notes["gate_rate"] < 1
    stored = page.as_dict(found, FACTS)
    assert all(len(ids) for recording in stored["recordings"] for ids in recording["token_ids"].values())
    table = page.markdown(found, FACTS)
    assert table.count("| plain, the same path twice | float32 | 3/3 |") == 1
    assert "Gate of lucky + gate in bfloat16: δ " in table


def broken_packed_passes(patch: pytest.MonkeyPatch) -> None:
    right = Target.verify

    def verify(self: Target, state: Any, root: int, tree: TokenTree) -> torch.Tensor:
        rows = right(self, state, root, tree)
        return rows.roll(1, dims=-1) if len(tree) else rows

    patch.setattr(Target, "verify", verify)


@pytest.mark.filterwarnings("ignore:drafting ended")
def test_a_broken_packed_pass_stands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_packed_passes(monkeypatch)
    found = matrix(torch.float32, gated=None)
    own = rows(found)
    assert all(row.identical == 3 for row in own.values() if row.kind == "control")
    assert all((row.identical, row.bugs) == (0, 3) for row in own.values() if row.kind == "drafter")
    forced = rows(found, "teacher-forced")["head"]
    assert forced.bugs > 3, "every wrong token counts, not only the first of a text"
    assert forced.agreeing == forced.tokens - forced.bugs
    first = own["head"].divergences[0]
    assert first.gap is not None
    assert first.expected != first.got
    logits = first.logits
    assert logits["expected"][0] - logits["expected"][1] >= first.gap - 1e-4
    assert logits["got"][1] > logits["got"][0]
    shown = page.html(found, FACTS)
    assert f"{first.case}, token {first.position}" in shown
    assert f"{logits['got'][1]:.6f}" in shown
    assert "https://" not in shown, "one file, nothing from elsewhere"
    assert "<script" not in shown


def test_text_of_a_model_is_escaped_in_the_page() -> None:
    found = Matrix([Comparison("x", "drafter", "free-running", "float32")])
    target = tiny_target("qwen3")
    texts = [target.tokenizer.encode(text) for text in ("<b>&é", "<b>&!")]
    one, other = (Reference(ids, torch.zeros(len(ids), 272), [0.0] * len(ids)) for ids in texts)
    judge = Judge(target, {"a": Arm("a", lambda t: lambda i, p: (one, None))}, SamplingParams(max_new_tokens=9))
    divergences, _ = judge.free_running(Pair("x", "drafter", "a", "a"), cases(target)[0], one, other)
    found.comparisons[0].add(divergences, tokens=5, moved=0.0)
    assert divergences[0].prefix.startswith("<b>&")
    assert "&lt;b&gt;&amp;" in page.html(found, FACTS)


def flipped(truth: Reference, at: int, token: int, noise: float) -> Reference:
    """The same answer with another token from a row that moved a little."""
    moved = truth.rows.clone()
    moved[at, token] += noise
    return Reference([*truth.token_ids[:at], token], moved[: at + 1], truth.gaps)


@pytest.mark.parametrize("is_close", [True, False])
def test_a_tie_is_what_rounding_can_do_and_float64_does_not(is_close: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target("qwen3")
    case = cases(target)[0]
    truth = reference(target, case.inputs, max_new_tokens=CAP)
    at = min(range(1, CAP), key=truth.gaps.__getitem__)
    second = int(truth.rows[at].topk(2).indices[1])
    got = flipped(truth, at, second, truth.gaps[at] + 1e-3)
    arms = {arm.name: arm for arm in arms_for(target, {}, {})}
    pair = next(pair for pair in pairs_for(list(arms.values())) if pair.got == "loop" and pair.expected == "plain")
    if is_close:  # no gap of this target is as small as real rounding
        monkeypatch.setattr("oneglance.audit.ROUNDING_ULPS", 1e9)
    judge = Judge(target, arms, SamplingParams(max_new_tokens=CAP))
    for compare in (judge.free_running, judge.teacher_forced):
        (found,), moved = compare(pair, case, truth, got)
        assert (found.position, found.expected, found.got) == (at, truth.token_ids[at], second)
        assert found.verdict == ("tie" if is_close else "bug")
        assert moved == pytest.approx(truth.gaps[at] + 1e-3, rel=1e-3)


@pytest.mark.filterwarnings("ignore:drafting ended")
def test_with_a_fixed_shape_plain_decoding_has_it_too() -> None:
    target = tiny_target("qwen3", dtype=torch.bfloat16).with_passes(FixedShape(16))
    *_, found = record(target, drafters(target), cases(target), gated="lucky", max_new_tokens=CAP)
    own = {row.name: row for row in found.comparisons if row.mode == "free-running"}
    assert "fixed shape against ordinary plain" in own
    assert "plain against HF generate" not in own
    for name in ("head", "lucky", "lucky + gate", "plain against our loop"):
        assert (own[name].identical, own[name].perturbation) == (3, 0.0)
    by_arm = {recording.arm: recording.settings["passes"] for recording in found.recordings}
    assert (by_arm["plain"], by_arm["lucky"], by_arm["ordinary"]) == ("fixed/16", "fixed/16", "free")


# Files ------------------------------------------------------------------------------------------------------------


def small() -> Matrix:
    return Matrix([Comparison("a | b", "control", "free-running", "float32", 1, 1)], skipped={"other": "needs a head"})


BEGIN, END = f"<!-- {page.PLACE}: written by the command -->", f"<!-- /{page.PLACE} -->"


def test_the_table_goes_between_the_markers_of_a_page(tmp_path: Path) -> None:
    path = tmp_path / "exactness.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    text = written(path, check_out(path), small(), FACTS)
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "Not run: other (needs a head)." in text
    path.write_text(text)
    again = written(path, check_out(path), small(), FACTS)
    assert again == text, "writing twice changes nothing"


def test_files_are_checked_before_anything_runs(tmp_path: Path) -> None:
    plain = tmp_path / "plain.md"
    plain.write_text("no place")
    for path, message in (
        (tmp_path / "x.csv", "--out writes .json, .html, .md"),
        (tmp_path / "no" / "x.json", "there is no folder"),
        (plain, "no place for the table"),
    ):
        with pytest.raises(InputError, match=message):
            check_out(path)
    stored = json.loads(written(tmp_path / "x.json", None, small(), FACTS))
    assert (stored["rows"][0]["identical"], stored["bugs"]) == (1, 0)


def test_drafters_that_need_a_checkpoint_are_named_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    import oneglance.drafters as registry

    def needs_one(head: str | None) -> Any:
        if head is None:
            raise InputError("give its checkpoint")
        return lambda target, **options: head

    monkeypatch.setattr("oneglance.testing.needs_one", needs_one, raising=False)
    monkeypatch.setattr(registry, "DRAFTERS", {**registry.DRAFTERS, "other": "oneglance.testing:needs_one"})
    ready, skipped = prepare_others([], besides=("block", "none"))
    assert "other" not in ready
    assert skipped["other"] == "give its checkpoint"
    ready, skipped = prepare_others(["other=folder"], besides=("block", "none"))
    assert ready["other"](None) == "folder"
    assert "other" not in skipped
    for text in ("other", "block=folder"):
        with pytest.raises(InputError, match="--baseline takes NAME=CHECKPOINT"):
            prepare_others([text], besides=("block", "none"))
