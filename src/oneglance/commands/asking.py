"""From options to the prompts of a measurement."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oneglance.commands import opening, options, terminal
from oneglance.commands.audit import choose_tasks
from oneglance.core import InputError

if TYPE_CHECKING:
    from oneglance.bench.cases import Case

Limit = Annotated[int, typer.Option(metavar="N", min=1, rich_help_panel=options.DATA, help="Held-out prompts a task.")]


Data = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER|hf",
        rich_help_panel=options.DATA,
        help="--tasks names official data sets, which lie here, or on the hub ([data]).",
    ),
]


def choose_cases(tasks: str | None, prompts: Path | None, limit: int, data: str | None = None) -> list[Case]:
    """The prompts of tasks, all of the suite's if nothing was named, of official data sets, or of a file.

    Raises:
        InputError: both sources, or a bad one.
    """
    from oneglance.bench.cases import from_file, official, suite

    if tasks is not None and prompts is not None:
        raise InputError("give --tasks or --prompts, not both")
    if data is not None:
        if tasks is None:
            raise InputError("--data needs --tasks, the names of official data sets")
        return official(opening.names_of(tasks), data, limit)
    if prompts is not None:
        return from_file(prompts, limit)
    return suite(choose_tasks(tasks or "all"), limit)


def each(cases: Sequence[Case], *, done: Collection[tuple[str, str]], show: bool) -> Iterator[Case]:
    """The cases whose task and id are not among those done, under a progress bar."""
    with terminal.bar(show=show) as progress:
        going = progress.add_task("decoding", total=len(cases))
        for case in cases:
            if (case.task, case.id) not in done:
                yield case
            progress.update(going, advance=1, description=case.task)
