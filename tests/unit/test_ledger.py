"""The ledger refuses what has no meaning, names both values, and keeps τ drift apart from speedup drift."""

import json
from pathlib import Path
from typing import Any

import pytest

from oneglance.bench import ledger
from oneglance.bench.journal import Journal
from oneglance.bench.record import Record
from oneglance.core import InputError

MACHINE: dict[str, Any] = {
    "engine": "oneglance", "cpu": "A", "gpu": None, "threads": 2, "dtype": "float32", "attention": "sdpa",
    "kernels": {"cpu_capability": "AVX512"}, "runner": "eager", "target": "t", "prompt_set": "p",
    "max_new_tokens": 8, "temperature": 0.0,
}  # fmt: skip


def write(path: Path, times: dict[str, float], kept: tuple[int, ...] = (2, 2), **manifest: Any) -> ledger.Result:
    records = [
        Record(system, "t", prompt, tuple(range(5)), kept if system == "tree" else (1,) * 4, ms, 1.0, True, 0.0)
        for prompt in "ab"
        for system, ms in times.items()
    ]
    data = {"manifest": {**MACHINE, **manifest}, "records": [r.as_dict() for r in records]}
    path.write_text(json.dumps(data))
    return ledger.read(path)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("cpu", "B"),
        ("gpu", "H200"),
        ("threads", 4),
        ("dtype", "bfloat16"),
        ("engine", "vllm"),
        ("prompt_set", "q"),
        ("kernels", {"cpu_capability": "AVX2"}),
        ("runner", "compile"),
    ],
)
def test_a_ratio_across_a_difference_is_refused_with_both_values(tmp_path: Path, name: str, other: Any) -> None:
    one = write(tmp_path / "a.json", {"plain": 40.0})
    two = write(tmp_path / "b.json", {"tree": 20.0}, **{name: other})
    with pytest.raises(InputError) as refused:
        ledger.ratio(one, "plain", two, "tree", "t")
    for part in (name, repr(MACHINE[name]), repr(other)):
        assert part in str(refused.value)


def test_a_ratio_on_one_machine_is_paired(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.json", {"plain": 40.0}), write(tmp_path / "b.json", {"tree": 20.0})
    assert ledger.ratio(one, "plain", two, "tree", "t").value == 2.0
    with pytest.raises(InputError, match="no 'chain'"):
        ledger.ratio(one, "chain", two, "tree", "t")


def test_a_sweep_of_runs_is_no_result_to_divide(tmp_path: Path) -> None:
    write(tmp_path / "a.json", {"plain": 40.0})
    data = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "b.json").write_text(json.dumps({**data, "axis": "context"}))
    with pytest.raises(InputError, match="many runs in one"):
        ledger.read(tmp_path / "b.json")


def test_diff_keeps_the_two_drifts_apart(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", {"plain": 40.0, "tree": 20.0})
    two = write(tmp_path / "b.json", {"plain": 10.0, "tree": 4.0}, kept=(4,), cpu="B")
    found = ledger.diff(one, two)
    assert found.manifest == {"cpu": ("A", "B")}
    assert not found.is_comparable
    tree = next(change for change in found.changes if change.system == "tree")
    assert (tree.tau_drift, tree.speedup_drift) == (pytest.approx(1.0), pytest.approx(0.25))
    assert ledger.diff(one, one).is_comparable


@pytest.mark.parametrize("text", ["", "{}", '{"records": [], "manifest": {}}', '{"records": [{}], "manifest": {}}'])
def test_a_file_that_is_no_result_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError):
        ledger.read(path)


def test_a_journal_goes_on_only_with_its_own_settings(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = Journal(path, {"budget": 63, "tasks": ("a",)})
    first.describe({}, {"budget": 63, "tasks": ("a",)})
    first.append([{"x": 1}])
    with path.open("a") as file:
        file.write('{"x": 2')  # killed here
    again = Journal(path, {"budget": 63, "tasks": ("a",)})
    assert again.lines == [{"x": 1}]
    again.append([{"x": 3}])
    assert Journal(path, {"budget": 63, "tasks": ("a",)}).lines == [{"x": 1}, {"x": 3}]
    with pytest.raises(InputError, match="budget 63, now 31"):
        Journal(path, {"budget": 31, "tasks": ("a",)})
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text("{}\n")
    with pytest.raises(InputError, match="none are stored beside it"):
        Journal(foreign, {})
