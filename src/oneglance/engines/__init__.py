"""Engines that serve many users: vLLM and SGLang run our heads; each file here holds a command to start and a plugin.

Only this room imports vllm or sglang, and only inside a plugin, in the engine's own process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from oneglance.core import InputError


@dataclass(frozen=True, slots=True)
class Launch:
    """What to serve.

    Attributes:
        target: hub id or folder.
        head: folder or hub id of a block head in z-lab's layout, or of an EAGLE-3 head.
        depth: tokens drafted a round, 1 to L; passes of an EAGLE-3 head.
        budget: nodes of a candidate tree, where the engine verifies one; None for a chain.
        drafter: what the head is.
        tensor_parallel, data_parallel: devices that share one copy of the target, and copies.
        extra: the engine's own flags, passed on as they are.
    """

    target: str
    head: str
    depth: int
    tensor_parallel: int = 1
    data_parallel: int = 1
    extra: tuple[str, ...] = ()
    budget: int | None = None
    drafter: Literal["block", "eagle3"] = "block"

    def __post_init__(self) -> None:
        for name in ("depth", "tensor_parallel", "data_parallel"):
            if getattr(self, name) < 1:
                raise InputError(f"{name.replace('_', ' ')} must be at least 1, got {getattr(self, name)}")
        if self.budget is not None and self.budget < self.depth:
            raise InputError(f"a tree of this head needs --budget {self.depth} or more, its block's depth")


ENGINES: dict[str, str] = {
    "vllm": "oneglance.engines.vllm:command",
    "sglang": "oneglance.engines.sglang:command",
}
INSTALL: dict[str, str] = {
    "vllm": "pip install 'oneglance[vllm]'",
    "sglang": "docs/engines.md says how",  # its pins and our ranges exclude each other
}


def command(engine: str, launch: Launch) -> list[str]:
    """The command line that serves a target with its head.

    Raises:
        InputError: an unknown engine, or what it cannot serve.
    """
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}; choose one of {', '.join(ENGINES)}")
    module, name = ENGINES[engine].split(":")
    build: Callable[[Launch], list[str]] = getattr(import_module(module), name)
    return build(launch)


def installed(engine: str) -> bool:
    """Whether this environment has the engine, under whatever name it was installed."""
    return find_spec(engine) is not None


def depth_of(head: str, depth: int | None) -> int:
    """Tokens that an engine drafts a round with a head: all of its block, unless fewer are asked for.

    Raises:
        InputError: the head does not exist, or drafts fewer.
    """
    from oneglance.drafters.checkpoint import read_config
    from oneglance.drafters.head import HeadConfig

    deepest = HeadConfig.from_checkpoint(read_config(head)[1]).num_offsets
    if depth is None:
        return deepest
    if not 1 <= depth <= deepest:
        raise InputError(f"this head drafts 1 to {deepest} tokens a round, got --depth {depth}; choose one of these")
    return depth
