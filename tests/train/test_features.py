"""Features kept between epochs: the same training, a later run finds them, a full disk costs speed only."""

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from oneglance.core import InputError, OneglanceWarning
from oneglance.decoder import Decoder
from oneglance.drafters.plain import NoDrafter
from oneglance.files import sole_writer
from oneglance.targets.base import Target
from oneglance.testing import tiny_target
from oneglance.train import caching, features
from oneglance.train.caching import Layout, cache_features, feature_bytes, with_collected
from oneglance.train.collect import Collection, LocalAnswerer
from oneglance.train.features import DiskStore, check_disk, key_of
from oneglance.train.prompts import Prompt
from oneglance.train.recipe import HeadRecipe
from oneglance.train.step import Sample
from oneglance.train.traces import read_traces
from oneglance.train.trainer import HeadTrainer


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3")


@pytest.fixture(scope="module")
def plan(target: Target, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Both sets have the ids p0, p1, …: ids alone do not tell their samples apart."""
    folder = tmp_path_factory.mktemp("traces")
    for name, count in (("train", 4), ("heldout", 2)):
        prompts = [Prompt(f"p{i}", "text", f"{name} question {i}") for i in range(count)]
        answerer = LocalAnswerer(Decoder(target, NoDrafter()), max_new_tokens=12)
        list(Collection(folder / name, prompts, target, None, 12, {}).run(answerer))
    return {
        "name": "tiny",
        "data": {"train": str(folder / "train"), "heldout": str(folder / "heldout")},
        "head": {"num_layers": 1, "target_layer_ids": [1, 2], "head_dim": 8},
        "optimiser": {"lr": 0.003, "batch_size": 2, "epochs": None, "max_steps": 6},
        "schedule": {"log_every": 1, "evaluate_every": 3, "tau_prompts": 0},
    }


def run(plan: dict[str, Any], target: Target, out: Path, cache: bool | str) -> list[Any]:
    recipe = HeadRecipe(**{**plan, "data": {**plan["data"], "cache_features": cache}})
    reports = HeadTrainer(recipe, target, out).run()
    return [(p.loss, p.heldout.top1 if p.heldout else None) for p in reports]


def sample(seed: int) -> Sample:
    torch.manual_seed(seed)
    return Sample((seed, 1, 2, 3), 2, torch.randn(4, 6), torch.randn(4, 3) if seed % 2 else None)


def test_two_at_once_in_one_folder_are_refused(plan: dict[str, Any], target: Target, tmp_path: Path) -> None:
    """Collecting, keeping features beside the traces, and training."""
    traces = Path(plan["data"]["train"])
    answerer = LocalAnswerer(Decoder(target, NoDrafter()), max_new_tokens=12)
    begun: list[Iterator[Any]] = [
        Collection(traces, [], target, None, 12, {}).run(answerer),
        cache_features(traces, target, Layout((1, 2), None, 4096)),
        HeadTrainer(HeadRecipe(**plan), target, tmp_path / "run").run(),
    ]
    with sole_writer(traces), sole_writer(tmp_path / "run"):
        for steps in begun:
            with pytest.raises(InputError, match="another process is writing to"):
                next(steps)
    assert list(tmp_path.iterdir()) == []


def test_kept_features_change_nothing_and_the_target_runs_once_a_sample(
    plan: dict[str, Any], target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(plan, target, tmp_path / "plain", False)
    calls: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Sample:
        calls.append(1)
        return original(*args, **kwargs)

    original = caching.run_target
    monkeypatch.setattr(caching, "run_target", counted)
    for cache in (True, "disk"):
        calls.clear()
        assert run(plan, target, tmp_path / str(cache), cache) == plain
        assert len(calls) == 6
    assert list((tmp_path / "disk" / "features" / "process-0").glob("*.safetensors"))


def test_training_reads_the_features_that_lie_beside_the_traces(
    plan: dict[str, Any], target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train", "heldout"):
        shutil.copytree(plan["data"][name], tmp_path / name)
    data = {name: str(tmp_path / name) for name in ("train", "heldout")}
    plain = run({**plan, "data": data}, target, tmp_path / "plain", False)
    layout = Layout((1, 2), 768, HeadRecipe(**{**plan, "data": data}).data.max_length)
    for name, count in (("train", 4), ("heldout", 2)):
        rows = read_traces(tmp_path / name).rows
        assert list(cache_features(tmp_path / name, target, layout)) == list(range(1, count + 1))
        shards = list((tmp_path / name / "features").glob("*.safetensors"))
        width = 2 * target.hidden_size * 4
        lengths = [len(row.encode(target).token_ids) + len(row.answer_ids) for row in rows]
        assert sum(path.stat().st_size for path in shards) >= sum(lengths) * width
        assert feature_bytes(rows, target, layout) == pytest.approx(sum(lengths) * width, rel=0.1)
    before = {path: path.read_bytes() for name in data for path in (tmp_path / name / "features").iterdir()}
    monkeypatch.setattr(caching, "run_target", None)  # whatever is not found cannot be made
    assert list(cache_features(tmp_path / "train", target, layout)) == [1, 2, 3, 4]
    assert run({**plan, "data": data}, target, tmp_path / "found", "disk") == plain
    assert {path: path.read_bytes() for path in before} == before
    assert not list(tmp_path.glob("found/features/*/*.safetensors"))


def test_features_of_other_settings_are_made_anew(plan: dict[str, Any], target: Target, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    shutil.copytree(plan["data"]["train"], traces)
    list(cache_features(traces, target, Layout((1, 3), None, 3072)))
    own = DiskStore(tmp_path / "own", {})
    with pytest.warns(OneglanceWarning, match="features of another target_layer_ids than this run's"):
        assert with_collected(own, [traces], target, Layout((1, 2), None, 3072)) is own
    with pytest.raises(InputError, match=r"made with other settings \(max_length\)"):
        list(cache_features(traces, target, Layout((1, 3), None, 40)))


def test_a_disk_that_fills_up_keeps_what_was_written(
    plan: dict[str, Any], target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces, layout = tmp_path / "traces", Layout((1, 2), None, 3072)
    shutil.copytree(plan["data"]["train"], traces)
    monkeypatch.setattr(features, "SHARD_BYTES", 1)
    original, written = features.save_file, []

    def nearly_full(tensors: Any, path: Path) -> None:
        written.append(path)
        if len(written) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(tensors, path)

    monkeypatch.setattr(features, "save_file", nearly_full)
    with pytest.warns(OneglanceWarning, match="is full"):
        list(cache_features(traces, target, layout))
    found = with_collected(DiskStore(tmp_path / "own", {}), [traces], target, layout)
    kept = [found.get(key_of(row)) is not None for row in read_traces(traces).rows]
    assert kept == [True, True, False, False]


def test_a_later_store_finds_what_was_written(tmp_path: Path) -> None:
    first = DiskStore(tmp_path, {"a": 1}, shard_bytes=200)
    for seed in range(5):
        first.put(f"k{seed}", sample(seed))
    assert first.get("k4") is not None
    first.flush()
    (tmp_path / "features-00099.safetensors.partial").write_bytes(b"torn")
    again = DiskStore(tmp_path, {"a": 1})
    for seed in range(5):
        stored, expected = again.get(f"k{seed}"), sample(seed)
        assert stored is not None
        assert (stored.token_ids, stored.prompt_length) == (expected.token_ids, expected.prompt_length)
        assert torch.equal(stored.features, expected.features)
        assert (stored.last_hidden is None) == (expected.last_hidden is None)
    assert again.get("other") is None
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with pytest.raises(InputError, match="made with other settings"):
        DiskStore(tmp_path, {"a": 2})


def test_a_full_disk_costs_speed_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    store = DiskStore(tmp_path, {}, shard_bytes=1)
    store.put("kept", sample(0))
    monkeypatch.setattr(features, "save_file", full)
    with pytest.warns(OneglanceWarning, match="is full: further features are recomputed"):
        store.put("lost", sample(1))
    store.put("later", sample(2))
    assert store.get("kept") is not None
    assert store.get("lost") is store.get("later") is None
    assert not list(tmp_path.glob("*.partial"))


def test_too_little_space_is_said_before(tmp_path: Path) -> None:
    check_disk(tmp_path / "not" / "there", 1)
    with pytest.raises(InputError, match=r"data\.cache_features=false"):
        check_disk(tmp_path, 10**18)


def test_equal_ids_of_two_folders_are_two_samples(plan: dict[str, Any]) -> None:
    rows = [read_traces(plan["data"][name]).rows[0] for name in ("train", "heldout")]
    assert rows[0].id == rows[1].id
    assert key_of(rows[0]) != key_of(rows[1])
