"""The head that training starts from: geometry, mask id, warm start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from oneglance.core import InputError
from oneglance.drafters.checkpoint import load_checkpoint
from oneglance.drafters.head import BlockHead, DraftConfig, HeadConfig, LayerConfig, kept_layers
from oneglance.targets.base import Target
from oneglance.train.recipe import HeadRecipe


def initial_head(recipe: HeadRecipe, target: Target) -> tuple[HeadConfig, BlockHead, list[str]]:
    """A head for ``target``: warm-started where the recipe says so, else random under its seed.

    Returns:
        Config, head, and the names of tensors of the warm start that did not fit and were initialised anew.

    Raises:
        InputError: the recipe names another geometry than the warm start has.
    """
    torch.manual_seed(recipe.seed)
    given = load_checkpoint(recipe.init) if recipe.init else None
    config = HeadConfig.from_checkpoint(_layout(recipe, target, given.config if given else None))
    head = BlockHead(config)
    if given is not None:
        is_kept = given.config.target_layer_ids == config.target_layer_ids
        kept = {"num_kept": len(config.target_layer_ids)} if is_kept and recipe.head.target_layer_ids is None else {}
        check_start(recipe, given.config, block_size=given.config.block_size, **kept)
    anew = warm_start(head, given.tensors) if given else []
    return config, head.to(target.device), anew


def check_reach(config: DraftConfig, target: Target) -> None:
    """Refuse a head that reads what the target doesn't have.

    Raises:
        InputError: a kept layer that it lacks or one twice, or a mask id past its embedding's rows; HeadError for a
            layer that text-only prompts skip.
    """
    ids, last, rows = config.target_layer_ids, target.num_layers - 1, target.embedding.num_embeddings
    odd = [layer for layer in ids if not config.first_layer <= layer <= last]
    if odd or len(set(ids)) < len(ids):
        what = f"layer {odd[0]} of {target.num_layers}" if odd else f"{list(ids)}, which repeats a layer"
        raise InputError(f"head.target_layer_ids asks for {what}; name different ones of 0 to {last}")
    target.feature_points(ids)
    if config.mask_token_id >= rows:
        raise InputError(
            f"head.mask_token_id is {config.mask_token_id}; the target's embedding has ids 0 to {rows - 1}"
        )


def warm_start(head: nn.Module, given: dict[str, Tensor]) -> list[str]:
    """Take over whatever tensors fit; the names of the head's tensors that none did."""
    own = head.state_dict()
    fitting = {k: v for k, v in given.items() if k in own and own[k].shape == v.shape}
    head.load_state_dict({**own, **{k: v.to(own[k].dtype) for k, v in fitting.items()}})
    return sorted(own.keys() - fitting.keys())


FIXED = {  # what a warm start's weights compute depends on it: keys of a recipe's head → of a head's config
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "rope_theta": "rope_theta",
}


def check_start(recipe: HeadRecipe, start: LayerConfig, **more: Any) -> None:
    """Refuse a warm start of another geometry than the recipe names.

    Args:
        recipe: with ``init``.
        start: config of that head.
        more: other keys of ``head`` that the warm start decides, with what it says.

    Raises:
        InputError: it names another value.
    """
    given = {key: getattr(start, name) for key, name in FIXED.items()} | more
    for key in sorted(given.keys() & recipe.head.model_fields_set):
        named = getattr(recipe.head, key)
        if named is not None and named != given[key]:
            raise InputError(
                f"head.{key} is {named}, and the warm start {recipe.init} has {given[key]}, as its weights need; leave "
                f"head.{key} out, or set init to null and train from scratch"
            )


def head_layout(recipe: HeadRecipe, target: Target) -> dict[str, Any]:
    """``config.json`` of the head in z-lab's layout. A warm start brings whatever decides what its weights compute:
    layers, attention heads, block size, RoPE, norm epsilon, sliding layers."""
    return _layout(recipe, target, load_checkpoint(recipe.init).config if recipe.init else None)


def _layout(recipe: HeadRecipe, target: Target, start: HeadConfig | None) -> dict[str, Any]:
    shape, text = recipe.head, target.text_config
    num_layers = start.num_hidden_layers if start else shape.num_layers
    heads = shape.num_attention_heads or (start.num_attention_heads if start else text.num_attention_heads)
    key_heads = shape.num_key_value_heads or (start.num_key_value_heads if start else text.num_key_value_heads)
    default_dim = getattr(text, "head_dim", None) or target.hidden_size // text.num_attention_heads
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": start.block_size if start else shape.block_size,
        "num_target_layers": target.num_layers,
        "num_hidden_layers": num_layers,
        "hidden_size": target.hidden_size,
        "intermediate_size": shape.intermediate_size or (start.intermediate_size if start else text.intermediate_size),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": shape.head_dim or (start.head_dim if start else default_dim),
        "rms_norm_eps": start.rms_norm_eps if start else 1e-6,
        "hidden_act": "silu",
        "rope_theta": start.rope_theta if start else shape.rope_theta,
        "rope_scaling": llama3_scaling(start),
        "max_position_embeddings": target.context_length,
        "layer_types": list(start.layer_types if start and start.layer_types else ["full_attention"] * num_layers),
        "sliding_window": start.sliding_window if start else None,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": target.vocab_size,
        "dtype": "bfloat16",
        "dflash_config": {
            "mask_token_id": mask_token_id(recipe, target, start),
            "target_layer_ids": list(_layers(recipe, target, start)),
        },
    }


def mask_token_id(recipe: HeadRecipe, target: Target, start: HeadConfig | None) -> int:
    """Explicit, else the warm start's, else a reserved mask token of the tokenizer, else the first embedding row past
    the tokenizer's ids. The table is never resized.

    Raises:
        InputError: there is none.
    """
    if recipe.head.mask_token_id is not None:
        return recipe.head.mask_token_id
    if start is not None:
        return start.mask_token_id
    tokenizer = target.tokenizer
    for token in (tokenizer.mask_token, "<|mask|>"):
        if token is not None and token in tokenizer.get_vocab():
            return int(tokenizer.convert_tokens_to_ids(token))
    if len(tokenizer) < target.embedding.num_embeddings:
        return len(tokenizer)
    raise InputError("the target has no spare embedding row for a mask token; set head.mask_token_id in the recipe")


def llama3_scaling(start: LayerConfig | None) -> dict[str, Any] | None:
    """``rope_scaling`` of a config, None for plain RoPE."""
    if start is None or start.rope_llama3 is None:
        return None
    factor, low, high, original = start.rope_llama3
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _layers(recipe: HeadRecipe, target: Target, start: HeadConfig | None) -> tuple[int, ...]:
    if recipe.head.target_layer_ids is not None:
        return recipe.head.target_layer_ids
    if start is not None and start.num_target_layers == target.num_layers:
        return start.target_layer_ids
    return default_layers(target, recipe.head.num_kept)


def default_layers(target: Target, count: int) -> tuple[int, ...]:
    """Kept layers where a recipe names none: DFlash's rule over the layers that attend to themselves."""
    allowed = target.self_attention_layers
    return tuple(dict.fromkeys(allowed[i] for i in kept_layers(len(allowed), count)))  # a shallow target has fewer
