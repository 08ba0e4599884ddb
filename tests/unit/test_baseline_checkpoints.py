"""Baseline checkpoints: the layouts that exist, and every way in which one can be wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from baselines import eagle3_raw, tiny_eagle3, tiny_medusa
from oneglance.core import HeadError, InputError, OneglanceWarning
from oneglance.drafters import prepare
from oneglance.drafters.checkpoint import save_checkpoint
from oneglance.drafters.eagle3 import Eagle3Drafter
from oneglance.drafters.eagle3_head import Eagle3Config, Eagle3Head, aux_layers, load_eagle3
from oneglance.drafters.medusa import FILE, MedusaDrafter, load_medusa
from oneglance.drafters.two_model import TwoModelDrafter, TwoModelSettings, check_tokenizers
from oneglance.targets.base import Target
from oneglance.testing import QWEN_TEMPLATE, QWEN_TOKENS, byte_tokenizer, tiny_target
from oneglance.tree import chain, fixed_width

AQ_MEDAI = {  # the geometry that gives the paper's 399.7 M
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 262144,
    "rope_scaling": {"rope_type": "mrope", "mrope_section": [24, 20, 20], "mrope_interleaved": True},
    "rope_theta": 5e6,
}


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3")


def write(folder: Path, raw: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    return str(folder)


def test_the_papers_parameter_count() -> None:
    config = Eagle3Config.from_checkpoint(AQ_MEDAI).for_target(36)
    with torch.device("meta"):
        head = Eagle3Head(config)
    assert sum(p.numel() for p in head.parameters()) + 32_000 + 151_936 == 399_707_776
    assert config.target_layer_ids == aux_layers(36) == (1, 17, 32)
    assert (config.rope_theta, config.wants_mrope) == (5e6, True)


def test_frequencies_stay_as_they_are_in_half_precision(target: Target, tmp_path: Path) -> None:
    head = tiny_eagle3(target)
    checkpoint = load_eagle3(write(tmp_path, eagle3_raw(target), head.state_dict()))
    built = checkpoint.build(dtype=torch.bfloat16, device=torch.device("cpu"))
    assert built.fc.weight.dtype == torch.bfloat16
    assert torch.equal(built.rope.inv_freq, 1e4 ** -(torch.arange(0, 8, 2) / 8))


@pytest.mark.parametrize("layout", ["specforge", "with embedding", "speculators", "whole vocabulary", "int8 map"])
def test_layouts(target: Target, tmp_path: Path, layout: str) -> None:
    changes: dict[str, Any] = {"draft_vocab_size": target.vocab_size} if layout == "whole vocabulary" else {}
    head = tiny_eagle3(target, **changes)
    tensors = dict(head.state_dict())
    raw = eagle3_raw(target, **changes)
    if layout == "with embedding":
        tensors["embed_tokens.weight"] = target.embedding.weight.clone()
    elif layout == "speculators":
        tensors = {key.replace("midlayer.", "layers.0."): value for key, value in tensors.items()}
    elif layout == "int8 map":
        tensors |= {"d2t": tensors["d2t"].int(), "t2d": tensors["t2d"].to(torch.uint8)}
    elif layout == "whole vocabulary":
        assert "d2t" not in tensors
        raw.pop("draft_vocab_size")
    drafter = prepare("eagle3", write(tmp_path / "head", raw, tensors))(target, budget=9)
    assert isinstance(drafter, Eagle3Drafter)
    assert torch.equal(drafter.head.token_ids, head.token_ids)
    assert drafter.num_parameters == sum(p.numel() for p in head.parameters())
    assert (drafter.top_k, drafter.depth) == (10, 8)
    for key, value in head.state_dict().items():
        assert torch.equal(drafter.head.state_dict()[key], value)


def test_d2t_is_an_offset(target: Target) -> None:
    head = tiny_eagle3(target)
    kept = head.t2d.nonzero()[:, 0]
    assert torch.equal(head.token_ids, kept)
    assert torch.equal(head.d2t, kept - torch.arange(len(kept)))


def broken(tensors: dict[str, Tensor], how: str) -> dict[str, Tensor]:
    if how == "ids":
        return {**tensors, "d2t": tensors["d2t"] + torch.arange(len(tensors["d2t"]))}
    if how == "double":
        d2t = tensors["d2t"].clone()
        d2t[5] = d2t[4] - 1
        return {**tensors, "d2t": d2t}
    if how == "t2d":
        return {**tensors, "t2d": ~tensors["t2d"]}
    if how == "missing":
        return {key: value for key, value in tensors.items() if key != "fc.weight"}
    if how == "extra":
        return {**tensors, "midlayer.self_attn.q_norm.weight": torch.ones(8)}
    if how == "shape":
        return {**tensors, "fc.weight": tensors["fc.weight"][:, :-1]}
    if how == "nan":
        return {**tensors, "norm.weight": tensors["norm.weight"] * torch.nan}
    return {key: value for key, value in tensors.items() if not key.startswith("midlayer")}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("ids", r"d2t (maps to ids outside|and t2d contradict)"),
        ("double", "d2t and t2d contradict each other"),
        ("t2d", "d2t and t2d contradict each other"),
        ("missing", "lacks 1 tensors: fc.weight"),
        ("extra", "1 unexpected tensors: midlayer.self_attn.q_norm.weight"),
        ("shape", r"fc.weight has shape \[32, 95\], its config asks for \[32, 96\]"),
        ("nan", "norm.weight holds NaN"),
        ("other", "holds no EAGLE-3 head"),
    ],
)
def test_damage_is_named(target: Target, tmp_path: Path, how: str, message: str) -> None:
    folder = write(tmp_path / "head", eagle3_raw(target), broken(dict(tiny_eagle3(target).state_dict()), how))
    with pytest.raises(HeadError, match=message):
        load_eagle3(folder)


def test_configs_that_do_not_fit(target: Target, tmp_path: Path) -> None:
    head = tiny_eagle3(target)
    folder = write(tmp_path / "a", eagle3_raw(target), dict(head.state_dict()))
    with pytest.raises(HeadError, match="hidden size: the head has 32, the target 16"):
        prepare("eagle3", folder)(tiny_target("qwen3", hidden_size=16))
    with pytest.raises(HeadError, match=r"gives \[1, 1, 1\] of 5"):
        prepare("eagle3", write(tmp_path / "b", eagle3_raw(target, eagle_config=None), dict(head.state_dict())))(target)
    with pytest.raises(HeadError, match="reads 3 layers, its config names 2"):
        load_eagle3(
            write(
                tmp_path / "c",
                eagle3_raw(target, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2]}),
                dict(head.state_dict()),
            )
        )
    with pytest.raises(InputError, match="makes best_first trees and chains"):
        prepare("eagle3", folder)(target, policy=fixed_width)
    with pytest.raises(InputError, match="takes no branch_k"):
        prepare("eagle3", folder)(target, branch_k=3)
    with pytest.raises(InputError, match=r"'eagle3' needs an EAGLE-3 head.*oneglance train"):
        prepare("eagle3", None)
    assert prepare("eagle3:num_passes=3", folder)(target, policy=chain).depth == 3  # type: ignore[attr-defined]
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e5}
    mrope = write(tmp_path / "d", eagle3_raw(target, rope_theta=None, rope_scaling=rope), dict(head.state_dict()))
    with pytest.warns(OneglanceWarning, match="asks for M-RoPE"):
        bound = prepare("eagle3", mrope)(target)
    assert bound.head.config.rope_theta == 1e5  # type: ignore[attr-defined]


@pytest.mark.parametrize("shares", [True, False])
def test_medusa_layouts(target: Target, tmp_path: Path, shares: bool) -> None:
    head = tiny_medusa(target, shares_lm_head=shares, num_heads=3)
    raw = {"medusa_num_heads": 3, "medusa_num_layers": 1, "vocab_size": target.vocab_size}
    folder = write(tmp_path / "head", raw, dict(head.state_dict()))
    if not shares:  # as the Medusa project writes it
        (tmp_path / "head" / "model.safetensors").rename(tmp_path / "head" / FILE)
        (tmp_path / "head" / "config.json").write_text(json.dumps({"medusa_num_heads": 3, "medusa_num_layers": 1}))
    drafter = prepare("medusa", folder)(target)
    assert isinstance(drafter, MedusaDrafter)
    assert (drafter.target_layer_ids, drafter.head.config.shares_lm_head) == ((target.num_layers - 1,), shares)
    assert drafter.num_parameters == sum(p.numel() for p in head.parameters())
    assert set(head.state_dict()) >= {"0.0.linear.weight", "0.0.linear.bias", "2.0.linear.weight"}
    misfit = tiny_target("qwen3", **{"hidden_size": 16} if shares else {"vocab_size": 300})
    with pytest.raises(HeadError, match="hidden size" if shares else "vocabulary rows"):
        prepare("medusa", folder)(misfit)


def test_medusa_refusals(target: Target, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'medusa' needs Medusa heads"):
        prepare("medusa", None)
    save_checkpoint(tiny_eagle3(target), tmp_path / "eagle", eagle3_raw(target))
    with pytest.raises(HeadError, match="no Medusa heads"):
        load_medusa(str(tmp_path / "eagle"))
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text("{}")
    (tmp_path / "pickled" / "medusa_lm_head.pt").write_bytes(b"PK\x03\x04")
    with pytest.raises(HeadError, match=r"medusa_lm_head\.pt is a pickle, which is never loaded"):
        load_medusa(str(tmp_path / "pickled"))


# The second model -------------------------------------------------------------------------------------------------


def test_tokenizers_must_agree_but_may_be_padded(target: Target) -> None:
    wide = tiny_target("qwen3", vocab_size=400)
    assert TwoModelDrafter(wide, target, TwoModelSettings()).num_parameters > 0
    assert TwoModelDrafter(target, wide, TwoModelSettings()).num_parameters > 0
    other = tiny_target("llama")
    vocab = other.tokenizer.get_vocab()
    check_tokenizers(other, target)
    first, second = sorted(vocab, key=vocab.__getitem__)[40:42]
    other.processor = byte_tokenizer(QWEN_TOKENS, QWEN_TEMPLATE)
    other.processor.get_vocab = lambda: {**vocab, first: vocab[second], second: vocab[first]}
    with pytest.raises(InputError, match="has another tokenizer"):
        check_tokenizers(other, target)
    other.processor = byte_tokenizer(QWEN_TOKENS[:-1], QWEN_TEMPLATE)  # a text-only relative without one special token
    check_tokenizers(other, target)
    other.processor.encode = lambda *_, **__: [1, 2]
    with pytest.raises(InputError, match="split the same text differently"):
        check_tokenizers(other, target)


def test_images_of_another_geometry_are_refused() -> None:
    target, model = tiny_target("qwen3_vl"), tiny_target("qwen2_5_vl")
    with pytest.raises(InputError, match=r"takes images with model_type qwen2_5_vl.*two_model:images=false"):
        TwoModelDrafter(model, target, TwoModelSettings())
    assert not TwoModelDrafter(model, target, TwoModelSettings(images=False)).sees_images
    model = tiny_target("qwen3_vl")
    model.model.config.vision_config.patch_size = 14
    with pytest.raises(InputError, match="takes images with patch_size 14, the target with 8"):
        TwoModelDrafter(model, target, TwoModelSettings())


def test_a_draft_model_must_be_named() -> None:
    with pytest.raises(InputError, match="needs a draft model of the target's tokenizer"):
        prepare("two_model", None)
