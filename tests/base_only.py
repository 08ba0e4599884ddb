"""A program for ``test_base_install``: what works where only the base dependencies are installed.

Hides every installed package that the base dependencies do not bring, imports each module of oneglance, runs the
command lines of stdin (JSON), and prints ``{"failed": {module: package}, "runs": [[exit code, stdout, stderr], …]}``.
"""

import contextlib
import io
import json
import pkgutil
import re
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from typing import Any

from packaging.requirements import Requirement


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def brought_by(requirements: Iterable[str]) -> set[str]:
    """Names of the installed distributions that these need, at any depth."""
    found: set[tuple[str, str]] = set()
    todo = [(Requirement(written), "") for written in requirements]
    while todo:
        wanted, extra = todo.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        for part in {"", *wanted.extras} - {part for name, part in found if name == normal(wanted.name)}:
            found.add((normal(wanted.name), part))
            with contextlib.suppress(PackageNotFoundError):  # of another platform
                todo += [(Requirement(written), part) for written in distribution(wanted.name).requires or []]
    return {name for name, _ in found}


class Only:
    """A finder that knows no package of other distributions than the allowed ones, nor their metadata."""

    def __init__(self, finder: Any, allowed: set[str]) -> None:
        self.finder, self.allowed = finder, allowed
        owners = packages_distributions()
        self.hidden = {package for package, names in owners.items() if not {normal(n) for n in names} & allowed}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name.partition(".")[0] in self.hidden else self.finder.find_spec(name, path, target)

    def find_distributions(self, context: Any) -> Any:
        return (found for found in self.finder.find_distributions(context) if normal(found.name) in self.allowed)

    def invalidate_caches(self) -> None:
        self.finder.invalidate_caches()


def import_all() -> dict[str, str]:
    """module → the package that it lacks, of those that cannot be imported."""
    failed: dict[str, str] = {}
    root = import_module("oneglance")
    for module in pkgutil.walk_packages(root.__path__, "oneglance."):
        if not module.name.endswith("__main__"):
            try:
                import_module(module.name)
            except ModuleNotFoundError as error:
                failed[module.name] = str(error.name)
    return failed


def run(words: list[str]) -> tuple[int, str, str]:
    from oneglance.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    own = [written for written in distribution("oneglance").requires or [] if "extra ==" not in written]
    allowed = brought_by(own) | {"oneglance"}
    sys.meta_path[:] = [
        Only(finder, allowed) if hasattr(finder, "find_distributions") else finder for finder in sys.meta_path
    ]
    lines = json.loads(sys.stdin.read())
    print(json.dumps({"failed": import_all(), "runs": [run(words) for words in lines]}))
