"""The sidecar of a round log: log q of the best tokens at every offset, an array a prompt, for the width replay."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from oneglance.core import InputError
from oneglance.stats.bootstrap import Array
from oneglance.stats.rounds import RoundLog


def folder(log: Path | str) -> Path:
    """Where the arrays of a log are."""
    return Path(f"{log}.marginals")


def place(log: Path | str, task: str, prompt: str) -> Path:
    """The file of one prompt beside a log."""
    name = hashlib.sha256(f"{task}/{prompt}".encode()).hexdigest()[:20]
    return folder(log) / f"{name}.npy"


def read_marginals(path: Path | str, log: RoundLog) -> Array:
    """(R, L, K) log q of the log's rounds, best first, -inf where there is none.

    Args:
        path: of the log.
        log: its rounds, whole prompts.

    Raises:
        InputError: there is no sidecar, or it holds other rounds.
    """
    tables: dict[str, Array] = {}
    rows = []
    for row in log.rows:
        file = place(path, row.task, row.prompt)
        if str(file) not in tables:
            tables[str(file)] = _read(file, path)
        table = tables[str(file)]
        if row.round >= len(table):
            raise InputError(
                f"{file} has {len(table)} rounds, but {path} has round {row.round} of {row.prompt}; "
                "use files of one run"
            )
        rows.append(table[row.round])
    result: Array = np.stack(rows)
    return result


def _read(file: Path, log: Path | str) -> Array:
    if not file.is_file():
        raise InputError(f"{log} has no marginals beside it; write the log with: oneglance rounds --marginals")
    try:
        table: Array = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the marginals {file}: {error}") from error
    if table.ndim != 3:
        raise InputError(f"the marginals {file} have shape {table.shape}; need rounds by offsets by ranks")
    return table
