"""Made-up costs and simulated workloads, for the tests of the width controller. No clock runs here."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from hypothesis import strategies as st

from oneglance.cost import MAX_NODES, Costs, Point
from oneglance.pace import Controller, Outlook
from oneglance.stats.replay import Replay, replay

PROMPT = 100
ROWS = (2, 4, 8, 16, 32, 64, MAX_NODES + 1)


def costs_of(
    *, plain: float = 4.0, draft: float = 1.0, first: float = 4.5, slope: float = 0.05, ingest: float = 0.0
) -> Costs:
    """Straight lines: ``first`` ms for two rows, ``slope`` more for each further one."""
    points = [Point(context=0, rows=rows, ms=first + slope * (rows - 2)) for rows in ROWS]
    return Costs(draft_ms=draft, ingest_ms=ingest, verify=(Point(context=0, rows=1, ms=plain), *points))


@st.composite
def bent_costs(draw: st.DrawFn) -> Costs:
    """Any convex line over two rows and more, and a single row that lies anywhere."""
    steps = sorted(draw(st.lists(st.floats(0, 1), min_size=3, max_size=3)))
    rows, ms = [2, 6, 20, 128], [draw(st.floats(0.5, 5))]
    for low, high, step in zip(rows, rows[1:], steps, strict=False):
        ms.append(ms[-1] + step * (high - low))
    points = [Point(context=0, rows=r, ms=t) for r, t in zip(rows, ms, strict=True)]
    single = Point(context=0, rows=1, ms=draw(st.floats(0.1, 9)))
    return Costs(draft_ms=draw(st.floats(0.1, 5)), ingest_ms=0.0, verify=(single, *points))


@cache
def simulated_rounds(num_rounds: int, seed: int, *, honesty: float = 1.0, sharpness: float = 4.0) -> Replay:
    """Rounds of a head over 6 ranks and 10 offsets; the target draws from its distributions to the power ``honesty``.

    1 is a calibrated head; below it, the head promises more than is accepted.
    """
    rng = np.random.default_rng(seed)
    tables, ranks = [], []
    for _ in range(num_rounds):
        logits = rng.normal(0, rng.uniform(0.5, sharpness), (10, 6))
        log_q = -np.sort(-(logits - np.log(np.exp(logits).sum(1, keepdims=True))), axis=1)
        true = np.exp(honesty * log_q)
        true /= true.sum(1, keepdims=True)
        tables.append(log_q)
        ranks.append([rng.choice(6, p=row) for row in true])
    return replay(tables, ranks, np.zeros(num_rounds), np.arange(num_rounds).astype(str), max_budget=MAX_NODES)


@dataclass
class Played:
    """What a workload cost, by the model.

    Attributes:
        ms, plain_ms: with the controller, and by single steps.
        choices: a round.
        nodes: of each drafted round.
    """

    ms: float = 0.0
    plain_ms: float = 0.0
    choices: list[str] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        return self.plain_ms / self.ms


def play(controller: Controller, answers: Iterable[int], rounds: Replay) -> Played:
    """Decode answers of those lengths; drafted rounds meet the simulated ones in turn."""
    played, at = Played(), 0
    for length in answers:
        produced, taken = 1, 0
        while produced < length:
            context = PROMPT + produced - 1
            outlook = Outlook(context, produced, 1000, context - taken)
            choice = controller.choose(outlook)
            cost = controller.costs.at(context)
            played.choices.append(choice)
            if choice == "plain":
                kept = 1
                played.ms += cost.plain_ms
                controller.learn(choice, outlook, (), (), 1)
            else:
                places, scores = rounds.places[at % len(rounds.places)], rounds.scores[at % len(rounds.places)]
                at += 1
                finite = scores[np.isfinite(scores)].tolist()
                count = controller.pick(finite, choice=choice, context=context)
                accepted = (places[places <= count] - 1).tolist()
                kept = min(len(accepted) + 1, length - produced)
                played.ms += cost.drafted_ms(count) + cost.ingest_ms * outlook.waiting
                played.nodes.append(count)
                is_cut = kept == length - produced
                controller.learn(choice, outlook, finite[:count], accepted, kept, is_whole=not is_cut)
                taken = context
            produced += kept
        played.plain_ms += sum(controller.costs.at(PROMPT + i).plain_ms for i in range(length - 1))
        controller.finished(length)
    return played


def lengths(length: int, count: int) -> Iterator[int]:
    """``count`` answers of one length."""
    return iter([length] * count)
