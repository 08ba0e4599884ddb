"""``oneglance collect``: options, dry run, JSON."""

import errno
import json
import re
from pathlib import Path

import pytest

from oneglance.commands import terminal

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
        (
            ["--tasks", "docvqa", "--limit", "1", "--url", "http://x", "--head", "builtin:reader"],
            "--head works in this",
        ),
        (["--tasks", "docvqa", "--limit", "1", "--url", "http://x", "--cache-features"], "--cache-features works in"),
        (["--tasks", "docvqa", "--limit", "1", "--url", "http://x", "--device", "cpu"], "--device works in"),
        (["--tasks", "docvqa", "--limit", "1", "--concurrency", "2"], "--concurrency is for servers"),
        (["--tasks", "docvqa", "--limit", "1", "--layers", "1,2"], "add --cache-features"),
        (["--tasks", "docvqa", "--limit", "1", "--cache-features", "--layers", "1,9"], "different ones of 0 to 7"),
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
    assert estimate["num_prompts"] == 2
    assert estimate["seconds"] > 0
    assert not out.exists()
    result = run(*words, "--head", "builtin:reader", "--json").json
    assert (result["done"], result["total"], result["skipped"]) == (2, 2, {})
    ids = [json.loads(line)["id"] for line in (out / "traces.jsonl").read_text().splitlines()]
    assert ids == ["textvqa-train-000000", "textvqa-train-000001"]
    again = run(*words)
    assert "2 traces" in again.out
    assert "0 prompts" in again.err


def test_a_dry_run_of_servers_says_that_it_knows_no_time(run: Run, tmp_path: Path) -> None:
    words = ["collect", "--out", tmp_path / "traces", "--tasks", "textvqa", "--limit", 2, "--url", "http://127.0.0.1:9"]
    assert "time unknown: no prompt was asked" in run(*words, "--dry-run").out


def test_a_log_gets_a_line_now_and_then(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter((100.0, 110.0, 140.0, 145.0, 180.0, 181.0))
    monkeypatch.setattr("oneglance.commands.terminal.time.monotonic", lambda: next(clock))
    pulse = terminal.Pulse(100, "prompts", done=10, show=True)
    for done in (15, 20, 22, 90, 100):
        pulse.beat(done)
    said = ["20 of 100 prompts, 4.0 s each, about 5 min left", "90 of 100 prompts, 1.0 a second, about 10 s left"]
    assert capsys.readouterr().err.splitlines() == said
    monkeypatch.undo()
    monkeypatch.setattr(terminal.Pulse, "EVERY_S", 0.0)
    words = ["collect", "--out", tmp_path / "traces", "--tasks", "textvqa", "--limit", 2, "--max-new-tokens", 8]
    assert "1 of 2 prompts, " in run(*words).err
    assert "of 2 prompts, " not in run(*words[:2], tmp_path / "quiet", *words[3:], "--json").err


def test_a_full_disk_is_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # a write names no file

    monkeypatch.setattr("oneglance.train.collect.append_traces", full)
    words = ["--tasks", "scienceqa", "--limit", 1, "--max-new-tokens", 4, "--threads", 1, "--json"]
    assert "the disk is full" in run("collect", "--out", tmp_path / "traces", *words).error


def test_features_go_beside_the_traces_and_are_found_again(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "traces"
    words = ["collect", "--out", out, "--tasks", "scienceqa", "--limit", 2, "--max-new-tokens", 8, "--threads", 1]
    words += ["--cache-features", "--layers", "1,3"]
    first = run(*words)
    assert re.search(r"features of 2 traces, layers 1, 3: about \d+\.\d KB in", first.err)
    again = run(*words, "--json").json
    shards = list((out / "features").glob("*.safetensors"))
    assert again["features_of"] == 2
    assert again["feature_bytes"] == sum(path.stat().st_size for path in shards) > 0
    assert len(shards) == 1


def test_where_nothing_is_collected_the_reasons_are_said(run: Run, tmp_path: Path) -> None:
    rows = [{"prompt": "What is it?", "image": name} for name in ("gone.png", "lost.png", "away.png", "far.png")]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run("collect", "--prompts", tmp_path / "p.jsonl", "--out", tmp_path / "traces")
    assert result.code == 1
    assert "no trace: 4 prompts skipped (4 image): " in result.err
    for words in ("gone.png", "lost.png", "and 1 more", str(tmp_path / "traces" / "skipped.jsonl")):
        assert words in result.err
    again = run("collect", "--prompts", tmp_path / "p.jsonl", "--out", tmp_path / "traces", "--json")
    assert again.code == 1
    assert again.json["skipped"] == {"image": 4}
