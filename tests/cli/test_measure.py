"""The commands that measure: rounds and the statistics on them, bench, sweep, cost, ledger, compare, reports."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oneglance.commands import rounds as rounds_command
from oneglance.commands.measuring import partial
from oneglance.files import sole_writer
from oneglance.report import entropy
from oneglance.report.tables import document
from oneglance.stats.rounds import RoundLog, RoundRow, read_rounds, write_rounds
from oneglance.stats.sidecar import read_marginals
from simulate import simulate_rounds

from .conftest import Run

TINY = ("--threads", 1, "--max-new-tokens", 24, "--dtype", "float32")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "asked.jsonl"
    lines = [{"id": f"p{i}", "task": "chat" if i < 2 else "code", "prompt": f"Say {i} things."} for i in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def tiny(text_target: Path, text_head: Path, prompts: Path) -> tuple[object, ...]:
    return ("--target", text_target, "--head", text_head, "--prompts", prompts, *TINY)


@pytest.fixture(scope="module")
def law_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with two planted laws, and marginals for the replay."""
    path = tmp_path_factory.mktemp("law") / "log.jsonl"
    rng = np.random.default_rng(0)
    rows: list[RoundRow] = []
    for seed, (task, b0, b1) in enumerate((("caption", 0.4, 0.4), ("docvqa", 1.2, 1.0))):
        made = simulate_rounds(b0, b1, num_rounds=400, num_prompts=20, seed=seed)
        seen: dict[str, int] = {}
        for h, a, horizon, name in zip(made.h_nats, made.a, made.horizon, made.prompts, strict=True):
            index = seen.setdefault(str(name), 0)
            seen[str(name)] += 1
            ranks = [0] * int(a) + [1] + [int(r) for r in rng.integers(0, 3, 15)]
            known = tuple(rank if offset < horizon else None for offset, rank in enumerate(ranks[:15]))
            rows.append(
                RoundRow(
                    run="block/best_first/31",
                    task=task,
                    prompt=str(name),
                    round=index,
                    position=100 + index,
                    h_nats=float(h),
                    p_max=float(np.exp(-h)),
                    top2_gap=1.0,
                    a=int(a),
                    a1=int(a),
                    horizon=int(horizon),
                    cut="none",
                    budget=31,
                    nodes=31,
                    ranks=known,
                    log_q=tuple(None if r is None else -1.0 - r for r in known),
                )
            )
    write_rounds(path, rows)
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        counts[row.task, row.prompt] = max(counts.get((row.task, row.prompt), 0), row.round + 1)
    table = np.log(np.array([0.6, 0.25, 0.1, 0.05], np.float32))
    for (task, prompt), count in counts.items():
        rounds_command.save_marginals(path, task, prompt, np.broadcast_to(table, (count, 15, 4)))
    return path


