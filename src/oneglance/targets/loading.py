"""Reading a target's weights: all of them from the checkpoint, or an error that says what is wrong with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pickle import UnpicklingError
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import PreTrainedModel

from oneglance.amounts import listed
from oneglance.core import TargetError
from oneglance.errors import first_line

# what transformers, torch and safetensors raise over a folder or a device that will not do
FAILURES = (OSError, ValueError, ImportError, RuntimeError, MemoryError, SafetensorError, UnpicklingError)


def load_model(auto_class: str, folder: str, config: Any, **options: Any) -> PreTrainedModel:
    """A model all of whose weights come from its checkpoint; transformers would fill gaps with random ones.

    Args:
        auto_class: of transformers.
        folder: or a hub id.
        config: the checkpoint's.
        options: of ``from_pretrained``.

    Raises:
        TargetError: tensors are missing or have other shapes.
        BaseException: one of ``FAILURES``.
    """
    loader = getattr(transformers, auto_class)
    with _without_bars():
        model, info = loader.from_pretrained(
            folder, config=config, ignore_mismatched_sizes=True, output_loading_info=True, **options
        )
    shapes = sorted(f"{key} ({list(found)}, not {list(wanted)})" for key, found, wanted in info["mismatched_keys"])
    for what, keys in (("lacks", sorted(info["missing_keys"])), ("has another shape of", shapes)):
        if keys:
            raise TargetError(
                f"the checkpoint {what} {len(keys)} tensors that its config asks for: {listed(list(keys))}; "
                "download it again, or correct config.json"
            )
    loaded: PreTrainedModel = model
    return loaded


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """No bars of transformers, unless $HF_HUB_DISABLE_PROGRESS_BARS is 0; afterwards they are as they were."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
    from transformers.utils import logging

    is_on = logging.is_progress_bar_enabled()
    if not is_on or os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS") == "0":
        yield
        return
    are_hub_bars_off = are_progress_bars_disabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
        if are_hub_bars_off:
            disable_progress_bars()


def reason(error: BaseException) -> str:
    """One line on why a target could not be loaded, and the fix where it is known."""
    if is_out_of_memory(error):
        return "out of memory; use a smaller dtype, --device-map auto, or a smaller target"
    text = first_line(error)
    if isinstance(error, SafetensorError | UnpicklingError):
        return f"a weight file is truncated or a git-LFS pointer ({text}); download it again, or run 'git lfs pull'"
    return text


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on whatever device."""
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or any(sign in str(error) for sign in ("out of memory", "can't allocate memory"))
