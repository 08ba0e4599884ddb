"""Where the plug-in score is wrong: its calibration by offset and by score (Asm. 1), and the hazards of Asm. 2.

The score multiplies marginals as if offsets were independent. Matches that come together (a verbatim copy) make it too
low for long prefixes, and that is measured here on the top-1 chain, which every tree holds first. What a rescorer makes
of the scores is measured alike, on its own chain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from oneglance.core import InputError
from oneglance.stats.bootstrap import NAN
from oneglance.stats.rounds import RoundLog


@dataclass(frozen=True, slots=True)
class OffsetCalibration:
    """One offset of the top-1 chain, over the rounds whose text reaches it.

    Attributes:
        offset: 1-based.
        num_rounds: whose text reaches it; num_alive: of those, with matches at all earlier offsets.
        said: mean q_j of its top token; seen: how often that was the target's token (the marginal hazard). Of
            conditioned scores, both given the target's own tokens before, where these are candidates.
        seen_alive: the same among num_alive (the conditional hazard, which Asm. 2 takes for ``seen``).
        said_prefix: mean plug-in score of the chain up to here; seen_prefix: how often all of it matched.
    """

    offset: int
    num_rounds: int
    num_alive: int
    said: float
    seen: float
    seen_alive: float
    said_prefix: float
    seen_prefix: float


@dataclass(frozen=True, slots=True)
class ScoreBin:
    """Chain prefixes of similar plug-in score: mean score, how often they matched, and how many there are."""

    said: float
    seen: float
    count: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of one log.

    Attributes:
        offsets: by offset; bins: by score, all offsets together.
        error: mean absolute gap of the bins, weighted by their counts.
    """

    offsets: tuple[OffsetCalibration, ...]
    bins: tuple[ScoreBin, ...]
    error: float


def calibrate(
    ranks: ArrayLike, top_log_q: ArrayLike, chain_log_q: ArrayLike | None = None, *, num_bins: int = 10
) -> Calibration:
    """Compare plug-in scores with what the target did.

    Args:
        ranks: (R, L) rank of the target's token, -1 where the text ends.
        top_log_q: (R, L) log q of each offset's best token; nan where it is not known.
        chain_log_q: (R, L) log q of each token of the top-1 chain, where that is something else.
        num_bins: equal-width bins of the score.
    """
    own, top = np.asarray(ranks), np.asarray(top_log_q, float)
    if own.ndim != 2 or own.shape != top.shape or not own.size:
        raise InputError(f"ranks {own.shape} and top log q {top.shape} must be two equal tables of rounds by offsets")
    is_known = own >= 0
    is_match = own == 0
    alive = np.logical_and.accumulate(is_match, axis=1)
    score = np.exp((top if chain_log_q is None else np.asarray(chain_log_q, float)).cumsum(axis=1))
    is_said = is_known & np.isfinite(top)
    offsets = []
    for j in range(own.shape[1]):
        rows = is_known[:, j]
        before = rows & (alive[:, j - 1] if j else True)
        offsets.append(
            OffsetCalibration(
                offset=j + 1,
                num_rounds=int(rows.sum()),
                num_alive=int(before.sum()),
                said=_mean(np.exp(top[is_said[:, j], j])),
                seen=_mean(is_match[is_said[:, j], j]),
                seen_alive=_mean(is_match[before, j]),
                said_prefix=_mean(score[rows, j]),
                seen_prefix=_mean(alive[rows, j]),
            )
        )
    said, seen = score[is_known], alive[is_known]
    codes = np.minimum((said * num_bins).astype(int), num_bins - 1)
    bins = tuple(
        ScoreBin(float(said[codes == b].mean()), float(seen[codes == b].mean()), int((codes == b).sum()))
        for b in np.unique(codes)
    )
    error = sum(abs(b.said - b.seen) * b.count for b in bins) / max(1, said.size)
    return Calibration(tuple(offsets), bins, float(error))


def calibrate_given(log: RoundLog) -> Calibration | None:
    """The same of conditioned scores, over the rounds that have them; None where none has.

    Args:
        log: drafted rounds.
    """
    has_scores = np.array([bool(row.chain_log_q) for row in log.rows])
    if not has_scores.any():
        return None
    is_known, own = (log.ranks >= 0) & has_scores[:, None], log.table("ranks_given")
    chain = np.nan_to_num(log.table("chain_log_q"), nan=-np.inf)  # it ends where no candidate has a chance
    matched = np.where(own == 0, 0, 1)
    return calibrate(np.where(is_known, matched, -1), log.table("top_log_q_given"), chain)


def _mean(values: ArrayLike) -> float:
    data = np.asarray(values, float)
    return float(data.mean()) if data.size else NAN
