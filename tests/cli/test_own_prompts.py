"""A target that reads no page is proven and timed on prompts of one's own, and says so where it is asked pages."""

import json
from pathlib import Path

import pytest

from oneglance.commands.bench import show
from oneglance.commands.terminal import console

from .conftest import Run

WORDS = ("--max-new-tokens", 8, "--dtype", "float32")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rows = [{"prompt": "Hello", "task": "chat"}, {"prompt": "Write a list.", "task": "list", "system": None}]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_text_target_is_audited(run: Run, text_target: Path, text_head: Path, texts: Path) -> None:
    pair = ("--target", text_target, "--head", text_head)
    report = run("audit", *pair, "--prompts", texts, *WORDS, "--json").json
    assert (report["identical"], report["total"], report["manifest"]["prompts"]) == (2, 2, 2)
    assert report["per_task"] == {task: {"identical": 1, "total": 1} for task in ("chat", "list")}
    assert report["hf_generate"] == {"identical": 2, "total": 2}
    lines = run("audit", *pair, "--prompts", texts, *WORDS).out.splitlines()
    assert [line.split("│")[1].strip() for line in lines if line.startswith("│")] == ["task"] * 2 + [
        "tree/budget",
        "all",
    ]
    assert "transformers' generate against the same loop: 2/2 identical" in lines


@pytest.mark.parametrize("command", ["audit", "bench", "rounds", "collect", "calibrate-gate"])
def test_a_text_target_that_is_asked_pages_says_how_to_ask_it(
    run: Run, text_target: Path, tmp_path: Path, command: str
) -> None:
    words: list[object] = [command, "--target", text_target, "--tasks", "caption", "--max-new-tokens", 4]
    words += ["--limit", 1] if command in ("bench", "rounds", "collect") else ["--prompts", 1]
    words += ["--out", tmp_path / "out"] if command in ("rounds", "collect", "calibrate-gate") else []
    words += {"bench": ["--systems", "plain"], "collect": []}.get(command, ["--drafter", "ngram"])
    error = run(*words).error
    assert "is a text-only target and takes no images, and prompt caption-" in error
    assert error.endswith('give --prompts FILE, JSONL with an object {"prompt": …} a line')


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["0"], "--prompts takes a number of at least 1, or a file, got 0"),
        (["-3"], "--prompts takes a number of at least 1, or a file, got -3"),
        (["nowhere.jsonl"], "cannot read prompts nowhere.jsonl"),
        (["{texts}", "--tasks", "docvqa"], "give --tasks or a file of --prompts, not both"),
    ],
)
def test_neither_number_nor_file(run: Run, texts: Path, words: list[str], message: str) -> None:
    assert message in run("audit", "--prompts", *(word.format(texts=texts) for word in words)).error


def row(task: str, system: str) -> dict[str, object]:
    stages = dict.fromkeys(("draft_ms", "build_ms", "verify_ms", "commit_ms", "host_ms"), 1234.5)
    given = {"task": task, "system": system, "n": 1, "tokens": 12.0, "score": None, "prefill_share": 0.1, "tau": 12.34}
    facts = {
        "passes": 1.0,
        "nodes": 63.0,
        "num_parameters": 1_365_696,
        "weights": "builtin:reader",
        "is_outside": False,
    }
    times = {"ms_per_token": 1234.5, "paper_window": 12.3, "ci_low": 1.23, "ci_high": 3.45, "is_lossless": True}
    speed = {"speedup": None if system == "plain" else 2.34, "wins": 1, "identical": 1, "replicates": 1}
    return {**stages, **given, **facts, **times, **speed, "entropy_nats": 1.0, "extra_input": None}


def test_a_table_of_a_benchmark_is_whole_and_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    margin = {"task": "chat", "ours": "tree", "other": "chain", "n": 1, "wins": 1, "low": None, "high": None}
    result = {
        "rows": [row("chat", system) for system in ("plain", "chain", "tree")],
        "geomean_speedup": {"tree": 2.34},
        "margins": [{**margin, "over_ours": 0.337, "over_other": 0.252}],
        "projections": [],
        "plain_drift": {"halves": {}, "spread": 0.0},
    }
    show(console(), result)
    said = capsys.readouterr().out
    assert "…" not in said
    assert "draft ms ┃ verify ms ┃ rest ms" in said
    assert (
        "chat: tree is 33.7% faster than chain and takes 25.2% less time a token; it is ahead on 1 of 1 prompts" in said
    )
    assert "Table" not in said, "the paper's tables are the manual's"
    assert "plain decoding:" not in said, "one prompt tells nothing of steadiness"
    assert "geometric mean" not in said, "of one task"
    result["rows"] += [row("list", "plain")]
    result["plain_drift"] = {"halves": {"chat": 1.02}, "spread": 0.276}
    result["margins"] = [{**margin, "over_ours": -0.1, "over_other": -0.111}]
    show(console(), result)
    said = " ".join(capsys.readouterr().out.split())
    assert "tree: geometric mean of the tasks' speedups 2.34" in said
    assert "its time a token differs by at most 27.6% between tasks" in said
    assert "in the second half of the prompts it is +2.0% in chat against the first" in said
    assert "tree is 10.0% slower than chain and takes 11.1% more time a token" in said
