"""A target without its weights: what its config and processor alone say."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import transformers

from oneglance.core import TargetError
from oneglance.targets import family, find
from oneglance.targets.base import Target
from oneglance.targets.hf import load_processor


def outline_target(name: str) -> Target:
    """A target on the meta device: geometry, ids and hooks are real, but it computes nothing.

    Args:
        name: ``builtin:reader``, a folder, or a hub id.

    Raises:
        TargetError: there is none, or its family is not supported.
    """
    folder = find(name)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        cls = family(config.model_type)
        with torch.device("meta"):
            model = getattr(transformers, cls.auto_class).from_config(config, dtype=config.dtype or torch.float32)
        if cls.takes_images or cls.takes_audio:
            processor: Any = load_processor(folder, config.model_type)
        else:
            processor = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise TargetError(f"cannot read target {name!r}: {reason}") from error
    with contextlib.suppress(OSError, ValueError):  # a folder may have none
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return cls(model, processor, name=name)
