"""Calibration of the plug-in score: exact where offsets are independent, too low where matches come together."""

import numpy as np
import pytest

from oneglance.core import InputError
from oneglance.stats.calibration import calibrate


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


def test_unequal_tables_are_refused() -> None:
    with pytest.raises(InputError, match="equal tables"):
        calibrate([[0, 1]], [[0.1]])
