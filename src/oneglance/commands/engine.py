"""``oneglance engine``: the command that serves a target and its head on vLLM or SGLang."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated

import typer

from oneglance.commands import options, terminal
from oneglance.core import InputError
from oneglance.engines import ENGINES

Engine = Annotated[str, typer.Argument(metavar="ENGINE", help=f"{options.listed(ENGINES)}.")]
Extra = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- FLAGS", help="The engine's own flags, after --: -- --max-model-len 4096 --port 8001."),
]
Depth = Annotated[
    int | None,
    typer.Option(
        metavar="K", rich_help_panel=options.DECODING, help="Tokens drafted a round; default the whole block."
    ),
]
Budget = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        rich_help_panel=options.DECODING,
        help="Nodes of the candidate tree, root excluded; default a chain. Trees need SGLang and our plugin.",
    ),
]
TensorParallel = Annotated[
    int, typer.Option(metavar="N", rich_help_panel=options.MACHINE, help="Devices that share one copy of the target.")
]
DataParallel = Annotated[int, typer.Option(metavar="N", rich_help_panel=options.MACHINE, help="Copies of the target.")]
Start = Annotated[bool, typer.Option("--run", help="Start it here instead of printing it.")]


def engine(
    engine: Engine,
    extra: Extra = None,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    depth: Depth = None,
    budget: Budget = None,
    tensor_parallel: TensorParallel = 1,
    data_parallel: DataParallel = 1,
    run: Start = False,
    json: options.Json = False,
) -> None:
    """Print or start the command that serves a target and its head on vLLM or SGLang.

    Both draft a chain there; with --budget SGLang drafts a tree, which no GPU has run yet. The head's folder is used as
    it is; 'oneglance export' writes a copy in another precision.
    """
    from oneglance.drafters import checkpoint
    from oneglance.engines import INSTALL, Launch, command, depth_of, installed
    from oneglance.targets import resolve

    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}; choose one of {', '.join(ENGINES)}")
    if head is None and target != options.BUILTIN:
        raise InputError(f"target {target!r} needs a draft head: give --head")
    if json and run:
        raise InputError("--json prints the command and --run starts it; give one of them")
    if budget is not None and depth is not None:
        raise InputError("a tree uses the whole block: give --depth or --budget")
    head = head or options.BUILTIN
    deepest = depth_of(head, depth)
    folder = str(checkpoint.BUILTIN.get(head, head))
    launch = Launch(resolve(target), folder, deepest, tensor_parallel, data_parallel, tuple(extra or ()), budget)
    words = command(engine, launch)
    if run and not installed(engine):
        raise InputError(f"{engine} is not installed here: {INSTALL[engine]}, or run the printed command")
    if json:
        terminal.write_json({"engine": engine, "command": words, "depth": deepest, "installed": installed(engine)})
    elif run:
        sys.stdout.flush()
        os.execvp(words[0], words)
    else:
        print(terminal.visible(shlex.join(words)))
