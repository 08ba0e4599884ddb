"""The script that prices rescorers: what it counts, against the formulas of docs/conditioned-trees.md."""

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "rescorer_cost.py"
V, H, K = 50, 8, 5


def test_a_line_a_rescorer_with_its_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cost.json"
    words = ("--vocab", V, "--hidden", H, "--ranks", 2, 4, "--branch-k", K, "--repeats", 2, "--device", "cpu")
    runpy.run_path(str(SCRIPT))["main"]([str(word) for word in (*words, "--json", out)])
    written = json.loads(out.read_text())
    rows = written["rows"]
    assert len(rows) == 1 + 2 * 2 * 2
    assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1
    for row in rows[1:]:
        tables = {"previous_token": 1, "two_tokens": 2}[row["kind"]]
        rank, size = row["rank"], V if row["factors"] == "own" else H
        assert row["parameters"] == (tables + 1) * size * rank + tables * (H + 1) * rank
        assert row["weights_mb"] == pytest.approx(4 * row["parameters"] / 1e6)
        host = 15 * K * (8 + 4) + 4 * K * K * (14 + (2 * 13 if tables == 2 else 0))
        assert row["host_mb"] == pytest.approx(host / 1e6)
        assert min(row["rescore_ms"], row["host_ms"], row["tree_ms"]) > 0
    assert (rows[0]["kind"], rows[0]["parameters"], rows[0]["rescore_ms"]) == ("none", 0, 0)
    assert written["manifest"]["vocab"] == V
    assert written["manifest"]["cpu"]
