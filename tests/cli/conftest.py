"""Commands run in this process, as ``oneglance`` runs them, and small checkpoints on disk."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils.logging import disable_progress_bar, enable_progress_bar

from oneglance.cli import main
from oneglance.drafters.checkpoint import save_checkpoint
from oneglance.targets.base import Target
from oneglance.testing import save_target, tiny_head, tiny_head_config, tiny_target

ASSETS = Path(sys.modules["oneglance"].__file__ or "").parent / "assets"
PAGE = str(ASSETS / "demo_page.png")
HEAD = ASSETS / "reader" / "head"


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON value, which is all it may hold."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The message of bad input: exactly one line on stderr, nothing on stdout, exit code 2."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.startswith("error: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("error: ").strip()


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line; ``stdin`` is what is piped into it."""
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*argv: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = main([str(word) for word in argv])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


def saved(target: Target, folder: Path) -> Path:
    """A target as a folder that transformers writes."""
    save_target(target, folder)
    return folder


@pytest.fixture(scope="session")
def text_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text-only target with random weights."""
    return saved(tiny_target("qwen3"), tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def text_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head with random weights that fits ``text_target``."""
    target = tiny_target("qwen3")
    folder = tmp_path_factory.mktemp("text-head")
    save_checkpoint(tiny_head(target), folder, tiny_head_config(target))
    return folder


@pytest.fixture(scope="session")
def vision_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3-VL with random weights."""
    return saved(tiny_target("qwen3_vl"), tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="session")
def vision_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head with random weights that fits ``vision_target``."""
    target = tiny_target("qwen3_vl")
    folder = tmp_path_factory.mktemp("vision-head")
    save_checkpoint(tiny_head(target), folder, tiny_head_config(target))
    return folder


@pytest.fixture(autouse=True)
def _own_process() -> Iterator[None]:
    """What a command's own process would have: no progress bars of others, and its own ``--threads``."""
    threads = torch.get_num_threads()
    disable_progress_bar()
    yield
    enable_progress_bar()
    torch.set_num_threads(threads)
