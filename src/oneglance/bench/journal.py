"""What a run has finished, a JSON line at a time, so that a killed one goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oneglance.core import InputError
from oneglance.files import Unchanged, append_lines, parse_json, read_lines, read_object, sole_writer, write_atomically

SETTINGS = ".run.json"
OTHER = "choose another --out"


class Journal:
    """Lines in a file, with the settings that made them beside it.

    Args:
        path: of the lines.
        settings: everything that the lines depend on.

    Attributes:
        lines: what an earlier run with the same settings finished.

    Raises:
        InputError: the file holds lines made with other settings, or cannot be read or written.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        beside = path.with_name(path.name + SETTINGS)
        wanted = parse_json(json.dumps(settings))
        try:
            self.lines = read_lines(path)
            stored = read_object(beside, OTHER).get("settings") if beside.is_file() else None
        except OSError as error:
            raise InputError(f"cannot go on with {path}: {error.strerror}; {OTHER}") from error
        if (path.is_file() or beside.is_file()) and stored != wanted:
            raise InputError(
                f"{path} was made with other settings ({_difference(stored, wanted)}); choose another --out"
            )
        self._beside = beside
        self._files = Unchanged(path, beside)

    def describe(self, manifest: dict[str, Any], settings: dict[str, Any]) -> None:
        """Write the settings and the manifest beside the lines."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._files.changing():
            write_atomically(self._beside, json.dumps({"settings": settings, "manifest": manifest}, indent=1))

    def check(self) -> None:
        """See that lines and settings lie where they were written.

        Raises:
            InputError: something else removed or changed them.
        """
        self._files.check()

    def append(self, lines: list[dict[str, Any]]) -> None:
        """Add finished lines; a torn one of a killed run goes first.

        Raises:
            InputError: as ``check``.
        """
        with self._files.changing():
            append_lines(self.path, lines)

    def keep(self, lines: list[dict[str, Any]]) -> None:
        """Rewrite the file with these lines alone."""
        self.lines = lines
        with self._files.changing():
            write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in lines))

    def take_back_last(self) -> set[tuple[str, str]]:
        """Task and prompt of what the lines hold whole. The last prompt may be torn: its lines go, to be made again."""
        try:
            names = [(str(line["task"]), str(line["prompt"])) for line in self.lines]
        except KeyError as error:
            raise InputError(f"{self.path} is damaged: a line has no {error}; {OTHER}") from error
        if names:
            self.keep([line for line, name in zip(self.lines, names, strict=True) if name != names[-1]])
        return {name for name in names if name != names[-1]}

    @staticmethod
    def remove_at(path: Path) -> None:
        """Drop lines and settings: the run is complete and its result is elsewhere."""
        path.unlink(missing_ok=True)
        path.with_name(path.name + SETTINGS).unlink(missing_ok=True)


@contextmanager
def journal(path: Path, settings: dict[str, Any]) -> Iterator[Journal]:
    """The journal at ``path``, which no other process can go on with meanwhile.

    Raises:
        InputError: as ``Journal``, or another process is at it, or it was taken away before the end.
    """
    with sole_writer(path):
        kept = Journal(path, settings)
        yield kept
        kept.check()


def _difference(stored: Any, wanted: dict[str, Any]) -> str:
    if not isinstance(stored, dict):
        return "none are stored beside it"
    name = next(key for key in [*wanted, *stored] if stored.get(key) != wanted.get(key))
    return f"{name} {stored.get(name)!r}, now {wanted.get(name)!r}"
