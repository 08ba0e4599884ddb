"""What strangers wrote: JSON and YAML are read in one room, and what is damaged there is one clear error."""

import ast
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oneglance.bench.journal import SETTINGS as RUN_SETTINGS
from oneglance.bench.journal import Journal
from oneglance.bench.ledger import read
from oneglance.bulk import Job
from oneglance.cost import load_costs
from oneglance.drafters.checkpoint import read_config
from oneglance.errors import InputError
from oneglance.files import (
    MAX_DEPTH,
    append_lines,
    parse_json,
    parse_yaml,
    read_lines,
    read_object,
    sole_writer,
    write_atomically,
)
from oneglance.serve.settings import read_settings
from oneglance.targets.grammar import _schema
from oneglance.tasks.layouts import text
from oneglance.train.card import read_scores
from oneglance.train.checkpoints import Checkpoints
from oneglance.train.features import DiskStore
from oneglance.train.prompts import read_prompts
from oneglance.train.recipe import load_recipe
from oneglance.train.runlog import read_recipe
from oneglance.train.traces import MANIFEST, ROWS, open_source, read_traces

SRC = Path(__file__).parents[2] / "src" / "oneglance"
TRACE = {"id": "a", "task": "t", "prompt": "p", "images": [], "answer_ids": [1, 2], "image_sha256": []}
DEEP = "[" * 5_000 + "]" * 5_000
DAMAGED = {
    "binary": b"\xff\xfe\x00\x80",
    "truncated": b'{"settings": {"a": ',
    "a list": b"[1, 2]",
    "a number": b"7",
    "deep": DEEP.encode(),
    "empty": b"",
}


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5_000])
@pytest.mark.parametrize(
    ("parse", "brackets"),
    [
        (parse_json, "[]"),
        (parse_json, ('{"a":', "}")),
        (parse_yaml, "[]"),
        (parse_yaml, ('{"a":', "}")),
        (parse_yaml, ("{a: ", "}")),
    ],
)
def test_what_is_nested_too_deeply_is_a_value_error(parse: Any, depth: int, brackets: Any) -> None:
    first, last = brackets
    with pytest.raises(ValueError, match="nested"):
        parse(first * depth + "1" + last * depth)


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_what_is_nested_as_people_nest_is_read(parse: Any) -> None:
    value = parse("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []
    assert parse('{"a": [' + "[1], " * 500 + "[2]]}")["a"][-1] == [2]  # many brackets, none of them deep


def test_yaml_that_names_itself_is_refused_and_aliases_are_counted_once() -> None:
    with pytest.raises(ValueError, match="nested"):
        parse_yaml("&a [*a]")
    laughs = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" if i else "a0: &a0 [1]" for i in range(40))
    assert len(parse_yaml(laughs)) == 40


@pytest.mark.parametrize("text", ["[", "a: b: c", "!!python/object:x {}", "!!int ''", "\t", "{[]: 1}"])
def test_bad_yaml_is_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$"):
        parse_yaml(text)


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda path: path.relative_to(SRC).as_posix())
def test_json_and_yaml_are_read_in_one_room(path: Path) -> None:
    called = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
    readers = {
        name
        for name in called
        if name.split(".")[-1] in ("loads", "load") and name.split(".")[0] in ("json", "jsonlib", "json_format")
    }
    readers |= {name for name in called if name.startswith(("yaml.load", "yaml.safe_load"))}
    assert not readers or path == SRC / "files.py", f"use files.parse_json or parse_yaml instead of {readers}"


def _traces(folder: Path) -> object:
    return read_traces(folder)


def _manifest(folder: Path) -> object:
    (folder / MANIFEST).write_bytes((folder / ROWS).read_bytes())
    (folder / ROWS).write_text(json.dumps(TRACE) + "\n")
    return read_traces(folder)


def _journal(folder: Path) -> object:
    (folder / ("log" + RUN_SETTINGS)).write_bytes((folder / ROWS).read_bytes())
    return Journal(folder / "log", {"a": 1})


def _job(folder: Path) -> object:
    (folder / "out.settings.json").write_bytes((folder / ROWS).read_bytes())
    (folder / "out").write_text("{}\n")
    return Job(folder / "out", [], {"a": 1})


def _head(folder: Path) -> object:
    (folder / "config.json").write_bytes((folder / ROWS).read_bytes())
    return read_config(str(folder))


def _run(folder: Path) -> object:
    (folder / "recipe.json").write_bytes((folder / ROWS).read_bytes())
    return read_recipe(folder)


def _checkpoint(folder: Path) -> object:
    (folder / "step-0000001").mkdir()
    (folder / "step-0000001" / "state.json").write_bytes((folder / ROWS).read_bytes())
    return Checkpoints(folder).best()


def _features(folder: Path) -> object:
    (folder / "settings.json").write_bytes((folder / ROWS).read_bytes())
    return DiskStore(folder, {"a": 1})


def _text_task(folder: Path) -> object:
    (folder / "eval.jsonl").write_bytes((folder / ROWS).read_bytes() or b"1")
    return list(text(folder, "eval"))


