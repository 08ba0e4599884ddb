"""Files that a killed run never leaves half-written: texts replaced as a whole or between markers, JSON lines that
only grow."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from oneglance.errors import InputError


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's text as a whole.

    Raises:
        OSError: it cannot be written.
    """
    scratch = path.with_name(path.name + ".partial")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def spliced(page: str, name: str, text: str) -> str:
    """A Markdown page with the part between the markers of that name replaced.

    Raises:
        InputError: the page has no such markers.
    """
    first, last = f"<!-- {name}: written by the command -->", f"<!-- /{name} -->"
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise InputError(f"the page has no place for the tables; put the lines {first} and {last} where they go")
    return f"{before}{begin}\n\n{text}\n{end}{after}"


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
