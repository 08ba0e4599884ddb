"""What drafting brought, a generation and in total: the figures that answers, bulk rows and metrics share.

One definition each. An accepted token counts only if it was kept; a token that was cut at a stop or a cap does not. The
first token comes from prefill and belongs to no round. Names and shape of ``as_dict`` are those of vLLM's per-request
statistics, and ours beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from oneglance.core import Generation, by_length


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts over rounds; two add up.

    Attributes:
        num_rounds: all rounds, plain ones too.
        num_kept: tokens kept in rounds, bonus tokens too.
        histogram: kept accepted length → rounds with a tree.
        num_proposed: nodes of the verified trees.
        num_draft_passes: passes of the drafter.
        num_gated: choices left to a single step.
        fell_back: generations whose drafting ended early.
    """

    num_rounds: int = 0
    num_kept: int = 0
    histogram: Counter[int] = field(default_factory=Counter)
    num_proposed: int = 0
    num_draft_passes: int = 0
    num_gated: int = 0
    fell_back: int = 0

    @classmethod
    def of(cls, generation: Generation) -> Acceptance:
        """Those of one generation."""
        rounds = generation.rounds
        return cls(
            num_rounds=len(rounds),
            num_kept=sum(len(done.token_ids) for done in rounds),
            histogram=Counter(done.num_accepted for done in rounds if len(done.tree)),
            num_proposed=sum(len(done.tree) for done in rounds),
            num_draft_passes=generation.num_draft_passes,
            num_gated=sum(done.gated for done in rounds),
            fell_back=int(generation.fell_back is not None),
        )

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(
            self.num_rounds + other.num_rounds,
            self.num_kept + other.num_kept,
            self.histogram + other.histogram,
            self.num_proposed + other.num_proposed,
            self.num_draft_passes + other.num_draft_passes,
            self.num_gated + other.num_gated,
            self.fell_back + other.fell_back,
        )

    @classmethod
    def total(cls, parts: Iterable[Acceptance]) -> Acceptance:
        """The sum of many."""
        return sum(parts, cls())

    @property
    def num_drafted(self) -> int:
        """Rounds with a tree."""
        return sum(self.histogram.values())

    @property
    def num_accepted(self) -> int:
        return sum(length * count for length, count in self.histogram.items())

    @property
    def tau(self) -> float | None:
        """Kept tokens a round, bonus included (Eq. 1)."""
        return self.num_kept / self.num_rounds if self.num_rounds else None

    @property
    def per_position(self) -> list[int]:
        """Rounds in which the token at each offset 1, 2, … was accepted."""
        longest = max(self.histogram, default=0)
        return [sum(n for length, n in self.histogram.items() if length >= offset) for offset in range(1, longest + 1)]

    def as_dict(self) -> dict[str, Any]:
        """``metrics.speculative_decoding`` of an answer: vLLM's names, then ours."""
        steps = self.num_drafted
        return {
            "mean_acceptance_length": 1 + self.num_accepted / steps if steps else None,
            "draft_acceptance_rate": self.num_accepted / self.num_proposed if self.num_proposed else None,
            "acceptance_histogram": by_length(self.histogram),
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": self.num_accepted,
            "num_draft_tokens": self.num_proposed,
            "num_accepted_per_position": self.per_position,
            "num_rounds": self.num_rounds,
            "tau": self.tau,
            "num_draft_passes": self.num_draft_passes,
            "num_gated": self.num_gated,
        }
