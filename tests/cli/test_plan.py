"""``oneglance plan``: no weight is read, and what it says is what the same target holds once it is loaded."""

import shutil
from pathlib import Path

import pytest

from oneglance.targets import open_target
from oneglance.testing import tiny_target

from .conftest import Run, saved


@pytest.fixture(scope="module")
def cross_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama-3.2-Vision with random weights."""
    return saved(tiny_target("mllama"), tmp_path_factory.mktemp("cross"))


def test_plan_is_the_loaded_targets_size(run: Run, text_target: Path, text_head: Path) -> None:
    words = ("plan", "--target", text_target, "--head", text_head, "--context", 500, "--prompt-rows", 100)
    found = run(*words, "--json").json
    model = open_target(str(text_target)).model
    assert found["target_bytes"] == sum(p.numel() * p.element_size() for p in model.parameters())
    assert found["head_bytes"] > 0
    half = run(*words, "--dtype", "bfloat16", "--json").json
    assert half["target_bytes"] * 2 == found["target_bytes"]
    assert half["total_bytes"] < found["total_bytes"]
    assert "at the peak" in run(*words).out
    plain = run("plan", "--target", text_target, "--drafter", "none", "--json").json
    assert plain["head_bytes"] == 0
    assert (plain["target"], plain["head"]) == (str(text_target), None)
    assert plain["context"] == 1024


def test_a_plan_is_checked_against_what_decoding_holds(run: Run, text_target: Path, text_head: Path) -> None:
    pair = ("--target", text_target, "--head", text_head)
    words = ("plan", *pair, "--context", 300, "--prompt-rows", 100, "--budget", 31)
    found = run(*words, "--check", "--json")
    assert found.code == 0
    assert (
        found.json["target_bytes"] + found.json["head_bytes"]
        < found.json["measured_bytes"]
        <= found.json["total_bytes"]
    )


def test_plan_needs_no_weights(run: Run, text_target: Path, text_head: Path, tmp_path: Path) -> None:
    bare = []
    for folder in (text_target, text_head):
        shutil.copytree(folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("*.safetensors"))
        bare.append(tmp_path / folder.name)
    whole = run("plan", "--target", text_target, "--head", text_head, "--json").json
    found = run("plan", "--target", bare[0], "--head", bare[1], "--json").json
    assert found["total_bytes"] == whole["total_bytes"]


def test_images_are_counted_where_cross_attention_sees_them(run: Run, cross_target: Path) -> None:
    words = ("plan", "--target", cross_target, "--drafter", "none", "--context", 100, "--prompt-rows", 50)
    one, three = (run(*words, *more, "--json").json for more in ([], ["--num-images", 3]))
    assert 0 < 3 * one["fixed_kv_bytes"] == three["fixed_kv_bytes"]
    assert three["total_bytes"] - one["total_bytes"] >= 2 * one["fixed_kv_bytes"]
    assert "by cross-attention" in run(*words).out
    assert "--check decodes a text" in run(*words, "--num-images", 1, "--check").error
    checked = run(*words, "--check", "--json")
    assert checked.code == 0
    assert checked.json["fixed_kv_bytes"] == 0


def test_bad_plans_are_one_line(run: Run, text_target: Path) -> None:
    plain = ("plan", "--target", text_target, "--drafter", "none")
    assert "no image by cross-attention" in run(*plain, "--num-images", 1).error
    words = ("plan", "--target", text_target, "--drafter")
    assert "knows the drafters" in run(*words, "ngram").error
    assert "--context must lie in" in run(*words, "none", "--context", 5000).error
    assert "takes no --budget" in run(*words, "none", "--budget", 0).error
