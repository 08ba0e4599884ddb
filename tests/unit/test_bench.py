"""Benchmark arithmetic on numbers that can be checked by hand, and one small run."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from oneglance.bench.advice import advise
from oneglance.bench.cases import own_images
from oneglance.bench.compare import charges, drift, margins, project
from oneglance.bench.cost import Cost, bars
from oneglance.bench.first import FirstToken
from oneglance.bench.manifest import manifest
from oneglance.bench.metrics import Record, geomean, paired_speedup, summarise
from oneglance.bench.record import record_of
from oneglance.bench.systems import Card, card, prepare_systems
from oneglance.core import InputError, OneglanceWarning
from oneglance.drafters.checkpoint import load_checkpoint
from oneglance.targets import open_target
from oneglance.train.prompts import look_for_pictures


def record(system: str, prompt: str, *, ms: float, kept: tuple[int, ...] = (), tokens: int = 11) -> Record:
    return Record(
        system=system,
        task="t",
        prompt=prompt,
        token_ids=tuple(range(tokens)),
        kept=kept,
        decode_ms=ms,
        prefill_ms=1.0,
        identical=True,
        entropy_nats=0.5,
        right=3,
        total=4,
        char_errors=1,
        num_chars=50,
    )


def test_rows_pool_rounds_and_sum_times() -> None:
    plain, tree = summarise(
        [
            record("plain", "a", ms=100, kept=(1,) * 10),
            record("tree", "a", ms=25, kept=(8, 2)),
            record("plain", "b", ms=50, kept=(1,) * 10),
            record("tree", "b", ms=50, kept=(5, 3, 2)),
        ]
    )
    assert (plain.speedup, plain.tau, plain.ms_per_token) == (None, None, 150 / 20)
    assert tree.speedup == 150 / 75
    assert tree.mean_of_ratios == (4 + 1) / 2
    assert tree.tau == 20 / 5  # rounds are pooled, not averaged over prompts
    assert tree.tau_no_bonus == 3
    assert (tree.wins, tree.identical, tree.n) == (1, 2, 2)
    assert (tree.score, tree.character_error_rate) == (0.75, 0.02)


def test_the_interval_covers_a_known_ratio() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(40):
        scale = rng.uniform(50, 150, size=30)
        plain, other = scale * rng.normal(2.0, 0.2, 30), scale * rng.normal(1.0, 0.1, 30)
        ratio, low, high = paired_speedup(plain, other)
        assert low < ratio < high
        hits += low < 2.0 < high
    assert hits >= 33  # 95 % nominal


def test_one_prompt_has_no_interval() -> None:
    ratio, low, high = paired_speedup([10.0], [5.0])
    assert ratio == 2.0
    assert math.isnan(low)
    assert math.isnan(high)


@pytest.mark.parametrize(("prompts", "has_interval"), [("abcd", False), ("abcde", True)])
def test_few_prompts_have_no_interval(prompts: str, has_interval: bool) -> None:
    made = [record(s, p, ms=10 + i, kept=(2,)) for s in ("plain", "tree", "chain") for i, p in enumerate(prompts)]
    tree = summarise(made)[1]
    assert tree.ci_low is not None
    assert math.isfinite(tree.ci_low) == has_interval
    assert math.isfinite(margins(made, "tree")[0].low) == has_interval


def test_geometric_means_of_the_paper() -> None:
    """Margins of Table 1: +6.33 %, -17.66 % and -4.01 % over the grounded, the open and all tasks."""
    grounded, open_text = [1.076, 1.054, 1.060], [1 - 0.162, 1 - 0.191]
    assert geomean(grounded) == pytest.approx(1.0633, abs=1e-4)
    assert geomean(open_text) == pytest.approx(1 - 0.1766, abs=1e-4)
    assert geomean(grounded + open_text) == pytest.approx(1 - 0.0401, abs=1e-4)
    assert geomean([1.66, 1.76, 1.99]) == pytest.approx(1.798, abs=1e-3)


def test_unknown_and_doubled_systems_are_refused() -> None:
    with pytest.raises(InputError, match="unknown system 'eagle'"):
        prepare_systems(["plain", "eagle"], None, budget=3)
    with pytest.raises(InputError, match="named twice"):
        prepare_systems(["plain", "plain"], None, budget=3)


def test_a_manifest_names_what_ran() -> None:
    made = manifest(budget=63)
    assert made["budget"] == 63
    assert made["schema_version"] == 1
    assert made["versions"]["torch"]
    assert made["threads"] >= 1


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ("eagle3", r"'eagle3' has no weights for target 'builtin:reader'.*oneglance train recipes/reader-eagle3.yaml"),
        ("eagle3_tree", "oneglance train recipes/reader-eagle3.yaml"),
        ("eagle2_tree", "oneglance train recipes/reader-eagle2.yaml"),
        ("vispec:tree=deep", "oneglance train recipes/reader-vispec.yaml"),
        ("vispec:tree=oak@builtin:reader", "tree: Input should be 'official', 'deep' or 'light'"),
        ("medusa", "oneglance train recipes/reader-medusa.yaml"),
        ("two_model", "two_model@FOLDER"),
        ("ngram@somewhere", "'ngram' has no weights; drop @somewhere"),
        ("ngram:max_ngrams=2", "its settings: max_ngram"),
        ("tree@./nowhere", "no head at ./nowhere"),
        ("eagle3@builtin:reader", "is a block head, not an EAGLE-3 head: .* in bench as tree@FOLDER"),
        ("eagle2@builtin:reader", "is a block head, not an EAGLE-2 head"),
    ],
)
def test_a_system_without_weights_names_what_makes_them(system: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare_systems([system], "builtin:reader", budget=3)


def test_a_system_may_have_a_budget_of_its_own() -> None:
    target = open_target("builtin:reader", probe=False)
    names = ["tree", "tree:budget=7", "conditioned:budget=15"]
    bound = prepare_systems(names, "builtin:reader", budget=3)
    assert [getattr(bound[name](target), "budget", None) for name in names] == [3, 7, 15]
    assert prepare_systems(["tree:branch_k=2"], "builtin:reader", budget=3)["tree:branch_k=2"](target).branch_k == 2
    ablation = [f"conditioned:branch_k={k}" for k in (8, 16, 32, 64)]
    bound = prepare_systems([*ablation, "conditioned"], "builtin:reader", budget=63)
    assert [getattr(bind(target), "num_ranks", None) for bind in bound.values()] == [8, 16, 32, 64, 63]
    for bad, message in (
        ("tree:budget=many", "budget takes a number or auto"),
        ("tree:branch_k=auto", "branch_k takes a number, got"),
        ("tree:budget=0", "at least 1"),
    ):
        with pytest.raises(InputError, match=message):
            prepare_systems([bad], "builtin:reader", budget=3)


def test_systems_say_how_large_they_are_and_where_they_come_from() -> None:
    target = open_target("builtin:reader", probe=False)
    names = ["plain", "tree", "ngram:num_draft=4", "two_model:num_draft=2@builtin:reader"]
    bound = prepare_systems(names, "builtin:reader", budget=3)
    cards = {name: card(bind(target)) for name, bind in bound.items()}
    assert list(cards) == names
    assert cards["plain"] == Card(None, 0)
    assert cards["ngram:num_draft=4"] == Card(None, 0)
    stored = load_checkpoint()
    assert cards["tree"] == Card("builtin:reader", sum(t.numel() for t in stored.tensors.values()))
    total = sum(p.numel() for p in target.model.parameters())
    tied = target.embedding.weight.numel()
    assert cards["two_model:num_draft=2@builtin:reader"] == Card("builtin:reader", total - tied)


def full(system: str, prompt: str, round_ms: tuple[float, ...], kept: tuple[int, ...], **more: object) -> Record:
    columns: dict[str, object] = {"task": "t", "prefill_ms": 5.0, "identical": True, "entropy_nats": 0.0, **more}
    tokens = tuple(range(1 + sum(kept)))
    return Record(
        system=system, prompt=prompt, token_ids=tokens, kept=kept, decode_ms=sum(round_ms), round_ms=round_ms, **columns
    )  # type: ignore[arg-type]


def test_time_until_a_length_follows_the_rounds() -> None:
    record = full("tree", "a", (10.0, 30.0, 5.0), (4, 2, 1))
    assert [record.ms_until(n) for n in (0, 2, 4, 5, 6, 7, 9)] == [0, 5, 10, 25, 40, 45, 45]


def test_equal_length_compares_what_both_decoded() -> None:
    rows = summarise(
        [
            full("plain", "a", (10.0,) * 8, (1,) * 8),
            full("tree", "a", (20.0, 20.0), (4, 0), identical=False),  # stopped after four tokens
        ]
    )
    assert rows[1].speedup == 80 / 40  # what a wrong text would claim
    assert rows[1].equal_length == 40 / 40
    assert not rows[1].is_lossless


def test_the_papers_window_leaves_the_first_draft_out() -> None:
    rows = summarise([full("plain", "a", (60.0,), (1,)), full("tree", "a", (20.0, 10.0), (1, 1), first_draft_ms=10.0)])
    assert (rows[1].speedup, rows[1].paper_window) == (2.0, 3.0)
    assert rows[1].end_to_end == 65 / 35


def test_replicates_are_means_of_one_prompt() -> None:
    records = [full("plain", "a", (ms,), (1,), replicate=i) for i, ms in enumerate((30.0, 50.0))]
    records += [full("tree", "a", (ms,), (1,), replicate=i) for i, ms in enumerate((10.0, 10.0))]
    (_, tree) = summarise(records)
    assert (tree.n, tree.replicates, tree.speedup, tree.replicate_speedups) == (1, 2, 4.0, (3.0, 5.0))


def test_survival_and_stages_are_per_round() -> None:
    record = full(
        "tree", "a", (10.0, 10.0), (3, 1), accepted=(2, 0), passes=(1, 1), nodes=(63, 31),
        draft_ms=6.0, build_ms=1.0, verify_ms=8.0, commit_ms=2.0, host_ms=3.0,
    )  # fmt: skip
    (row,) = summarise([record])
    assert row.survival[:3] == (0.5, 0.5, 0.0)
    assert (row.draft_ms, row.build_ms, row.verify_ms, row.commit_ms, row.host_ms) == (3, 0.5, 4, 1, 1.5)
    assert (row.passes, row.nodes) == (1.0, 47.0)


def test_margins_in_both_conventions() -> None:
    """Captioning of Table 1, by its rounded milliseconds: -16.2 % of ours, and what that is of theirs."""
    records = [full("plain", p, (24.25,), (1,)) for p in "ab"]
    records += [full("eagle3", p, (11.21,), (1,)) for p in "ab"]
    records += [full("tree", p, (13.38,), (1,)) for p in "ab"]
    (margin,) = margins(records, "tree")
    assert (margin.other, margin.wins, margin.n) == ("eagle3", 0, 2)
    assert margin.over_ours == pytest.approx(-0.162, abs=5e-4)
    assert margin.over_other == pytest.approx((11.21 - 13.38) / 11.21)
    assert margins(records, "medusa") == []


def test_drift_of_the_plain_arm() -> None:
    records = [full("plain", str(i), (ms,), (1,), task="t") for i, ms in enumerate((10.0, 10.0, 11.0, 11.0))]
    records += [full("plain", "z", (12.6,), (1,), task="u")]
    found = drift(records)
    assert found is not None
    assert found.halves == {"t": pytest.approx(1.1)}
    assert found.spread == pytest.approx(0.2)
    assert drift(records[:0]) is None


def test_a_projection_charges_the_measured_round() -> None:
    records = [full("plain", "a", (10.0,) * 4, (1,) * 4), full("tree", "a", (30.0, 30.0), (2, 2))]
    (found,) = project(records, charges(["tree=6"]))
    assert (found.ms_per_round, found.ms_per_token, found.speedup, found.measured_tau) == (30, 5, 2, 2)
    assert "not measured" in found.label
    with pytest.raises(InputError, match="not among the drafting systems"):
        project(records, {"eagle3": 3.0})
    for bad in ("tree", "tree=x", "tree=0.5"):
        with pytest.raises(InputError, match="charge-tau"):
            charges([bad])


def test_a_record_survives_json() -> None:
    record = full("tree", "a", (1.5, 2.5), (2, 1), vision_ms=0.5)
    assert record_of(json.loads(json.dumps(record.as_dict()))) == record
    with pytest.raises(InputError, match="not a record"):
        record_of({"system": "tree"})


def test_advice_needs_an_interval_above_one() -> None:
    def arms(tree: float, chain: float, prompts: str = "abcde") -> list[Record]:
        times = {"plain": 10.0, "tree": tree, "chain": chain}
        return [full(s, p, (ms + i / 10,), (1,)) for i, p in enumerate(prompts) for s, ms in times.items()]

    assert advise(arms(5, 8)).choice == "tree"
    assert advise(arms(8, 5)).choice == "chain"
    assert advise(arms(15, 12)).choice == "off"
    assert "below 1" in advise(arms(15, 12)).reason
    assert advise(arms(5, 8, "abcd"), "add pages").reason == "fewer than 5 prompts give no interval; add pages"
    few = advise(arms(5, 8, "abcd"))
    assert few.choice == "off", "four prompts give no interval"
    assert "fewer than 5 prompts" in few.reason
    assert math.isnan(few.findings["tree"].speedup.low)


def test_bars_are_limits_on_what_a_round_costs_beside_its_passes() -> None:
    cost = Cost("tree", 63, 5.0, 3.0, 0.3, 6.0, 1.0, 0.1, 10.0, 9, 2.0, 1.0, 4.0)
    first = FirstToken(10.0, 10.4, 11.0, 12.0, 1.04, 0.9, 5)
    found = {b.name: b for b in bars(cost, pack_ms=0.05, efficiency=0.8, first=first)}
    assert found["efficiency"].value == pytest.approx(0.8)
    assert found["build_and_pack_ms"].value == pytest.approx(0.35)
    assert {name: bar.is_met for name, bar in found.items()} == {
        "host_share": True,
        "build_and_pack_ms": True,
        "efficiency": False,
        "capture_over_prefill": True,
        "ttft_over_hf": True,
    }
    unknown = {b.name: b for b in bars(cost, pack_ms=0.05, efficiency=None, first=first)}
    assert (unknown["efficiency"].value, unknown["efficiency"].is_met) == (None, None)


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        ("/opt/venv/bin/oneglance", "oneglance"),
        ("/src/oneglance/__main__.py", "oneglance"),
        (str(Path.cwd() / "benchmarks" / "own.py"), f"python {Path('benchmarks/own.py')}"),
    ],
)
def test_a_manifest_says_what_was_typed(monkeypatch: pytest.MonkeyPatch, started: str, expected: str) -> None:
    monkeypatch.setattr(sys, "argv", [started, "--limit", "3"])
    assert manifest()["command"] == f"{expected} --limit 3"


def test_own_pages_are_images_and_pdfs_and_the_rest_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2", reason="the [pdf] extra is not installed")
    pages = [Image.new("RGB", (32, 48), (shade, 20, 90)) for shade in (10, 120, 230)]
    pages[0].save(tmp_path / "a.png")
    pages[0].save(tmp_path / "same.png")
    pages[1].save(tmp_path / "b.pdf", save_all=True, append_images=pages[2:])
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7 nonsense")
    with pytest.warns(OneglanceWarning, match=r"^left out: .*broken\.pdf' cannot be opened: .*, and 1 more$"):
        cases = own_images(tmp_path, ["One?", "Two?"], 9)
    assert [case.text for case in cases] == ["One?", "Two?", "One?"]
    assert len({case.id for case in cases}) == 3
    assert {len(case.images()) for case in cases} == {1}
    with pytest.warns(OneglanceWarning, match="left out"):
        assert [case.id for case in own_images(tmp_path, ["One?"], 2)] == [case.id for case in cases[:2]]


def test_pictures_that_are_left_out_are_named(tmp_path: Path) -> None:
    Image.new("RGB", (32, 48)).save(tmp_path / "a.png")
    Image.new("RGB", (32, 48)).save(tmp_path / "b.pdf")
    pictures = look_for_pictures(tmp_path)
    assert [path.name for _, path in pictures.found] == ["a.png"]
    assert [path.name for path in pictures.unreadable] == ["b.pdf"]
