"""What is checked of every command line before the command begins: nothing is ignored, and what is made can be kept."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from oneglance.core import InputError

# Options that only some drafters take → what ``drafters.takes`` calls them
OPTIONS = {"head": "head", "tree": "policy", "budget": "budget", "branch_k": "branch_k"}
OUTPUTS = ("out", "figures")
NAME_MAX = 255 - len(".records.run.json.partial")  # of any file system, what is put after it among it
FOLDER = "FOLDER"  # the metavar of an output that is one


def check_line(context: Any) -> None:
    """Refuse a command line that would be ignored in part, or whose results could not be written.

    Args:
        context: typer's, of the command, parsed.

    Raises:
        InputError: naming the option.
    """
    params = context.params
    options = {own.name: own for own in context.command.params}
    given = {name for name in params if "COMMANDLINE" in str(context.get_parameter_source(name))}
    for name in OUTPUTS:
        value = params.get(name)
        for path in value if isinstance(value, list | tuple) else [value]:
            if path is not None:  # typer before 0.29 makes a path of it later
                check_output(options[name].opts[0], Path(path), is_folder=options[name].metavar == FOLDER)
    if params.get("figures") is not None:
        check_extra("matplotlib", "figures need matplotlib")
    if isinstance(params.get("drafter"), str):
        check_drafter(params["drafter"], {name: options[name].opts[0] for name in OPTIONS if name in given})


def check_drafter(drafter: str, given: Mapping[str, str]) -> None:
    """Refuse options that the drafter would not look at.

    Args:
        drafter: its name; settings may follow.
        given: option → how it is written, of those on the command line.

    Raises:
        InputError: there is one.
    """
    from oneglance.drafters import takes

    bare = drafter.partition(":")[0]
    taken = takes(bare) if given else frozenset()
    ignored = [written for name, written in given.items() if OPTIONS[name] not in taken]
    if ignored:
        raise InputError(
            f"--drafter {bare} takes no {' and no '.join(ignored)}; leave it out, or choose another drafter"
        )


def check_extra(package: str, what: str, extra: str = "report") -> None:
    """Refuse to begin what could not be finished.

    Raises:
        InputError: the package is not installed.
    """
    if find_spec(package) is None:
        raise InputError(f"{what}; install it with: pip install 'oneglance[{extra}]'")


def check_output(option: str, path: Path, *, is_folder: bool = False) -> None:
    """Refuse a place where nothing could be written. Makes nothing.

    Args:
        option: what named it.
        path: a file, which may exist and may be replaced, or a folder.
        is_folder: which of the two.

    Raises:
        InputError: the other kind is there, or the place cannot be written to.
    """
    if is_folder and os.path.lexists(path) and not os.path.isdir(path):
        raise InputError(f"{option} {path} is a file; name a folder")
    if not is_folder and os.path.isdir(path):
        raise InputError(f"{option} {path} is a folder; name a file in it")
    try:
        if os.path.isfile(path):
            with path.open("ab"):
                pass
        elif is_folder or not os.path.lexists(path):  # neither a device nor a pipe
            _try(path if is_folder else path.parent, path.name)
    except OSError as error:
        raise InputError(f"{option}: cannot write {path} ({error.strerror}); choose another place") from error


def _try(folder: Path, name: str) -> None:
    """Whether a file or folder of that name can be made there, above it where nothing is yet.

    Raises:
        OSError: no.
    """
    if len(os.fsencode(name)) > NAME_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    there = folder.absolute()
    while not os.path.lexists(there):
        there = there.parent
    with tempfile.TemporaryFile(dir=there):
        pass
