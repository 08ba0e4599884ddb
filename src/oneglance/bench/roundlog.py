"""The round log, as it is decoded: what the target's row said at each root, and what the drafter said of its text.

Nothing is recorded inside a stage: the drafter's logits and the row of the root are copied, and turned into figures
between two rounds. Ranks and log q of the target's own tokens are filled in as these become known, so that at most L
rounds hold their distributions at any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oneglance.bench.given import NOTHING, Given, given_text
from oneglance.core import (
    AcceptRule,
    BlockMarginals,
    Drafter,
    Generation,
    Round,
    SamplingParams,
    TokenTree,
    Verdict,
)
from oneglance.decoder import Decoder
from oneglance.stats.bootstrap import Array
from oneglance.stats.geometric import L
from oneglance.stats.rounds import RoundRow
from oneglance.stream import Run
from oneglance.targets.state import Inputs, TargetState
from oneglance.tree import truncate

SIDECAR_RANKS = 64
Saliency = Callable[[TargetState, int], float | None]  # of a root, its state as it was before the round


@dataclass(frozen=True, slots=True)
class Recorded:
    """One prompt's rounds.

    Attributes:
        rows: of the log.
        marginals: (R, L, K) float32 log q of each offset's best tokens, -inf where there are none; None unless asked
            for, or where the drafter has none.
        generation: what was decoded.
    """

    rows: tuple[RoundRow, ...]
    marginals: Array | None
    generation: Generation


@dataclass(slots=True)
class _Open:
    """A round some of whose offsets are still ahead of the text.

    Attributes:
        done, row: the round, and (V,) the target's logits after its root.
        position: of the root in the sequence.
        depth: what the cap left to the tree, 0 where nothing was drafted.
        log_q: (≤ L, V) of the drafter, and what its tree came from, or None.
        saliency: of the root, or None.
    """

    done: Round
    row: Tensor
    position: int
    depth: int
    log_q: Tensor | None
    marginals: BlockMarginals | None
    saliency: float | None
    given: Given = NOTHING
    ranks: list[int | None] = field(default_factory=list)
    token_log_q: list[float | None] = field(default_factory=list)


def record(
    decoder: Decoder,
    inputs: Inputs,
    params: SamplingParams,
    *,
    run: str,
    task: str,
    prompt: str,
    num_ranks: int = 0,
    saliency: Saliency | None = None,
) -> Recorded:
    """Decode one prompt and keep a row a round.

    Args:
        decoder: target and drafter; a drafter with a ``watch`` attribute shows its logits and marginals, others leave
            ranks empty.
        inputs: the prompt.
        params: how tokens are chosen; with a seed where they are drawn.
        run, task, prompt: names for the rows.
        num_ranks: keep log q of as many best tokens of every offset, 0 for none.
        saliency: measured at every root that is drafted from, within the time of the draft; None leaves it out.
    """
    drafter = _Watching(decoder.drafter, saliency)
    rules: list[_Rooted] = []

    def rule(watch: Any) -> AcceptRule:
        rules.append(_Rooted(decoder.accept_rule(inputs, params, watch)))
        return rules[0]

    going = Run(decoder.target, drafter, rule, inputs, params, decoder.say_once)
    log = _Log(len(inputs.token_ids), getattr(decoder.drafter, "budget", None), num_ranks)
    with drafter:
        for step in going.steps():
            if step.round is not None:
                depth = 0 if going.drafter.failure is not None else drafter.depth
                log.add(step.round, rules[0], drafter.take(), depth, drafter.take_saliency())
            log.fill(going.text.token_ids)
    done = going.generation()
    log.fill(done.token_ids, is_final=True)
    return Recorded(tuple(log.rows(run, task, prompt, done)), log.marginals(), done)


class _Watching:
    """A drafter whose logits and depths are seen."""

    def __init__(self, drafter: Drafter, saliency: Saliency | None) -> None:
        self._drafter = drafter
        self._seen: tuple[Tensor, BlockMarginals] | None = None
        self._measure = saliency
        self._saliency: float | None = None
        self.depth = 0
        self.name = drafter.name
        self.target_layer_ids = drafter.target_layer_ids

    def __enter__(self) -> None:
        if hasattr(self._drafter, "watch"):
            self._drafter.watch = self._see

    def __exit__(self, *_: object) -> None:
        if hasattr(self._drafter, "watch"):
            self._drafter.watch = None

    def start(self, state: TargetState) -> Any:
        return self._drafter.start(state)

    def draft(self, root: int, state: TargetState, draft_state: Any, *, max_depth: int) -> TokenTree:
        self.depth = max(0, max_depth)
        if self._measure is not None and max_depth > 0:
            self._saliency = self._measure(state, root)
        return self._drafter.draft(root, state, draft_state, max_depth=max_depth)

    def num_passes(self, tree: TokenTree) -> int:
        return self._drafter.num_passes(tree)

    def take(self) -> tuple[Tensor, BlockMarginals] | None:
        """Logits and marginals of the draft since the last call, and forget them."""
        seen, self._seen = self._seen, None
        return seen

    def take_saliency(self) -> float | None:
        """Of the root since the last call."""
        found, self._saliency = self._saliency, None
        return found

    def _see(self, logits: Tensor, marginals: BlockMarginals) -> None:
        self._seen = logits.clone(), marginals


class _Rooted:
    """An accept rule that keeps the row of the last root."""

    def __init__(self, rule: AcceptRule) -> None:
        self._rule = rule
        self.row = torch.empty(0)
        self.position = 0

    def first(self, row: Tensor, prefix: Sequence[int]) -> int:
        return self._rule.first(row, prefix)

    def __call__(self, tree: TokenTree, rows: Tensor, prefix: Sequence[int]) -> Verdict:
        self.row, self.position = rows[0].clone(), len(prefix) - 1
        return self._rule(tree, rows, prefix)


class _Log:
    """Rounds of one prompt, the last few of them still open."""

    def __init__(self, prompt_length: int, budget: int | None, num_ranks: int) -> None:
        self._start = prompt_length
        self._budget = budget
        self._num_ranks = num_ranks
        self._rounds: list[_Open] = []
        self._ahead: deque[_Open] = deque()
        self._tables: list[Array] = []

    def add(
        self,
        done: Round,
        rule: _Rooted,
        seen: tuple[Tensor, BlockMarginals] | None,
        depth: int,
        saliency: float | None = None,
    ) -> None:
        logits, marginals = seen or (None, None)
        log_q = None if logits is None else logits[:L].double().log_softmax(-1).cpu()
        new = _Open(done, rule.row, rule.position, depth, log_q, marginals, saliency)
        self._rounds.append(new)
        self._ahead.append(new)
        if self._num_ranks:
            self._tables.append(_best(log_q, self._num_ranks))

    def fill(self, token_ids: Sequence[int], *, is_final: bool = False) -> None:
        """Give each open round the tokens that are known by now, and drop its distributions once it has all."""
        for row in self._ahead:
            if row.log_q is None:
                continue
            known = self._after(row, token_ids)[: len(row.log_q)]
            for offset in range(len(row.ranks), len(known)):
                rank, log_q = _rank(row.log_q[offset], known[offset])
                row.ranks.append(rank)
                row.token_log_q.append(log_q)
        while self._ahead and (is_final or _is_known(self._ahead[0])):
            row = self._ahead.popleft()
            if row.marginals is not None:
                row.given = given_text(truncate(row.marginals, L), self._after(row, token_ids))
            row.log_q = row.marginals = None

    def _after(self, row: _Open, token_ids: Sequence[int]) -> Sequence[int]:
        """The tokens after a round's root."""
        return token_ids[row.position - self._start + 1 :]

    def marginals(self) -> Array | None:
        return np.stack(self._tables) if self._tables and any(np.isfinite(t).any() for t in self._tables) else None

    def rows(self, run: str, task: str, prompt: str, done: Generation) -> Iterator[RoundRow]:
        end = self._start + done.num_tokens
        is_gated = False
        for own in self._rounds:
            depth = 0 if is_gated else own.depth  # the single step that a gated choice is left to drafts nothing
            yield self._row(own, run, task, prompt, min(L, depth, end - 1 - own.position))
            is_gated = own.done.gated

    def _row(self, own: _Open, run: str, task: str, prompt: str, horizon: int) -> RoundRow:
        done = own.done
        accepted = min(done.num_accepted, L)
        if done.gated:
            horizon = min(horizon, accepted)  # the gate ended the run, not a miss
        a = min(accepted, horizon)
        entropy, p_max, gap = figures_of(own.row)
        return RoundRow(
            run=run,
            task=task,
            prompt=prompt,
            round=done.index,
            position=own.position,
            h_nats=entropy,
            p_max=p_max,
            top2_gap=gap,
            a=a,
            a1=min(_leading(own.ranks) if own.ranks else first_children(done), horizon),
            horizon=horizon,
            cut=done.cut or "none",
            budget=max(self._budget or 0, len(done.tree)),
            nodes=len(done.tree),
            ranks=_padded(own.ranks),
            log_q=_padded(own.token_log_q),
            ranks_given=_padded(own.given.ranks),
            log_q_given=_padded(own.given.log_q),
            top_log_q_given=_padded(own.given.top),
            chain_log_q=_padded(own.given.chain),
            path_log_q=_path_log_q(done, a),
            gated=done.gated,
            saliency=own.saliency,
            t_draft_ms=done.t_draft_ms,
            t_verify_ms=done.t_verify_ms,
            t_host_ms=done.t_host_ms,
        )


