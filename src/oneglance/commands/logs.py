"""From round logs to their rounds: what ``law``, ``tail`` and ``width`` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneglance.commands import opening, options
from oneglance.core import InputError
from oneglance.files import parse_json

if TYPE_CHECKING:
    from oneglance.stats.bootstrap import Array
    from oneglance.stats.law import Method
    from oneglance.stats.rounds import RoundLog

Files = Annotated[list[Path], typer.Argument(metavar="LOG...", help="Round logs that 'oneglance rounds' wrote.")]
Tasks = Annotated[str | None, typer.Option(metavar="NAMES", help="Only these tasks of the log, comma-separated.")]
Estimator = Annotated[
    str, typer.Option("--method", metavar="ml|ls", help="Maximum likelihood, or least squares of the mean.")
]
Figures = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", rich_help_panel=options.OUTPUT, help="Draw figures here, as PNG and PDF ([report])."
    ),
]
POOLED = "pooled"


def read(files: Sequence[Path], tasks: str | None) -> RoundLog:
    """The drafted rounds of the logs, of the named tasks.

    Raises:
        InputError: a log cannot be read, mixes budgets, or lacks a task.
    """
    from oneglance.stats.rounds import RoundLog, read_rounds

    rows = tuple(row for file in files for row in read_rounds(file).drafted.rows)
    if not rows:
        raise InputError("no round of the log could have accepted anything; write one with more new tokens")
    runs = sorted({row.run for row in rows})
    if len(runs) > 1:
        raise InputError(f"the logs hold rounds of {' and '.join(runs)}; a fit is of one drafter, tree and budget")
    if tasks is None:
        return RoundLog(rows)
    log = RoundLog(rows)
    wanted = opening.names_of(tasks)
    unknown = [name for name in wanted if name not in log.tasks]
    if unknown or not wanted:
        raise InputError(f"the log has no task {', '.join(unknown) or tasks!r}; it has {', '.join(log.tasks)}")
    return RoundLog(tuple(row for row in rows if row.task in wanted))


def marginals(files: Sequence[Path], tasks: str | None) -> Array:
    """(R, L, K) marginals of the rounds that ``read`` gives, from what stands beside the logs.

    Raises:
        InputError: a log was written without --marginals.
    """
    import numpy as np

    from oneglance.stats.sidecar import read_marginals

    return np.concatenate([read_marginals(file, read([file], tasks)) for file in files])


def method(name: str) -> Method:
    """The estimator of that name.

    Raises:
        InputError: there is none.
    """
    if name == "ml":
        return "ml"
    if name == "ls":
        return "ls"
    raise InputError(f"--method takes ml or ls, got {name!r}")


def vocab_size(files: Sequence[Path]) -> int | None:
    """Rows of the target's lm_head, from what stands beside the logs; None where nothing does."""
    sizes = {settings(file).get("vocab_size") for file in files}
    return sizes.pop() if len(sizes) == 1 else None


def named(files: Sequence[str]) -> list[tuple[str, Path]]:
    """Name and path of each ``NAME=LOG`` or ``LOG``.

    Raises:
        InputError: a name is missing, or two logs have the same.
    """
    found = [_named(text) for text in files]
    labels = [label for label, _ in found]
    for label, path in found:
        if labels.count(label) > 1:
            raise InputError(f"two logs are named {label!r}; name them apart, as in NAME={path}")
    return found


def _named(text: str) -> tuple[str, Path]:
    name, is_named, path = text.partition("=")
    if is_named and not Path(text).is_file():
        if not name or not path:
            raise InputError(f"need NAME=LOG, got {text!r}")
        return name, Path(path)
    return Path(text).stem, Path(text)


def target(file: Path) -> str | None:
    """The target that a log was written with; None where nothing says so."""
    found = settings(file).get("target")
    return found if isinstance(found, str) else None


def draw(folder: Path | None, figures: Mapping[str, Any]) -> list[str]:
    """Save figures under their names, as PNG and PDF; the paths.

    Args:
        folder: made where it is missing; None draws nothing.
        figures: name → a function that draws.

    Raises:
        InputError: matplotlib is missing, or the folder cannot be written.
    """
    if folder is None:
        return []
    from oneglance.report.figures import save

    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = []
        for name, make in figures.items():
            figure = make()
            for suffix in ("png", "pdf"):
                path = folder / f"{name}.{suffix}"
                save(figure, path)
                made.append(str(path))
    except OSError as error:
        raise InputError(f"cannot write figures to {folder}: {error.strerror}") from error
    return made


def settings(log: Path) -> dict[str, Any]:
    """What a log was made with, from what stands beside it; empty where nothing does."""
    from oneglance.bench.journal import SETTINGS

    beside = log.with_name(log.name + SETTINGS)
    try:
        found: dict[str, Any] = parse_json(beside.read_text(encoding="utf-8"))["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
