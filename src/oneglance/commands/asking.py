"""From options to the prompts of a measurement."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oneglance.commands import opening, options, terminal
from oneglance.core import InputError, OneglanceWarning

if TYPE_CHECKING:
    from oneglance.audit import Case as Encoded
    from oneglance.bench.cases import Case
    from oneglance.targets.base import Target

Limit = Annotated[int, typer.Option(metavar="N", min=1, rich_help_panel=options.DATA, help="Held-out prompts a task.")]


Data = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER|hf",
        rich_help_panel=options.DATA,
        help="--tasks names official data sets, which lie here, or on the hub ([data]).",
    ),
]


def choose_tasks(names: str) -> list[str]:
    """Task names of a comma-separated list, or all.

    Raises:
        InputError: there is no such task.
    """
    from oneglance.tasks.synthetic import TASKS

    chosen = list(TASKS) if names == "all" else opening.names_of(names)
    unknown = [name for name in chosen if name not in TASKS]
    if unknown or not chosen:
        raise InputError(f"unknown task {', '.join(unknown) or names!r}; choose from {', '.join(TASKS)} or all")
    return chosen


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


def choose_prompts(prompts: str, tasks: str | None) -> list[Case]:
    """So many held-out prompts of tasks, which take turns, or the prompts of a file.

    Raises:
        InputError: no such number, file or task, or tasks beside a file, which names its own.

    Warns:
        OneglanceWarning: the number leaves some of the tasks out.
    """
    from oneglance.bench.cases import from_file, in_turn

    if not prompts.lstrip("-").isdecimal():
        if tasks is not None:
            raise InputError("give --tasks or a file of --prompts, not both")
        return from_file(Path(prompts))
    if (count := int(prompts)) < 1:
        raise InputError(f"--prompts takes a number of at least 1, or a file, got {prompts}")
    names = choose_tasks(tasks or "all")
    if count < len(names):
        covered, left = ", ".join(names[:count]), ", ".join(names[count:])
        warnings.warn(f"--prompts {count} covers {covered} only, not {left}", OneglanceWarning, stacklevel=3)
    return in_turn(names, count)


def encoded(target: Target, asked: Sequence[Case]) -> Iterator[Encoded]:
    """The prompts as the target sees them, each when its turn comes.

    Raises:
        InputError: a prompt has an image, and the target takes none.
    """
    from oneglance.audit import Case as Encoded

    for case in asked:
        yield Encoded(case.id, case.task, case.encode(target))


def each(cases: Sequence[Case], *, done: Collection[tuple[str, str]], show: bool) -> Iterator[Case]:
    """The cases whose task and id are not among those done, under a progress bar."""
    with terminal.bar(show=show) as progress:
        going = progress.add_task("decoding", total=len(cases))
        for case in cases:
            if (case.task, case.id) not in done:
                yield case
            progress.update(going, advance=1, description=case.task)
