"""The import arrows, the lazy start and the size of files: what keeps the package easy to read."""

import ast
import os
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "oneglance"
FILES = sorted(SRC.rglob("*.py"))
MAX_LINES = 400
A_SCREEN = 62  # lines of a function

# Lowest first: a room imports only rooms of lower layers. Drafters know targets (they read their features), never the
# reverse. `testing` ships doubles of targets and drafters.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors"}),
    frozenset({"amounts", "files", "fetch", "hub", "sampling"}),
    frozenset({"core"}),
    frozenset({"tree", "cost", "accept", "stats", "text", "images", "audio", "acceptance"}),
    frozenset({"tasks", "widths"}),
    frozenset({"targets", "pdf", "pace"}),
    frozenset({"drafters"}),
    frozenset({"runner"}),
    frozenset({"decode", "guard", "prefixes"}),
    frozenset({"stream"}),
    frozenset({"decoder", "reference", "tiny"}),
    frozenset(
        {"audit", "bulk", "calibrate", "matrix", "train", "bench", "report", "serve", "engines", "testing", "plan"}
    ),
    frozenset({"commands"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
LAYER_OF = {room: depth for depth, rooms in enumerate(LAYERS) for room in rooms}
TOOLS = LAYER_OF["audit"]  # the one layer whose rooms may use each other
ROOT = "__init__"  # lazy public names

TRANSFORMERS_IN = (
    "targets/",
    "train/reader/",  # builds the embedded target from the HF class
    "testing.py",
    "tiny.py",
    "drafters/two_model.py",
    "drafters/eagle3.py",
    "drafters/medusa.py",
    "drafters/vispec.py",
)
ONLY_IN = {
    "transformers": TRANSFORMERS_IN,
    "fastapi": ("serve/",),
    "uvicorn": ("serve/",),
    "vllm": ("engines/",),
    "sglang": ("engines/",),
}


def relative(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(SRC).with_suffix("").parts[0]


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def running_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of a module but those under ``if TYPE_CHECKING:``, which never run."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and is_type_checking(child):
            yield from running_nodes(ast.Module(body=child.orelse, type_ignores=[]))
        else:
            yield child
            yield from running_nodes(child)


def imported_modules(path: Path) -> Iterator[str]:
    """Dotted names of everything that a file imports when it runs, at any depth of its code."""
    package = ("oneglance", *path.relative_to(SRC).parent.parts)
    for node in running_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join((*base, *([node.module] if node.module else [])))
            yield from (f"{source}.{alias.name}" for alias in node.names)


def imported_rooms(path: Path) -> set[str]:
    """Rooms of this package that a file imports. Other names of the package root, such as `load`, count as the root."""
    rooms = set()
    for name in imported_modules(path):
        head, *rest = name.split(".")
        if head == "oneglance" and rest != ["__version__"]:
            rooms.add(rest[0] if rest and rest[0] in LAYER_OF else ROOT)
    return rooms


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_functions_fit_a_screen(path: Path) -> None:
    """But for commands, whose options are their parameters."""
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    )
    long = {f.name: n for f in functions if (n := (f.end_lineno or 0) - f.lineno + 1) > A_SCREEN}
    assert not long or room_of(path) == "commands", f"{relative(path)}: {long}; split them"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_file_is_short_enough_to_read(path: Path) -> None:
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_LINES, f"{relative(path)} has {num_lines} lines; split it"


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) != ROOT], ids=relative)
def test_imports_follow_the_arrows(path: Path) -> None:
    room = room_of(path)
    assert room in LAYER_OF, f"name the room {room!r} in LAYERS"
    depth = LAYER_OF[room]
    for other in imported_rooms(path) - {room}:
        assert other != ROOT, f"{relative(path)} imports a lazy name of the package root; import it from its room"
        is_allowed = LAYER_OF[other] < depth or (LAYER_OF[other] == depth == TOOLS)
        assert is_allowed, f"{relative(path)} imports {other}, which the arrows forbid"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_heavy_packages_stay_in_their_rooms(path: Path) -> None:
    packages = {name.split(".")[0] for name in imported_modules(path)}
    for package, places in ONLY_IN.items():
        if package in packages:
            assert relative(path).startswith(places), f"{relative(path)} imports {package}"
    if room_of(path) == "stats":
        assert "torch" not in packages, f"{relative(path)} imports torch"


def test_import_is_lazy() -> None:
    code = "import sys, oneglance; print([m for m in ('torch', 'transformers', 'numpy', 'PIL') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.skipif(sys.platform == "win32", reason="counts processor time as POSIX does")
def test_help_is_fast() -> None:
    """Processor time, so that a busy machine does not count: on an idle one it is what a user waits."""
    import resource

    command = [str(Path(sysconfig.get_path("scripts")) / "oneglance"), "--help"]
    environment = {**os.environ, "COLUMNS": "120"}
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert "generate" in result.stdout
    assert statistics.median(seconds) < 0.5, f"oneglance --help took {sorted(seconds)} seconds"
