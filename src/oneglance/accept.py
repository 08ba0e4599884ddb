"""Accept rules: read the target's own tokens off verified rows (Def. 1). Pure; a rule owns no sequence state.

A rule never looks at drafter scores: a weak drafter can shorten the accepted path, never change a token (Thm. 1). Each
row that the walk visits is processed and chosen from as plain decoding would, at most a block of them a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from oneglance.core import InputError, TokenTree, Verdict

# transformers' calling convention: (input_ids (1, T), scores (1, V)) → scores (1, V)
LogitsProcessor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def argmax(rows: torch.Tensor) -> torch.Tensor:
    """Index of the largest logit of each row; the first one wins a tie. The one argmax of the package.

    Args:
        rows: (..., V) logits.

    Returns:
        (...) int64.
    """
    return torch.argmax(rows, dim=-1)


def gumbel(seed: int, position: int, size: int) -> torch.Tensor:
    """The noise of one position: a function of seed and position only, so that every path to a token draws it alike.

    Philox, a counter-based generator, keyed by the seed and counting from the position; its raw words are specified and
    the same on every platform.

    Args:
        seed: 0 to 2^64 - 1.
        position: index in the sequence, prompt included, of the token that is drawn.
        size: V.

    Returns:
        (V,) float64 standard Gumbel noise; argmax(logits + noise) is a draw from softmax(logits).
    """
    raw = np.random.Philox(key=np.array([seed, 0], np.uint64), counter=np.array([0, 0, 0, position], np.uint64))
    uniform = ((raw.random_raw(size) >> np.uint64(12)) + 0.5) * 2.0**-52  # in steps of 2^-52, never 0 or 1
    return torch.from_numpy(-np.log(-np.log(uniform)))


def walk(tree: TokenTree, choose: Callable[[int, Sequence[int]], int]) -> Verdict:
    """Walk the tree along the target's choices, to the first that was not proposed (Def. 1).

    Args:
        tree: the verified tree.
        choose: packed node and the tokens chosen before it, root excluded → the target's token after that node.
    """
    path = [0]
    token_ids: list[int] = []
    while True:
        token = choose(path[-1], token_ids)
        token_ids.append(token)
        child = tree.children[path[-1]].get(token)
        if child is None:
            return Verdict(tuple(path), tuple(token_ids))
        path.append(child)


def greedy(tree: TokenTree, choices: Sequence[int]) -> Verdict:
    """Walk the tree along known choices.

    Args:
        tree: the verified tree.
        choices: (N+1,) the target's token after each packed node.
    """
    return walk(tree, lambda node, _: choices[node])


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice and what it was made from.

    Attributes:
        token_id: the chosen token.
        scores: (V,) logits after all processors, float32 where there are any.
        keys: (V,) what the token is the argmax of: the scores, plus noise where the token was drawn.
    """

    token_id: int
    scores: torch.Tensor
    keys: torch.Tensor


class Rule:
    """What greedy and sampled acceptance share: process a row, choose, walk on.

    Processors see the prefix and the path walked so far, in order, once a row and only at rows that the walk visits:
    exact for stateful ones as well.

    Args:
        processor: transformers' logits processors, or None.
    """

    def __init__(self, processor: LogitsProcessor | None = None) -> None:
        self.processor = processor

    def first(self, row: torch.Tensor, prefix: Sequence[int]) -> int:
        """The first token, from the last prefill row (V,)."""
        return self._choose(row, prefix)

    def __call__(self, tree: TokenTree, rows: torch.Tensor, prefix: Sequence[int]) -> Verdict:
        """The verdict on ``tree`` from its rows (N+1, V); ``prefix`` ends with the root."""
        return walk(tree, lambda node, chosen: self._choose(rows[node], [*prefix, *chosen]))

    def decide(self, row: torch.Tensor, prefix: Sequence[int]) -> Decision:
        """What this rule takes from a row (V,) after ``prefix``."""
        raise NotImplementedError

    def _choose(self, row: torch.Tensor, prefix: Sequence[int]) -> int:
        return self.decide(row, prefix).token_id

    def _scores(self, row: torch.Tensor, prefix: Sequence[int]) -> torch.Tensor:
        if self.processor is None:
            return row
        input_ids = torch.tensor([list(prefix)], device=row.device)
        return self.processor(input_ids, row[None].to(torch.float32, copy=True))[0]


class Greedy(Rule):
    """The target's argmax at every row."""

    def __call__(self, tree: TokenTree, rows: torch.Tensor, prefix: Sequence[int]) -> Verdict:
        """The verdict on ``tree`` from its rows (N+1, V); ``prefix`` ends with the root."""
        if self.processor is None:
            return greedy(tree, argmax(rows).tolist())
        return super().__call__(tree, rows, prefix)

    def decide(self, row: torch.Tensor, prefix: Sequence[int]) -> Decision:
        """The largest of the processed logits of a row (V,)."""
        scores = self._scores(row, prefix)
        return Decision(int(argmax(scores)), scores, scores)


class Sampled(Rule):
    """A draw from the target's processed distribution at every row, by Gumbel-max.

    The noise belongs to seed and position, not to the order of draws: the tokens are those that plain decoding draws
    with this seed, whatever the tree (Thm. 1 with ``scores + noise`` in place of the logits).

    Args:
        seed: of the draws.
        processor: temperature and filters among its steps.
    """

    def __init__(self, seed: int, processor: LogitsProcessor | None = None) -> None:
        super().__init__(processor)
        self.seed = seed

    def decide(self, row: torch.Tensor, prefix: Sequence[int]) -> Decision:
        """A draw from the processed logits of a row (V,).

        Raises:
            InputError: the processors leave no token.
        """
        scores = self._scores(row, prefix)
        keys = scores.double().cpu() + gumbel(self.seed, len(prefix), len(scores))
        token = int(argmax(keys))
        if not torch.isfinite(keys[token]):
            raise InputError(f"no token to draw at position {len(prefix)}: the logits there are {float(keys[token])}")
        return Decision(token, scores, keys)
