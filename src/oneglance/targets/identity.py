"""What makes a target the one that a head was trained with, as short hashes that a head's card can hold."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import PreTrainedConfig, PreTrainedModel

# every config has these: how a model is run, not what it computes; they come and go between versions of transformers
_RUN_KEYS = frozenset({*PreTrainedConfig().to_dict(), "torch_dtype", "use_cache", "quantization_config"}) - {
    "model_type"
}


def geometry_sha256(config: Any) -> str:
    """Hash of a config without where it lies, its precision, and keys that are null, at every level."""
    return sha256(json.dumps(_geometry(config.to_dict()), sort_keys=True, default=str))


def weights_sha256(model: PreTrainedModel) -> str | None:
    """Hash of the first row of every matrix, which a fine-tune moves; in bf16, and so the same in all wider types.

    None where weights have no value here, are quantised, or went through float16, whose rounding is another.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            if parameter.is_meta or parameter.dtype not in (torch.float32, torch.float64, torch.bfloat16):
                return None
            digest.update(parameter[0].detach().to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def quantisation(config: Any) -> str | None:
    """Method by which the weights are quantised, or None; the config's block may be an object or a plain dict."""
    block = getattr(config, "quantization_config", None)
    method = block.get("quant_method") if isinstance(block, dict) else getattr(block, "quant_method", None)
    return None if method is None else str(getattr(method, "value", method))


def thinks(tokenizer: Any, template: str) -> bool | None:
    """Whether prompts ask for thinking, where the chat template has such a flag; None where it has not."""
    with contextlib.suppress(TemplateError, TypeError, ValueError):
        plain, on, off = (
            tokenizer.apply_chat_template(
                [{"role": "user", "content": [{"type": "text", "text": "?"}]}],
                chat_template=template,
                tokenize=False,
                add_generation_prompt=True,
                **flag,
            )
            for flag in ({}, {"enable_thinking": True}, {"enable_thinking": False})
        )
        return None if on == off else bool(plain == on)
    return None


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _geometry(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {k: _geometry(v) for k, v in value.items() if v is not None and k not in _RUN_KEYS}


def of(model: PreTrainedModel, tokenizer: Any, renderer: Any) -> dict[str, Any]:
    """What a head should have been trained with.

    Args:
        model: the target's.
        tokenizer: its own.
        renderer: has the chat template.
    """
    template = getattr(renderer, "chat_template", None)
    return {
        "target_revision": getattr(model.config, "_commit_hash", None),
        "target_geometry_sha256": geometry_sha256(model.config),
        "target_weights_sha256": weights_sha256(model),
        "chat_template_sha256": sha256(str(template)) if template else None,
        "thinking": thinks(tokenizer, template) if template else None,
        "quantisation": quantisation(model.config),
    }
