"""Accept rules: read the target's own tokens off verified rows (Def. 1). Pure; a rule owns no sequence state.

A rule never looks at drafter scores: a weak drafter can shorten the accepted path, never change a token (Thm. 1). Each
row that the walk visits is processed and chosen from as plain decoding would, at most a block of them a round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from oneglance.core import InputError, TokenLogprobs, TokenTree, Verdict

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


def gumbel(seed: int, position: int, size: int, token_ids: torch.Tensor | None = None) -> torch.Tensor:
    """The noise of one position: a function of seed and position only, so that every path to a token draws it alike.

    Philox, a counter-based generator, keyed by the seed and counting from the position; its raw words are specified and
    the same on every platform.

    Args:
        seed: 0 to 2^64 - 1.
        position: index in the sequence, prompt included, of the token that is drawn.
        size: V.
        token_ids: (K,) only these, on the CPU; all if not given.

    Returns:
        (V,) or (K,) float64 standard Gumbel noise; argmax(logits + noise) is a draw from softmax(logits).
    """
    philox = np.random.Philox(key=np.array([seed, 0], np.uint64), counter=np.array([0, 0, 0, position], np.uint64))
    raw = philox.random_raw(size)
    raw = raw if token_ids is None else raw[token_ids.numpy()]
    uniform = ((raw >> np.uint64(12)) + 0.5) * 2.0**-52  # in steps of 2^-52, never 0 or 1
    return torch.from_numpy(-np.log(-np.log(uniform)))


def walk(
    tree: TokenTree, choose: Callable[[int, Sequence[int]], int | None], *, eos_ids: Collection[int] = ()
) -> Verdict:
    """Walk the tree along the target's choices, to the first that was not proposed or that ends the text (Def. 1).

    Args:
        tree: the verified tree.
        choose: packed node and the tokens chosen before it, root excluded → the target's token after that node, or None
            to leave that choice to a single step.
        eos_ids: plain decoding makes no choice after one of these, and no processor sees a prefix past it.
    """
    path = [0]
    token_ids: list[int] = []
    while True:
        token = choose(path[-1], token_ids)
        if token is None:
            return Verdict(tuple(path[:-1]), tuple(token_ids), is_gated=True)
        token_ids.append(token)
        child = tree.children[path[-1]].get(token)
        if child is None or token in eos_ids:
            return Verdict(tuple(path), tuple(token_ids), is_ended=child is not None)
        path.append(child)


def greedy(tree: TokenTree, choices: Sequence[int], *, eos_ids: Collection[int] = ()) -> Verdict:
    """Walk the tree along known choices.

    Args:
        tree: the verified tree.
        choices: (N+1,) the target's token after each packed node.
        eos_ids: as in ``walk``.
    """
    return walk(tree, lambda node, _: choices[node], eos_ids=eos_ids)


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice and what it was made from.

    Attributes:
        token_id: the chosen token.
        scores: (V,) logits after all processors, float32 where there are any.
        keys: (V,) what the token is the argmax of: the scores, plus noise where the token was drawn.
        temperature: by which the keys were divided.
    """

    token_id: int
    scores: torch.Tensor
    keys: torch.Tensor
    temperature: float = 1.0

    @property
    def margin(self) -> float:
        """How far the second key is behind, in logit units; infinite where there is none."""
        best = self.keys.topk(2).values.cpu().double()
        return float(best[0] - best[1]) * self.temperature

    def logprobs(self, num_top: int) -> TokenLogprobs:
        """Log-probabilities of the token and of the ``num_top`` likeliest, under the processed scores."""
        log_p = self.scores.cpu().double().log_softmax(dim=-1)
        values, ids = (part.tolist() for part in log_p.topk(min(num_top, len(log_p))))
        top = tuple((token, value) for token, value in zip(ids, values, strict=True) if value > -torch.inf)
        entropy = torch.special.entr(log_p.exp()).sum()
        return TokenLogprobs(self.token_id, float(log_p[self.token_id]), top, float(entropy))


