"""The round log: what is written comes back, and what is wrong is named by line and field."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oneglance.core import InputError
from oneglance.stats.rounds import CHECKS, RoundLog, RoundRow, read_rounds, row_of, write_rounds

ROW = RoundRow(
    run="r1",
    task="docvqa",
    prompt="7",
    round=0,
    position=120,
    h_nats=0.25,
    p_max=0.9,
    top2_gap=3.5,
    a=2,
    a1=1,
    horizon=3,
    cut="eos",
    budget=31,
    nodes=31,
    ranks=(0, 1, 4, *[None] * 12),
    log_q=(-0.1, -1.5, -3.0, *[None] * 12),
    path_log_q=-1.6,
    saliency=0.2,
    t_draft_ms=1.5,
)


def test_a_log_comes_back(tmp_path: Path) -> None:
    rows = (ROW, replace(ROW, round=1, task="caption", ranks=(), log_q=(), path_log_q=None, saliency=None, cut="none"))
    write_rounds(tmp_path / "log.jsonl", rows)
    log = read_rounds(tmp_path / "log.jsonl")
    assert log == RoundLog(rows)
    assert len(log) == 2
    assert log.tasks == ("docvqa", "caption")
    assert log.of("caption").rows == rows[1:]
    assert list(log.prompts) == ["docvqa/7", "caption/7"]
    np.testing.assert_array_equal(log.h_nats, [0.25, 0.25])
    np.testing.assert_array_equal(log.ranks[0], [0, 1, 4, *[-1] * 12])
    np.testing.assert_array_equal(log.ranks[1], [-1] * 15)
    np.testing.assert_array_equal(log.log_q[0, :3], [-0.1, -1.5, -3.0])
    assert np.isnan(log.log_q[0, 3:]).all()
    assert np.isnan(log.floats("saliency")[1])
    assert list(log.names("cut")) == ["eos", "none"]


def test_censoring_is_read_off_the_horizon() -> None:
    missed, cut_short, no_room = ROW, replace(ROW, a=3), replace(ROW, a=0, a1=0, horizon=0, nodes=0)
    log = RoundLog((missed, cut_short, no_room))
    assert len(log.drafted) == 2
    np.testing.assert_array_equal(log.drafted.runs.is_censored, [False, True])


def test_every_field_is_checked() -> None:
    assert set(CHECKS) == set(json.loads(ROW.as_json()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"h_nats": -0.1}, r"line 2: field h_nats is -0.1; need a finite number ≥ 0"),
        ({"h_nats": None}, "field h_nats is None"),
        ({"p_max": 1.2}, "field p_max is 1.2; need a probability"),
        ({"a": 16}, r"field a is 16; need a whole number in 0\.\.15"),
        ({"a": True}, "field a is True"),
        ({"a": 4}, "field a is 4, beyond the horizon 3"),
        ({"a1": 4}, "field a1 is 4, beyond the horizon 3"),
        ({"cut": "done"}, "field cut is 'done'; need one of none, eos"),
        ({"nodes": 40}, "field nodes is 40, beyond the budget 31"),
        ({"nodes": 1}, "field a is 2, but the tree has only 1 nodes"),
        ({"ranks": [0, 1]}, "field ranks"),
        ({"ranks": [-1] * 15}, "field ranks"),
        ({"log_q": [0.5] * 15}, "field log_q"),
        ({"path_log_q": 1.0}, "field path_log_q"),
        ({"gated": 1}, "field gated is 1; need true or false"),
        ({"task": ""}, "field task is ''; need a name"),
        ({"saliency": "high"}, "field saliency"),
        ({"schema_version": 2}, "schema_version is 2; this version reads 1"),
        ({"entropy": 1.0}, "field entropy is unknown"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, change: dict[str, object], says: str) -> None:
    wrong = json.dumps({**json.loads(ROW.as_json()), **change})
    (tmp_path / "log.jsonl").write_text(f"{ROW.as_json()}\n{wrong}\n")
    with pytest.raises(InputError, match=says) as caught:
        read_rounds(tmp_path / "log.jsonl")
    assert "log.jsonl, line 2" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_fields_and_files(tmp_path: Path) -> None:
    row = json.loads(ROW.as_json())
    del row["horizon"]
    with pytest.raises(InputError, match="line 1: field horizon is missing"):
        row_of(json.dumps(row))
    for line in ("{", "[1]"):
        with pytest.raises(InputError, match="not a JSON object"):
            row_of(line)
    with pytest.raises(InputError, match="cannot read the round log"):
        read_rounds(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        read_rounds(tmp_path / "empty.jsonl")


def test_optional_fields_may_be_left_out() -> None:
    row = json.loads(ROW.as_json())
    for name in ("ranks", "log_q", "path_log_q", "saliency", "gated", "t_draft_ms"):
        del row[name]
    assert row_of(json.dumps(row)).ranks == ()


def test_nan_is_never_written() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        replace(ROW, saliency=float("nan")).as_json()
