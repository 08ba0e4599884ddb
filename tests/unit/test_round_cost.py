"""What a round costs: the paper's own arithmetic (§5.2, Tables 1 and 2), through the code that measures ours."""

import pytest

from oneglance.bench.cost import Cost, costs, regress
from oneglance.bench.record import Record
from oneglance.core import InputError

CONSTANT_MS, PER_PASS_MS, PLAIN_MS = 24.8, 1.82, 24.8 / 1.03
# Table 1: τ and ms/token of EAGLE3-VL, then of GLANCE, and the ratio of their rounds
TABLE_1 = {
    "caption": (3.50, 11.21, 2.91, 13.38, 1.008),
    "textvqa": (4.18, 9.75, 3.32, 12.04, 1.020),
    "infovqa": (3.57, 11.50, 3.68, 10.69, 1.044),
    "docvqa": (3.68, 11.51, 3.93, 10.92, 0.987),
    "chartqa": (4.52, 8.75, 4.62, 8.26, 1.036),
}


def arm(passes: float, round_ms: float, plain_ms: float = PLAIN_MS) -> Cost:
    return Cost("x", 4, plain_ms, 1, None, 1, 1, 0.1, round_ms, 100, round_ms / plain_ms, passes, 1.0)


def test_the_papers_line_is_found_again() -> None:
    arms = [arm(passes, CONSTANT_MS + PER_PASS_MS * passes) for passes in (2, 3, 5, 8, 10)]
    line = regress(arms)
    assert (line.constant_ms, line.per_pass_ms) == (pytest.approx(24.8), pytest.approx(1.82))
    assert (line.in_plain_steps, line.r2, line.num_arms) == (pytest.approx(1.03), pytest.approx(1.0), 5)
    two, eight = (line.constant_ms + line.per_pass_ms * k for k in (2, 8))
    assert (two, eight) == (pytest.approx(28.44), pytest.approx(39.36))
    assert eight / two - 1 == pytest.approx(0.384, abs=5e-4)  # "2→8 passes costs 38 %"
    assert pytest.approx(24.08, abs=5e-3) == PLAIN_MS


def test_one_number_of_passes_gives_no_line() -> None:
    line = regress([arm(1, 30.0), arm(1.02, 31.0)])
    assert line.constant_ms != line.constant_ms
    assert "same number of draft passes" in str(line.reason)


def test_rounds_of_one_pass_cost_what_rounds_of_eight_do() -> None:
    """τ · ms/token is the time of a round; "within 4 %" is 4.4 % on one task, from the rounded numbers."""
    ratios = {}
    for task, (tau, ms, own_tau, own_ms, printed) in TABLE_1.items():
        ratios[task] = (tau * ms) / (own_tau * own_ms)
        assert ratios[task] == pytest.approx(printed, abs=5e-4)
    assert max(abs(r - 1) for r in ratios.values()) == pytest.approx(0.044, abs=5e-4)


def test_answers_of_one_token_have_no_round_to_time() -> None:
    """The first token is prefill's, and a target may end there."""
    ended = [Record(system, "t", "p", (2,), (), 0.0, 1.0, True, 0.0) for system in ("plain", "tree")]
    with pytest.raises(InputError, match="no prompt had a round; choose prompts with longer answers"):
        costs(ended, {"tree": 7})
