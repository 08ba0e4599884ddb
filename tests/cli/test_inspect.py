"""``oneglance inspect``: heads and targets, alone and together, whole and broken."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub.errors import NotASafetensorsRepoError, OfflineModeIsEnabled
from safetensors.torch import load_file, save_file

from baselines import eagle2_raw, eagle3_raw, tiny_eagle2, tiny_eagle3, tiny_medusa, tiny_vispec
from oneglance.commands import inspect
from oneglance.drafters import DRAFTERS, layouts
from oneglance.drafters.checkpoint import save_checkpoint
from oneglance.targets.base import Target
from oneglance.testing import FAMILIES, save_target, tiny_head, tiny_head_config, tiny_target

from .conftest import ASSETS, HEAD, Run, saved

TARGET = ASSETS / "reader" / "target"


def test_builtin_is_both(run: Run) -> None:
    result = run("inspect", "builtin:reader", "--json")
    assert result.code == 0
    report = result.json
    assert report["target"]["class"] == "Qwen3VLForConditionalGeneration"
    assert report["head"]["block_size"] == report["head"]["offsets"] + 1 == 16
    assert report["compatibility"]["fits"] is True


def test_head_alone(run: Run) -> None:
    report = run("inspect", HEAD, "--json").json
    config = json.loads((HEAD / "config.json").read_text())
    head = report["head"]
    assert report["target"] is None
    assert report["compatibility"] is None
    assert head["kept_layers"] == config["dflash_config"]["target_layer_ids"]
    assert head["mask_token_id"] == config["dflash_config"]["mask_token_id"]
    assert head["feature_point"] == "input_of_next_layer"
    assert head["parameters"] == sum(t.numel() for t in load_file(HEAD / "model.safetensors").values())
    assert head["card"]["target"] == "builtin:reader"


def test_text_for_people(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    result = run("inspect", HEAD)
    assert result.code == 0
    for words in (
        "kept layers",
        "mask token id",
        "feature point",
        "rescorer",
        "32,000 answers seen",
        "scratch",
        "whole card",
    ):
        assert words in result.out
    facts = run("inspect", TARGET, "--json").json["target"]
    shown = run("inspect", TARGET).out
    for name in ("geometry_sha256", "chat_template_sha256"):
        assert facts[name] in shown, "hashes stay whole"
    assert result.out.startswith("Name a target as well")  # the verdict comes first
    assert "\x1b" not in result.out


@pytest.mark.parametrize("family", FAMILIES)
def test_target_parameters_agree_with_the_model(run: Run, tmp_path: Path, family: str) -> None:
    target = tiny_target(family)
    facts = run("inspect", saved(target, tmp_path), "--json").json["target"]
    tables = target.embedding.weight.numel() + target.lm_head.weight.numel()
    assert facts["model_type"] == family
    assert facts["parameters"] == sum(p.numel() for p in target.model.parameters())
    assert facts["parameters_without_embeddings"] == facts["parameters"] - tables
    assert facts["layers"] == target.num_layers
    assert facts["eos_ids"] == list(target.eos_ids)
    assert facts["never_proposed_ids"] == list(target.banned_ids)


def test_no_weights_of_a_target_are_needed(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    shutil.copytree(TARGET, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    assert run("inspect", folder, HEAD).code == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_pair_in_any_order(run: Run, order: tuple[int, int], text_target: Path, text_head: Path) -> None:
    names = (text_target, text_head)
    report = run("inspect", names[order[0]], names[order[1]], "--json").json
    assert report["compatibility"] == {"fits": True, "reason": None, "notes": []}
    assert report["target"]["name"] == str(text_target)
    assert report["head"]["name"] == str(text_head)


def test_misfit_exits_with_1_and_both_values(run: Run, text_head: Path) -> None:
    result = run("inspect", "builtin:reader", text_head)
    assert result.code == 1
    assert "hidden size: the head has 32, the target 192" in " ".join(result.out.split())
    report = run("inspect", text_head, TARGET, "--json")
    assert report.code == 1
    assert report.json["compatibility"]["fits"] is False


def test_what_costs_acceptance_is_noted(run: Run, tmp_path: Path) -> None:
    head = shutil.copytree(HEAD, tmp_path / "head")
    edit(head, lambda config: config["oneglance"].update(target_geometry_sha256="0", chat_template_sha256="0"))
    report = run("inspect", head, "builtin:reader", "--json").json
    assert report["compatibility"]["fits"] is True
    assert "another target config and chat template" in report["compatibility"]["notes"][0]


def medusa_raw(target: Target) -> dict[str, Any]:
    return {"medusa_num_heads": 5, "medusa_num_layers": 1, "vocab_size": target.vocab_size}


def test_a_fine_tune_is_told_without_opening_the_target(run: Run, tmp_path: Path) -> None:
    """As generate tells it: by a row of each tensor, which is all that is read, and takes its memory only."""
    tuned, target = tmp_path / "tuned", tiny_target("qwen3")
    save_target(target, tuned)
    card = {"oneglance": target.fingerprint()}
    save_checkpoint(tiny_head(target), tmp_path / "head", {**tiny_head_config(target), **card})
    assert run("inspect", tuned, tmp_path / "head", "--json").json["compatibility"]["notes"] == []
    with torch.no_grad():
        target.model.model.layers[1].mlp.up_proj.weight += 0.5
    save_target(target, tuned)
    result = run("inspect", tuned, tmp_path / "head")
    assert result.code == 0
    said = f"But: the head {tmp_path / 'head'} was trained with another fine-tune of the target"
    assert said in " ".join(result.out.split())
    for file in tuned.glob("*.safetensors"):
        file.unlink()
    (note,) = run("inspect", tuned, tmp_path / "head", "--json").json["compatibility"]["notes"]
    assert "fine-tune was not compared: the target's weights are not here" in note


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_those_of_the_model(tmp_path: Path, family: str) -> None:
    """Whatever the tensors of its files are called; no parameter is stored in full."""
    from oneglance.targets.outline import outline_target

    target = tiny_target(family)
    outline = outline_target(str(saved(target, tmp_path)), with_rows=True)
    assert outline.fingerprint()["target_weights_sha256"] == target.fingerprint()["target_weights_sha256"] is not None
    assert all(p.untyped_storage().nbytes() <= p[0].nbytes for p in outline.model.parameters() if p.ndim == 2)


def test_a_target_that_lacks_a_tensor_is_not_compared(tmp_path: Path) -> None:
    from oneglance.targets.outline import outline_target

    (file,) = saved(tiny_target("qwen3"), tmp_path).glob("*.safetensors")
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    assert outline_target(str(tmp_path), with_rows=True).fingerprint()["target_weights_sha256"] is None


OTHERS: dict[str, tuple[Callable[..., Any], Callable[..., dict[str, Any]]]] = {
    "eagle2": (tiny_eagle2, eagle2_raw),
    "eagle3": (tiny_eagle3, eagle3_raw),
    "medusa": (tiny_medusa, medusa_raw),
    "vispec": (tiny_vispec, eagle2_raw),
}


@pytest.mark.parametrize("drafter", OTHERS)
def test_other_heads_are_named_and_compared(run: Run, vision_target: Path, tmp_path: Path, drafter: str) -> None:
    """By their config or, where that could be a model's (EAGLE-2, ViSpec), by their tensors."""
    target = tiny_target("qwen3_vl")
    make, raw_of = OTHERS[drafter]
    head = make(target)
    save_checkpoint(head, tmp_path, raw_of(target))
    report = run("inspect", vision_target, tmp_path, "--json").json
    assert report["head"]["drafter"] == drafter
    assert report["head"]["parameters"] == sum(parameter.numel() for parameter in head.parameters())
    assert report["compatibility"] == {"fits": True, "reason": None, "notes": []}
    assert "mask token id" not in run("inspect", tmp_path).out, "it sees no block"
    misfit = run("inspect", TARGET, tmp_path)
    assert misfit.code == 1
    assert "hidden size: the head has" in " ".join(misfit.out.split())


