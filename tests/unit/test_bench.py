"""Benchmark arithmetic on numbers that can be checked by hand, and one small run."""

import math

import numpy as np
import pytest

from oneglance.bench.manifest import manifest
from oneglance.bench.metrics import Record, geomean, paired_speedup, summarise
from oneglance.bench.systems import Card, card, prepare_systems
from oneglance.core import InputError
from oneglance.drafters.checkpoint import load_checkpoint
from oneglance.targets import open_target


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
        ("medusa", "oneglance train recipes/reader-medusa.yaml"),
        ("two_model", "two_model@FOLDER"),
        ("ngram@somewhere", "'ngram' has no weights; drop @somewhere"),
        ("ngram:max_ngrams=2", "its settings: max_ngram"),
        ("tree@./nowhere", "no head at ./nowhere"),
        ("eagle3@builtin:reader", "holds no EAGLE-3 head"),
    ],
)
def test_a_system_without_weights_names_what_makes_them(system: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare_systems([system], "builtin:reader", budget=3)


def test_systems_say_how_large_they_are_and_where_they_come_from() -> None:
    target = open_target("builtin:reader", probe=False)
    names = ["plain", "tree", "ngram:num_draft=4", "two_model:num_draft=2@builtin:reader"]
    bound = prepare_systems(names, "builtin:reader", budget=3)
    cards = {name: card(bind(target)) for name, bind in bound.items()}
    assert list(cards) == names
    assert cards["plain"] == Card(None, 0)
    assert cards["ngram:num_draft=4"] == Card("ngram", 0)
    stored = load_checkpoint()
    assert cards["tree"] == Card("builtin:reader", sum(t.numel() for t in stored.tensors.values()))
    total = sum(p.numel() for p in target.model.parameters())
    tied = target.embedding.weight.numel()
    assert cards["two_model:num_draft=2@builtin:reader"] == Card("builtin:reader", total - tied)
