"""Traces are used for the target that answered, wherever that lies, and for no other."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from oneglance.core import InputError
from oneglance.decoder import Decoder
from oneglance.drafters.plain import NoDrafter
from oneglance.targets import open_target
from oneglance.targets.base import Target
from oneglance.targets.outline import outline_target
from oneglance.testing import save_target, tiny_target
from oneglance.train.collect import Collection, LocalAnswerer
from oneglance.train.origin import check_image_size, check_origin, encoding
from oneglance.train.prompts import Prompt
from oneglance.train.recipe import HeadRecipe
from oneglance.train.traces import MANIFEST, ROWS, Trace, append_traces, write_manifest
from oneglance.train.trainer import HeadTrainer

FIX = "train for {}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("target")
    save_target(tiny_target("qwen3"), place)
    return place


@pytest.fixture(scope="module")
def traces(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("traces")
    gather(out, open_target(str(folder)))
    return out


def gather(out: Path, target: Target) -> None:
    prompts = [Prompt(f"p{i}", "t", f"question {i}") for i in range(2)]
    made = Collection(out, prompts, target, long_side=48, max_new_tokens=6, source={})
    list(made.run(LocalAnswerer(Decoder(target, NoDrafter()), max_new_tokens=6)))


def recipe(traces: Path, **head: Any) -> HeadRecipe:
    shape = {"num_layers": 1, "target_layer_ids": (1, 2), "head_dim": 8, **head}
    return HeadRecipe(name="r", head=shape, data={"train": str(traces), "num_anchors": 2}, optimiser={"max_steps": 1})


def test_the_same_target_passes_wherever_it_lies(traces: Path, folder: Path, tmp_path: Path) -> None:
    moved = open_target(str(shutil.copytree(folder, tmp_path / "moved")))
    check_origin([traces], moved, fix=FIX)
    HeadTrainer(recipe(traces), moved, tmp_path / "run")
    own = shutil.copytree(traces, tmp_path / "traces")
    gather(own, moved)  # and is gone on with


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (tiny_target("qwen3", seed=1), "another fine-tune of the target"),
        (tiny_target("llama"), "another target"),
        (tiny_target("qwen3", num_hidden_layers=4), "another target"),
    ],
)
def test_another_target_is_refused_with_both_names(traces: Path, folder: Path, other: Target, named: str) -> None:
    with pytest.raises(InputError, match=f"{named}: with {folder}, and this is {other.name}; train for {folder}"):
        check_origin([traces], other, fix=FIX)
    with pytest.raises(InputError, match=named):
        HeadTrainer(recipe(traces), other, traces / "run")
    with pytest.raises(InputError, match=named):
        gather(traces, other)


@pytest.mark.parametrize("key", ["chat_template_sha256", "image_processor_sha256"])
def test_another_template_or_image_processor_is_refused(traces: Path, folder: Path, tmp_path: Path, key: str) -> None:
    own = open_target(str(folder))
    changed(tmp_path, encoding(own, 48) | {key: "0" * 64})
    with pytest.raises(InputError, match=f"another {key.removesuffix('_sha256').replace('_', ' ')}"):
        check_origin([tmp_path], own, fix=FIX)


def test_what_servers_answered_is_judged_by_all_but_the_weights(folder: Path, tmp_path: Path) -> None:
    changed(tmp_path, encoding(outline_target(str(folder)), 48))
    assert json.loads((tmp_path / MANIFEST).read_text())["settings"]["target_weights_sha256"] is None
    check_origin([tmp_path], open_target(str(folder)), fix=FIX)
    check_origin([tmp_path], tiny_target("qwen3", seed=1), fix=FIX)  # nobody can tell
    with pytest.raises(InputError, match="another target"):
        check_origin([tmp_path], tiny_target("llama"), fix=FIX)


def test_the_built_in_model_is_known_by_what_older_manifests_say(tmp_path: Path) -> None:
    settings = {  # as written months ago
        "target": "builtin:reader",
        "target_revision": None,
        "target_geometry_sha256": "e39482ae9c76f9514950e6acea6f082fd80274a4e983178f22d64e9113332d6a",
        "target_weights_sha256": "58de703498a4ca832db450d918cf90c89a57beb6b8da31f2934d70567fa4a78a",
        "chat_template_sha256": "06f9eda9d7c2f6f9a4cdfb082d3e0f4efff62e86ffc202f7176801be131c24c7",
        "image_long_side": 768,
        "image_processor_sha256": "b7b8dcb3de2ddf209cc65e1640e174361a62b4cdef6327e2aed066c11f723e3f",
    }
    changed(tmp_path, settings)
    check_origin([tmp_path], open_target("builtin:reader"), fix=FIX)
    (tmp_path / MANIFEST).write_text("{}")
    check_origin([tmp_path, tmp_path / "none"], open_target("builtin:reader"), fix=FIX)


def test_tokens_that_the_target_lacks_are_refused_without_a_manifest(folder: Path, tmp_path: Path) -> None:
    list(append_traces(tmp_path / "t", [Trace("a", "t", "hello", (), (5, 70_000, 6))]))
    assert not (tmp_path / "t" / MANIFEST).exists()
    with pytest.raises(InputError, match="sample a has token 70000 and tiny:qwen3 has"):
        HeadTrainer(recipe(tmp_path / "t"), tiny_target("qwen3"), tmp_path / "run")
    assert (tmp_path / "t" / ROWS).exists()


@pytest.mark.parametrize(
    ("ids", "message"), [((1, 9), "layer 9 of 5; name different ones of 0 to 4"), ((1, 1), "repeats a layer")]
)
def test_layers_that_the_target_lacks_are_refused(tmp_path: Path, ids: tuple[int, ...], message: str) -> None:
    list(append_traces(tmp_path / "t", [Trace("a", "t", "hello", (), (5, 6, 7))]))
    with pytest.raises(InputError, match=message):
        HeadTrainer(recipe(tmp_path / "t", target_layer_ids=ids), tiny_target("qwen3"), tmp_path / "run")


def changed(out: Path, settings: Mapping[str, Any]) -> None:
    write_manifest(out, {"settings": dict(settings)})


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    target = tiny_target("qwen3_vl")
    settings = encoding(target, 64)
    (tmp_path / "manifest.json").write_text(json.dumps({"settings": settings}))
    check_image_size([tmp_path], target, 64)
    check_image_size([tmp_path], tiny_target("qwen3"), 768)  # reads none
    with pytest.raises(InputError, match="at an image long side of 64 and the recipe says 768; collect and train at"):
        check_image_size([tmp_path], target, 768)
    with pytest.raises(InputError, match="says any"):
        check_image_size([tmp_path], target, None)
