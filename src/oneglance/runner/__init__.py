"""How the packed pass is executed: as it is, compiled, or recorded once and replayed (docs/runner.md).

All of them compute the target's own rows; what differs is how a pass is started, and its shapes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from oneglance.core import InputError

if TYPE_CHECKING:  # a command's help lists the names, and has no use for torch
    from oneglance.targets.base import Target

RUNNERS: dict[str, str] = {
    "eager": "oneglance.runner.static:eager",
    "compile": "oneglance.runner.static:compiled",
    "graphs": "oneglance.runner.static:graphs",
}
COMPILERS = ("c++", "g++", "clang++")


def with_runner(target: Target, name: str) -> Target:
    """The same model, with packed passes executed in that way.

    Args:
        target: opened.
        name: ``auto`` (eager, as long as graphs have not been run on a card) or a name in ``RUNNERS``.

    Raises:
        InputError: unknown, or not possible here; the message says why.
    """
    check_name(name)
    if name == "auto":
        name = "eager"  # graphs become the choice on CUDA once somebody has run them on a card
    elif name != "eager":
        reason = reason_against(target)
        if reason is not None:
            raise InputError(f"--runner {name}: {reason}; use --runner eager")
    module, attribute = RUNNERS[name].split(":")
    made: Callable[[Target], Target] = getattr(import_module(module), attribute)
    return made(target)


def check_name(name: str) -> None:
    """Refuse what is no runner, and one that lacks its tools, before a large target is read.

    Raises:
        InputError: unknown, or no C++ compiler.
    """
    if name != "auto" and name not in RUNNERS:
        raise InputError(f"unknown runner {name!r}; choose one of auto, {', '.join(RUNNERS)}")
    if name == "compile" and not any(shutil.which(compiler) for compiler in COMPILERS):
        raise InputError(
            "--runner compile needs a C++ compiler (g++ or clang++), and there is none; use --runner eager"
        )


def reason_against(target: Target) -> str | None:
    """Why a target cannot run in static shapes, or None."""
    if target.passes.name != "free":
        return "a fixed shape is a way of its own to run packed passes"
    if not target.has_static_pass:
        return f"the layers of {target.model_types[0]} targets do more than pass on one stream"
    if target.text_config._attn_implementation != "sdpa":
        return f"static passes attend by sdpa, not {target.text_config._attn_implementation}"
    devices = {parameter.device for parameter in target.model.parameters()}
    return None if len(devices) == 1 else "the target is spread over several devices"
