"""Plain decoding and oneglance on the same prompt, timed in interleaved pairs.

Both arms share one target. Only decoding is timed, from the end of prefill, and whatever a caller does between two
rounds is not (``decoder.Stream``). The order within a pair alternates, so a drift of the machine hits both arms.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oneglance.core import Generation, SamplingParams
from oneglance.decoder import Decoder, Step, Stream
from oneglance.drafters import prepare

if TYPE_CHECKING:
    from oneglance.targets.state import Inputs

PLAIN, DRAFTED = 0, 1
ARMS = ("plain", "oneglance")


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure that was measured more than once."""

    median: float
    low: float
    high: float
    num: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))

    def __str__(self) -> str:
        return f"{self.median:.2f}" + (f" ({self.low:.2f}–{self.high:.2f})" if self.num > 1 else "")

    def as_dict(self) -> dict[str, float]:
        return {"median": self.median, "min": self.low, "max": self.high, "n": self.num}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs of (plain, drafted) generations of one prompt, at least one."""

    pairs: tuple[tuple[Generation, Generation], ...]

    @property
    def plain(self) -> Generation:
        return self.pairs[0][PLAIN]

    @property
    def drafted(self) -> Generation:
        return self.pairs[0][DRAFTED]

    @property
    def is_identical(self) -> bool:
        """Every generation of either arm has the same token ids."""
        return all(arm.token_ids == self.plain.token_ids for pair in self.pairs for arm in pair)

    def ms_per_token(self, arm: int) -> Spread | None:
        values = [pair[arm].ms_per_token for pair in self.pairs]
        measured = [value for value in values if value is not None]
        return Spread.of(measured) if measured else None

    @property
    def speedup(self) -> Spread | None:
        """Plain over drafted milliseconds a token, pair by pair; None where an answer has no second token."""
        ratios = [
            plain.ms_per_token / drafted.ms_per_token
            for plain, drafted in self.pairs
            if plain.ms_per_token and drafted.ms_per_token
        ]
        return Spread.of(ratios) if ratios else None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: both arms, the ratio and whether they agree."""
        speedup = self.speedup
        return {
            "identical": self.is_identical,
            "num_pairs": len(self.pairs),
            "speedup": speedup.as_dict() if speedup else None,
            "plain": self._arm(PLAIN),
            "oneglance": self._arm(DRAFTED),
        }

    def _arm(self, arm: int) -> dict[str, Any]:
        timing = self.ms_per_token(arm)
        return {**self.pairs[0][arm].as_dict(), "ms_per_token": timing.as_dict() if timing else None}


class Duel:
    """Two decoders over one target and one encoded prompt."""

    def __init__(self, decoder: Decoder, inputs: Inputs, params: SamplingParams) -> None:
        self.decoders = (Decoder(decoder.target, prepare("none", None)(decoder.target)), decoder)
        self.inputs = inputs
        self.params = params

    def pair(self, index: int) -> tuple[Generation, Generation]:
        """Both arms once, one after the other; odd pairs begin with the drafted arm."""
        done: dict[int, Generation] = {}
        for arm in (PLAIN, DRAFTED) if index % 2 == 0 else (DRAFTED, PLAIN):
            done[arm] = self._stream(arm).exhaust()
        return done[PLAIN], done[DRAFTED]

    def compare(
        self, num_pairs: int, *, seconds: float = float("inf"), on_pair: Callable[[int], None] = lambda index: None
    ) -> Comparison:
        """Up to ``num_pairs`` timed pairs; no further one begins after ``seconds``."""
        started, pairs = time.perf_counter(), list[tuple[Generation, Generation]]()
        while not pairs or (len(pairs) < num_pairs and time.perf_counter() - started < seconds):
            on_pair(len(pairs))
            pairs.append(self.pair(len(pairs)))
        return Comparison(tuple(pairs))

    def race(self) -> Iterator[tuple[int, Step, Generation]]:
        """Both arms round by round: whichever has decoded for less time so far goes on.

        Yields:
            The arm, its step, and what it has decoded so far.
        """
        streams = {arm: self._stream(arm) for arm in (PLAIN, DRAFTED)}
        clocks = dict.fromkeys(streams, 0.0)
        while clocks:
            arm = min(clocks, key=lambda arm: (clocks[arm], arm))
            step = next(streams[arm], None)
            if step is None:
                del clocks[arm]
                continue
            so_far = streams[arm].generation
            clocks[arm] = so_far.decode_ms
            yield arm, step, so_far

    def _stream(self, arm: int) -> Stream:
        return self.decoders[arm].stream_inputs(self.inputs, self.params)
