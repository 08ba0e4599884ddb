"""A rescorer that looks two tokens back, and stays one batched product.

All K x K pairs before a candidate would make 15 x K x K x K scores a round. Their biases add up, so three tables of
K x K an offset hold them, normaliser and all:

    log q_j(y | y', y'') = A_j(y', y) + B_j(y'', y) - log Z_j(y'', y'),
    Z_j(y'', y') = sum_y exp A_j(y', y) exp B_j(y'', y) + (what A_j leaves to all other tokens),

where A is the model of one token back, already a distribution, and Z is a product of two matrices.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oneglance.drafters.rescorer import PreviousTokenBias, RescorerConfig, normalised

FLOOR_NATS = 80.0  # below a row's largest bias: no candidate there has a chance, and its exponential is still a float32


class TwoTokenBias(PreviousTokenBias):
    """b(y'', y', y, h) = <U(y') * sigmoid(G h) + U'(y'') * sigmoid(G' h), W(y)>, of rank R.

    Offset 2 has the first term alone: two tokens before it is the root, which the head has read.
    """

    def __init__(self, config: RescorerConfig) -> None:
        super().__init__(config)
        self.earlier = self._table()
        self.earlier_gate = self._gate()

    def rescore(self, states: Tensor, token_ids: Tensor, log_q: Tensor, embedding: nn.Embedding) -> tuple[Tensor, ...]:
        right = self._right(token_ids[1:], embedding).transpose(-1, -2)  # (L-1, R, K)
        near = self._left(self.before, self.gate, states[1:], token_ids[:-1], embedding)
        far = self._left(self.earlier, self.earlier_gate, states[2:], token_ids[:-2], embedding)
        log_q_given, log_rest = normalised(log_q[1:], near @ right)
        bias = floored((far @ right[1:]).float())
        return log_q_given, bias, log_sums(bias, log_q_given[1:], log_rest[1:])

    def _known(self, states: Tensor, before: Tensor, embedding: nn.Embedding) -> Tensor:
        near = super()._known(states, before, embedding)
        far = self._left(self.earlier, self.earlier_gate, states[:, 2:], before[:, 1:-1, None], embedding)
        return near + F.pad(far[:, :, 0], (0, 0, 1, 0))


def floored(bias: Tensor) -> Tensor:
    """Biases (..., K), none further than ``FLOOR_NATS`` below the largest of its row."""
    return torch.maximum(bias, bias.amax(-1, keepdim=True) - FLOOR_NATS)


def log_sums(bias: Tensor, log_q: Tensor, log_rest: Tensor) -> Tensor:
    """Log Z of every pair of rows.

    Args:
        bias: (L, P, K) floored.
        log_q: (L, M, K) log-probabilities; log_rest: (L, M, 1) of all other tokens, whose bias is 0.

    Returns:
        (L, P, M).
    """
    one, two = bias.amax(-1, keepdim=True), log_q.amax(-1, keepdim=True)  # the largest terms: nothing overflows
    product = (bias - one).exp() @ (log_q - two).exp().transpose(-1, -2)
    return torch.logaddexp(product.log() + one + two.transpose(-1, -2), log_rest.transpose(-1, -2))
