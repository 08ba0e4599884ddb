"""Head checkpoints: what is damaged, foreign or does not fit is refused by name, before any target is loaded."""

import copy
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import oneglance
from oneglance.core import HeadError, InputError, OneglanceWarning
from oneglance.drafters import prepare
from oneglance.drafters.checkpoint import HeadCheckpoint, check_fit, load_checkpoint, save_checkpoint
from oneglance.drafters.head import BlockHead, HeadConfig
from oneglance.targets.base import FEATURE_POINT, Target
from oneglance.testing import save_target, tiny_head, tiny_head_config, tiny_target

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3")


@pytest.fixture
def folder(target: Target, tmp_path: Path) -> Path:
    """A sound checkpoint."""
    save_checkpoint(tiny_head(target), tmp_path / "head", tiny_head_config(target))
    return tmp_path / "head"


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)


def edit_config(folder: Path, **changes: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    raw.update(changes)
    (folder / "config.json").write_text(json.dumps(raw))


# Round trip ------------------------------------------------------------------------------------------------------


def test_round_trip(folder: Path, target: Target) -> None:
    loaded = load_checkpoint(str(folder))
    head = tiny_head(target)
    assert loaded.tensors.keys() == head.state_dict().keys()
    assert all(torch.equal(loaded.tensors[key], value) for key, value in head.state_dict().items())
    assert loaded.raw == tiny_head_config(target)
    assert loaded.config == head.config
    built = loaded.build(dtype=torch.float64, device=torch.device("cpu"))
    assert {p.dtype for p in built.parameters()} == {torch.float64}
    assert not any(p.requires_grad for p in built.parameters())
    assert not built.training
    save_checkpoint(built.float(), folder.parent / "again", loaded.raw)
    assert (folder.parent / "again" / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", WEIGHTS]


def test_saving_replaces_a_checkpoint(folder: Path, target: Target) -> None:
    save_checkpoint(tiny_head(target, seed=1), folder, tiny_head_config(target))
    assert torch.equal(load_checkpoint(str(folder)).tensors["fc.weight"], tiny_head(target, seed=1).fc.weight)


def test_foreign_keys_of_the_config_are_kept_and_ignored(folder: Path) -> None:
    edit_config(folder, auto_map={"AutoModel": "dflash.DFlashDraftModel"}, dtype="bfloat16", bos_token_id=1)
    loaded = load_checkpoint(str(folder))
    assert loaded.raw["auto_map"] == {"AutoModel": "dflash.DFlashDraftModel"}
    assert loaded.card == {}


def test_sharded_weights(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    keys = sorted(tensors)
    names = {key: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, key in enumerate(keys)}
    for name in set(names.values()):
        save_file({key: tensors[key] for key in keys if names[key] == name}, folder / name)
    index = folder / f"{WEIGHTS}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    assert load_checkpoint(str(folder)).tensors.keys() == tensors.keys()
    index.write_text(json.dumps({"weight_map": {**names, "fc.weight": "../outside.safetensors"}}))
    with pytest.raises(HeadError, match="points outside its folder"):
        load_checkpoint(str(folder))
    for damaged in ("{", "[]", '{"weight_map": 3}', "{}"):
        index.write_text(damaged)
        with pytest.raises(HeadError, match=r"index\.json"):
            load_checkpoint(str(folder))


@pytest.mark.parametrize("length", [0x0280, 0x4B50])
def test_a_header_whose_length_looks_like_a_pickle_or_a_zip_is_read(folder: Path, length: int) -> None:
    """The first bytes of a safetensors file are the length of its header, little-endian."""
    path = folder / WEIGHTS
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, body = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    if size > length:  # a head of one layer would have such a header: keep the norms only
        header = {key: header[key] for key in ("norm.weight", "hidden_norm.weight")}
        start = 0
        for value in header.values():
            count = value["data_offsets"][1] - value["data_offsets"][0]
            value["data_offsets"] = [start, start + count]
            start += count
        body = body[:start]
    path.write_bytes(length.to_bytes(8, "little") + json.dumps(header).encode().ljust(length) + body)
    if size > length:
        with pytest.raises(HeadError, match="the head lacks"):
            load_checkpoint(str(folder))
    else:
        load_checkpoint(str(folder))


# Damage ----------------------------------------------------------------------------------------------------------


def nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["fc.weight"][3, 4] = torch.nan


def infinite(tensors: dict[str, torch.Tensor]) -> None:
    tensors["layers.1.mlp.up_proj.weight"][0, 0] = -torch.inf


def transposed(tensors: dict[str, torch.Tensor]) -> None:
    tensors["fc.weight"] = tensors["fc.weight"].T.contiguous()


def quantised(tensors: dict[str, torch.Tensor]) -> None:
    for name in ("qweight", "scales"):
        tensors[f"layers.0.mlp.up_proj.{name}"] = torch.zeros(1)
    del tensors["layers.0.mlp.up_proj.weight"]


def as_type(dtype: torch.dtype) -> Callable[[dict[str, torch.Tensor]], None]:
    def convert(tensors: dict[str, torch.Tensor]) -> None:
        tensors["fc.weight"] = tensors["fc.weight"].to(dtype)

    return convert


def with_embedding(tensors: dict[str, torch.Tensor]) -> None:
    tensors["embed_tokens.weight"] = torch.zeros(3, 3)


def prefixed(tensors: dict[str, torch.Tensor]) -> None:
    for key in list(tensors):
        tensors[f"model.{key}"] = tensors.pop(key)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda tensors: tensors.pop("norm.weight"), r"lacks 1 tensors: norm\.weight$"),
        (lambda tensors: tensors.clear(), r"lacks 25 tensors: .* and 22 more$"),
        (with_embedding, r"1 unexpected tensors: embed_tokens\.weight$"),
        (prefixed, "lacks 25 tensors"),
        (nan, r"fc\.weight holds NaN or infinite values"),
        (infinite, r"layers\.1\.mlp\.up_proj\.weight holds NaN or infinite values"),
        (transposed, r"fc\.weight has shape \[64, 32\], its config asks for \[32, 64\]"),
        (quantised, r"the head is quantised \(layers\.0\.mlp\.up_proj\.qweight\)"),
        (as_type(torch.int8), r"the head is quantised \(fc\.weight\)"),
        (as_type(torch.float8_e4m3fn), r"the head is quantised \(fc\.weight\)"),
    ],
)
def test_wrong_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object], message: str) -> None:
    edit_tensors(folder, edit)
    assert_refused(folder, message)


