"""Heads as SpecForge writes them: they draft what the same head drafts here, and what we write opens there.

SpecForge keeps a head's geometry in transformers' own config classes and saves through them, so those write the folders
here and read ours back.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from baselines import tiny_eagle3
from oneglance.core import Drafter, HeadError, OneglanceWarning, TokenTree
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.checkpoint import load_checkpoint
from oneglance.drafters.eagle import EagleSettings
from oneglance.drafters.eagle3 import Eagle3Drafter
from oneglance.drafters.eagle3_head import load_eagle3
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import tiny_head, tiny_head_config, tiny_target
from oneglance.train.export import export

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
MROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True}


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3")


def dflash_payload(target: Target, **changes: Any) -> dict[str, Any]:
    """The keys of SpecForge's ``configs/qwen3-8b-dflash.json``, made small, and what its trainer adds to them."""
    return {
        "architectures": ["DFlashDraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": 16,
        "bos_token_id": None,
        "dtype": "float32",
        "eos_token_id": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": target.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "layer_types": ["full_attention"] * 2,
        "max_position_embeddings": target.context_length,
        "max_window_layers": 2,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_target_layers": target.num_layers,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": target.vocab_size,
        "dflash_config": dict(tiny_head_config(target)["dflash_config"]),
        **changes,
    }


def eagle3_payload(target: Target, **changes: Any) -> dict[str, Any]:
    """The keys of SpecForge's ``configs/qwen3-vl-8b-eagle3.json``, made small."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": target.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "max_position_embeddings": target.context_length,
        "model_type": "llama",
        "target_model_type": "qwen3_vl",
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "pretraining_tp": 1,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": target.vocab_size - 40,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
        **changes,
    }


def written(folder: Path, payload: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """What SpecForge's exporter leaves: a config saved by transformers, scaled RoPE in both spellings, the tensors."""
    kind = {"qwen3": transformers.Qwen3Config, "llama": transformers.LlamaConfig}[payload["model_type"]]
    kind.from_dict(copy.deepcopy(payload)).save_pretrained(folder)  # it writes into the RoPE that it is given
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    rope = raw["rope_parameters"]
    if rope["rope_type"] != "default":
        raw |= {"rope_theta": rope["rope_theta"], "rope_scaling": {k: v for k, v in rope.items() if k != "rope_theta"}}
    path.write_text(json.dumps(raw, indent=2, sort_keys=True))
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    return str(folder)


def drafted(drafter: Drafter, target: Target) -> TokenTree:
    """The first tree after a prompt, its scores to the last bit."""
    state = target.prefill(encode(target, "Say something about trees"), drafter.target_layer_ids)
    root = int(state.last_row.argmax())
    state.token_ids.append(root)
    return drafter.draft(root, state, drafter.start(state), max_depth=15)


@pytest.mark.parametrize("rope", [None, LLAMA3])
def test_a_block_head_of_specforge_drafts_the_same(target: Target, tmp_path: Path, rope: dict[str, Any] | None) -> None:
    head = tiny_head(target)
    tensors = dict(head.state_dict())
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "config.json").write_text(json.dumps({**tiny_head_config(target), "rope_scaling": rope}))
    save_file(tensors, tmp_path / "ours" / "model.safetensors")
    written(tmp_path / "theirs", dflash_payload(target, rope_scaling=rope), tensors)
    trees = [
        drafted(BlockDrafter.bind(load_checkpoint(str(tmp_path / name)), target, budget=31), target)
        for name in ("ours", "theirs")
    ]
    assert len(trees[0].token_ids) == 31
    assert trees[0] == trees[1]


@pytest.mark.parametrize("rope", [None, LLAMA3])
def test_a_block_head_opens_in_specforge_and_comes_back(
    target: Target, tmp_path: Path, rope: dict[str, Any] | None
) -> None:
    """Its model is Qwen3's decoder layers under their own names, with ``fc`` and a second norm and no embedding."""
    name = written(tmp_path / "theirs", dflash_payload(target, rope_scaling=rope), dict(tiny_head(target).state_dict()))
    path = tmp_path / "theirs" / "config.json"  # scaled RoPE in transformers' own spelling alone, as an option has it
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "rope_scaling"}))
    before = load_checkpoint(name)
    assert bool(before.config.rope_llama3) == bool(rope)
    done = export(name, tmp_path / "out", "specforge", dtype="float32")
    assert f"model.draft_checkpoint_path: {tmp_path / 'out'}, training.strategy: dflash" in done.hint
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    assert raw["architectures"] == ["DFlashDraftModel"]
    config = transformers.Qwen3Config.from_dict(raw)
    assert config.dflash_config == dflash_payload(target)["dflash_config"]
    assert (config.block_size, config.num_target_layers) == (16, target.num_layers)
    assert config.layer_types == ["full_attention"] * config.num_hidden_layers
    with torch.device("meta"):
        theirs = transformers.Qwen3Model(config).state_dict()
    shapes = {key: value.shape for key, value in theirs.items() if key != "embed_tokens.weight"}
    kept = len(config.dflash_config["target_layer_ids"])
    shapes |= {
        "fc.weight": (config.hidden_size, kept * config.hidden_size),
        "hidden_norm.weight": (config.hidden_size,),
    }
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {key: value.shape for key, value in tensors.items()} == shapes
    ours = before.build(dtype=torch.float32, device=torch.device("cpu"))
    torch.testing.assert_close(Qwen3RotaryEmbedding(config).inv_freq, ours.rope.inv_freq)
    after = load_checkpoint(str(tmp_path / "out"))
    assert after.config == before.config
    assert all(torch.equal(after.tensors[key], before.tensors[key]) for key in tensors)


