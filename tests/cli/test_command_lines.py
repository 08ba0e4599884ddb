"""Hostile command lines: one line on stderr that names the fix, exit code 2, and nothing is begun or made."""

import inspect
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from oneglance import commands
from oneglance.commands import checks
from oneglance.core import InputError
from oneglance.drafters import DRAFTERS, prepare, takes
from oneglance.drafters.settings import split
from oneglance.tree import chain

from .conftest import HEAD, PAGE, Run

GIVEN = {
    "head": ["--head", HEAD],
    "tree": ["--tree", "chain"],
    "budget": ["--budget", "7"],
    "branch_k": ["--branch-k", "2"],
}


@pytest.fixture(autouse=True)
def _nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("a target was opened before the command line was refused")

    for place in ("oneglance.targets.open_target", "oneglance.decoder.load"):
        monkeypatch.setattr(place, fail)


EVERYTHING = frozenset(checks.OPTIONS.values())
TAKES = {  # by hand: what each drafter looks at
    "block": EVERYTHING,
    "medusa": EVERYTHING,
    "none": frozenset(),
    "ngram": {"budget"},
    "two_model": {"head", "budget"},
    "eagle2": {"head", "policy", "budget"},
    "eagle3": {"head", "policy", "budget"},
    "vispec": {"head", "policy", "budget"},
}


@pytest.mark.parametrize("option", checks.OPTIONS)
@pytest.mark.parametrize("drafter", TAKES)
@pytest.mark.parametrize("command", ["generate", "run", "serve", "rounds"])
def test_options_that_a_drafter_ignores_are_refused_by_name(run: Run, command: str, drafter: str, option: str) -> None:
    if checks.OPTIONS[option] in TAKES[drafter]:
        return
    words = {"generate": [command, "hi"], "run": [command, PAGE]}.get(command, [command])
    assert GIVEN[option][0] in run(*words, "--drafter", drafter, *GIVEN[option]).error


def test_what_a_drafter_takes_is_what_its_functions_name() -> None:
    assert {name: takes(name) for name in DRAFTERS} == TAKES


TRAINING = {"train", "train_matched", "fit_head", "eval_head"}  # decode, if at all, to grade what they train


def test_whatever_decodes_lets_its_runner_be_chosen() -> None:
    """A command that opens a target on some number of threads has all the options of how it runs."""
    seen = set()
    for path in sorted(Path(commands.__path__[0]).glob("*.py")):
        module = import_module(f"{commands.__name__}.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            known = inspect.signature(function).parameters
            is_command = function.__module__ == module.__name__ and "json" in known and not name.startswith("_")
            has_threads = "threads" in known and known["threads"].annotation == "options.Threads"
            if is_command and has_threads and name not in TRAINING:
                assert known["runner"].annotation == "options.Runner", f"{path.stem}.{name}"
                seen.add(name)
    assert {"rounds", "image", "calibrate_gate", "conditioning", "layers", "report", "doctor", "collect"} <= seen


@pytest.mark.parametrize("name", ["block:rescorer=none:rescorer=auto", "ngram:max_ngram=3:max_ngram=3"])
def test_a_setting_that_is_given_twice_is_refused(run: Run, name: str) -> None:
    with pytest.raises(InputError, match="twice"):
        split(name)
    assert "twice" in run("generate", "hi", "--drafter", name).error


def test_plain_decoding_takes_neither_weights_nor_ranks() -> None:
    with pytest.raises(InputError, match="--head"):
        prepare("none", str(HEAD))
    with pytest.raises(InputError, match="branch_k"):
        prepare("none", None)(None, branch_k=2)
    with pytest.raises(InputError, match="no tree policy"):
        prepare("ngram", None)(None, policy=chain)


@pytest.mark.parametrize("more", [[], ["--head", HEAD]])
@pytest.mark.parametrize(
    "words", [["generate", "hi"], ["chat"], ["demo"], ["doctor", "--json"], ["plan"], ["audit"], ["serve"], ["rounds"]]
)
def test_a_target_that_does_not_exist_is_named_first(run: Run, words: list[str], more: list[object]) -> None:
    """Not the head that it would need: ``--head`` would only lead to the next error."""
    assert "there is no target at './nowhere'" in run(*words, "--target", "./nowhere", *more).error


@pytest.mark.parametrize("words", [["bench"], ["cost"], ["compare"], ["sweep", "budget"], ["probe", "image"]])
def test_nor_is_one_measured(run: Run, words: list[str]) -> None:
    assert "there is no target at './nowhere'" in run(*words, "--target", "./nowhere").error


@pytest.mark.parametrize("json", [[], ["--json"]])
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["generate", "--nope"], "--nope"),
        (["nope"], "nope"),
        (["tail"], "LOG"),
        (["tail", "x", "--resamples", "3"], "--resamples"),
        (["cost", "--repeats", "x"], "--repeats"),
        (["run", "x", "--dpi"], "--dpi"),
        (["audit", "--threads", "0"], "--threads"),
        (["probe", "image", "--nope"], "--nope"),
    ],
)
def test_a_usage_error_is_one_line(run: Run, words: list[str], named: str, json: list[str]) -> None:
    error = run(words[0], *json, *words[1:]).error if words[0] not in ("nope", "probe") else run(*words, *json).error
    assert named in error
    assert "--help" in error


