"""``--budget auto`` from the command line: where it goes, what it does not go with, and the replay of its rules."""

import json
from pathlib import Path
from typing import Any

import pytest

from oneglance.cost import Costs, load_costs, write_costs
from oneglance.drafters import paced, timing
from oneglance.serve.settings import ServeSettings
from oneglance.widths import RULES
from pacing import costs_of

from .conftest import Run
from .test_measure import law_log, prompts, tiny

__all__ = ["law_log", "prompts", "tiny"]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and few repeats: no figure of the clock is looked at."""
    monkeypatch.setenv("ONEGLANCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(timing, "REPEATS", 3)  # the first draft is not among those that are averaged
    monkeypatch.setattr(timing, "CONTEXTS", (32,))
    monkeypatch.setattr(timing, "SPREAD", float("inf"))
    monkeypatch.setattr(timing, "DIP", float("inf"))
    return tmp_path / "cache"


def test_generate_measures_once_and_writes_the_same_text(
    run: Run, text_target: Path, text_head: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["generate", "hi", "--target", text_target, "--head", text_head, "--max-new-tokens", 20, "--json"]
    fixed = run(*words, "--budget", 15).json
    assert not cache.exists()
    assert run(*words, "--budget", "auto").json["token_ids"] == fixed["token_ids"]
    (path,) = (cache / "costs").iterdir()
    costs, _ = load_costs(path)
    assert costs.provenance["target"] == str(text_target)
    monkeypatch.setattr(paced, "measure", lambda *_: pytest.fail("measured again"))
    assert run(*words, "--budget", "auto").json["token_ids"] == fixed["token_ids"]


def test_costs_of_a_busy_machine_are_one_note_and_no_file(
    run: Run, text_target: Path, text_head: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "SPREAD", 0.0)  # no times fit together
    words = ["generate", "hi", "--target", text_target, "--head", text_head, "--max-new-tokens", 8, "--json"]
    busy = run(*words, "--budget", "auto")
    assert busy.code == 0
    assert busy.err.count("do not fit together") == busy.err.count("note: ") == 1, busy.err
    assert busy.json["token_ids"] == run(*words, "--budget", 15).json["token_ids"]
    assert not (cache / "costs").exists()


@pytest.mark.parametrize(
    "damage",
    [
        {"draft_ms": -1},
        {"draft_ms": float("nan")},
        {"verify": [{"context": 0, "rows": rows, "ms": 1e300} for rows in (1, 2, 128)]},
        {"verify": 3},
        {"learned": {"standing": {"tokens": [[1e300, 1e300]] * 6}}},
        {"learned": {"standing": {"tokens": [["one", "two"]] * 6}}},
        {"learned": {"standing": {"tokens": [[1.0, 1.0]]}}},
        {"learned": {"standing": {"hits": [1.0] * 25}}},
        {"learned": {"standing": 1}},
        {"learned": {"luck": 1}},
    ],
)
def test_a_damaged_cache_is_measured_anew_with_one_note(
    run: Run,
    text_target: Path,
    text_head: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: dict[str, object],
) -> None:
    def measured(*pair: Any) -> timing.Measured:
        return timing.Measured(costs_of().model_copy(update={"provenance": timing.provenance(*pair)}))

    monkeypatch.setattr(paced, "measure", measured)
    words = ["generate", "hi", "--target", text_target, "--head", text_head, "--max-new-tokens", 8, "--json"]
    sound = run(*words, "--budget", "auto")
    assert "anew" not in sound.err
    (path,) = (cache / "costs").iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    again = run(*words, "--budget", "auto")
    assert again.code == 0
    assert again.err.count("measuring anew") == again.err.count("note: ") == 1, again.err
    assert again.json["token_ids"] == sound.json["token_ids"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "wide"], "--budget takes a whole number or auto"),
        (["--budget", "0"], "--budget must be at least 1"),
        (["--budget", "auto", "--fixed-shape"], "budget as a number"),
        (["--budget", "auto", "--tree", "chain"], "best-first"),
    ],
)
def test_bad_budgets_are_one_line(run: Run, text_target: Path, text_head: Path, words: list[str], message: str) -> None:
    assert message in run("generate", "hi", "--target", text_target, "--head", text_head, *words).error


def test_a_drafter_without_marginals_has_no_width(run: Run, text_target: Path) -> None:
    words = ("generate", "hi", "--target", text_target, "--budget", "auto", "--drafter")
    assert "needs a drafter with marginals" in run(*words, "ngram").error
    assert "takes no --budget" in run(*words, "none").error


def test_audit_takes_auto_beside_numbers(run: Run) -> None:
    words = ("audit", "--prompts", 1, "--tasks", "scienceqa", "--no-hf", "--max-new-tokens", 4, "--json")
    report = run(*words, "--budget", "auto", "--budget", 7).json
    assert set(report["per_arm"]) == {"best_first/auto", "best_first/7"}
    assert report["bugs"] == 0
    assert "does not go with" in run("audit", "--budget", "auto", "--fixed-shape").error
    assert "does not go with" in run("audit", "--budget", "auto", "--matrix").error


def test_bench_has_a_system_that_chooses(run: Run, tiny: tuple[object, ...]) -> None:
    result = run("bench", *tiny, "--limit", 2, "--warmup", 0, "--systems", "plain,tree,auto", "--json")
    assert result.code == 0
    rows = {row["system"]: row for row in result.json["rows"]}
    assert set(rows) == {"plain", "tree", "auto"}
    assert rows["auto"]["identical"] == rows["auto"]["n"]
    assert "instead of auto" in run("cost", *tiny, "--systems", "auto").error
    assert "name it without" in run("sweep", "budget", *tiny, "--systems", "plain,auto").error


def test_rules_are_compared_on_a_log(run: Run, law_log: Path, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    write_costs(path, costs_of(slope=0.2), {})
    words = ("width", law_log, "--tasks", "docvqa", "--budgets", "3,15,63")
    result = run(*words, "--costs", path, "--json").json
    rules = {r["rule"]: r for r in result["rules"]["docvqa"]}
    assert set(rules) == {*RULES, "oracle", "fixed/3", "fixed/15", "fixed/63"}
    assert rules["oracle"]["tokens_per_ms"] >= max(r["tokens_per_ms"] for r in rules.values())
    assert "rules" not in run(*words, "--json").json
    assert "exchange" in run(*words, "--costs", path).out
    path.write_text(json.dumps({"draft_ms": 1}))
    assert "no measured costs" in run(*words, "--costs", path).error
    assert "no measured costs" in run(*words, "--costs", tmp_path / "missing.json").error


def test_a_server_may_be_told_auto() -> None:
    assert ServeSettings(budget="auto").budget == "auto"
    assert ServeSettings(budget=9).budget == 9
    for wrong in (0, "wide"):
        with pytest.raises(ValueError, match="budget"):
            ServeSettings(budget=wrong)  # type: ignore[arg-type]


def test_a_cost_file_says_what_it_depends_on(text_target: Path, cache: Path) -> None:
    path = cache / "own.json"
    costs = costs_of().model_copy(update={"provenance": {"threads": 2}})
    write_costs(path, costs, {})
    assert load_costs(path) == (costs, {})
    assert Costs(**costs.model_dump()) == costs