def _is_known(row: _Open) -> bool:
    return row.log_q is None or len(row.ranks) == len(row.log_q)


def figures_of(row: Tensor) -> tuple[float, float, float]:
    """Entropy in nats, top probability and top-2 gap of logits (V,), in float64."""
    logits = row.cpu().double()
    log_p = logits.log_softmax(-1)
    entropy = -torch.where(torch.isfinite(log_p), log_p.exp() * log_p, 0.0).sum()
    best = logits.topk(2).values
    return max(0.0, float(entropy)), min(1.0, float(log_p.max().exp())), float(best[0] - best[1])


def _rank(log_q: Tensor, token: int) -> tuple[int | None, float | None]:
    """Place of a token in (V,), equal ones by id, and its log q; None for one that is never proposed."""
    own = log_q[token]
    if not torch.isfinite(own):
        return None, None
    better = int((log_q > own).sum()) + int((log_q[:token] == own).sum())
    return better, min(0.0, float(own))


def _best(log_q: Tensor | None, num_ranks: int) -> Array:
    """(L, K) float32 of the best tokens of each offset."""
    table = np.full((L, num_ranks), -np.inf, np.float32)
    if log_q is not None:
        top = log_q.topk(min(num_ranks, log_q.shape[1]), dim=-1).values.numpy()
        table[: len(top), : top.shape[1]] = top
    return table  # type: ignore[return-value]


def _padded(values: Sequence[Any]) -> tuple[Any, ...]:
    return (*values, *[None] * (L - len(values))) if values else ()


def _path_log_q(done: Round, a: int) -> float | None:
    """Plug-in log score of the accepted path; None where the drafter gives no scores."""
    if len(done.tree) and not done.tree.scores:
        return None
    return min(0.0, done.tree.scores[_nodes(done)[a - 1] - 1]) if a else 0.0


def _leading(ranks: Sequence[int | None]) -> int:
    """Leading matches of the top-1 chain."""
    return next((offset for offset, rank in enumerate(ranks) if rank != 0), len(ranks))


def _nodes(done: Round) -> list[int]:
    """Packed indices of the accepted nodes that were kept, root excluded."""
    nodes = [0]
    for token in done.token_ids:
        child = done.tree.children[nodes[-1]].get(token)
        if child is None:
            break
        nodes.append(child)
    return nodes[1:]


def first_children(done: Round) -> int:
    """The same for a drafter without marginals: how long the accepted path keeps to each node's first child."""
    parent = 0
    for length, node in enumerate(_nodes(done)):
        if next(iter(done.tree.children[parent].values())) != node:
            return length
        parent = node
    return len(_nodes(done))
