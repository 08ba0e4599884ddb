"""Tables of docs: written from a result's rows alone, between their own markers, each system in its block."""

import json
from pathlib import Path
from typing import Any

import pytest

from oneglance.bench.compare import margins
from oneglance.bench.metrics import summarise
from oneglance.bench.record import Record
from oneglance.commands.report import report
from oneglance.core import InputError
from oneglance.files import has_place, spliced
from oneglance.report.results import sections
from oneglance.report.strips import Branch, Node, Piece
from oneglance.report.summary import place_of, short, summary

MANIFEST = {
    "command": "oneglance bench", "cpu": "A", "gpu": None, "threads": 2, "dtype": "float32", "git_sha": "abc",
    "time": "2026-01-02T03:04:05", "versions": {"torch": "2", "transformers": "5"},
}  # fmt: skip
MS = {"plain": 40.0, "tree@runs/head": 10.0, "ngram": 50.0, "ngram-ocr": 8.0, "transformers": 42.0, "broken": 0.0}


def records(task: str) -> list[Record]:
    made = []
    for prompt in "abcde":
        for system, ms in MS.items():
            is_outside = system in ("transformers", "broken")
            made.append(
                Record(
                    system, task, prompt, tuple(range(9)) if ms else (),
                    () if is_outside else (1,) * 8 if system == "plain" else (4, 4),
                    ms, 5.0, bool(ms), 0.1, passes=() if is_outside else (1, 1), nodes=() if is_outside else (7, 9),
                    num_parameters=1234567, is_outside=is_outside, failure=None if ms else "ValueError: no",
                    extra_input="the page's text" if system == "ngram-ocr" else None,
                )
            )  # fmt: skip
    return made


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    found = [*records("docvqa"), *records("chartqa")]
    rows = [row.as_dict() for row in summarise(found)]
    gains = [{name: getattr(m, name) for name in m.__slots__} for m in margins(found, "tree@runs/head")]
    return {"manifest": MANIFEST, "rows": rows, "margins": gains}


@pytest.fixture(scope="module")
def sweep(result: dict[str, Any]) -> dict[str, Any]:
    own = [row for row in result["rows"] if row["system"] in ("plain", "tree@runs/head")]
    rows = [
        {**row, "value": value, "context": 100.0 + value}
        for value in (50, 150)
        for row in own
        if row["task"] == "docvqa"
    ]
    return {"manifest": MANIFEST, "rows": rows, "axis": "context", "unit": "%"}


def rows_of(text: str, start: str) -> list[list[str]]:
    """Cells of the lines that begin so."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith(start)]


def test_a_bench_is_written_system_beside_system(result: dict[str, Any]) -> None:
    text = summary(result)
    head, *lines = rows_of(text.split("\n\n")[2], "|")
    assert head == ["task", "tokens", "tree τ", "speedup [95 %]", "ngram τ", "speedup [95 %]"]
    assert lines[1:] == [
        ["docvqa", "9", "4.00", "4.00 [4.00, 4.00]", "4.00", "0.80 [0.80, 0.80]"],
        ["chartqa", "9", "4.00", "4.00 [4.00, 4.00]", "4.00", "0.80 [0.80, 0.80]"],
        ["geometric mean", "", "", "4.00", "", "0.80"],
    ]
    assert "`oneglance bench`: A, 2 threads, float32; torch 2, transformers 5; commit abc, 2026-01-02." in text
    assert "40 of 40 outputs of our loop, 10 of 10 of transformers, 0 of 10 of broken." in text
    assert "broken failed on 5 of 5 prompts of chartqa: ValueError: no." in text
    assert rows_of(text, "| tree@runs/head") == [["tree@runs/head", "1.00", "8.0", "1,234,567", "—", "10 of 10", "yes"]]


def test_what_was_given_more_stands_apart(result: dict[str, Any]) -> None:
    """No margin over it, none of its figures among the others', and no ratio over what is outside."""
    text = summary(result)
    before, after = text.split("With extra input (the page's text)")
    assert "ngram-ocr" not in before
    assert "| docvqa | 9 | 4.00 | 5.00 [5.00, 5.00] |" in after
    assert {m["other"] for m in result["margins"]} == {"ngram"}
    assert rows_of(before, "| docvqa")[-1] == ["docvqa", "5.00 [5.00, 5.00]"]
    assert rows_of(after, "| docvqa")[1] == ["docvqa", "45", "15", "47", "—"]
    own, more, outside = sections(result)
    assert {row["system"] for row in own.rows} == {"plain", "tree@runs/head", "ngram"}
    assert [row["system"] for row in more.rows] == ["ngram-ocr"] * 2
    assert "speedup" not in outside.columns
    assert all(row["tau"] is None for row in outside.rows)
    assert "num_parameters" in own.columns
    assert "score" not in own.columns, "a column in which nothing stands is left out"


