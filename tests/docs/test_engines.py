"""docs/compatibility.md is what scripts/compatibility.py makes of the recorded runs, and each row names a test."""

import ast
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import helpers

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compatibility() -> ModuleType:
    return helpers.script("scripts/compatibility.py")


def test_the_page_is_the_scripts(compatibility: ModuleType) -> None:
    text = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert text == compatibility.page(compatibility.read_runs()) + "\n"


def test_each_row_names_a_test_of_its_environment(compatibility: ModuleType) -> None:
    for row in compatibility.ROWS:
        if row.test:
            file, _, test = row.test.partition("::")
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, row
            assert (row.run == "here") != file.startswith("tests/engines/installed/")


def run_of(**outcomes: str) -> dict[str, Any]:
    return {"outcomes": {name.replace("__", "::"): outcome for name, outcome in outcomes.items()}}


def test_a_row_says_what_its_run_found(compatibility: ModuleType) -> None:
    row = compatibility.Row("it", "there", "here", "a::b")
    assert compatibility.found(row, {}) == "not recorded"
    assert compatibility.found(row, {"here": run_of(a__c="passed")}) == "not recorded"
    assert compatibility.found(row, {"here": run_of(a__b="passed", a__bc="failed")}) == "passed"
    runs = {"here": {"outcomes": {"a::b[1]": "passed", "a::b[2]": "passed"}}}
    assert compatibility.found(row, runs) == "passed (2)"
    runs["here"]["outcomes"]["a::b[2]"] = "failed"
    assert compatibility.found(row, runs) == "**1 failed, 1 passed**"
    assert compatibility.found(compatibility.Row("it", "there", "", ""), {}) == "**not run**"


def test_a_run_records_outcomes_and_values(tmp_path: Path, pytester: pytest.Pytester) -> None:
    """The plugin on three tests: one that passes and reports, one that fails, one whose set-up fails."""
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.fixture\ndef broken(): raise OSError\n"
        "def test_good(record_property): record_property('count', 3)\n"
        "def test_bad(): assert not 1\n"
        "def test_ugly(broken): pass\n"
    )
    pytester.syspathinsert(ROOT / "tests")
    pytester.runpytest("-p", "recording", "--record", tmp_path / "it.json", "-p", "no:cacheprovider")
    made = json.loads((tmp_path / "it.json").read_text())
    outcomes = {test.partition("::")[2]: outcome for test, outcome in made["outcomes"].items()}
    assert outcomes == {"test_good": "passed", "test_bad": "failed", "test_ugly": "failed"}
    assert list(made["values"].values()) == [{"count": 3}]
    assert made["manifest"]["exit_code"] == 1
    assert made["manifest"]["command"].startswith("pytest -p recording")
