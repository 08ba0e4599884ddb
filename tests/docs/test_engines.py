"""The table of docs/engines.md names tests that exist, and says of each whether `make test` runs it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\|.*`(tests/[\w/]+\.py)::(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
OWN_ENVIRONMENT = "tests/engines/installed/"


def test_the_table_is_read() -> None:
    assert len(ROWS) == PAGE.count("`tests/"), "a row of the table has another shape than the rest"


@pytest.mark.parametrize(("file", "test", "run"), ROWS, ids=[test for _, test, _ in ROWS])
def test_each_row_names_a_test(file: str, test: str, run: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert ("by `make test`" in run) != file.startswith(OWN_ENVIRONMENT)
