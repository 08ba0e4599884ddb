"""The width controller: whether a round drafts, and how wide its tree may get. Pure; learns from rounds as they pass.

A draft is spent once it has run, so whether to draft is decided before it: is the answer likely to go on long enough,
and are enough tokens accepted, for a drafted round to be cheaper than a single step? How wide its tree gets is a
rule's matter (``widths``).

Whatever is decided, the text is the target's: a smaller tree is a tree, and no tree is plain decoding.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cache, partial
from typing import Any, Literal

from oneglance.core import BlockMarginals, TokenTree
from oneglance.cost import Costs, RoundCost
from oneglance.tree import cost_aware
from oneglance.widths import RULES, Fading

BUCKET = 64  # rows of context that share their costs
MEMORY = 500.0  # rounds: older ones fade out of the exchange rate
RECENT = 20.0  # drafted rounds: older ones fade out of the acceptance length
NUM_LENGTHS = 32  # answers whose length is remembered
COLD_TAU, COLD_NODES, COLD_LENGTH = 4.0, 15.0, 64  # until rounds and answers tell; they make a cold controller draft
WARM_ROUNDS = 8  # before an exchange rate exists
PROBE_SHARE = 0.01  # of the time, for drafts that are not expected to pay


Choice = Literal["plain", "draft", "probe"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """Where a generation stands before a round.

    Attributes:
        context: committed rows.
        produced: new tokens so far, the root among them.
        room: tokens that may still be kept.
        waiting: rows that the drafter must take in before it can draft.
    """

    context: int
    produced: int
    room: int
    waiting: int


@dataclass
class Controller:
    """Decides widths across the generations of one target and drafter; holds no state of any of them.

    Attributes:
        costs: measured.
        rule: a key of ``widths.RULES``.
        kept: what that rule learned in an earlier process.
        num_rounds: learned from so far; a controller is cold until ``WARM_ROUNDS``.
        num_trees: verified, of those.

    Raises:
        ValueError, TypeError: ``kept`` is not what the rule keeps.
    """

    costs: Costs
    rule: str = "standing"
    kept: InitVar[Mapping[str, Any] | None] = None
    num_rounds: int = field(default=0, init=False)
    num_trees: int = field(default=0, init=False)

    def __post_init__(self, kept: Mapping[str, Any] | None) -> None:
        self._widths = RULES[self.rule](self.costs, kept or {})
        self._rate = Fading(MEMORY)  # tokens, ms
        self._tau = Fading(RECENT, 2 * COLD_TAU, 2.0)  # tokens, drafted rounds
        self._nodes = Fading(RECENT, 2 * COLD_NODES, 2.0)
        self._answers: deque[int] = deque(maxlen=NUM_LENGTHS)
        self._lengths: Counter[int] = Counter()  # of those answers
        self._costs_at = cache(lambda bucket: self.costs.at(bucket * BUCKET))
        self._elapsed_ms = self._lost_ms = 0.0

    @property
    def rate(self) -> float | None:
        """λ, tokens a millisecond of rounds so far, by the measured costs; None while cold."""
        return self._rate.ratio if self.num_rounds >= WARM_ROUNDS else None

    def choose(self, outlook: Outlook) -> Choice:
        """Whether to draft now, or to take a single step first.

        By the time to the end of the answer, over the lengths that earlier answers had. A draft that is not expected to
        pay runs all the same now and then, as long as such drafts have lost at most ``PROBE_SHARE`` of the time: else a
        head that begins to accept would never be noticed. One that wins pays for the next.
        """
        gain = self.gain_ms(outlook)
        if gain > 0:
            return "draft"
        is_affordable = self._lost_ms - gain <= PROBE_SHARE * self._elapsed_ms
        return "probe" if is_affordable and self._expects_a_whole_round(outlook) else "plain"

    def gain_ms(self, outlook: Outlook) -> float:
        """Milliseconds that drafting now is expected to save over a single step now and the better of both later."""
        cost = self._at(outlook.context)
        drafted, tau, plain = cost.drafted_ms(self._nodes.ratio), self._tau.ratio, cost.plain_ms
        first, later = cost.ingest_ms * outlook.waiting + drafted, min(drafted / tau, plain)
        gain = total = 0.0
        for left, count in self._left(outlook):
            drafting = first + later * max(0.0, left - tau)
            after_a_step = min(first + later * max(0.0, left - 1 - tau), plain * (left - 1)) if left > 1 else 0.0
            gain += count * (plain + after_a_step - drafting)
            total += count
        return gain / total

    def _expects_a_whole_round(self, outlook: Outlook) -> bool:
        """Whether a draft is likely to teach anything: a round that the text's end cuts does not."""
        left = self._left(outlook)
        return sum(n * count for n, count in left) > COLD_TAU * sum(count for _, count in left)

    def _left(self, outlook: Outlook) -> list[tuple[int, int]]:
        """Tokens still to come and how often, by every answer longer than this one is; a long one is always among."""
        left = [(n - outlook.produced, count) for n, count in self._lengths.items() if n > outlook.produced]
        return [(min(n, outlook.room), count) for n, count in (*left, (COLD_LENGTH, 1))]

    def _at(self, context: int) -> RoundCost:
        return self._costs_at(context // BUCKET)

    def policy(self, choice: Choice, context: int) -> Callable[[BlockMarginals, int], TokenTree]:
        """The tree policy of a round that drafts."""
        return partial(cost_aware, pick=partial(self.pick, choice=choice, context=context))

    def pick(self, scores: Iterable[float], *, choice: Choice, context: int) -> int:
        """How many nodes the round gets, from log scores, best first."""
        return self._widths.pick(scores, self._at(context), rate=self.rate, is_probe=choice == "probe")

    def num_ranks(self, context: int) -> int:
        """Candidates an offset that the next tree can use; more would only cost time."""
        return self._widths.num_ranks(self._at(context))

    def learn(
        self,
        choice: Choice,
        outlook: Outlook,
        scores: Sequence[float],
        accepted: Sequence[int],
        num_kept: int,
        *,
        is_whole: bool = True,
    ) -> None:
        """Take in a round whose walk no gate cut short.

        Args:
            choice: what it was.
            outlook: before it.
            scores: (N,) log scores of the verified tree.
            accepted: 0-based nodes on the accepted path.
            num_kept: tokens kept.
            is_whole: the text did not end in this round.
        """
        cost = self._at(outlook.context)
        self.num_rounds += 1
        if choice == "plain":
            self._rate.add(num_kept, cost.plain_ms)
            self._elapsed_ms += cost.plain_ms
            return
        round_ms = cost.drafted_ms(len(scores))
        whole_ms = round_ms + cost.ingest_ms * outlook.waiting
        self._rate.add(num_kept, round_ms)
        self._elapsed_ms += whole_ms
        if choice == "probe":
            self._lost_ms += whole_ms - num_kept * cost.plain_ms
        self._nodes.add(len(scores), 1)
        if is_whole:
            self._tau.add(len(accepted) + 1, 1)
        self.num_trees += 1
        self._widths.learn(scores, accepted, num_kept, cost, is_whole=is_whole)

    def finished(self, num_tokens: int) -> None:
        """An answer ended by itself, or at its cap, after that many tokens."""
        self._answers.append(num_tokens)
        self._lengths = Counter(self._answers)

    def learned(self) -> dict[str, Any]:
        """What is kept beside the costs, by rule. Lengths and rates belong to a workload and are not."""
        return {self.rule: self._widths.learned()}

    @classmethod
    def resume(cls, costs: Costs, learned: Mapping[str, Any], rule: str = "standing") -> Controller:
        """A controller that goes on with what its rule learned, else a cold one.

        Raises:
            ValueError, TypeError: ``learned`` is not what that rule keeps.
        """
        strangers = learned.keys() - RULES.keys()
        if strangers:
            raise ValueError(f"no rule of width has learned {min(strangers)!r}")
        return cls(costs, rule, learned.get(rule))
