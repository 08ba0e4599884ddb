"""Does a packed row depend on its neighbours? It must not: verification would not be the target's own decoding."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oneglance.core import EMPTY_TREE, OneglanceWarning, TargetError, TokenTree
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs


def row_dependence(target: Target, *, num_siblings: int = 10) -> float:
    """Largest change of a packed row's logits when only its siblings' tokens change; 0.0 for sound targets.

    Dynamic-activation quantisation and anything else that couples rows shows up here.
    """
    allowed = [i for i in range(min(target.vocab_size, 64)) if i not in target.banned_ids]
    prefix, kept, others = allowed[:4], allowed[4], allowed[5:]
    rows = []
    for siblings in (others[:num_siblings], others[num_siblings : 2 * num_siblings]):
        state = target.prefill(Inputs({"input_ids": torch.tensor([prefix], device=target.device)}))
        size = 1 + len(siblings)
        tree = TokenTree((kept, *siblings), (0,) * size, (1,) * size)
        rows.append(target.verify(state, prefix[-1], tree)[:2].float())
    return float((rows[0] - rows[1]).abs().max())


def check_row_independence(target: Target, *, warn_above: float = 1e-4, refuse_above: float = 1e-1) -> float:
    """Run the probe.

    Returns:
        The measured dependence (logit units).

    Raises:
        TargetError: rows depend on their neighbours so much that verification would not be the target's own.
    """
    dependence = row_dependence(target)
    message = (
        f"a row's logits change by up to {dependence:.2g} when its neighbours change (dynamic-activation quantisation "
        "does this)"
    )
    if not dependence <= refuse_above:
        raise TargetError(f"{message}; tree verification needs independent rows: load the target unquantised")
    if dependence > warn_above:
        warnings.warn(f"{message}; output may differ from plain decoding at near ties", OneglanceWarning, stacklevel=2)
    return dependence


def slot_dependence(target: Target, *, depth: int = 4) -> tuple[str, float] | None:
    """The first module whose row for a token differs, bit by bit, between plain single steps and a full tree's slots.

    A short text is decoded twice in passes of the fixed shape: token by token, and as one tree whose accepted path has
    the last slots, behind decoys.

    Returns:
        Its name and the largest difference there; None if all rows are the same to the bit.
    """
    num_nodes = len(target.passes.lay_out(0, EMPTY_TREE).token_ids) - 1
    allowed = [i for i in range(min(target.vocab_size, num_nodes + depth + 64)) if i not in target.banned_ids]
    prefix, path, decoys = allowed[:8], allowed[8 : 9 + depth], allowed[9 + depth :]
    inputs = Inputs({"input_ids": torch.tensor([prefix], device=target.device)})
    state = target.prefill(inputs)
    single: list[dict[str, Tensor]] = []
    for root, following in zip(path, [*path[1:], 0], strict=True):
        with _outputs(target) as seen:
            target.verify(state, root, EMPTY_TREE)
        single.append({name: rows[0] for name, rows in seen.items()})
        target.commit(state, (0,), (following,))
    others = max(0, num_nodes - depth)
    tokens = [*(decoys[i % len(decoys)] for i in range(others)), *path[1:]]
    last = len(tokens) - depth
    tree = TokenTree(
        tuple(tokens), (0,) * (last + 1) + tuple(range(last + 1, len(tokens))), (1,) * last + tuple(range(1, depth + 1))
    )
    with _outputs(target) as packed:
        target.verify(target.prefill(inputs), path[0], tree)
    slots = [0, *range(last + 1, len(tokens) + 1)]
    for name, rows in packed.items():
        worst = max(
            float((rows[slot].double() - seen[name].double()).abs().max())
            for slot, seen in zip(slots, single, strict=True)
        )
        if worst:
            return name, worst
    return None


def check_slot_independence(target: Target) -> None:
    """Run the probe of the fixed shape.

    Raises:
        TargetError: a kernel's row depends on its slot, so equal shapes do not make equal rows.
    """
    found = slot_dependence(target)
    if found is not None:
        name, difference = found
        raise TargetError(
            f"in passes of {target.passes.name} a row of {name} changes by up to {difference:.2g} with its slot, so a "
            "fixed shape does not make plain and drafted text equal here; leave it out, or use another dtype or device"
        )


@contextmanager
def _outputs(target: Target) -> Iterator[dict[str, Tensor]]:
    """What enters and leaves every module without children in one pass, in order: (M, …) tensors."""
    seen: dict[str, Tensor] = {}
    modules = [*target.text_model.named_modules(), ("lm_head", target.lm_head)]
    handles = []
    for name, module in modules:
        if next(module.children(), None) is not None:
            continue

        def before(_: nn.Module, given: tuple[Any, ...], name: str = name) -> None:
            _keep(seen, f"what enters {name}", given[0] if given else None)

        def after(_: nn.Module, given: Any, output: Any, name: str = name) -> None:
            _keep(seen, name, output)

        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _keep(seen: dict[str, Tensor], name: str, value: Any) -> None:
    """Keep the rows of a (1, M, …) floating-point tensor."""
    if isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 3 and value.shape[0] == 1:
        seen[name] = value[0].clone()
