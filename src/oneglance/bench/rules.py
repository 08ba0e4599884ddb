"""Width rules compared by replay: tokens a millisecond over a log's own rounds, at measured costs (B.5).

Every drafted round is replayed with every rule, so the rules see the same marginals. Costs are those of a cost file at
one context, not of the rounds as they were timed; what is compared is how width is chosen and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oneglance.cost import MAX_NODES, Costs
from oneglance.pace import Controller, Outlook
from oneglance.stats.replay import Replay
from oneglance.widths import RULES


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One way of choosing the width.

    Attributes:
        rule: a key of ``widths.RULES``; ``fixed/N``; or ``oracle``, the best widths in hindsight, which no rule
            reaches.
        tokens_per_ms: the whole log's, bonus tokens included.
        mean_a, mean_nodes: a round.
    """

    rule: str
    tokens_per_ms: float
    mean_a: float
    mean_nodes: float


def compare_rules(rounds: Replay, costs: Costs, *, context: int, budgets: Sequence[int]) -> tuple[RuleResult, ...]:
    """Every rule, each with a controller that starts cold and goes through the rounds in order; fixed widths; oracle.

    Args:
        rounds: walked up to ``MAX_NODES`` at most.
        costs: measured.
        context: at which they are read.
        budgets: fixed widths.
    """
    cost = costs.at(context)
    ms = np.array([cost.drafted_ms(n) for n in range(rounds.max_budget + 1)])
    widths = {rule: _chosen(rounds, Controller(costs, rule), context) for rule in RULES}
    widths |= {f"fixed/{n}": np.full(len(rounds.places), n) for n in budgets}
    widths["oracle"] = _best_in_hindsight(rounds, ms)
    return tuple(_result(rule, rounds, nodes, ms) for rule, nodes in widths.items())


def _result(rule: str, rounds: Replay, nodes: np.ndarray, ms: np.ndarray) -> RuleResult:
    accepted = rounds.accepted(nodes)
    rate = float((accepted + 1).sum() / ms[nodes].sum())
    return RuleResult(rule, rate, float(accepted.mean()), float(nodes.mean()))


def _chosen(rounds: Replay, controller: Controller, context: int) -> np.ndarray:
    """(R,) nodes, each round's chosen with what the rounds before it taught."""
    outlook = Outlook(context, 1, 1, 0)
    chosen = []
    for places, scores in zip(rounds.places, rounds.scores, strict=True):
        finite = scores[np.isfinite(scores)][:MAX_NODES]
        count = controller.pick(finite.tolist(), choice="draft", context=context)
        accepted = (places[places <= count] - 1).tolist()
        controller.learn("draft", outlook, finite[:count].tolist(), accepted, len(accepted) + 1)
        chosen.append(count)
    return np.array(chosen, dtype=np.int64)


def _best_in_hindsight(rounds: Replay, ms: np.ndarray) -> np.ndarray:
    """(R,) nodes of the highest ratio of sums, by Dinkelbach's iteration."""
    tokens = 1.0 + np.stack([rounds.accepted(n) for n in range(len(ms))], axis=1)  # (R, N+1)
    rate = 0.0
    while True:
        nodes: np.ndarray = (tokens - rate * ms).argmax(axis=1)
        better = float(tokens[np.arange(len(nodes)), nodes].sum() / ms[nodes].sum())
        if better <= rate * (1 + 1e-12):
            return nodes
        rate = better