def test_a_sweep_has_a_column_a_value(sweep: dict[str, Any]) -> None:
    text = summary(sweep)
    assert rows_of(text, "| task") == [["task", "system", "by context", "50", "150"]]
    assert rows_of(text, "| docvqa") == [
        ["docvqa", "plain", "prompt tokens", "150", "250"],
        ["docvqa", "plain", "ms/token", "5.00", "5.00"],
        ["docvqa", "tree@runs/head", "τ", "4.00", "4.00"],
        ["docvqa", "tree@runs/head", "speedup [95 %]", "4.00 [4.00, 4.00]", "4.00 [4.00, 4.00]"],
    ]
    (section,) = sections(sweep)
    assert list(section.columns)[:4] == ["task", "system", "value", "context"]


def test_each_result_goes_to_its_own_place(
    result: dict[str, Any], sweep: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    places = [place_of(result), place_of(sweep)]
    assert places == ["bench", "sweep-context"]
    frame = "Before, `<!-- bench: written by the command -->` inline.\n{}\nafter\n"
    marks = "\n".join(f"<!-- {name}: written by the command -->\nold\n<!-- /{name} -->" for name in places)
    page.write_text(frame.format(marks))
    files = []
    for name, own in zip(places, (result, sweep), strict=True):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(own).replace("NaN", "null"))
    for _ in range(2):  # the second time replaces the first
        report(files, out=page)
    text = page.read_text()
    assert text.startswith("Before, `<!-- bench: written by the command -->` inline.\n<!-- bench: written")
    assert text.endswith("<!-- /sweep-context -->\nafter\n")
    assert "old" not in text
    assert text.count("| docvqa | plain | ms/token |") == 1
    with pytest.raises(InputError, match="one place for each kind"):
        report([files[0], files[0]], out=page)
    page.write_text(frame.format("<!-- sweep-context: written by the command -->\n<!-- /sweep-context -->"))
    with pytest.raises(InputError, match="no place for the tables; put the lines <!-- bench: written"):
        report(files, out=page)
    assert "old" not in page.read_text()
    page.write_text(frame.format("<!-- bench-2: written by the command -->\n<!-- /bench-2 -->"))
    report(files[:1], out=page, place="bench-2")
    assert "| docvqa |" in page.read_text()
    page.write_text("mine\n<!-- other: written by the command -->\n<!-- /other -->\n")
    with pytest.raises(InputError, match="no place"):
        report(files[:1], out=page)
    assert page.read_text().startswith("mine"), "a page of other tables is left alone"
    report(files, out=tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text().count("task,system") == 4, "a table each, with a header of its own"
    capsys.readouterr()


def test_markers_are_lines_of_their_own() -> None:
    page = "a <!-- x: written by the command -->\n<!-- /x -->\n"
    assert not has_place(page, "x")
    with pytest.raises(InputError, match="no place"):
        spliced(page, "x", "t")
    assert spliced(page[2:], "x", r"\1 t") == "<!-- x: written by the command -->\n\n\\1 t\n<!-- /x -->\n"


def test_names_lose_their_weights_only_where_they_stay_different() -> None:
    assert short(["two_model@a", "two_model@b", "tree"]) == {
        "two_model@a": "two_model@a",
        "two_model@b": "two_model@b",
        "tree": "tree",
    }


def test_runs_without_a_fork_are_one_branch() -> None:
    nodes = (
        Node("r", (1,), True), Node("a", (2, 4), True), Node("b", (3,), False), Node("c", (), False),
        Node("d", (5,), True), Node("e", (), False),
    )  # fmt: skip
    end = Branch(("e",), False, ())
    wrong, right = Branch(("b", "c"), False, ()), Branch(("d",), True, (end,))
    assert Piece(0, (), 0, nodes).tree == Branch(("r", "a"), True, (wrong, right))
