"""The ``config.json`` of heads in other programs' layouts, under the names that this package reads."""

from __future__ import annotations

from typing import Any

from oneglance.core import HeadError


def block_of(config: dict[str, Any], key: str) -> dict[str, Any]:
    """A nested object of the config; empty where it is missing or null."""
    block = config.get(key) or {}
    if not isinstance(block, dict):
        raise HeadError(f"config.json of the head: {key} must be an object, got {type(block).__name__}")
    return block


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
