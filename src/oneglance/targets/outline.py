"""A target without its weights: what its config and processor alone say."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from oneglance.core import TargetError
from oneglance.errors import first_line
from oneglance.targets import family, find
from oneglance.targets.base import Target
from oneglance.targets.hf import load_processor
from oneglance.targets.identity import quantisation


def outline_target(name: str, *, with_rows: bool = False) -> Target:
    """A target on the meta device: geometry, ids and hooks are real, but it computes nothing.

    Args:
        name: ``builtin:reader``, a folder, or a hub id.
        with_rows: where its weights are on this machine, take the first row of each tensor for all rows: what tells a
            fine-tune from another, for the memory of those rows.

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
        raise TargetError(f"cannot read target {name!r}: {first_line(error)}") from error
    if with_rows and quantisation(config) is None:
        model = _with_rows(model, _first_rows(_folder_of(folder), model.dtype))
    with contextlib.suppress(OSError, ValueError):  # a folder may have none
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return cls(model, processor, name=name)


def _with_rows(outline: Any, tensors: dict[str, Tensor]) -> Any:
    """The model with these tensors, which transformers itself assigns; the outline where some are not there."""
    if not tensors:
        return outline
    arguments = {"config": outline.config, "dtype": outline.dtype, "output_loading_info": True}
    try:
        model, info = type(outline).from_pretrained(None, state_dict=tensors, **arguments)
    except (OSError, ValueError, RuntimeError):  # as opening the target will say
        return outline
    return outline if info["missing_keys"] or info["mismatched_keys"] else model


def _folder_of(folder: str) -> Path | None:
    """The folder, or where an earlier download put that hub id."""
    if os.path.isdir(folder):
        return Path(folder)
    with contextlib.suppress(LocalEntryNotFoundError, HFValidationError, OSError):
        return Path(snapshot_download(folder, local_files_only=True))
    return None


def _first_rows(folder: Path | None, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every tensor of the weights with its first row everywhere, which takes the memory of that row."""
    tensors: dict[str, Tensor] = {}
    try:
        for path in sorted(folder.glob("model*.safetensors")) if folder else ():
            with safe_open(path, "pt") as file:
                for key in file.keys():  # noqa: SIM118
                    part = file.get_slice(key)
                    shape = part.get_shape()
                    row = part[:1].to(dtype, copy=True) if shape else torch.zeros((), dtype=dtype)
                    tensors[key] = row.expand(shape)
    except (SafetensorError, OSError):
        return {}
    return tensors