def test_heads_on_the_hub_are_told_by_their_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether all of one lies in the cache, or its config alone; a target's tensors are not asked for."""
    target = tiny_target("qwen3_vl")
    save_checkpoint(tiny_eagle2(target), tmp_path / "whole", eagle2_raw(target))
    shutil.copytree(tmp_path / "whole", tmp_path / "config", ignore=shutil.ignore_patterns("*.safetensors"))
    save_target(target, tmp_path / "target")
    asked: list[str] = []

    def published(name: str) -> Any:
        asked.append(name)
        return SimpleNamespace(weight_map={"fc.weight": "model.safetensors", "imadpt.q": "model.safetensors"})

    monkeypatch.setattr(inspect, "answers", lambda: True)
    monkeypatch.setattr("huggingface_hub.get_safetensors_metadata", published)
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download", lambda name, file, **_: str(tmp_path / name.split("/")[1] / file)
    )
    assert inspect.drafter_for("owner/whole") == "eagle2"
    assert inspect.drafter_for("owner/target") is None
    assert asked == []
    assert inspect.drafter_for("owner/config") == "vispec"
    assert asked == ["owner/config"]


def test_a_head_whose_weights_cannot_be_looked_at_is_no_target(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EAGLE publishes pickles: the folder would pass for a target of one layer."""
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text(json.dumps(eagle2_raw(tiny_target("qwen3"))))
    (head / "pytorch_model.bin").write_bytes(b"PK")
    assert "its weights are pickles" in run("inspect", head).error
    (head / "pytorch_model.bin").unlink()

    def fail(_: str) -> None:
        raise failure

    monkeypatch.setattr(inspect, "answers", lambda: True)
    monkeypatch.setattr("huggingface_hub.get_safetensors_metadata", fail)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda name, file, **_: str(head / file))
    failure: Exception = NotASafetensorsRepoError("none")
    assert "its weights are pickles" in run("inspect", "owner/head").error
    failure = OfflineModeIsEnabled("offline")
    assert "cannot be listed (offline); download it first" in run("inspect", "owner/head").error


@pytest.mark.parametrize("drafter", OTHERS)
def test_other_heads_are_named_where_a_block_head_is_read(
    run: Run, text_target: Path, tmp_path: Path, drafter: str
) -> None:
    target = tiny_target("qwen3")
    make, raw_of = OTHERS[drafter]
    save_checkpoint(make(target), tmp_path, raw_of(target))
    error = run("generate", "x", "--target", text_target, "--head", tmp_path).error
    assert error.endswith(f"not a block head: use it with --drafter {drafter}, in bench as {drafter}@FOLDER")
    if drafter != "eagle3":
        error = run("export", tmp_path, "--out", tmp_path / "out", "--format", "vllm").error
        assert "only block and EAGLE-3 heads have layouts of other programs" in error
        assert error.endswith(f"--drafter {drafter}")
    error = run("generate", "x", "--head", HEAD, "--drafter", drafter).error
    assert error.startswith(f"{HEAD} is a block head, not a")
    assert error.endswith("use it with --drafter block, in bench as tree@FOLDER")


def test_a_drafter_has_its_own_say_about_a_target(run: Run, text_target: Path, tmp_path: Path) -> None:
    target = tiny_target("qwen3")
    save_checkpoint(tiny_vispec(target), tmp_path, eagle2_raw(target))
    found = run("inspect", text_target, tmp_path, "--json")
    assert found.code == 1
    assert "compresses image rows" in found.json["compatibility"]["reason"]


def test_every_head_that_inspect_names_is_a_drafters() -> None:
    known = {*layouts.ARCHITECTURES.values(), *layouts.KEYS.values(), *layouts.TENSORS.values()}
    assert known == inspect.HEADS.keys() <= DRAFTERS.keys()


def test_a_rescorer_alone_is_called_one(run: Run, tmp_path: Path) -> None:
    for file in HEAD.glob("rescorer.*"):
        shutil.copy(file, tmp_path)
    assert "has no config.json but a rescorer, which works beside a block head" in run("inspect", tmp_path).error
    assert f"add --drafter block:rescorer={tmp_path}" in run("generate", "x", "--head", tmp_path).error


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["nowhere"], "there is no nowhere; give a folder"),
        (["./no/where"], "there is no ./no/where; give a folder"),
        ([__file__], "is a file; give the folder"),
        (["builtin:nobody"], "there is no 'builtin:nobody'"),
        ([HEAD, HEAD], "are both heads; give one target and one head"),
        ([TARGET, TARGET], "are both targets; give one target and one head"),
        ([HEAD, TARGET, HEAD], "one target and one head at most, got 3 names"),
    ],
)
def test_bad_names(run: Run, names: list[Any], message: str) -> None:
    assert message in run("inspect", *names).error


def test_folder_that_is_no_checkpoint(run: Run, tmp_path: Path) -> None:
    assert "has no config.json" in run("inspect", tmp_path).error
    (tmp_path / "config.json").write_text("{]")
    assert "is not valid JSON" in run("inspect", tmp_path).error
    (tmp_path / "config.json").write_text("[]")
    assert "must hold a JSON object" in run("inspect", tmp_path).error
    (tmp_path / "config.json").write_text("{}")
    assert "cannot read target" in run("inspect", tmp_path).error
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert "model_type 'bert' is not supported; supported: " in run("inspect", tmp_path).error


def test_hub_id_that_cannot_be_had(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> str:
        raise OSError("no network\nand more")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    said = "target or head 'owner/name' is no folder here and cannot be downloaded: no network; check the name"
    assert said in run("inspect", "owner/name").error


def test_home_of_nobody(run: Run) -> None:
    assert "there is no ~nobody-of-this-name/x; give a folder" in run("inspect", "~nobody-of-this-name/x").error


# Broken heads ---------------------------------------------------------------------------------------------------------


def edit(head: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((head / "config.json").read_text())
    change(config)
    (head / "config.json").write_text(json.dumps(config))


def without(head: Path, key: str) -> None:
    edit(head, lambda config: config.pop(key))


def tensors(head: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = head / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def lfs_pointer(head: Path) -> None:
    (head / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def truncated(head: Path) -> None:
    path = head / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def pickled(head: Path) -> None:
    (head / "model.safetensors").rename(head / "pytorch_model.bin")


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda head: (head / "model.safetensors").unlink(), "has no model.safetensors"),
    "pickle": (pickled, "is a pickle, which is never loaded"),
    "git-LFS pointer": (lfs_pointer, "git lfs pull"),
    "truncated": (truncated, "download it again"),
    "empty file": (lambda head: (head / "model.safetensors").write_bytes(b""), "download it again"),
    "missing tensor": (lambda head: tensors(head, lambda t: t.pop("fc.weight")), "the head lacks 1 tensors: fc.weight"),
    "extra tensor": (lambda head: tensors(head, lambda t: t.update(x=torch.ones(1))), "1 unexpected tensors: x"),
    "wrong shape": (lambda head: tensors(head, lambda t: t.update({"norm.weight": torch.ones(3)})), "norm.weight has"),
    "NaN": (lambda head: tensors(head, lambda t: t["norm.weight"].fill_(float("nan"))), "NaN or infinite"),
    "no hidden size": (lambda head: without(head, "hidden_size"), "hidden_size"),
    "no kept layers": (
        lambda head: edit(head, lambda c: c["dflash_config"].pop("target_layer_ids")),
        "target_layer_ids",
    ),
    "no mask id": (lambda head: edit(head, lambda c: c["dflash_config"].pop("mask_token_id")), "mask_token_id"),
    "strange rope": (
        lambda head: edit(head, lambda c: c.update(rope_scaling={"rope_type": "yarn"})),
        "rope type 'yarn'",
    ),
    "null dflash_config": (lambda head: edit(head, lambda c: c.update(dflash_config=None)), "config.json of the head"),
    "text for a number": (lambda head: edit(head, lambda c: c.update(hidden_size="many")), "hidden_size"),
    "rope without its keys": (
        lambda head: edit(head, lambda c: c.update(rope_scaling={"rope_type": "llama3"})),
        "rope",
    ),
    "list for an object": (lambda head: edit(head, lambda c: c.update(dflash_config=[1])), "dflash_config"),
    "too few layer types": (lambda head: edit(head, lambda c: c.update(layer_types=["full_attention"])), "layer_types"),
    "odd heads": (lambda head: edit(head, lambda c: c.update(num_key_value_heads=4)), "num_key_value_heads"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_broken_head(run: Run, tmp_path: Path, name: str) -> None:
    head = shutil.copytree(HEAD, tmp_path / "head")
    breaks, message = BREAKS[name]
    breaks(head)
    assert message in run("inspect", head).error
    assert message in run("generate", "x", "--head", head).error


def test_hostile_card_cannot_write_to_the_terminal(run: Run, tmp_path: Path) -> None:
    head = shutil.copytree(HEAD, tmp_path / "head")
    edit(head, lambda config: config["oneglance"].update({"note\x1b[2J": "[bold]\x1b]0;x\x07"}))
    result = run("inspect", head)
    assert result.code == 0
    assert "\x1b" not in result.out
    assert run("inspect", head, "--json").json["head"]["card"]["note\x1b[2J"] == "[bold]\x1b]0;x\x07"


def test_hub_names_are_told_from_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["DFlashDraftModel"]}')
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda name, file, **_: str(tmp_path / file))
    assert inspect.kinds_of("z-lab/some-head") == ("head",)