def assert_refused(folder: Path, message: str) -> None:
    """By one line, and before the target is opened: that folder holds a config alone."""
    with pytest.raises(HeadError, match=message) as error:
        load_checkpoint(str(folder))
    assert "\n" not in str(error.value)
    (folder.parent / "config.json").write_text("{}")
    with pytest.raises(HeadError, match=message):
        oneglance.load(str(folder.parent), str(folder))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def lfs_pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2097\n")


def zip_pickle(path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, path)


def old_pickle(path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, path, _use_new_zipfile_serialization=False)


def bare_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"a": 1}))


def pickle_instead(path: Path) -> None:
    path.rename(path.with_name("pytorch_model.bin"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "truncated or not a safetensors file .*download it again"),
        (lambda path: path.write_bytes(b""), "truncated or not a safetensors file"),
        (lambda path: path.write_bytes(b"\x00" * 8), "truncated or not a safetensors file"),
        (lambda path: path.write_text("<html>404</html>"), "truncated or not a safetensors file"),
        (lfs_pointer, "git-LFS pointer.*git lfs pull"),
        (zip_pickle, "is a pickle, which is never loaded"),
        (old_pickle, "is a pickle, which is never loaded"),
        (bare_pickle, "is a pickle, which is never loaded"),
        (pickle_instead, r"has no model\.safetensors; pytorch_model\.bin is a pickle"),
        (Path.unlink, r"has no model\.safetensors; download it again$"),
    ],
)
def test_damaged_weights(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder / WEIGHTS)
    assert_refused(folder, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("", "is not valid JSON"),
        ("[1]", "must hold a JSON object"),
        ("\x80", "is not valid JSON"),
        ("{}", "config.json of the head: hidden_size: Field required"),
    ],
)
def test_damaged_config(folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert_refused(folder, message)


def test_quantised_by_its_config(folder: Path) -> None:
    edit_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    assert_refused(folder, "the head is quantised")


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert_refused(folder, "has no config.json; it is not a head checkpoint")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/folder", "no head at /no/such/folder; give a folder"),
        ("./no-such", "no head at"),
        ("builtin:nobody", "there is no 'builtin:nobody'; built-in heads: builtin:reader"),
        (__file__, "is a file; give the folder"),
    ],
)
def test_nothing_there(name: str, message: str) -> None:
    with pytest.raises(HeadError, match=message):
        load_checkpoint(name)


