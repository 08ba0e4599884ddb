"""``oneglance audit --matrix`` from the command line."""

import json
from pathlib import Path

import pytest

from .conftest import Run

WORDS = ["audit", "--matrix", "--prompts", 1, "--tasks", "chartqa", "--max-new-tokens", 6, "--budget", 7]


@pytest.mark.slow
def test_matrix_of_the_builtin_target(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "matrix.json"
    done = run(*WORDS, "--out", out)
    assert done.code == 0, done.err
    lines = done.out.strip().splitlines()
    assert lines[0].startswith("| row | arithmetic | identical")
    assert any(line.startswith("| tree/7 + gate | bfloat16 |") for line in lines)
    stored = json.loads(out.read_text())
    assert len(stored["rows"]) == len(lines) - 2 == 2 * 8 + 1
    assert {recording["settings"]["dtype"] for recording in stored["recordings"]} == {"float32", "bfloat16"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["audit", "--gate", "0.1"], "--gate and --out go with --matrix"),
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
