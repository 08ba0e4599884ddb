"""Calibration of the plug-in score: exact where offsets are independent, too low where matches come together."""

from dataclasses import replace

import numpy as np
import pytest

from oneglance.core import InputError
from oneglance.stats.calibration import calibrate, calibrate_given
from oneglance.stats.rounds import RoundLog, RoundRow

ROW = RoundRow(
    run="r",
    task="t",
    prompt="p",
    round=0,
    position=9,
    h_nats=0.1,
    p_max=0.9,
    top2_gap=1.0,
    a=0,
    a1=0,
    horizon=15,
    cut="none",
    budget=31,
    nodes=31,
)


def test_an_independent_head_is_calibrated() -> None:
    rng = np.random.default_rng(0)
    q = rng.uniform(0.3, 1.0, (20_000, 4))
    found = calibrate(np.where(rng.random(q.shape) < q, 0, 3), np.log(q))
    assert found.error < 0.01
    for offset in found.offsets:
        assert offset.seen == pytest.approx(offset.said, abs=0.02)
        assert offset.seen_alive == pytest.approx(offset.seen, abs=0.04)
        assert offset.seen_prefix == pytest.approx(offset.said_prefix, abs=0.02)


def test_copying_makes_the_score_too_low() -> None:
    """Half of the rounds match everywhere, half nowhere; the marginals say ½ at each offset."""
    ranks = np.where(np.arange(1000)[:, None] % 2 == 0, 0, 1) * np.ones((1, 4), int)
    found = calibrate(ranks, np.log(np.full((1000, 4), 0.5)))
    last = found.offsets[-1]
    assert (last.said, last.seen) == pytest.approx((0.5, 0.5))
    assert last.seen_alive == 1.0
    assert last.said_prefix == pytest.approx(1 / 16)
    assert last.seen_prefix == 0.5
    assert found.error == pytest.approx(np.mean([0.0, 0.25, 0.375, 0.4375]))


def test_offsets_after_the_text_ends_are_left_out() -> None:
    found = calibrate([[0, -1], [0, 0]], np.log([[0.8, 0.9], [0.6, 0.5]]))
    assert [o.num_rounds for o in found.offsets] == [2, 1]
    assert found.offsets[1].said == pytest.approx(0.5)
    assert sum(b.count for b in found.bins) == 3
    nothing = calibrate([[1, -1]], np.log([[0.8, 0.9]]))
    assert nothing.offsets[1].num_rounds == 0
    assert np.isnan(nothing.offsets[1].seen)


def test_a_rescorer_that_knows_the_copies_is_honest() -> None:
    """The rounds of ``test_copying_makes_the_score_too_low``, read with scores that are ½ once and 1 after it."""
    half, sure = float(np.log(0.5)), 0.0
    rows = []
    for index in range(40):
        known = index % 2 == 0  # else the token before every offset is no candidate
        given = (half, *([sure if known else None] * 14))
        rows.append(
            replace(
                ROW,
                ranks=(0 if known else 1,) * 15,
                log_q=(half,) * 15,
                ranks_given=(0 if known else 1, *([0 if known else None] * 14)),
                log_q_given=given,
                top_log_q_given=given,
                chain_log_q=(half, *(sure,) * 14),
            )
        )
    found = calibrate_given(RoundLog(tuple(rows)))
    assert found is not None
    assert found.error == pytest.approx(0.0)
    last = found.offsets[-1]
    assert (last.num_rounds, last.num_alive) == (40, 20)
    assert (last.said, last.seen) == pytest.approx((1.0, 1.0))  # of the rounds whose earlier tokens are candidates
    assert (last.said_prefix, last.seen_prefix) == pytest.approx((0.5, 0.5))
    marginal = calibrate(RoundLog(tuple(rows)).ranks, RoundLog(tuple(rows)).log_q)
    assert marginal.error > 0.3
    assert calibrate_given(RoundLog((*rows, ROW))) == found  # nothing was drafted there
    assert calibrate_given(RoundLog((ROW,))) is None


def test_unequal_tables_are_refused() -> None:
    with pytest.raises(InputError, match="equal tables"):
        calibrate([[0, 1]], [[0.1]])
