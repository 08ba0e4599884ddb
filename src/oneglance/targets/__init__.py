"""Targets by HF ``model_type``: one file a family, found by name, imported on use."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneglance.core import TargetError
from oneglance.hub import fetch_config

if TYPE_CHECKING:
    from oneglance.targets.base import Target

FAMILIES: dict[str, str] = {
    "qwen3_vl": "oneglance.targets.qwen3_vl:Qwen3VL",
    "qwen2_5_vl": "oneglance.targets.qwen3_vl:Qwen25VL",
    "mllama": "oneglance.targets.mllama:Mllama",
    "qwen3": "oneglance.targets.causal_lm:CausalLM",
    "qwen2": "oneglance.targets.causal_lm:CausalLM",
    "llama": "oneglance.targets.causal_lm:CausalLM",
    "whisper": "oneglance.targets.whisper:Whisper",
}
BUILTIN = {"builtin:reader": Path(__file__).parent.parent / "assets" / "reader" / "target"}


def family(model_type: str) -> type[Target]:
    """The target class for an HF ``model_type``.

    Raises:
        TargetError: no family supports it.
    """
    known = {**FAMILIES, **{point.name: point.value for point in entry_points(group="oneglance.targets")}}
    if model_type not in known:
        raise TargetError(f"model_type {model_type!r} is not supported; supported: {', '.join(sorted(known))}")
    module, name = known[model_type].split(":")
    found: type[Target] = getattr(import_module(module), name)
    return found


def resolve(name: str) -> str:
    """The folder or hub id behind a target's name; the folder may be another machine's.

    Raises:
        TargetError: an unknown builtin.
    """
    if not name.startswith("builtin:"):
        return name
    if name not in BUILTIN:
        raise TargetError(f"there is no {name!r}; built-in targets: {', '.join(BUILTIN)}")
    return str(BUILTIN[name])


def locate(name: str) -> str:
    """As ``resolve``, of a target that is to be opened here. Reads nothing, so that it can be asked first.

    Raises:
        TargetError: an unknown builtin, a file, a folder without a model, or what is neither and no hub id.
    """
    place = os.path.expanduser(resolve(name))
    if os.path.isfile(place):
        raise TargetError(f"target {name!r} is a file; give the folder that holds config.json")
    if os.path.isdir(place) and not os.path.isfile(os.path.join(place, "config.json")):
        raise TargetError(f"there is no model in the folder {name!r}; give the one that holds config.json")
    if not os.path.isdir(place) and not could_be_hub_id(name):
        raise TargetError(f"there is no target at {name!r}; give a folder, a hub id (owner/name) or builtin:reader")
    return place


def find(name: str) -> str:
    """As ``locate``; of a hub id the config is there afterwards, so that a name that nobody has is told at once.

    Raises:
        TargetError: as ``locate``, or it cannot be downloaded.
    """
    place = locate(name)
    if not os.path.isdir(place):
        fetch_config(place, "target")
    return place


def could_be_hub_id(name: str) -> bool:
    """Whether the hub allows such a name, with an owner or without."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented, not in its __all__

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def open_target(
    name: str = "builtin:reader",
    *,
    dtype: str = "auto",
    device: str | None = None,
    device_map: str | None = None,
    attention: str = "sdpa",
    probe: bool = True,
    fixed_for_budget: int | None = None,
) -> Target:
    """Open a frozen target.

    Args:
        name: ``builtin:reader``, a folder, or a hub id.
        dtype: ``auto`` (as stored), ``float32``, ``bfloat16``, ``float16`` or ``float64``.
        device: ``cpu``, ``cuda``, ``mps``, …; default CPU.
        device_map: for accelerate, e.g. ``auto``; not together with ``device``.
        attention: ``sdpa`` or ``eager``.
        probe: run the row-independence probe, and with a fixed shape that of slots.
        fixed_for_budget: lay packed passes out in the fixed shape that trees of as many nodes fit into.

    Raises:
        TargetError: it cannot be loaded, or cannot be verified in packed passes.
    """
    import torch
    import transformers

    from oneglance.targets import hf
    from oneglance.targets.loading import FAILURES, load_model, reason
    from oneglance.targets.probe import check_row_independence

    if attention not in ("sdpa", "eager"):
        raise TargetError(f"attention {attention!r} cannot take an ancestor mask; use sdpa or eager")
    if device and device_map:
        raise TargetError("give either device or device_map, not both")
    if "meta" in (device, device_map):
        raise TargetError("device 'meta' holds no numbers to decode with; use cpu or cuda")
    if device_map and find_spec("accelerate") is None:
        raise TargetError("device_map needs accelerate; pip install 'oneglance[train]', or give a device")
    folder = find(name)
    if torch_device_missing(device):
        raise TargetError(f"device {device!r} is not available here; use cpu")
    options: dict[str, Any] = {"dtype": parse_dtype(dtype), "attn_implementation": attention}
    if device_map:
        options["device_map"] = device_map
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        cls = family(config.model_type)
        model = load_model(cls.auto_class, folder, config, **options)
        if cls.takes_images or cls.takes_audio:
            processor = hf.load_processor(folder, config.model_type)
        else:
            processor = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if device:
            model = model.to(torch.device(device))
    except FAILURES as error:
        raise TargetError(f"cannot load target {name!r}: {reason(error)}") from error
    target = cls(model, processor, name=name)
    if probe:
        check_row_independence(target)
    return target if fixed_for_budget is None else open_fixed(target, fixed_for_budget, probe=probe)


def open_fixed(target: Target, budget: int, *, probe: bool = True) -> Target:
    """The same target, with packed passes in the one shape that trees of ``budget`` nodes fit into.

    Raises:
        TargetError: a kernel's row depends on its slot here, so that equal shapes do not make equal rows.
    """
    from oneglance.targets.passes import FixedShape
    from oneglance.targets.probe import check_slot_independence

    if target.device.type == "mps":
        raise TargetError("a fixed shape reduces attention in float64, which mps lacks; use cpu or cuda")
    fixed = target.with_passes(FixedShape.for_budget(budget))
    if probe:
        check_slot_independence(fixed)
    return fixed


def parse_dtype(name: str) -> Any:
    """A torch dtype, or ``auto``.

    Raises:
        TargetError: not a floating-point type that targets run in.
    """
    import torch

    known = ("auto", "float32", "bfloat16", "float16", "float64")
    if name not in known:
        raise TargetError(f"unknown dtype {name!r}; choose one of {', '.join(known)}")
    return name if name == "auto" else getattr(torch, name)


def torch_device_missing(device: str | None) -> bool:
    """Whether a device was named that this machine lacks."""
    import torch

    if device is None:
        return False
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        return True
    return False
