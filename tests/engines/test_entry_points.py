"""What the engines find when they look for plugins."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

POINTS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]


@pytest.mark.parametrize("group", ["vllm.general_plugins", "sglang.srt.plugins"])
def test_plugins_are_where_the_package_says(group: str) -> None:
    (place,) = POINTS[group].values()
    module, name = place.split(":")
    assert callable(getattr(import_module(module), name))


def test_a_plugin_is_light() -> None:
    """Engines load plugins in processes that never see a tensor, before they set up their devices."""
    code = (
        "import sys, oneglance.engines.vllm, oneglance.engines.sglang as s;"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
