"""Files that a killed run never leaves half-written: texts replaced as a whole or between markers, JSON lines that
only grow."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from oneglance.errors import InputError, first_line

MAX_DEPTH = 100
TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"


def parse_json(text: str | bytes) -> Any:
    """JSON that a stranger may have written. The one place where JSON is read.

    Raises:
        ValueError: it is none, or nested more than ``MAX_DEPTH`` deep, which no code of ours would survive.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    own = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if own.count(b"[") + own.count(b"{") > MAX_DEPTH:  # else it cannot be so deep, and a walk would cost
        _check_depth(value)
    return value


def parse_object(text: str | bytes) -> dict[str, Any]:
    """``parse_json`` of an object.

    Raises:
        ValueError: it is none.
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def parse_yaml(text: str) -> Any:
    """YAML that a stranger may have written. The one place where YAML is read.

    Raises:
        ValueError: as ``parse_json``; in one line.
    """
    import yaml

    try:
        value = yaml.safe_load(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except (yaml.YAMLError, LookupError, TypeError, AttributeError) as error:  # some tags fail as Python does
        raise ValueError(" ".join(str(error).split())) from error
    _check_depth(value)
    return value


def read_object(path: Path, fix: str) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: of the file.
        fix: what to do where it cannot be read, for the message.

    Raises:
        InputError: it cannot be read, or holds something else.
    """
    try:
        return parse_object(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path} ({reason(error)}); {fix}") from error


def reason(error: Exception) -> str:
    """Why a file cannot be read, in one line and without its name, which the message has already."""
    return getattr(error, "strerror", None) or first_line(error)


def _check_depth(value: Any) -> None:
    level = {0: value} if isinstance(value, dict | list) else {}
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        parts = (part.values() if isinstance(part, dict) else part for part in level.values())
        level = {id(own): own for part in parts for own in part if isinstance(own, dict | list)}  # an alias once
    raise ValueError(TOO_DEEP)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's text as a whole; of a link, the file that it leads to.

    Raises:
        OSError: it cannot be written.
    """
    place = _real(path)
    scratch = place.with_name(place.name + ".partial")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(place)


def check_free(path: Path | None) -> None:
    """Refuse at once what ``sole_writer`` would refuse later, before anything large is loaded.

    Args:
        path: of the file or folder; None where nothing is written.

    Raises:
        InputError: as there.
    """
    if (
        path is not None and _real(path).parent.is_dir()
    ):  # else nobody writes there, and bad input should leave no folder behind
        with sole_writer(path):
            pass


@contextlib.contextmanager
def sole_writer(path: Path, *, fix: str = "choose another --out") -> Iterator[None]:
    """Nobody else who asks may write to this file or folder meanwhile. The death of a process ends its right.

    Args:
        path: of the file or folder.
        fix: what to do instead, for the message.

    Raises:
        InputError: another process has the right, or no lock can be made beside ``path``.
    """
    from filelock import FileLock, Timeout

    place = _real(path)
    lock = FileLock(place.parent / f".{place.name}.lock", blocking=False)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise InputError(f"another process is writing to {path}; wait until it ends, or {fix}") from None
    except OSError as error:
        raise InputError(f"cannot lock {path} ({error.strerror or error}); {fix}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # where an open file cannot be removed, its release does it
            Path(lock.lock_file).unlink()  # still held: who opened it meanwhile finds it gone, and makes a new one
        lock.release()


def _real(path: Path) -> Path:
    """Where links lead; unlike ``Path.resolve``, a loop of them is left for who opens it to report."""
    return Path(os.path.realpath(path))


class Unchanged:
    """Files that a run goes on writing, and nothing else may touch: one that goes missing takes finished work with it,
    and to write on in its place would hide that.

    Args:
        paths: as they are now; one that is not there yet may come.
    """

    def __init__(self, *paths: Path) -> None:
        self._sizes = {path: _size(path) for path in paths}

    def check(self) -> None:
        """See that they are as this run left them.

        Raises:
            InputError: one was removed or changed.
        """
        for path, size in self._sizes.items():
            if _size(path) != size:
                raise InputError(
                    f"{path} was removed or changed by something else while this ran; run the same command again, "
                    "which does what is missing, or choose another --out"
                )

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change them.

        Raises:
            InputError: as ``check``, before anything is written.
        """
        self.check()
        yield
        self._sizes = {path: _size(path) for path in self._sizes}


def _size(path: Path) -> int | None:
    """Bytes of a file; None where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def spliced(page: str, name: str, text: str) -> str:
    """A Markdown page with the part between the markers of that name, lines of their own, replaced.

    Raises:
        InputError: the page has no such markers.
    """
    first, last = _markers(name)
    found = _place(page, name)
    if found is None:
        raise InputError(f"the page has no place for the tables; put the lines {first} and {last} where they go")
    return f"{page[: found.start()]}{first}\n\n{text}\n{last}{page[found.end() :]}"


def has_place(page: str, name: str) -> bool:
    """Whether a page has the markers of that name."""
    return _place(page, name) is not None


def _markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: written by the command -->", f"<!-- /{name} -->"


def _place(page: str, name: str) -> re.Match[str] | None:
    first, last = map(re.escape, _markers(name))
    return re.search(rf"^{first}$.*?^{last}$", page, re.MULTILINE | re.DOTALL)


def append_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Append JSON lines, flushed; a torn last line of a killed run goes first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        _drop_torn_line(file)
        for row in rows:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete JSON lines of a file, which may not exist.

    Raises:
        InputError: it cannot be read, or a line is no JSON object.
    """
    if not path.is_file():
        return []
    rows: list[dict[str, Any]] = []
    try:
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            rows.append(parse_object(line))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} is damaged (line {len(rows) + 1}: {error}); remove it, or choose another --out"
        ) from error
    return rows


def _drop_torn_line(file: BinaryIO) -> None:
    size = file.seek(0, 2)
    if not size:
        return
    file.seek(size - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    file.seek(0, 2)