READERS: dict[str, Any] = {
    "traces": _traces,
    "manifest": _manifest,
    "journal": _journal,
    "job": _job,
    "head": _head,
    "run": _run,
    "checkpoint": _checkpoint,
    "features": _features,
    "text task": _text_task,
    "object": lambda folder: read_object(folder / ROWS, "write it anew"),
    "result": lambda folder: read(folder / ROWS),
    "costs": lambda folder: load_costs(folder / ROWS),
    "prompts": lambda folder: read_prompts(folder / ROWS),
    "recipe": lambda folder: load_recipe(folder / ROWS),
    "scores": lambda folder: read_scores(folder / ROWS, "head"),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_file_is_one_clear_error(reader: str, damage: str, tmp_path: Path) -> None:
    (tmp_path / ROWS).write_bytes(DAMAGED[damage] + (b"\n" if reader == "traces" else b""))
    with pytest.raises(InputError) as caught:
        READERS[reader](tmp_path)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("damage", [damage for damage in DAMAGED if damage != "empty"])
def test_damaged_server_settings_are_one_clear_error(damage: str, tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_bytes(DAMAGED[damage])
    with pytest.raises(InputError):
        read_settings(tmp_path / "serve.yaml", {})


@pytest.mark.parametrize("schema", [DEEP, '{"a": ' * 5_000, "[1]", "7"])
def test_a_bad_schema_is_one_clear_error(schema: str) -> None:
    with pytest.raises(InputError, match="json_schema"):
        _schema(schema)


@pytest.mark.parametrize("damage", [damage for damage in DAMAGED if damage != "empty"])
def test_damaged_lines_name_their_file(damage: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(DAMAGED[damage] + b"\n")
    with pytest.raises(InputError, match="lines is damaged"):
        read_lines(tmp_path / "lines")


def test_lines_that_lack_a_name_are_not_gone_on_with(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "log", {"a": 1})
    journal.describe({}, {"a": 1})
    journal.append([{"task": "t"}])
    with pytest.raises(InputError, match="no 'prompt'"):
        Journal(tmp_path / "log", {"a": 1}).take_back_last()


HOLDS = """
import sys, time
from pathlib import Path
from oneglance.files import sole_writer
with sole_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
AT_IT = r"another process is writing to .*out\.jsonl; wait until it ends, or choose another --out"


def test_one_process_at_a_time_writes_and_a_dead_one_bars_nobody(tmp_path: Path) -> None:
    place = tmp_path / "new" / "out.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(SRC.parent)}
    words = [sys.executable, "-c", HOLDS, str(place)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=AT_IT), sole_writer(place):
            raise AssertionError("both may write")
        with sole_writer(place.with_name("another")):
            pass
        other.kill()
    same = place.parent / ".." / "new" / "out.jsonl"
    with sole_writer(place), pytest.raises(InputError, match=AT_IT), sole_writer(same):
        raise AssertionError("it has two names")
    assert list(place.parent.iterdir()) == []


def test_a_link_keeps_leading_to_the_file_that_a_resumed_run_rewrites(tmp_path: Path) -> None:
    """Else another process would find the file by another name, with another lock."""
    link, place = tmp_path / "link.jsonl", tmp_path / "elsewhere" / "out.jsonl"
    place.parent.mkdir()
    link.symlink_to(place)
    kept = Journal(link, {})
    kept.describe({}, {})
    kept.append([{"task": "one", "prompt": "a"}, {"task": "one", "prompt": "b"}])
    with sole_writer(link):
        assert Journal(link, {}).take_back_last() == {("one", "a")}
        with pytest.raises(InputError, match=AT_IT), sole_writer(place):
            raise AssertionError("it has two names")
    assert link.is_symlink()
    assert read_lines(place) == [{"task": "one", "prompt": "a"}]


def test_odd_places_are_locked_or_bad_input(tmp_path: Path) -> None:
    """The root has no name of its own, and where a loop of links leads nobody knows."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with sole_writer(loop), pytest.raises(OSError, match="symbolic link"):
        append_lines(loop, [{}])
    write_atomically(tmp_path / "other", "text")
    with contextlib.suppress(InputError), sole_writer(Path("/")):  # root alone may
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "other"]


def test_a_place_for_no_lock_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match=r"cannot lock .*; choose another --out"),
        sole_writer(tmp_path / "file" / "out"),
    ):
        raise AssertionError("there is no such folder")


@pytest.mark.parametrize(
    "change",
    [
        {"answer_ids": ["x"]},
        {"answer_ids": "12"},
        {"answer_ids": [-1]},
        {"answer_ids": None},
        {"images": 3},
        {"images": [None]},
        {"prompt": 3},
        {"system": []},
        {"schema_version": 9},
        {"id": None},
    ],
    ids=str,
)
def test_a_trace_of_the_wrong_types_is_named_by_its_line(change: dict[str, Any], tmp_path: Path) -> None:
    append_lines(tmp_path / ROWS, [TRACE, {**TRACE, **change}])
    with pytest.raises(InputError, match=f"line 2 is not a trace: {next(iter(change))}"):
        read_traces(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        *("", "docvqa", "docvqa:train", "docvqa:train:x", "docvqa:train:-1", "docvqa:test:1", "docvqa:train:1:2"),
        *(":train:1", "none:train:1", "docvqa:train:" + "9" * 5000, "docvqa:eval:999999", "docvqa:train:²"),
    ],
)
def test_a_source_that_draws_no_page_is_an_input_error(source: str) -> None:
    with pytest.raises(InputError):
        open_source(f"synthetic:{source}")