def test_unknown_drafter_names_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown drafter 'psychic'; choose one of .*block.*none"):
        prepare("psychic", None)


# Fit -------------------------------------------------------------------------------------------------------------


def fitted(target: Target, *, card: dict[str, Any] | None = None, **changes: Any) -> HeadCheckpoint:
    """A checkpoint whose config says what ``changes`` say."""
    raw = tiny_head_config(target)
    raw["dflash_config"] |= {key: changes.pop(key) for key in ("mask_token_id", "target_layer_ids") if key in changes}
    raw |= changes
    if card is not None:
        raw["oneglance"] = card
    config = HeadConfig.from_checkpoint(raw)
    return HeadCheckpoint("head", config, raw, BlockHead(config).state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 48}, "hidden size: the head has 48, the target 32"),
        (
            {"hidden_size": 48, "card": {"target": "o/m"}},
            "made for this target, or the target that its card names: o/m",
        ),
        ({"vocab_size": 300}, "vocabulary rows: the head has 300, the target 272"),
        ({"num_target_layers": 36}, "target layers: the head has 36, the target 5"),
        ({"target_layer_ids": [1, 5]}, r"kept layers \[1, 5\] go past the target's 5 layers"),
        ({"target_layer_ids": [-1, 2]}, r"kept layers \[-1, 2\]"),
        ({"target_layer_ids": [2, 1, 2]}, r"kept layers \[2, 1, 2\] repeat a layer"),
        ({"mask_token_id": 272}, "mask id 272 lies outside the target's embedding table of 272 rows"),
        ({"card": {"feature_point": "output_of_layer"}}, f"'output_of_layer' and this package reads '{FEATURE_POINT}'"),
    ],
)
def test_what_cannot_work_names_both_values(target: Target, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadError, match=message):
        check_fit(fitted(target, **changes), target)


def test_a_cross_attention_layer_cannot_be_kept() -> None:
    mllama = tiny_target("mllama")
    with pytest.raises(HeadError, match="kept layer 1 is a cross-attention layer"):
        check_fit(fitted(mllama, target_layer_ids=[0, 1]), mllama)


def test_a_text_only_head_drafts_for_a_vision_target(target: Target) -> None:
    """Zero-shot: made for the language model, used on the VLM of the same geometry, without a word."""
    vlm = tiny_target("qwen3_vl")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_fit(fitted(target), vlm)


def test_a_head_trained_for_this_very_target_is_silent(target: Target) -> None:
    card = {**target.fingerprint(), "feature_point": FEATURE_POINT}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_fit(fitted(target, card=card), target)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("target_revision", "0f0f0f", "target revision"),
        ("target_geometry_sha256", "0f0f0f", "target config"),
        ("target_weights_sha256", "0f0f0f", "fine-tune of the target"),
        ("chat_template_sha256", "0f0f0f", "chat template"),
        ("thinking", True, "thinking flag"),
        ("quantisation", "gptq", "quantisation"),
    ],
)
def test_what_only_costs_acceptance_is_a_warning(target: Target, key: str, value: str, what: str) -> None:
    card = {**target.fingerprint(), key: value}
    with pytest.warns(OneglanceWarning, match=f"trained with another {what}; output is unchanged") as caught:
        check_fit(fitted(target, card=card), target)
    assert len(caught) == 1


