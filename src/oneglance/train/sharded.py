"""Tensors that lie in shards on several processes (FSDP2): whole for a checkpoint, in shards again to train on.

So a checkpoint does not depend on how its run was spread. Whatever is not sharded passes as it is.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


def gather(value: Any, *, keep: bool) -> Any:
    """A state dict with every sharded tensor whole and on the CPU. All processes must call this together.

    Args:
        value: a state dict, nested ones included.
        keep: whether this process wants the tensors; one at a time is whole where it does not.
    """
    if isinstance(value, dict):
        return {key: gather(part, keep=keep) for key, part in value.items()}
    if not isinstance(value, DTensor):
        return value
    whole = value.full_tensor()
    return whole.cpu() if keep else None


def load_weights(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Fill a module, which may be sharded, from whole tensors that every process holds."""
    own = module.state_dict()
    module.load_state_dict({key: _shard(tensor, own[key]) for key, tensor in tensors.items()})


def load_optimiser(optimiser: Any, state: dict[str, Any]) -> None:
    """Fill an optimiser, whose parameters may be sharded, from a whole state that every process holds."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    sharded = {
        index: {name: _shard(part, parameters[index]) for name, part in parts.items()}
        for index, parts in state["state"].items()
    }
    optimiser.load_state_dict({**state, "state": sharded})


def _shard(whole: Any, like: Tensor) -> Any:
    if not isinstance(like, DTensor) or not isinstance(whole, Tensor) or whole.shape != like.shape:
        return whole  # an optimiser's step count among them
    local = whole.to(like.device, like.dtype if whole.is_floating_point() else whole.dtype)
    return distribute_tensor(local, like.device_mesh, like.placements, src_data_rank=None)  # each takes its own rows
