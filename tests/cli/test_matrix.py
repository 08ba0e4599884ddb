"""``oneglance audit --matrix`` from the command line."""

import json
from pathlib import Path

import pytest

from oneglance.commands.inspect import HEADS
from oneglance.drafters.checkpoint import save_checkpoint
from oneglance.testing import tiny_head, tiny_head_config, tiny_target

from .conftest import Run
from .test_inspect import OTHERS

WORDS = ["audit", "--matrix", "--prompts", 1, "--tasks", "chartqa", "--max-new-tokens", 6, "--budget", 7]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [[], ["--fixed-shape"]], ids=["free", "fixed"])
def test_matrix_of_the_builtin_target(run: Run, tmp_path: Path, shape: list[str]) -> None:
    files = [tmp_path / f"matrix.{kind}" for kind in ("json", "html", "md")]
    done = run(*WORDS, *shape, *(word for path in files for word in ("--out", path)))
    assert done.code == 0, done.err
    assert "| tree/7 + gate | bfloat16 |" in done.out
    assert done.out.strip().endswith("bugs")
    stored = json.loads(files[0].read_text())
    assert {row["mode"] for row in stored["rows"]} == {"free-running", "teacher-forced"}
    assert {recording["settings"]["dtype"] for recording in stored["recordings"]} == {"float32", "bfloat16"}
    assert stored["bugs"] == 0
    assert files[1].read_text().startswith("<!doctype html>")
    assert "| tree/7 | float32 | 1/1 |" in files[2].read_text()


def test_every_kind_of_head_can_be_an_arm(run: Run, vision_target: Path, tmp_path: Path) -> None:
    """Whatever drafter of the registry reads a head: ``--baseline NAME=HEAD`` gives it one."""
    target = tiny_target("qwen3_vl")
    words: list[object] = []
    for drafter, (make, raw_of) in OTHERS.items():
        save_checkpoint(make(target), tmp_path / drafter, raw_of(target))
        words += ["--baseline", f"{drafter}={tmp_path / drafter}"]
    assert {*OTHERS, "block"} == HEADS.keys()
    save_checkpoint(tiny_head(target), tmp_path / "block", tiny_head_config(target))
    words += [
        "--target",
        vision_target,
        "--head",
        tmp_path / "block",
        "--threads",
        1,
        "--gate",
        0.01,
        "--max-new-tokens",
        3,
        "--json",
    ]
    done = run(*WORDS, *words)
    assert done.code == 0, done.err
    found = {row["name"]: row["total"] for row in done.json["rows"] if row["mode"] == "free-running"}
    for drafter in OTHERS:
        assert found[f"{drafter}/7"] == 1
    assert not OTHERS.keys() & done.json["skipped"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["audit", "generate", "bench"])
def test_fixed_shape(run: Run, command: str) -> None:
    words: dict[str, list[object]] = {
        "audit": ["audit", "--prompts", 1, "--tasks", "chartqa"],
        "generate": ["generate", "Say something."],
        "bench": ["bench", "--limit", 1, "--tasks", "chartqa", "--systems", "plain,plain-shaped,tree"],
    }
    options = ["--fixed-shape", "--dtype", "bfloat16", "--max-new-tokens", 6, "--budget", 7, "--json"]
    result = run(*words[command], *options).json
    if command == "audit":
        assert (result["identical"], result["total"], result["passes"]) == (1, 1, "fixed/16")
        assert result["max_logit_perturbation"] == 0
    elif command == "bench":
        assert all(row["identical"] == 1 for row in result["rows"] if row["system"] != "plain")
    else:
        assert result["num_tokens"] >= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["audit", "--gate", "0.1"], "--gate, --baseline and --out go with --matrix"),
        (["bench", "--systems", "plain,plain-shaped"], "plain-shaped goes with --fixed-shape"),
        (["audit", "--matrix", "--out", "x.csv"], "--out writes .json, .html, .md"),
        (["audit", "--matrix", "--dtype", "bfloat16"], "--matrix runs chain and tree at one budget"),
        (["audit", "--matrix", "--budget", "3", "--budget", "7"], "--matrix runs chain and tree at one budget"),
    ],
)
def test_options_that_would_be_ignored_are_refused(run: Run, words: list[str], message: str) -> None:
    assert message in run(*words).error


@pytest.mark.slow
def test_sampled_audit(run: Run) -> None:
    words = ["audit", "--prompts", 1, "--tasks", "chartqa", "--max-new-tokens", 8, "--json"]
    report = run(*words, "--temperature", 1.0, "--seed", 3).json
    assert (report["identical"], report["total"], report["hf_generate"]["total"]) == (1, 1, 0)
    assert "--matrix compares greedy text" in run(*WORDS, "--temperature", 1.0).error