def test_all_differences_are_one_warning(target: Target) -> None:
    card = {"target_revision": "1", "chat_template_sha256": "2", "quantisation": "3"}
    with pytest.warns(OneglanceWarning, match="target revision and chat template and quantisation") as caught:
        check_fit(fitted(target, card=card), target)
    assert len(caught) == 1


def test_another_chat_template_is_noticed(target: Target) -> None:
    card = target.fingerprint()
    other = copy.copy(target)
    other.processor = copy.deepcopy(target.processor)
    other.processor.chat_template += " "
    with pytest.warns(OneglanceWarning, match="another chat template"):
        check_fit(fitted(target, card=card), other)


def test_the_fingerprint_does_not_depend_on_where_the_target_lies(target: Target, tmp_path: Path) -> None:
    from oneglance.targets import open_target

    save_target(target, tmp_path)
    again = open_target(str(tmp_path), probe=False)
    ours, theirs = target.fingerprint(), again.fingerprint()
    names = ("target", "target_revision")
    assert {k: v for k, v in ours.items() if k not in names} == {k: v for k, v in theirs.items() if k not in names}


@pytest.mark.parametrize("family", ["qwen3_vl", "mllama", "llama"])
def test_the_fingerprint_does_not_depend_on_how_the_target_is_run(family: str, tmp_path: Path) -> None:
    from oneglance.targets import open_target
    from oneglance.targets.outline import outline_target

    target = tiny_target(family)
    save_target(target, tmp_path)
    plain = open_target(str(tmp_path), probe=False).fingerprint()
    assert plain["target_weights_sha256"] is not None
    for dtype in ("bfloat16", "float64"):
        assert open_target(str(tmp_path), probe=False, attention="eager", dtype=dtype).fingerprint() == plain
    assert outline_target(str(tmp_path)).fingerprint() == {**plain, "target_weights_sha256": None}
    assert open_target(str(tmp_path), probe=False, dtype="float16").fingerprint()["target_weights_sha256"] is None
    config = json.loads((tmp_path / "config.json").read_text())
    (config.get("text_config") or config)["a_key_of_another_version"] = None
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert open_target(str(tmp_path), probe=False).fingerprint() == plain


def test_a_local_fine_tune_is_noticed(target: Target) -> None:
    """The same config, no commit hash, and one matrix that moved."""
    card = target.fingerprint()
    tuned = tiny_target("qwen3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_fit(fitted(target, card=card), tuned)
    with torch.no_grad():
        tuned.layers[2].self_attn.v_proj.weight.mul_(1.01)
    with pytest.warns(OneglanceWarning, match="trained with another fine-tune of the target; output is unchanged"):
        check_fit(fitted(target, card=card), tuned)


@pytest.mark.parametrize(
    ("condition", "thinking"),
    [("enable_thinking is defined and enable_thinking", False), ("not (enable_thinking is false)", True), ("1", None)],
)
@pytest.mark.parametrize("family", ["qwen3", "qwen3_vl"])
def test_the_thinking_flag_of_a_template_is_known(family: str, condition: str, thinking: bool | None) -> None:
    target = tiny_target(family)
    target.processor.chat_template = f"{{{{ messages[0].role }}}}{{% if {condition} %}}<think>{{% endif %}}"
    assert target.fingerprint()["thinking"] is thinking


@pytest.mark.parametrize("block", [{"quant_method": "awq", "bits": 4}, transformers.AwqConfig(bits=4)])
def test_a_quantised_target_says_so(block: Any) -> None:
    target = tiny_target("qwen3")
    target.model.config.quantization_config = block
    assert target.fingerprint()["quantisation"] == "awq"