@pytest.mark.parametrize("words", [["generate", "\udcff"], ["generate", "hi", "--image", "\udcfe.png"], ["\udcff"]])
def test_what_is_no_text_is_refused(run: Run, words: list[str]) -> None:
    assert "UTF-8" in run(*words).error


def test_bytes_that_are_no_text_are_refused_in_a_real_process() -> None:
    command = [os.fsencode(sys.executable), b"-m", b"oneglance", b"generate", b"\xff\xfe"]
    result = subprocess.run(command, capture_output=True, check=False)
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(b"error: ")
    assert result.stderr.count(b"\n") == 1


WRITERS = {
    "rounds": ["rounds"],
    "collect": ["collect", "--tasks", "docvqa", "--limit", "1"],
    "report": ["report"],
    "bench": ["bench"],
    "sweep": ["sweep", "budget"],
    "worth-it": ["worth-it", "--images", "."],
    "audit": ["audit", "--matrix"],
    "run": ["run", PAGE],
    "train": ["train", "recipe.yaml"],
    "train-matched": ["train-matched", "recipe.yaml"],
    "fit-head": ["fit-head", "--images", "."],
    "export": ["export", HEAD],
    "calibrate-gate": ["calibrate-gate"],
    "probe": ["probe", "image"],
    "ablate": ["ablate", "conditioning"],
}
FOLDERS = {"collect", "train", "train-matched", "fit-head", "export"}


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("place", ["empty", "other kind", "below a file", "read-only", "too long"])
def test_an_output_that_cannot_be_written_is_refused(run: Run, tmp_path: Path, command: str, place: str) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder.html").mkdir()
    is_folder = command in FOLDERS
    out = {
        "empty": "",
        "other kind": tmp_path / ("file" if is_folder else "folder.html"),
        "below a file": tmp_path / "file" / "out.html",
        "read-only": Path("/proc/none/out.html"),
        "too long": tmp_path / ("x" * 300 + ".html"),
    }[place]
    if place == "empty" and is_folder:
        return  # the current folder
    if place == "read-only" and not Path("/proc").is_dir():
        pytest.skip("needs a place where root cannot write either")
    before = sorted(tmp_path.rglob("*"))
    error = run(*WRITERS[command], "--out", out).error
    assert "--out" in error
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "kept"


def test_checking_an_output_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text("{}\n")
    before = file.stat()
    checks.check_output("--out", file)
    checks.check_output("--out", tmp_path / "new" / "deeper" / "log.jsonl")
    checks.check_output("--out", Path(os.devnull))
    checks.check_output("--out", tmp_path / "new" / "folder", is_folder=True)
    assert file.read_text() == "{}\n"
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_missing_extra_is_named_before_work_begins(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    for words in (["law"], ["width"], ["transfer"], ["probe", "saliency"]):
        assert "pip install 'oneglance[report]'" in run(*words, "x.jsonl", "--figures", "figures").error
    assert not list(tmp_path.iterdir())
