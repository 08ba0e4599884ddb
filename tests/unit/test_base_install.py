"""Only the base dependencies: every room imports but those of an extra, and who needs an extra is told which."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "oneglance"
PAGE = str(SRC / "assets" / "demo_page.png")
# extra → the modules that import a package of it at their top, by the start of their names
NEEDS = {
    "serve": ("oneglance.serve.",),
    "train": ("oneglance.train.processes", "oneglance.train.trainer", "oneglance.train.fit"),
    "sglang": ("oneglance.engines.sglang_worker",),  # no extra: it runs in SGLang's own environment
}
PACKAGES = {
    "serve": {"fastapi", "starlette", "uvicorn", "prometheus_client"},
    "train": {"accelerate"},
    "sglang": {"sglang"},
}
FOR_DEVELOPERS = {"dev", "docs", "page", "release"}
LINES = {  # a command line → the extra that it lacks
    ("serve",): "serve",
    ("train", "recipes/reader-head.yaml"): "train",
    ("train-matched", "recipes/matched.yaml", "--out", "{tmp}/matched"): "train",
    ("fit-head", "--images", "{tmp}", "--out", "{tmp}/head"): "train",
    ("generate", "How much?", "--image", PAGE, "--device-map", "auto"): "train",
    ("generate", "How much?", "--image", PAGE, "--regex", "[0-9]+"): "grammar",
    ("run", "{tmp}/a.pdf", "--prompt", "Transcribe.", "--out", "{tmp}/a.jsonl"): "pdf",
    ("bench", "--tasks", "docvqa", "--data", "hf", "--limit", "1"): "data",
    ("law", "{tmp}/rounds.jsonl", "--figures", "{tmp}/figures"): "report",
    ("engine", "vllm", "--run"): "vllm",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What ``base_only`` prints."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "a.pdf").write_bytes(b"%PDF-1.7")
    lines = [[word.format(tmp=folder) for word in words] for words in LINES]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "base_only.py")],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_module_imports_but_those_of_an_extra(base: Any) -> None:
    wrong = {
        module: package
        for module, package in base["failed"].items()
        if not any(module.startswith(NEEDS[extra]) and package in PACKAGES[extra] for extra in NEEDS)
    }
    assert wrong == {}


@pytest.mark.parametrize("words", LINES, ids=lambda words: f"{words[0]}-{LINES[words]}")
def test_a_command_without_its_extra_names_it(base: Any, words: tuple[str, ...]) -> None:
    code, out, err = base["runs"][list(LINES).index(words)]
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert f"pip install 'oneglance[{LINES[words]}]'" in err


def test_every_extra_for_users_is_asked_for_by_a_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(LINES.values()) == set(project["optional-dependencies"]) - FOR_DEVELOPERS
