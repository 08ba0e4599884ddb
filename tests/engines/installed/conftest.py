"""Tests that need an engine in the environment: `make test-vllm` and `make test-sglang` make one each."""

from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files are named after the engine they need; without it there is nothing to collect."""
    engine = collection_path.stem.removeprefix("test_").split("_")[0]
    if collection_path.suffix == ".py" and engine in ("vllm", "sglang") and find_spec(engine) is None:
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "engines/installed" in item.path.as_posix():
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.filterwarnings("default"))  # an engine's own warnings are not ours to mend
