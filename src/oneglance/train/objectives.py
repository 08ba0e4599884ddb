"""Training objectives: how much each hidden slot of a block counts (§4.3).

An objective weighs the slot losses of a block; weights are detached, and the caller divides the weighted sum by the
global sum of weights. Offsets are counted from the first hidden slot of the block (reveal trick).

The paper names its objectives (offset-wise top-1 coverage with 0.8^offset decay; a survival-weighted variant) without
formulas; these are our readings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

# (slot losses -log q of the target's token (M, L), hidden and labelled (M, L) bool) → weights (M, L)
Weigh = Callable[[Tensor, Tensor], Tensor]


def offsets(hidden: Tensor) -> Tensor:
    """(M, L) number of hidden slots before each slot of its block."""
    return hidden.cumsum(-1) - hidden.long()


def decayed(nll: Tensor, hidden: Tensor, *, base: float = 0.8) -> Tensor:
    """``base`` to the power of the offset: the coverage objective (appendix D)."""
    return base ** offsets(hidden).to(nll.dtype) * hidden


def uniform(nll: Tensor, hidden: Tensor) -> Tensor:
    """Plain cross-entropy."""
    return hidden.to(nll.dtype)


def survival(nll: Tensor, hidden: Tensor, *, smoothing: float = 0.5) -> Tensor:
    """Smoothed probability that all hidden slots before this one are accepted.

    A slot's smoothed probability is (1 - smoothing) q + smoothing: a bare product vanishes from scratch, where
    q is about 1/V.
    """
    reach = _confidence(nll, hidden, smoothing).cumprod(-1)
    before = torch.cat([torch.ones_like(reach[..., :1]), reach[..., :-1]], dim=-1)
    return before * hidden


def dpace(nll: Tensor, hidden: Tensor, *, smoothing: float = 0.5) -> Tensor:
    """Derivative of the expected accepted length with respect to each slot's log-probability: suffix sums of the
    prefix products (D-PACE, arXiv 2605.18810)."""
    reach = _confidence(nll, hidden, smoothing).cumprod(-1) * hidden
    return reach.flip(-1).cumsum(-1).flip(-1) * hidden


def _confidence(nll: Tensor, hidden: Tensor, smoothing: float) -> Tensor:
    q = torch.exp(-nll.detach())
    return torch.where(hidden, (1 - smoothing) * q + smoothing, torch.ones_like(q))


@dataclass(frozen=True, slots=True)
class Objective:
    """How slots are weighed, and whether the label is the target's token or its whole distribution.

    Attributes:
        weigh: slot losses and hidden slots → weights.
        soft: use cross-entropy with the target's distribution (its gradient is that of the KL divergence).
        regression: weight of the smooth L1 distance, a mean over dimensions, to the target's own next feature. Above 0
            each slot reads the target's features alone, never the head's own output (EAGLE's training).
        label: weight of the cross-entropy.
    """

    weigh: Weigh
    soft: bool = False
    regression: float = 0.0
    label: float = 1.0


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "coverage": lambda decay=0.8: Objective(partial(decayed, base=decay)),
    "survival": lambda smoothing=0.5: Objective(partial(survival, smoothing=smoothing)),
    "dpace": lambda smoothing=0.5: Objective(partial(dpace, smoothing=smoothing)),
    "exp_decay": lambda gamma=7.0: Objective(partial(decayed, base=float(torch.exp(torch.tensor(-1.0 / gamma))))),
    "ce": lambda: Objective(uniform),
    "kl": lambda decay=0.8: Objective(partial(decayed, base=decay), soft=True),
    "feature": lambda regression=1.0, label=0.1: Objective(uniform, soft=True, regression=regression, label=label),
}
RANGES = {  # of their parameters, both ends included
    "decay": (0.0, 1.0),
    "smoothing": (0.0, 1.0),
    "gamma": (0.01, math.inf),
    "regression": (0.0, math.inf),
    "label": (0.0, math.inf),
}
