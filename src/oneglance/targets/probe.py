"""Does a packed row depend on its neighbours? It must not: verification would not be the target's own decoding."""

from __future__ import annotations

import warnings

import torch

from oneglance.core import OneglanceWarning, TargetError, TokenTree
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