class Rule:
    """What greedy and sampled acceptance share: process a row, choose, walk on.

    Processors see the prefix and the path walked so far, in order, once a row and only at rows that the walk visits,
    none of them past the end of the text: exact for stateful ones as well.

    Args:
        processor: transformers' logits processors, or None.
        watch: sees every choice that is made, in order.
        eos_ids: tokens that end the text.
    """

    def __init__(
        self,
        processor: LogitsProcessor | None = None,
        watch: Callable[[Decision], None] | None = None,
        *,
        eos_ids: Collection[int] = (),
    ) -> None:
        self.processor = processor
        self.watch = watch
        self.eos_ids = frozenset(eos_ids)

    def first(self, row: torch.Tensor, prefix: Sequence[int]) -> int:
        """The first token, from the last prefill row (V,)."""
        return self._choose(row, prefix)

    def __call__(self, tree: TokenTree, rows: torch.Tensor, prefix: Sequence[int]) -> Verdict:
        """The verdict on ``tree`` from its rows (N+1, V); ``prefix`` ends with the root."""
        return walk(tree, lambda node, chosen: self._choose(rows[node], [*prefix, *chosen]), eos_ids=self.eos_ids)

    def decide(self, row: torch.Tensor, prefix: Sequence[int]) -> Decision:
        """What this rule takes from a row (V,) after ``prefix``."""
        raise NotImplementedError

    def take(self, decision: Decision) -> int:
        """Make a choice: its token."""
        if self.watch is not None:
            self.watch(decision)
        return decision.token_id

    def _choose(self, row: torch.Tensor, prefix: Sequence[int]) -> int:
        return self.take(self.decide(row, prefix))

    def _scores(self, row: torch.Tensor, prefix: Sequence[int]) -> torch.Tensor:
        if self.processor is None:
            return row
        input_ids = torch.tensor([list(prefix)], device=row.device)
        return self.processor(input_ids, row[None].to(torch.float32, copy=True))[0]


class Greedy(Rule):
    """The target's argmax at every row."""

    def __call__(self, tree: TokenTree, rows: torch.Tensor, prefix: Sequence[int]) -> Verdict:
        """The verdict on ``tree`` from its rows (N+1, V); ``prefix`` ends with the root."""
        if self.processor is None and self.watch is None:
            return greedy(tree, argmax(rows).tolist(), eos_ids=self.eos_ids)
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
        watch: sees every choice that is made, in order.
        eos_ids: tokens that end the text.
        temperature: of the processor, for margins.
    """

    def __init__(
        self,
        seed: int,
        processor: LogitsProcessor | None = None,
        watch: Callable[[Decision], None] | None = None,
        *,
        eos_ids: Collection[int] = (),
        temperature: float = 1.0,
    ) -> None:
        super().__init__(processor, watch, eos_ids=eos_ids)
        self.seed = seed
        self.temperature = temperature

    def decide(self, row: torch.Tensor, prefix: Sequence[int]) -> Decision:
        """A draw from the processed logits of a row (V,).

        Raises:
            InputError: the processors leave no token.
        """
        scores = self._scores(row, prefix)
        keys = scores.cpu().to(torch.float64, copy=True)
        left = torch.nonzero(keys != -torch.inf)[:, 0]  # after a filter few
        keys[left] += gumbel(self.seed, len(prefix), len(keys), left)
        token = int(argmax(keys))
        if not torch.isfinite(keys[token]):
            raise InputError(f"no token to draw at position {len(prefix)}: the logits there are {float(keys[token])}")
        return Decision(token, scores, keys, self.temperature)


class Gated:
    """A rule whose near-ties are left to the target's own single step (§4.2, Thm. 1).

    Where a packed row's margin is under ``delta`` the walk ends before that choice. The round after it has the empty
    tree, so that a single step makes it; rows of single steps are never gated.

    Args:
        rule: makes the choices.
        delta: smallest margin that is taken from a packed row, in logit units.
    """

    def __init__(self, rule: Rule, delta: float) -> None:
        self.rule = rule
        self.delta = delta

    def first(self, row: torch.Tensor, prefix: Sequence[int]) -> int:
        """The first token, from the last prefill row (V,)."""
        return self.rule.first(row, prefix)

    def __call__(self, tree: TokenTree, rows: torch.Tensor, prefix: Sequence[int]) -> Verdict:
        """The verdict on ``tree`` from its rows (N+1, V); ``prefix`` ends with the root."""
        if not len(tree):
            return self.rule(tree, rows, prefix)

        def choose(node: int, chosen: Sequence[int]) -> int | None:
            decision = self.rule.decide(rows[node], [*prefix, *chosen])
            return None if decision.margin < self.delta else self.rule.take(decision)

        return walk(tree, choose, eos_ids=self.rule.eos_ids)
