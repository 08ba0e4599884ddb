"""The manifest of a result: what ran, on what, with which versions. A ratio never crosses two manifests."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from oneglance.cost import cpu_name

SCHEMA_VERSION = 1
PACKAGES = ("oneglance", "torch", "transformers", "tokenizers", "numpy", "scipy", "pillow")


def manifest(**settings: Any) -> dict[str, Any]:
    """Command, code, versions and machine, with the settings of the run, which must not take their names."""
    facts = {
        "schema_version": SCHEMA_VERSION,
        "command": " ".join([_program(), *sys.argv[1:]]),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_sha": _git_sha(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "cpu": cpu_name(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "kernels": _kernels(),
    }
    taken = facts.keys() & settings.keys()
    assert not taken, f"settings named {sorted(taken)} would hide what the manifest says"
    return {**facts, **settings}


def _program() -> str:
    """What was typed before the arguments: the command line, or a script of this repository."""
    started = Path(sys.argv[0])
    is_script = started.suffix == ".py" and started.name != "__main__.py"
    return f"python {os.path.relpath(started)}" if is_script else "oneglance"


def _kernels() -> dict[str, Any]:
    """What else decides which kernels run."""
    return {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
        "cuda": torch.version.cuda,
        "matmul_precision": torch.get_float32_matmul_precision(),
    }


def _git_sha() -> str | None:
    """The commit of the source tree, marked where files differ from it; None for an installed package."""
    folder = Path(__file__).parent
    try:
        sha = _git(folder, "rev-parse", "--short=12", "HEAD")
        return sha + ("-dirty" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