def test_rounds_writes_a_log_and_goes_on_after_a_kill(
    run: Run, tiny: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rounds.jsonl"
    words = ("rounds", *tiny, "--out", out, "--budget", 7, "--marginals")
    first = run(*words, "--json")
    assert first.code == 0
    assert first.json["num_prompts"] == 4
    whole = read_rounds(out)
    assert set(first.json["tasks"]) == {"chat", "code"}
    lines = out.read_text().splitlines()
    torn = next(i for i, row in enumerate(whole.rows) if row.prompt == "p2")
    out.write_text("\n".join(lines[: torn + 1]) + "\n" + lines[torn + 1][:40])  # killed inside the third prompt
    asked: list[str] = []
    from oneglance.bench import roundlog

    record = roundlog.record

    def spy(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs["prompt"])
        return record(*args, **kwargs)

    monkeypatch.setattr(roundlog, "record", spy)
    assert run(*words).code == 0
    assert asked == ["p2", "p3"]

    def timeless(rows: tuple[RoundRow, ...]) -> list[RoundRow]:
        return [replace(row, t_draft_ms=0.0, t_verify_ms=0.0, t_host_ms=0.0) for row in rows]

    assert timeless(read_rounds(out).rows) == timeless(whole.rows)
    assert "other settings (budget 7, now 9)" in run(*words[:-3], "--budget", 9, "--marginals").error
    width = run("width", out, "--budgets", "3,7", "--json")
    assert width.code == 0
    assert set(width.json["tasks"]) | set(width.json["left_out"]) == {"chat", "code"}


def test_law_finds_the_planted_slopes(run: Run, law_log: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the [report] extra is not installed")
    found = run("law", law_log, "--calibration", "--figures", tmp_path / "figures", "--json").json
    for task, b1 in (("caption", 0.4), ("docvqa", 1.0)):
        law = found["fits"][task]["law"]
        assert abs(law["b1"]["value"] - b1) < law["b1"]["high"] - law["b1"]["low"]  # four standard errors
        slopes = found["derivatives"][task]
        assert slopes["p_slope"] < 0
        assert slopes["mean_slope"] > slopes["endless"]  # the block's end flattens it
    assert found["fits"]["docvqa"]["verdict"] == "holds"
    bounds, nodes = found["brackets"]["docvqa"], read_rounds(law_log).budget
    assert bounds["upper"] == pytest.approx([min(15, 2 * math.log(nodes) / h) for h in bounds["h_nats"]])
    assert found["fano"] is None  # nothing beside this log says how large the vocabulary is
    assert found["gaps"]["caption < docvqa"]["difference"]["low"] > 0
    assert found["calibration"]["offsets"][0]["said"] == pytest.approx(0.6, abs=1e-6)
    assert {Path(path).name for path in found["figures"]} >= {"fig3a.png", "fig4.pdf", "fig8.png", "calibration.png"}


def test_tail_and_width_read_the_same_log(run: Run, law_log: Path) -> None:
    tail = run("tail", law_log, "--resamples", 19, "--tasks", "docvqa", "--json").json
    assert list(tail["tasks"]) == ["docvqa"]
    assert tail["tasks"]["docvqa"]["ratio"]["resamples"] == 19
    width = run("width", law_log, "--tasks", "docvqa", "--budgets", "3,15", "--json").json["tasks"]["docvqa"]
    at = {(p["policy"], p["budget"]): p["mean_a"] for p in width["points"]}
    for budget in (3, 15):
        assert at["oracle", budget] >= max(at[policy, budget] for policy in ("fixed", "entropy", "scores"))
    assert width["regret"]["regret"] <= width["regret"]["bound"] + 1e-9
    assert run("tail", law_log, "--resamples", 19).code == 0


def test_a_log_with_marginals_gets_its_width_on_the_page(law_log: Path) -> None:
    log = read_rounds(law_log)
    short = RoundLog(log.of("docvqa").rows[:120])
    made = entropy.sections(short, marginals=read_marginals(law_log, short), vocab_size=50, resamples=19)
    assert [section.name for section in made] == [
        "The entropy law",
        "Slopes and scales",
        "Between its bounds",
        "What scores promise",
        "The tail of the floor",
        "Width by entropy",
        "What choosing width by entropy could bring",
    ]
    page = {section.name: section for section in made}
    assert {"fixed", "entropy", "oracle"} <= page["Width by entropy"].columns.keys()
    gain = page["What choosing width by entropy could bring"].rows[0]
    assert 0 <= gain["regret"] <= gain["bound"]
    slope, (fit,) = (
        page["Slopes and scales"].rows[0],
        [r for r in page["The entropy law"].rows if r["task"] == "docvqa"],
    )
    assert slope["endless"] < slope["mean_slope"] < 0
    assert fit["reached"] == pytest.approx(fit["round"] / fit["ceiling"])
    promises = page["What scores promise"].rows
    assert promises[0]["said"] == pytest.approx(0.6, abs=1e-6)
    assert {row["scores"] for row in promises} == {"marginal"}
    for row in page["Between its bounds"].rows:
        assert row["lower"] <= row["upper"]
    tail = page["The tail of the floor"].rows[0]
    assert 0 <= tail["pi"] <= 1
    text = document(made)
    assert "γ = 0.5 is ours" in text
    assert " nan " not in text
    chain = tuple(float(np.log(0.9)) for _ in range(15))
    rescored = [replace(row, ranks_given=row.ranks, top_log_q_given=chain, chain_log_q=chain) for row in short.rows]
    table = read_marginals(law_log, short)
    both = entropy.sections(RoundLog(tuple(rescored)), marginals=table, vocab_size=50, resamples=19)
    (conditioned,) = [section for section in both if section.name == "What scores promise"]
    assert {row["scores"] for row in conditioned.rows} == {"marginal", "conditioned"}
    assert "conditioned" in conditioned.charts[0].svg


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("law", "{log}", "--tasks", "speech"), "it has caption, docvqa"),
        (("law", "{log}", "--method", "ols"), "--method takes ml or ls"),
        (("law", "{none}"), "cannot read the round log"),
        (("width", "{log}", "--budgets", "a"), "--budgets takes numbers"),
        (("width", "{log}", "--budgets", "500"), "--max-budget"),
        (("sweep", "moon"), "budget, depth, context, temperature, threads"),
        (("sweep", "budget", "--values", "x"), "--values takes numbers"),
        (("sweep", "budget", "--systems", "plain"), "a system besides plain"),
        (("sweep", "threads", "--threads", "2"), "--values instead of --threads"),
        (("sweep", "budget", "--systems", "conditioned:budget=15"), "a budget of its own"),
        (("cost", "--systems", "plain"), "needs a drafting system"),
        (("cost", "--systems", "conditioned:budget=15"), "--budgets instead of conditioned:budget=15"),
        (("compare", "Say it.", "--systems", "plain,ngram-ocr"), "is given the text of each page"),
        (("cost", "--sizes", "-1"), "--sizes must be at least 0"),
        (("cost", "--sizes", "7,99999999"), "--sizes must be at least 0 and at most 4096"),
        (("cost", "--budgets", "4097"), "--budgets must be at least 1 and at most 4096"),
        (("cost", "--sizes", ""), "--sizes takes numbers such as"),
        (("bench", "--charge-tau", "tree"), "SYSTEM=TAU"),
        (("bench", "--systems", "warp"), "unknown system"),
        (("bench", "--data", "hf"), "--data needs --tasks"),
        (("bench", "--tasks", "docvqa", "--prompts", "{log}"), "not both"),
        (("rounds", "--tasks", "docvqa", "--data", "{none}"), "has no val_v*.json"),
        (("ledger", "diff", "{none}", "{none}"), "cannot read the result"),
        (("reproduce", "table99"), "table1 to table17"),
        (("report", "--out", "page.docx"), "must end in .html"),
        (("report", "{log}", "--out", "r.md"), "name it by --rounds"),
        (("worth-it", "--images", "{none}"), "there is no folder"),
        (("worth-it", "--images", "{folder}"), "there is no image or PDF below"),
    ],
)
def test_bad_input_names_the_fix(run: Run, law_log: Path, words: tuple[str, ...], fix: str) -> None:
    places = {"log": law_log, "none": law_log.parent / "none", "folder": law_log.parent}
    assert fix in run(*(word.format(**places) for word in words)).error


