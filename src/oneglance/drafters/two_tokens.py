"""A rescorer that looks two tokens back, and stays one batched product.

All K x K pairs before a candidate would make 15 x K x K x K scores a round. Their biases add up, so three tables of
K x K an offset hold them, normaliser and all:

    log q_j(y | y', y'') = A_j(y', y) + B_j(y'', y) - log Z_j(y'', y'),
    Z_j(y'', y') = sum_y exp A_j(y', y) exp B_j(y'', y) + (what A_j leaves to all other tokens),

where A is the model of one token back, already a distribution, and Z is a product of two matrices.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from oneglance.drafters.rescorer import PreviousTokenBias, RescorerConfig, normalised

LIMIT_NATS = 40.0  # of a bias, either way: more decides nothing, and its exponential still fits a float32


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
        bias = (far @ right[1:]).float().clamp(-LIMIT_NATS, LIMIT_NATS)
        return log_q_given, bias, log_sums(bias, log_q_given[1:], log_rest[1:])

    def _known(self, states: Tensor, before: Tensor, embedding: nn.Embedding) -> Tensor:
        near = super()._known(states, before, embedding)
        far = self._left(self.earlier, self.earlier_gate, states[:, 2:], before[:, 1:-1, None], embedding)
        return near + F.pad(far[:, :, 0], (0, 0, 1, 0))


def log_sums(bias: Tensor, log_q: Tensor, log_rest: Tensor) -> Tensor:
    """Log Z of every pair of rows.

    Args:
        bias: (L, P, K) within ``LIMIT_NATS``.
        log_q: (L, M, K) log-probabilities; log_rest: (L, M, 1) of all other tokens, whose bias is 0. Together a
            distribution, so that no sum vanishes or overflows.

    Returns:
        (L, P, M).
    """
    product = bias.exp() @ log_q.exp().transpose(-1, -2)
    return (product + log_rest.exp().transpose(-1, -2)).log()
