"""Files that a killed run never leaves half-written: texts replaced as a whole, and JSON lines that only grow."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's text as a whole.

    Raises:
        OSError: it cannot be written.
    """
    scratch = path.with_name(path.name + ".partial")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def append_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Append JSON lines, flushed; a torn last line of a killed run goes first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        _drop_torn_line(file)
        for row in rows:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete JSON lines of a file, which may not exist."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def _drop_torn_line(file: BinaryIO) -> None:
    size = file.seek(0, 2)
    if not size:
        return
    file.seek(size - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    file.seek(0, 2)
