"""``oneglance run``: folders, globs, JSONL and PDFs; bad files; going on after a kill."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from oneglance.acceptance import Acceptance
from oneglance.bulk import Job, find_pages
from oneglance.core import EMPTY_TREE, Generation, Round, TokenTree, Verdict
from oneglance.files import sole_writer

from .conftest import Run

SRC = str(Path(sys.modules["oneglance"].__file__ or "").parent.parent)
ASK = ("--prompt", "Read.", "--max-new-tokens", "6", "--drafter", "none", "--dtype", "float32", "--threads", "1")


def page(path: Path, shade: int = 200) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32), (shade, 20, 90)).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two good images, a PDF of two pages, and two files that are neither."""
    root = tmp_path / "in"
    first = page(root / "a.png")
    page(root / "deep" / "b.jpg", 90)
    Image.open(first).save(root / "c.pdf", save_all=True, append_images=[Image.open(first)])
    (root / "d.png").write_bytes(b"no image")
    (root / "e.pdf").write_bytes(b"%PDF-1.7 nonsense")
    (root / "notes.txt").write_text("not a page")
    return root


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_bad_files_are_listed_and_stop_nothing(run: Run, folder: Path, vision_target: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    result = run("run", folder, *ASK, "--target", vision_target, "--out", out, "--json")
    assert result.code == 1
    names = [row["id"].removeprefix(f"{folder}/") for row in rows(out)]
    assert names == ["a.png", "c.pdf#page=1", "c.pdf#page=2", "deep/b.jpg"]
    assert [Path(f["id"]).name for f in result.json["failed"]] == ["e.pdf", "d.png"]
    assert result.json["written"] == 4
    assert result.json["num_tokens"] == sum(row["num_tokens"] for row in rows(out))
    kept = sum(row["speculative_decoding"]["num_rounds"] for row in rows(out))
    assert result.json["speculative_decoding"]["num_rounds"] == kept > 0


def test_a_killed_run_goes_on(run: Run, folder: Path, vision_target: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    words = ["run", str(folder / "*.png"), folder / "deep", *ASK, "--target", vision_target, "--out", out]
    run(*words)
    whole = out.read_text()
    lines = whole.splitlines(keepends=True)
    out.write_text(lines[0] + lines[1][: len(lines[1]) // 2])  # killed while it wrote the second row
    result = run(*words, "--json")
    assert result.json["already_there"] == result.json["written"] == 1

    def steady(text: str) -> list[Any]:
        return [(row["id"], row["text"]) for row in map(json.loads, text.splitlines())]

    assert steady(out.read_text()) == steady(whole)
    other = run(*words, "--max-new-tokens", "7")
    assert "was written with sampling" in other.error
    (tmp_path / "theirs.jsonl").write_text('{"mine": 1}\n')
    assert "is not from this command" in run(*words[:-1], tmp_path / "theirs.jsonl").error


def test_two_jobs_at_once_double_no_row(run: Run, vision_target: Path, tmp_path: Path) -> None:
    """One that starts while another writes is refused, and leaves the row alone that is being written."""
    out = tmp_path / "out.jsonl"
    words = ["run", page(tmp_path / "a.png"), *ASK, "--target", vision_target, "--out", out]
    run(*words)
    with out.open("a") as file:
        file.write('{"id": "half a row')
    before = out.read_bytes()
    with sole_writer(out):
        assert f"another process is writing to {out}" in run(*words[:1], page(tmp_path / "b.png"), *words[1:]).error
    assert out.read_bytes() == before
    assert run(*words, "--json").json["already_there"] == 1


def test_a_job_that_waited_sees_what_another_has_done(
    run: Run, vision_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    words = ["run", page(tmp_path / "a.png"), *ASK, "--target", vision_target, "--out", out]

    class Late(Job):
        def run(self, *args: Any) -> Any:
            monkeypatch.setattr("oneglance.bulk.Job", Job)
            assert run(*words, "--json").json["written"] == 1  # begun and ended between reading and writing
            return super().run(*args)

    monkeypatch.setattr("oneglance.bulk.Job", Late)
    assert run(*words, "--json").json["already_there"] == 1
    assert len(rows(out)) == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_a_process_that_is_killed_goes_on(run: Run, vision_target: Path, tmp_path: Path) -> None:
    """``kill -9`` at whatever moment, also while a row is written: no row is lost, none comes twice, none is torn."""
    for shade in range(12):
        page(tmp_path / "in" / f"{shade:02}é.png", 20 * shade)
    words = ["run", tmp_path / "in", *ASK, "--max-new-tokens", "24", "--target", vision_target, "--out"]
    run(*words, tmp_path / "unbroken.jsonl")
    out = tmp_path / "out.jsonl"
    rng = random.Random(0)
    for _ in range(2):
        before = killed([*words, out], out, rng.randrange(1, 4), rng.uniform(0, 0.05))
        whole = before.rpartition(b"\n")[0].split(b"\n")
        assert len({json.loads(line)["id"] for line in whole}) == len(whole)
        with out.open("ab") as file:  # as if it had been in the middle of a row, and of a letter
            file.write(whole[-1][: whole[-1].index("é".encode()) + 1])
        assert len(whole) < 12, "it came to its end before it was killed"
    result = run(*words, out, "--json").json
    assert result["already_there"] == len(whole)
    assert result["already_there"] + result["written"] == 12
    assert out.read_bytes().startswith(b"\n".join(whole) + b"\n"), "rows that were there have changed"
    keys = ("id", "prompt", "text", "finish_reason", "num_tokens")
    answers = [[tuple(row[key] for key in keys) for row in rows(p)] for p in (out, tmp_path / "unbroken.jsonl")]
    assert answers[0] == answers[1]
    assert not list(tmp_path.glob("*.partial"))


def killed(words: list[Any], out: Path, num_rows: int, then_s: float) -> bytes:
    """What a process left behind that was killed after it had written so many rows, and a while more."""
    num_before = out.read_bytes().count(b"\n") if out.exists() else 0
    command = [sys.executable, "-m", "oneglance", *map(str, words)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SRC}, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 300
        while not out.exists() or out.read_bytes().count(b"\n") < num_before + num_rows:
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < end, "it hangs"
            time.sleep(0.005)
        time.sleep(then_s)
    finally:
        process.kill()
        process.wait()
    return out.read_bytes()


def test_odd_names_and_separators_survive_a_second_run(run: Run, vision_target: Path, tmp_path: Path) -> None:
    page(tmp_path / "in" / os.fsdecode(b"caf\xe9.png"))
    words = [
        "run",
        tmp_path / "in",
        *ASK,
        "--prompt",
        "a\u2028b",
        "--target",
        vision_target,
        "--out",
        tmp_path / "o.jsonl",
    ]
    assert [run(*words, "--json").json["written"] for _ in range(2)] == [1, 0]


def test_jsonl_lines_bring_their_own_prompts(run: Run, vision_target: Path, tmp_path: Path) -> None:
    page(tmp_path / "p.png")
    asked = tmp_path / "asked.jsonl"
    lines = ['{"image": "p.png", "prompt": "One?"}', '{"image": "p.png"}', "not json", '{"prompt": "No image."}']
    asked.write_text("\n".join([*lines, '{"image": "none.png"}', '{"image": "none.png", "id": "mine"}']))
    out = tmp_path / "out.jsonl"
    result = run("run", asked, *ASK, "--target", vision_target, "--out", out)
    assert result.code == 1
    assert [row["prompt"] for row in rows(out)] == ["One?", "Read.", "No image."]
    missing = "there is no file 'none.png'; check the path"
    said = ["line 3 is not JSON: Expecting value: line 1 column 1 (char 0)", f"line 5: {missing}", f"line 6: {missing}"]
    assert [line.strip() for line in result.err.splitlines()[1:]] == [f"{asked}, {text}" for text in said]
    assert result.out.startswith(f"3 rows in {out} · ")
    again = run("run", tmp_path / "p.png", *ASK, "--target", vision_target, "--out", out)
    assert again.out.startswith(f"1 new row, 4 in all in {out} · 6 tokens · ")
    third = run("run", tmp_path / "p.png", *ASK, "--target", vision_target, "--out", out)
    assert third.out.startswith(f"0 new rows, 4 in all in {out} · 1 page done already · 0 tokens")


def test_a_failure_says_its_path_once(run: Run, folder: Path, vision_target: Path, tmp_path: Path) -> None:
    result = run("run", folder, *ASK, "--target", vision_target, "--out", tmp_path / "out.jsonl")
    assert result.err.splitlines()[0] == "2 failed:"
    for line, name in zip(result.err.splitlines()[1:], ("e.pdf", "d.png"), strict=True):
        assert line.count(str(folder / name)) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "--prompt", "x"], "there is no file or folder 'nowhere'"),
        (["*.nothing", "--prompt", "x"], "no file matches '*.nothing'"),
        ([__file__.rpartition("/")[0], "--prompt", "x"], "there is no image or PDF below"),
        ([__file__], "give --prompt"),
    ],
)
def test_bad_input(run: Run, words: list[str], message: str) -> None:
    assert message in run("run", *words).error


def test_a_page_named_twice_is_read_once(folder: Path) -> None:
    twice = [str(folder / "a.png"), str(folder / "*.png"), str(folder)]
    names = [found.id for found in find_pages(twice, "x", dpi=72)]
    assert len(names) == len(set(names)) == 6


def done(tree: TokenTree, accepted: int, kept: int) -> Round:
    tokens = tuple(range(accepted + 1))
    verdict = Verdict(tuple(range(accepted + 1)), tokens)
    return Round(0, 0, tree, verdict, tokens[:kept], None, int(len(tree) > 0))


def test_acceptance_counts_kept_tokens_only() -> None:
    chain = TokenTree((1, 2, 3), (0, 1, 2), (1, 2, 3))
    rounds = [done(chain, 2, 3), done(chain, 0, 1), done(EMPTY_TREE, 0, 1), done(chain, 3, 2)]  # the last one is cut
    acceptance = Acceptance.of(Generation("", [0] * 8, "length", 0, 0, "t", "h", rounds))
    figures = acceptance.as_dict()
    assert figures["acceptance_histogram"] == [1, 0, 2]
    assert figures["num_accepted_draft_tokens"] == 4
    assert figures["num_accepted_per_position"] == [2, 2]
    assert (figures["num_spec_steps"], figures["num_rounds"], figures["num_draft_tokens"]) == (3, 4, 9)
    assert figures["tau"] == 7 / 4
    double = Acceptance.total([acceptance, acceptance])
    assert double.num_accepted == 8
    assert double.tau == acceptance.tau
