"""Accept rules: read the target's own tokens off verified rows (Def. 1). Pure; a rule owns no sequence state.

A rule never looks at drafter scores: a weak drafter can shorten the accepted path, never change a token (Thm. 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from oneglance.core import TokenTree, Verdict

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


def greedy(tree: TokenTree, choices: Sequence[int]) -> Verdict:
    """Walk the tree along the target's choices (Def. 1).

    Args:
        tree: the verified tree.
        choices: (N+1,) the target's token after each packed node.
    """
    path = [0]
    token_ids: list[int] = []
    children = tree.children
    while True:
        token = choices[path[-1]]
        token_ids.append(token)
        child = children[path[-1]].get(token)
        if child is None:
            return Verdict(tuple(path), tuple(token_ids))
        path.append(child)


class Greedy:
    """The target's argmax at every row, after transformers' logits processors where there are any.

    Processors see the prefix and the path walked so far, in order, only at rows that the walk visits: exact for
    history-dependent ones as well.
    """

    def __init__(self, processor: LogitsProcessor | None = None) -> None:
        self.processor = processor

    def first(self, row: torch.Tensor, prefix: Sequence[int]) -> int:
        """The first token, from the last prefill row (V,)."""
        return self._choose(row, prefix)

    def __call__(self, tree: TokenTree, rows: torch.Tensor, prefix: Sequence[int]) -> Verdict:
        """The verdict on ``tree`` from its rows (N+1, V); ``prefix`` ends with the root."""
        if self.processor is None:
            return greedy(tree, argmax(rows).tolist())
        path = [0]
        token_ids: list[int] = []
        while True:
            token = self._choose(rows[path[-1]], [*prefix, *token_ids])
            token_ids.append(token)
            child = tree.children[path[-1]].get(token)
            if child is None:
                return Verdict(tuple(path), tuple(token_ids))
            path.append(child)

    def _choose(self, row: torch.Tensor, prefix: Sequence[int]) -> int:
        if self.processor is None:
            return int(argmax(row))
        input_ids = torch.tensor([list(prefix)], device=row.device)
        scores = self.processor(input_ids, row[None].to(torch.float32, copy=True))
        return int(argmax(scores[0]))
