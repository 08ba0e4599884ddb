"""Heads in other programs' layouts: what kind each is, and its ``config.json`` under the names that this package
reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oneglance.core import HeadError

SAME_HERE = ("gqa", "mha")  # attention modes of SpecForge that are one here: mha is gqa with as many key heads
MORE_OF_EAGLE3 = ("fc_norm", "use_aux_norm", "norm_output", "norm_before_fc", "norm_before_residual")


ARCHITECTURES = {  # that name a drafter; EAGLE calls its heads LlamaForCausalLM, as models are called
    "DFlashDraftModel": "block",
    "LlamaForCausalLMEagle": "eagle2",
    "LlamaForCausalLMEagle3": "eagle3",
    "MedusaModel": "medusa",
    "ViSpecModel": "vispec",
}
KEYS = {  # of other configs, the more telling first
    "eagle_config": "eagle3",
    "medusa_num_heads": "medusa",
    "dflash_config": "block",
    "target_layer_ids": "block",
}
TENSORS = {  # of heads whose config could be a model's, the more telling first
    "hidden_norm.weight": "block",
    "imadpt.q": "vispec",
    "midlayer.self_attn.q_proj.weight": "eagle3",
    "0.0.linear.weight": "medusa",
    "fc.weight": "eagle2",
}


SPOKEN = {
    "block": "a block head",
    "eagle2": "an EAGLE-2 head",
    "eagle3": "an EAGLE-3 head",
    "medusa": "a Medusa head",
    "vispec": "a ViSpec head",
}
RESCORER = "rescorer.json"  # beside a block head, or alone


def drafter_of(config: Mapping[str, Any], tensors: Iterable[str] = ()) -> str | None:
    """The drafter that a checkpoint is a head for; None where it looks like no head.

    Args:
        config: its ``config.json``.
        tensors: their names, which alone tell some heads from a model.
    """
    if "speculators_model_type" in config:
        return "eagle3" if config["speculators_model_type"] == "eagle3" else "block"
    own = config.get("architectures")
    bare = {name.removeprefix("model.") for name in tensors}
    for table, found in ((ARCHITECTURES, own if isinstance(own, list) else ()), (KEYS, config), (TENSORS, bare)):
        for name, drafter in table.items():
            if name in found:
                return drafter
    return None


def block_of(config: dict[str, Any], key: str) -> dict[str, Any]:
    """A nested object of the config; empty where it is missing or null."""
    block = config.get(key) or {}
    if not isinstance(block, dict):
        raise HeadError(f"config.json of the head: {key} must be an object, got {type(block).__name__}")
    return block


def of_dflash(config: dict[str, Any]) -> dict[str, Any]:
    """The keys of a head in z-lab's layout, which SpecForge writes too: nested in ``dflash_config`` or at top level.

    Raises:
        HeadError: another kind of SpecForge's block heads, or one that does not say what fills its block.
    """
    flat = {**config, **block_of(config, "dflash_config")}
    if flat.get("projector_type") not in (None, "dflash"):
        raise HeadError(
            f"projector_type is {flat['projector_type']!r}: SpecForge's heads with a projector draft otherwise than "
            "DFlash; train the head with strategy dflash"
        )
    modes = flat.get("attention_modes") or [flat.get("attention_mode") or "gqa"]
    other = [mode for mode in modes if mode not in SAME_HERE] if isinstance(modes, list) else [modes]
    if other:
        raise HeadError(
            f"attention mode {other[0]!r} of the head is not supported; train it with dflash_config.attention_mode gqa"
        )
    if flat.get("shift_label"):
        raise HeadError("slots of a head with shift_label predict one token later; train it with shift_label false")
    if flat.get("mask_token_id") is None and flat.get("hidden_size") is not None:
        raise HeadError(
            "dflash_config.mask_token_id is missing from config.json of the head; write the id that filled the block "
            "in training there (SpecForge: model.mask_token_id of the run)"
        )
    return flat


def of_eagle3(config: dict[str, Any]) -> dict[str, Any]:
    """The flat keys of an EAGLE-3 head in SpecForge's, vLLM's or speculators' layout, ``target_layer_ids`` among them.

    SpecForge and SGLang name layer outputs in ``eagle_config``; vLLM and speculators name layer inputs at top level,
    one more.

    Raises:
        HeadError: another kind of head, or one that norms at places where EAGLE-3 does not.
    """
    if config.get("speculators_model_type") not in (None, "eagle3"):
        raise HeadError(f"speculators_model_type is {config['speculators_model_type']!r}; this is no EAGLE-3 head")
    config = {**block_of(config, "transformer_layer_config"), **config}
    eagle = block_of(config, "eagle_config")
    own = eagle.get("eagle_aux_hidden_state_layer_ids")
    inputs = config.get("eagle_aux_hidden_state_layer_ids")
    for name, ids in (("eagle_config.", own), ("", inputs)):
        if ids is not None and not (isinstance(ids, list | tuple) and all(type(i) is int for i in ids)):
            raise HeadError(f"{name}eagle_aux_hidden_state_layer_ids must list layers, got {ids!r}")
    more = [key for key in MORE_OF_EAGLE3 if config.get(key) or eagle.get(key)]
    if more:
        raise HeadError(f"the head has {more[0]}, a norm that EAGLE-3 lacks; train it with {more[0]} false")
    return {**config, "target_layer_ids": tuple(own or [i - 1 for i in inputs or ()])}


def of_speculators(config: dict[str, Any]) -> dict[str, Any]:
    """The keys of a head in speculators' layout under z-lab's names. It counts layer boundaries: 0 is the embedding's.

    Raises:
        HeadError: another kind of head, or one whose vocabulary is not the target's.
    """
    inner, kind = block_of(config, "transformer_layer_config"), config["speculators_model_type"]
    if kind != "dflash":
        raise HeadError(f"speculators_model_type is {kind!r}; only dflash heads are block heads")
    if config.get("draft_vocab_size") not in (None, inner.get("vocab_size")):
        raise HeadError(
            f"the head drafts over {config['draft_vocab_size']} of {inner.get('vocab_size')} tokens; a block head "
            "reads the target's own lm_head"
        )
    boundaries = config.get("aux_hidden_state_layer_ids")
    if not isinstance(boundaries, list) or not all(isinstance(i, int) and i > 0 for i in boundaries):
        raise HeadError(f"aux_hidden_state_layer_ids must list layer boundaries from 1 on, got {boundaries!r}")
    own = block_of(config, "oneglance")
    return {
        **inner,
        **{key: config.get(key) for key in ("block_size", "mask_token_id")},
        "target_layer_ids": [i - 1 for i in boundaries],
        "num_target_layers": own.get("num_target_layers", 0),
    }
