"""How a training run is spread over processes: alone, data parallel (DDP), or sharded (FSDP2)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from oneglance.core import InputError
from oneglance.targets.base import Target
from oneglance.train.recipe import HeadRecipe

EXAMPLES = "recipes/accelerate holds configs that work"
UNITS = ("MLP", "ResBlock")  # modules that are only ever called, so that each can be gathered by itself
PATIENCE = timedelta(hours=12)  # the others wait while the first process evaluates


def process_state(*, cpu: bool) -> PartialState:
    """This process among the training processes, and its device.

    Raises:
        InputError: the launcher asks for what training does not do.
    """
    for flag, name in (("ACCELERATE_USE_DEEPSPEED", "DeepSpeed"), ("ACCELERATE_USE_MEGATRON_LM", "Megatron-LM")):
        if _is_set(flag):
            raise InputError(
                f"training runs as DDP or FSDP, not under {name}; change the accelerate config: {EXAMPLES}"
            )
    is_one_of_many = int(os.environ.get("WORLD_SIZE", "1")) > 1 or "LOCAL_RANK" in os.environ
    return PartialState(cpu=cpu, **({"timeout": PATIENCE} if is_one_of_many else {}))


def open_accelerator(recipe: HeadRecipe, target: Target, out: Path, trackers: Sequence[Any]) -> Accelerator:
    """Accelerate on the target's device, as the launcher's environment asks.

    Raises:
        InputError: a tracker is not installed, or the launcher asks for what training does not do.
    """
    from accelerate.tracking import get_available_trackers

    available = [str(getattr(name, "value", name)) for name in get_available_trackers()]
    for tracker in trackers:
        if isinstance(tracker, str) and tracker not in available:
            raise InputError(
                f"tracker {tracker!r} is not installed; here are {', '.join(available) or 'none'}; tensorboard comes "
                "with: pip install 'oneglance[train]'"
            )
    _check_left_to_the_recipe(recipe)
    on_cpu = target.device.type == "cpu"
    process = process_state(cpu=on_cpu)
    plugin = sharding(recipe.precision) if _is_set("ACCELERATE_USE_FSDP") else None
    accelerator = Accelerator(
        mixed_precision=recipe.precision,
        cpu=on_cpu,
        log_with=list(trackers) or None,
        project_dir=str(out),
        fsdp_plugin=plugin,
    )
    if plugin is not None:
        if accelerator.distributed_type == DistributedType.NO:
            raise InputError("FSDP spreads a run over processes; start it by accelerate launch or torchrun")
        for state in (process, accelerator.state):  # of CPU processes accelerate makes DDP, without a word
            state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    if trackers:
        accelerator.init_trackers(recipe.name)
    return accelerator


def sharding(precision: str) -> FullyShardedDataParallelPlugin:
    """What the launcher's environment says of FSDP. Master weights and the sums of gradients stay float32.

    Raises:
        InputError: a setting that training cannot follow.
    """
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise InputError(f"training shards by FSDP 2; set fsdp_version: 2 in the accelerate config: {EXAMPLES}")
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if precision == "bf16" else None, reduce_dtype=torch.float32
    )
    plugin = FullyShardedDataParallelPlugin(mixed_precision_policy=policy)
    wraps = plugin.auto_wrap_policy is not None
    if wraps and plugin.auto_wrap_policy is not transformer_auto_wrap_policy:
        raise InputError("fsdp_auto_wrap_policy must be TRANSFORMER_BASED_WRAP or NO_WRAP: others cut a head in two")
    if wraps and plugin.transformer_cls_names_to_wrap:
        raise InputError(
            "leave out fsdp_transformer_layer_cls_to_wrap: what of a head can be gathered by itself is known"
        )
    if _is_set("FSDP_OFFLOAD_PARAMS"):
        raise InputError("set fsdp_offload_params: false: a head computes where its weights are; use more processes")
    plugin.cpu_ram_efficient_loading = False  # every process makes the head from its seed, and accelerate drops buffers
    return plugin


def prepare(accelerator: Accelerator, packed: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[Any, Any]:
    """Head and optimiser as they are trained, wrapped for however many processes there are."""
    if accelerator.is_fsdp2:
        found = {type(module).__name__ for module in packed.modules()}
        packed._no_split_modules = [name for name in UNITS if name in found]  # type: ignore[assignment]  # accelerate's name
    prepared: tuple[Any, Any] = accelerator.prepare(packed, optimiser)
    return prepared


def _check_left_to_the_recipe(recipe: HeadRecipe) -> None:
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", recipe.precision):
        raise InputError(
            f"the accelerate config says mixed_precision {precision} and the recipe {recipe.precision}; set precision "
            "in the recipe and leave it out of the config"
        )
    if os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1") != "1":
        raise InputError(
            "set optimiser.accumulate in the recipe, and leave gradient_accumulation_steps out of the launcher"
        )


def _is_set(flag: str) -> bool:
    return os.environ.get(flag, "false").lower() == "true"