def test_its_layer_ids_name_the_states_that_we_read(target: Target, tmp_path: Path) -> None:
    """It trains on ``hidden_states[i + 1]`` of transformers, the output of layer i."""
    name = written(tmp_path, dflash_payload(target), dict(tiny_head(target).state_dict()))
    ids = load_checkpoint(name).config.target_layer_ids
    inputs = encode(target, "Say something about trees")
    features = torch.cat(target.prefill(inputs, ids).fresh)
    with torch.no_grad():
        states = target.model(**inputs.tensors, output_hidden_states=True).hidden_states
    torch.testing.assert_close(features, torch.cat([states[i + 1][0] for i in ids], dim=-1))
    assert not torch.allclose(features, torch.cat([states[i][0] for i in ids], dim=-1))


def test_a_config_that_leaves_the_layers_to_the_rule(target: Target, tmp_path: Path) -> None:
    """``configs/qwen3-8b-dflash.json`` has no ``dflash_config``; an export from it names neither layers nor mask."""
    tensors = dict(tiny_head(target, kept=[1, 2]).state_dict())
    mask = tiny_head_config(target)["dflash_config"]["mask_token_id"]
    name = written(tmp_path / "layers", dflash_payload(target, dflash_config={"mask_token_id": mask}), tensors)
    assert load_checkpoint(name).config.target_layer_ids == (1, 2)  # of five layers, as SpecForge's rule has it
    name = written(tmp_path / "mask", dflash_payload(target, dflash_config=None), tensors)
    with pytest.raises(HeadError, match=r"dflash_config\.mask_token_id is missing.*model\.mask_token_id of the run"):
        load_checkpoint(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projector_type": "domino", "shift_label": True}, "projector_type is 'domino'.*strategy dflash"),
        ({"attention_mode": "mla"}, "attention mode 'mla'.*attention_mode gqa"),
        ({"attention_modes": ["gqa", "kda"]}, "attention mode 'kda'"),
        ({"attention_modes": "gqa"}, "attention mode 'gqa'"),
        ({"shift_label": True}, "train it with shift_label false"),
    ],
)
def test_other_block_heads_of_specforge(target: Target, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config = {**tiny_head_config(target)["dflash_config"], **changes}
    name = written(tmp_path, dflash_payload(target, dflash_config=config), dict(tiny_head(target).state_dict()))
    with pytest.raises(HeadError, match=message):
        load_checkpoint(name)


def test_a_mask_past_the_vocabulary_does_not_go_there(target: Target, tmp_path: Path) -> None:
    config = {**tiny_head_config(target)["dflash_config"], "mask_token_id": target.vocab_size}
    name = written(
        tmp_path / "head", dflash_payload(target, dflash_config=config), dict(tiny_head(target).state_dict())
    )
    with pytest.raises(HeadError, match="SpecForge wants a mask id below the target's vocabulary"):
        export(name, tmp_path / "out", "specforge")


def test_its_plain_settings_are_no_other_head(target: Target, tmp_path: Path) -> None:
    config = {**tiny_head_config(target)["dflash_config"], "attention_modes": ["gqa", "mha"], "shift_label": False}
    tensors = dict(tiny_head(target).state_dict())
    name = written(tmp_path / "plain", dflash_payload(target, dflash_config=config), tensors)
    assert load_checkpoint(name).config.target_layer_ids == tuple(config["target_layer_ids"])
    name = written(tmp_path / "mrope", dflash_payload(target, rope_scaling=MROPE), tensors)
    with pytest.raises(HeadError, match="remove mrope_section"):
        load_checkpoint(name)


def bound(name: str, target: Target) -> Eagle3Drafter:
    return Eagle3Drafter.bind(load_eagle3(name), EagleSettings(num_passes=4, top_k=3), target, budget=20)


@pytest.mark.parametrize("how", ["map", "whole vocabulary", "embedding", "mrope", "no layers"])
def test_an_eagle3_head_of_specforge_drafts_the_same_and_goes_back(how: str, tmp_path: Path) -> None:
    deep = tiny_target("qwen3", num_hidden_layers=8)
    changes: dict[str, Any] = {
        "whole vocabulary": {"draft_vocab_size": deep.vocab_size},
        "mrope": {"rope_scaling": MROPE},
        "no layers": {"eagle_config": None},
    }.get(how, {})
    payload = eagle3_payload(deep, **changes)
    head = tiny_eagle3(deep, draft_vocab_size=payload["draft_vocab_size"])
    tensors = dict(head.state_dict())
    if how == "whole vocabulary":  # SpecForge has the buffers all the same
        tensors["d2t"] = torch.zeros(deep.vocab_size, dtype=torch.long)
        tensors["t2d"] = torch.ones(deep.vocab_size, dtype=torch.bool)
    if how == "embedding":  # its exporter for transformers adds the target's
        tensors["embed_tokens.weight"] = deep.embedding.weight.clone()
    name = written(tmp_path / "theirs", payload, tensors)
    if how == "mrope":
        with pytest.warns(OneglanceWarning, match="asks for M-RoPE"):
            theirs = bound(name, deep)
    else:
        theirs = bound(name, deep)
    layers = (1, 3, 4) if how == "no layers" else (1, 2, 3)  # its rule: 1, half the depth less one, the depth less four
    assert theirs.target_layer_ids == layers
    ours = Eagle3Drafter(head, deep, num_passes=4, top_k=3, budget=20)
    ours.head.config = head.config.model_copy(update={"target_layer_ids": layers})
    tree = drafted(ours, deep)
    assert len(tree.token_ids) == 20
    assert tree == drafted(theirs, deep)
    if how == "no layers":
        with pytest.raises(HeadError, match=r"names no layers; write eagle_config\.eagle_aux_hidden_state_layer_ids"):
            export(name, tmp_path / "out", "specforge")
        return
    done = export(name, tmp_path / "out", "specforge", dtype="float32")
    assert done.hint.endswith("training.strategy: eagle3")
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    config = transformers.LlamaConfig.from_dict(raw)
    assert raw["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config.eagle_config["eagle_aux_hidden_state_layer_ids"] == list(layers)
    assert config.draft_vocab_size == payload["draft_vocab_size"]
    torch.testing.assert_close(LlamaRotaryEmbedding(config).inv_freq, head.rope.inv_freq)
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert saved.keys() == tensors.keys() >= {"d2t", "t2d", "fc.weight", "norm.weight", "lm_head.weight"}
    assert all(torch.equal(saved[key], tensors[key]) for key in tensors)


@pytest.mark.filterwarnings("ignore:.*asks for M-RoPE")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_output": True}, "has norm_output.*train it with norm_output false"),
        ({"fc_norm": True}, "has fc_norm"),
        ({"eagle_config": {"norm_before_fc": True}}, "has norm_before_fc"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "1,2,3"}}, "must list layers, got '1,2,3'"),
        ({"draft_vocab_size": None}, "map a vocabulary of which the config drafts all; set draft_vocab_size"),
    ],
)
def test_other_eagle3_heads_of_specforge(target: Target, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    name = written(tmp_path, eagle3_payload(target, **changes), dict(tiny_eagle3(target).state_dict()))
    with pytest.raises(HeadError, match=message):
        load_eagle3(name)


def test_layer_inputs_at_top_level_are_one_more(target: Target, tmp_path: Path) -> None:
    """vLLM's key, alone as speculators writes it, in its nested config too."""
    payload = eagle3_payload(target, eagle_config=None, eagle_aux_hidden_state_layer_ids=[2, 3, 4])
    tensors = dict(tiny_eagle3(target).state_dict())
    name = written(tmp_path / "flat", payload, tensors)
    assert load_eagle3(name).config.target_layer_ids == (1, 2, 3)
    ids = payload.pop("eagle_aux_hidden_state_layer_ids")
    nested = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": payload.pop("draft_vocab_size"),
        "eagle_aux_hidden_state_layer_ids": ids,
        "norm_before_residual": False,
        "transformer_layer_config": {key: payload[key] for key in payload if key not in ("architectures", "dtype")},
    }
    (tmp_path / "flat" / "config.json").write_text(json.dumps(nested))
    save_file(
        {key.replace("midlayer.", "layers.0."): value for key, value in tensors.items()},
        tmp_path / "flat" / "model.safetensors",
    )
    assert load_eagle3(name).config.target_layer_ids == (1, 2, 3)
    assert drafted(bound(name, target), target) == drafted(
        Eagle3Drafter(
            tiny_eagle3(target, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}),
            target,
            num_passes=4,
            top_k=3,
            budget=20,
        ),
        target,
    )
    export(name, tmp_path / "out", "specforge", dtype="float32")
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    assert raw["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert raw["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert not any(key.startswith(("speculators", "transformer_layer")) for key in raw)
    for kind, message in (("dflash", "is a block head, not an EAGLE-3 head"), ("eagle3", "has norm_before_residual")):
        (tmp_path / "flat" / "config.json").write_text(
            json.dumps({**nested, "speculators_model_type": kind, "norm_before_residual": True})
        )
        with pytest.raises(HeadError, match=message):
            load_eagle3(name)
