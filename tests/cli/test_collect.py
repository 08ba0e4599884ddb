"""``oneglance collect``: options, dry run, JSON."""

import json
from pathlib import Path

import pytest

from .conftest import Run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --prompts FILE or --tasks NAMES"),
        (["--tasks", "docvqa", "--prompts", "x.jsonl"], "give either --prompts FILE or --tasks NAMES"),
        (["--tasks", "docvqa"], "give --limit, pages a task"),
        (["--tasks", "poetry", "--limit", "1"], "unknown task"),
        (["--tasks", "docvqa", "--limit", "1", "--split", "test"], "--split takes train or eval"),
        (["--tasks", "docvqa", "--limit", "1", "--max-new-tokens", "1"], "at least two answer tokens"),
        (["--tasks", "docvqa", "--limit", "1", "--on-bad-sample", "cry"], "takes skip or error"),
        (["--tasks", "docvqa", "--limit", "1", "--url", "http://h:1", "--runner", "eager"], "drop --runner eager"),
        (["--tasks", "docvqa", "--limit", "1", "--url", "localhost"], "takes http://host:port"),
        (["--tasks", "docvqa", "--limit", "1", "--no-resume"], "is not empty"),
        (["--prompts", "missing.jsonl"], "cannot read prompts missing.jsonl"),
    ],
)
def test_bad_input_is_one_line(run: Run, tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "something").touch()
    assert message in run("collect", "--out", tmp_path, *words).error


def test_a_dry_run_writes_nothing_and_a_run_writes_traces(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "traces"
    words = ["collect", "--out", out, "--tasks", "textvqa", "--limit", 2, "--max-new-tokens", 8, "--threads", 1]
    estimate = run(*words, "--dry-run", "--json").json["estimate"]
    assert estimate["prompts"] == 2
    assert estimate["seconds"] > 0
    assert not out.exists()
    result = run(*words, "--head", "builtin:reader", "--json").json
    assert (result["done"], result["total"], result["skipped"]) == (2, 2, {})
    ids = [json.loads(line)["id"] for line in (out / "traces.jsonl").read_text().splitlines()]
    assert ids == ["textvqa-train-000000", "textvqa-train-000001"]
    again = run(*words)
    assert "2 traces" in again.out
    assert "0 prompts" in again.err
