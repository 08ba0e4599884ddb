"""What a rescorer says of the text after a root: the conditional columns of a round log, beside the marginal ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from oneglance.core import BlockMarginals
from oneglance.tree import chain, successors_of


@dataclass(frozen=True, slots=True)
class Given:
    """Of one round, by offset as far as its text goes; None where a token before it is no candidate.

    Attributes:
        ranks, log_q: of the target's own token given the target's own tokens before it; None also where it is no
            candidate itself.
        top: log q of the best candidate given those.
        chain: log q of each token of the top-1 chain given those of the chain, whatever the text is.
    """

    ranks: tuple[int | None, ...] = ()
    log_q: tuple[float | None, ...] = ()
    top: tuple[float | None, ...] = ()
    chain: tuple[float, ...] = ()


NOTHING = Given()


def given_text(marginals: BlockMarginals, token_ids: Sequence[int]) -> Given:
    """Read a text off conditioned marginals.

    Args:
        marginals: after a root.
        token_ids: the target's own tokens after it, as many as are known.

    Returns:
        Nothing where offsets are independent.
    """
    if marginals.log_q_given is None:
        return NOTHING
    children, reach = successors_of(marginals), 1 if marginals.bias_earlier is None else 2
    ranks: list[int | None] = []
    log_q: list[float | None] = []
    top: list[float | None] = []
    path: list[int | None] = []  # the text's tokens as ranks of the marginals
    for depth, (token, row) in enumerate(zip(token_ids, marginals.token_ids.tolist(), strict=False)):
        place, own, best = None, None, None
        if None not in path[max(0, depth - reach) :]:
            two, one = [0, 0, *path][-2:]
            order, values = children(depth, one or 0, two or 0)
            best = min(0.0, values[0])
            if token in row:
                place = list(order).index(row.index(token))
                own = min(0.0, values[place])
        path.append(row.index(token) if token in row else None)
        ranks.append(place)
        log_q.append(own)
        top.append(best)
    scores = chain(marginals, len(marginals.token_ids)).scores
    steps = tuple(min(0.0, after - before) for before, after in pairwise((0.0, *scores)))
    return Given(tuple(ranks), tuple(log_q), tuple(top), steps)
