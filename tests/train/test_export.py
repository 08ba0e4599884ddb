"""Heads in other programs' layouts: nothing changes on the way, and transformers' own class computes the same."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from baselines import eagle3_raw, tiny_eagle3
from oneglance.audit import reference
from oneglance.core import HeadError, InputError
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.checkpoint import HeadCheckpoint, load_checkpoint, save_checkpoint
from oneglance.drafters.eagle3_head import load_eagle3
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import tiny_head, tiny_head_config, tiny_target
from oneglance.train.export import FORMATS, export, read_exported

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FULL = ("full_attention", "full_attention")
LLAMA3 = {**LLAMA3, "original_max_position_embeddings": 128}


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3")


@pytest.fixture(scope="module")
def head(target: Target, tmp_path_factory: pytest.TempPathFactory) -> HeadCheckpoint:
    folder = tmp_path_factory.mktemp("head")
    card = {"target": "owner/target", "feature_point": "input_of_next_layer"}
    save_checkpoint(tiny_head(target), folder, {**tiny_head_config(target), "oneglance": card})
    return load_checkpoint(str(folder))


@pytest.mark.parametrize("format", sorted(FORMATS))
@pytest.mark.parametrize("rope", [None, LLAMA3])
def test_a_round_trip_changes_nothing(
    head: HeadCheckpoint, target: Target, tmp_path: Path, format: str, rope: dict[str, object] | None
) -> None:
    if rope:
        raw = {**head.raw, "rope_scaling": rope}
        save_checkpoint(tiny_head(target), tmp_path / "scaled", raw)
        head = load_checkpoint(str(tmp_path / "scaled"))
    export(head.name, tmp_path / "out", format, dtype="float32")
    config, tensors = read_exported(tmp_path / "out")
    assert config.model_copy(update={"layer_types": ()}) == head.config
    assert tensors.keys() == head.tensors.keys()
    assert all(torch.equal(tensors[key], head.tensors[key]) for key in tensors)


@pytest.mark.parametrize("format", ["dflash", "vllm", "sglang"])
def test_the_common_layout_loads_here_and_has_the_engines_keys(
    head: HeadCheckpoint, tmp_path: Path, format: str
) -> None:
    done = export(head.name, tmp_path / "out", format)
    loaded = load_checkpoint(str(tmp_path / "out"))
    assert {str(t.dtype) for t in loaded.tensors.values()} == {"torch.bfloat16"}
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    assert raw["architectures"] == ["DFlashDraftModel"]
    assert raw["layer_types"] == ["full_attention", "full_attention"]
    assert raw["rope_scaling"] is None
    assert raw["dflash_config"].keys() == {"mask_token_id", "target_layer_ids"}
    assert {"dflash": "generate", "vllm": '"num_speculative_tokens": 15', "sglang": "DFLASH"}[format] in done.hint
    assert "owner/target" in done.hint


def test_speculators_counts_layer_boundaries(head: HeadCheckpoint, tmp_path: Path) -> None:
    export(head.name, tmp_path / "out", "speculators", target="other/target")
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    assert raw["aux_hidden_state_layer_ids"] == [i + 1 for i in head.config.target_layer_ids]
    assert raw["speculators_config"]["verifier"]["name_or_path"] == "other/target"
    assert transformers.AutoConfig.for_model(**raw["transformer_layer_config"]).head_dim == head.config.head_dim


def test_a_head_of_speculators_opens_here(head: HeadCheckpoint, target: Target, tmp_path: Path) -> None:
    """As speculators writes it, without our own block: its target says how deep it is."""
    export(head.name, tmp_path / "out", "speculators", dtype="float32")
    path = tmp_path / "out" / "config.json"
    raw = json.loads(path.read_text())
    assert load_checkpoint(str(path.parent)).config == head.config.model_copy(update={"layer_types": FULL})
    path.write_text(json.dumps({key: value for key, value in raw.items() if key != "oneglance"}))
    stranger = load_checkpoint(str(path.parent))
    assert stranger.config.target_layer_ids == head.config.target_layer_ids
    assert BlockDrafter.bind(stranger, target).target_layer_ids == head.config.target_layer_ids
    for change, message in (
        ({"speculators_model_type": "eagle3"}, "is an EAGLE-3 head, not a block head"),
        ({"draft_vocab_size": 7}, "drafts over 7 of"),
        ({"aux_hidden_state_layer_ids": [0, 2]}, "boundaries from 1 on"),
    ):
        path.write_text(json.dumps({**raw, **change}))
        with pytest.raises(HeadError, match=message):
            load_checkpoint(str(path.parent))


def test_transformers_own_class_drafts_the_same(head: HeadCheckpoint, target: Target, tmp_path: Path) -> None:
    export(head.name, tmp_path / "out", "transformers", dtype="float32")
    assistant, info = transformers.AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(assistant).__name__ == "MuseGlimmerAssistantModel"
    inputs = encode(target, "Say something about trees")
    state = target.prefill(inputs, head.config.target_layer_ids)
    root, features = int(state.last_row.argmax()), torch.cat(state.fresh)
    drafter = BlockDrafter(head.build(dtype=torch.float32, device=target.device), target, budget=target.vocab_size)
    ours = drafter.marginals(root, state, drafter.start(state), 15)
    block = torch.full((1, 16), head.config.mask_token_id)
    block[0, 0] = root
    with torch.no_grad():
        hidden = assistant(
            noise_embeds=target.embedding(block),
            context_hidden_states=features[None].clone(),
            position_ids=torch.arange(len(features) + 16)[None],
        ).last_hidden_state
        log_q = target.lm_head(hidden[0, 1:]).log_softmax(-1).gather(1, torch.from_numpy(ours.token_ids)).double()
    finite = torch.isfinite(torch.from_numpy(ours.log_q))
    assert (log_q - torch.from_numpy(ours.log_q))[finite].abs().max() < 1e-4


def test_transformers_generates_with_it(head: HeadCheckpoint, target: Target, tmp_path: Path) -> None:
    done = export(head.name, tmp_path / "out", "transformers", dtype="float32")
    assert f"AutoModel.from_pretrained({str(tmp_path / 'out')!r})" in done.hint
    assistant = transformers.AutoModel.from_pretrained(tmp_path / "out")
    inputs = encode(target, "Say something about trees")
    calls: list[int] = []
    assistant.register_forward_hook(lambda *_: calls.append(1))
    ids = target.model.generate(
        **inputs.tensors,
        attention_mask=torch.ones_like(inputs.tensors["input_ids"]),
        assistant_model=assistant,
        speculation_type="dflash",
        do_sample=False,
        max_new_tokens=20,
    )
    assert ids[0, len(inputs.token_ids) :].tolist() == reference(target, inputs, max_new_tokens=20).token_ids
    assert calls


def test_an_eagle3_head_serves_both_engines(target: Target, tmp_path: Path) -> None:
    """vLLM's layer ids stand beside ours, which SGLang shares; the head still opens here, its vocabulary map too."""
    save_checkpoint(tiny_eagle3(target), tmp_path / "head", eagle3_raw(target))
    before = load_eagle3(str(tmp_path / "head"))
    for engine, words in (("vllm", '"method": "eagle3"'), ("sglang", "--speculative-algorithm EAGLE3")):
        done = export(str(tmp_path / "head"), tmp_path / engine, engine, dtype="float32", target="a/b")
        assert words in done.hint
        after = load_eagle3(str(tmp_path / engine))
        assert after.config == before.config
        assert after.tensors.keys() == before.tensors.keys()
        assert all(torch.equal(after.tensors[key], before.tensors[key]) for key in before.tensors)
        raw = json.loads((tmp_path / engine / "config.json").read_text())
        assert raw["eagle_aux_hidden_state_layer_ids"] == [i + 1 for i in before.config.target_layer_ids]
        assert raw["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == list(before.config.target_layer_ids)
    with pytest.raises(HeadError, match="choose specforge, vllm or sglang"):
        export(str(tmp_path / "head"), tmp_path / "other", "speculators")


def test_what_cannot_be_exported(head: HeadCheckpoint, target: Target, tmp_path: Path) -> None:
    sliding = {**head.raw, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    save_checkpoint(tiny_head(target), tmp_path / "sliding", sliding)
    with pytest.raises(HeadError, match="bidirectional sliding layers"):
        export(str(tmp_path / "sliding"), tmp_path / "out", "transformers")
    for words, message in (({"format": "gguf"}, "unknown format"), ({"dtype": "int8"}, "unknown dtype")):
        with pytest.raises(InputError, match=message):
            export(head.name, tmp_path / "out", **{"format": "dflash", **words})
    with pytest.raises(InputError, match="is not empty"):
        export(head.name, tmp_path / "sliding", "dflash")