def test_bench_writes_a_result_that_the_others_read(run: Run, tiny: tuple[object, ...], tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = run("bench", *tiny, "--budget", 7, "--warmup", 0, "--out", out, "--charge-tau", "tree=3", "--json")
    assert done.code == 0
    rows = {(row["system"], row["task"]): row for row in done.json["rows"]}
    needed = "system task n tau tau_no_bonus ms_per_token speedup ci_low ci_high wins identical".split()
    assert all(set(needed) <= row.keys() for row in rows.values())
    assert rows["tree", "chat"]["identical"] == 2
    assert rows["plain", "chat"]["speedup"] is None
    assert {p["label"] for p in done.json["projections"]} == {"projection, not measured"}
    assert {(m["ours"], m["other"]) for m in done.json["margins"]} == {("tree", "chain")}
    named = done.json["manifest"]
    assert named["prompt_set"]
    assert named["bootstrap"] == {"resamples": 8000, "seed": 0}
    assert named["tasks"] == {"chat": None, "code": None}, "prompts of one's own have no version"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asked.jsonl", "bench.json"]  # no journal is left
    again = run("ledger", "diff", out, out, "--json").json
    assert again["is_comparable"]
    assert {c["tau_drift"] for c in again["changes"] if c["system"] == "tree"} == {0.0}
    ratio = run("ledger", "ratio", out, out, "--task", "chat", "--json").json
    assert ratio["value"] == pytest.approx(rows["tree", "chat"]["speedup"], rel=0.3)
    assert "give --task" in run("ledger", "ratio", out, out).error
    table = tmp_path / "rows.md"
    assert run("report", out, "--out", table).code == 0
    assert "| chat | tree |" in table.read_text()


def test_a_killed_bench_goes_on(
    run: Run, tiny: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oneglance.bench.runner import Bench

    out, whole = tmp_path / "bench.json", Bench.run
    words = ("bench", *tiny, "--budget", 3, "--warmup", 0, "--systems", "plain,tree", "--out", out)

    def killed(self: Bench, *args: Any, **kwargs: Any) -> Any:
        for index, made in enumerate(whole(self, *args, **kwargs)):
            if index == 2:
                raise KeyboardInterrupt
            yield made

    monkeypatch.setattr(Bench, "run", killed)
    assert run(*words).code == 130
    asked: list[int] = []

    def counted(self: Bench, *args: Any, **kwargs: Any) -> Any:
        asked.append(len(kwargs["done"]))
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(Bench, "run", counted)
    assert run(*words).code == 0
    assert asked == [2]
    assert [r["prompt"] for r in json.loads(out.read_text())["records"]] == [
        "p0",
        "p0",
        "p1",
        "p1",
        "p2",
        "p2",
        "p3",
        "p3",
    ]


@pytest.mark.parametrize(
    ("axis", "values", "expected"),
    [("budget", "3,7", [None, 3, 7]), ("depth", "1,4", [None, 1, 4]), ("temperature", "0,1", [0, 0, 1, 1])],
)
def test_sweeps_share_a_plain_arm_where_they_can(
    run: Run, tiny: tuple[object, ...], axis: str, values: str, expected: list[float | None]
) -> None:
    done = run("sweep", axis, "--values", values, *tiny, "--limit", 1, "--warmup", 0, "--json")
    assert done.code == 0
    assert [row["value"] for row in done.json["rows"]] == expected
    named = done.json["manifest"]
    assert (named["seed"], named["temperature"]) == ((0, [0, 1]) if axis == "temperature" else (None, 0.0))
    assert all(row["identical"] == 1 for row in done.json["rows"])  # drawn text too is the plain loop's
    nodes = [row["nodes"] for row in done.json["rows"] if row["system"] != "plain"]
    if axis != "temperature":
        assert nodes == sorted(nodes)


def test_text_of_the_page_is_extra_input(run: Run, text_target: Path, text_head: Path, tmp_path: Path) -> None:
    """What the page says is what the answer says: its lookup accepts more than that of prompt and answer alone."""
    weights = ("--target", text_target, "--head", text_head, *TINY)
    answer = run("generate", "Say it.", *weights[:2], "--drafter", "none", *TINY, "--json").json["text"]
    asked = tmp_path / "pages.jsonl"
    asked.write_text(json.dumps({"prompt": "Say it.", "ocr": answer}))
    done = run("bench", "--systems", "plain,ngram,ngram-ocr", "--prompts", asked, *weights, "--warmup", 0, "--json")
    assert done.code == 0
    rows = {row["system"]: row for row in done.json["rows"]}
    assert rows["ngram-ocr"]["extra_input"] == "the page's text"
    assert rows["ngram"]["extra_input"] is None
    assert rows["ngram-ocr"]["tau"] > rows["ngram"]["tau"]
    assert rows["ngram-ocr"]["identical"] == 1
    assert set(done.json["geomean_speedup"]) == {"ngram"}
    assert {m["other"] for m in done.json["margins"]} <= {"ngram"}
    asked.write_text(json.dumps({"prompt": "Say it.", "ocr": 7}))
    assert '"ocr" is the text' in run("bench", "--prompts", asked, *weights).error


def test_cost_adds_up(run: Run, tiny: tuple[object, ...], tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    words = ("--limit", 1, "--sizes", "0,7", "--repeats", 2, "--budget", 7, "--out", out, "--json")
    found = run("cost", *tiny, *words).json
    assert json.loads(out.read_text())["systems"] == found["systems"]
    page = tmp_path / "page.md"
    page.write_text("<!-- cost: written by the command -->\n<!-- /cost -->\n")
    assert run("report", out, "--out", page).code == 0
    assert f"a plain step takes {found['t_plain_ms']:.2f} ms" in page.read_text()
    parts = [found[name] for name in ("t_draft_ms", "t_verify_ms", "t_host_ms")]
    assert sum(parts) == pytest.approx(found["round_ms"], rel=1e-6)
    assert found["host_share"] == pytest.approx(found["t_host_ms"] / found["round_ms"])
    assert found["t_plain_ms"] > 0
    assert found["budget"] == 7
    assert [v["nodes"] for v in found["verify"]] == [0, 7]
    first = found["first_token"]
    assert first["turns"] == 2
    assert min(first[name] for name in ("prefill_ms", "prefill_capture_ms", "ttft_ms", "hf_ttft_ms")) > 0
    bars = {bar["name"]: bar for bar in found["bars"]}
    assert set(bars) == {"host_share", "build_and_pack_ms", "efficiency", "capture_over_prefill", "ttft_over_hf"}
    assert bars["host_share"]["value"] == found["host_share"]
    assert bars["host_share"]["is_met"] == (found["host_share"] <= 0.1)
    assert bars["ttft_over_hf"]["value"] == first["ttft_over_hf"]
    assert bars["efficiency"]["value"] > 0
    assert "sequential drafter" in found["regression"]["reason"]


def test_cost_of_a_drafter_without_marginals(run: Run, tiny: tuple[object, ...], tmp_path: Path) -> None:
    """What cannot be told is null, and the rest is there all the same."""
    out = tmp_path / "cost.json"
    words = ("--limit", 1, "--sizes", "3", "--repeats", 2, "--out", out, "--json")
    found = run("cost", *tiny, "--systems", "ngram", *words).json
    assert json.loads(out.read_text())["systems"] == found["systems"]
    assert [row["nodes"] for row in found["verify"]] == [3]
    bars = {bar["name"]: (bar["value"], bar["is_met"]) for bar in found["bars"]}
    assert bars["efficiency"] == bars["build_and_pack_ms"] == (None, None)
    assert bars["host_share"][0] == found["host_share"] > 0
    assert [row["system"] for row in found["systems"]] == ["ngram"]
    assert run("report", out, "--out", tmp_path / "page.html", "--strips", "none").code == 0


@pytest.mark.parametrize("command", ["rounds", "ablate layers", "bench"])
def test_two_at_once_on_one_file_are_refused(run: Run, tiny: tuple[object, ...], tmp_path: Path, command: str) -> None:
    out = tmp_path / "out"
    with sole_writer(partial(out) if command == "bench" else out):
        assert "another process is writing to" in run(*command.split(), *tiny, "--limit", 1, "--out", out).error
    assert not [path.name for path in tmp_path.glob("*out*")], "something was begun"


def test_compare_shows_how_each_system_cut_the_text(
    run: Run, text_target: Path, text_head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("compare", "Say it.", "--target", text_target, "--head", text_head, *TINY, "--replicates", 1)
    rows = run(*words, "--json").json["systems"]
    assert [row["system"] for row in rows] == ["plain", "chain", "tree"]
    assert all(row["identical"] for row in rows)
    for row in rows:
        assert len(row["strip"]) == row["num_rounds"] + 1
        assert "".join(row["strip"]) == row["text"]
    assert run(*words).code == 0
