"""The width controller on simulated workloads: what it learns, when it goes plain, and which rule wins."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneglance.bench.rules import _best_in_hindsight, _chosen, compare_rules
from oneglance.cost import Costs, Point
from oneglance.pace import WARM_ROUNDS, Controller, Outlook
from oneglance.stats.replay import Replay
from oneglance.widths import NUM_KNOTS, RANKS, RULES, STANDING_MEMORY, TRY_SHARE, Calibration, Standing
from pacing import costs_of, lengths, play, simulated_rounds

trees = st.lists(st.tuples(st.lists(st.floats(-20, 0), max_size=30), st.integers(0, 30)), max_size=40)


@given(st.floats(-30, 0))
def test_a_cold_calibration_is_the_identity(score: float) -> None:
    assert Calibration()(score) == pytest.approx(math.exp(score), rel=1e-9)


@given(trees, st.lists(st.floats(-30, 0), min_size=2))
def test_a_calibration_keeps_the_order_of_nodes(seen: list[tuple[list[float], int]], scores: list[float]) -> None:
    """Whatever it has seen: masses then fall along a best-first tree, and the stop is exact."""
    calibration = Calibration()
    for own, num_accepted in seen:
        calibration.learn(own, range(min(num_accepted, len(own))))
    masses = [calibration(score) for score in sorted(scores, reverse=True)]
    assert all(0 <= mass <= 1 + 1e-9 for mass in masses)
    assert all(high >= low * (1 - 1e-9) for high, low in itertools.pairwise(masses))


def taught(honesty: float, num_rounds: int = 600) -> Calibration:
    calibration = Calibration()
    rounds = simulated_rounds(num_rounds, seed=1, honesty=honesty)
    for places, scores in zip(rounds.places, rounds.scores, strict=True):
        calibration.learn(scores[:40].tolist(), (places[places <= 40] - 1).tolist())
    return calibration


def test_an_honest_head_keeps_its_scores() -> None:
    calibration = taught(1.0)
    for mass in (0.9, 0.5, 0.2, 0.05):
        assert calibration(math.log(mass)) == pytest.approx(mass, rel=0.3)


def test_a_boastful_head_is_discounted() -> None:
    """Against the accepted share of all nodes of a fresh set of rounds, in four bands of mass."""
    calibration, fresh = taught(0.4), simulated_rounds(600, seed=2, honesty=0.4)
    scores, places = fresh.scores[:, :40].ravel(), fresh.places
    hits = np.zeros((len(places), 40))
    for row, own in enumerate(places):
        hits[row, own[own <= 40] - 1] = 1
    for low, high in ((0.02, 0.05), (0.05, 0.15), (0.15, 0.4), (0.4, 0.9)):
        band = (np.exp(scores) > low) & (np.exp(scores) <= high)
        seen, said = hits.ravel()[band].mean(), np.mean([calibration(s) for s in scores[band]])
        claimed = np.exp(scores[band]).mean()
        assert abs(said - seen) < abs(claimed - seen) / 2, (low, high, seen, said, claimed)


@pytest.mark.parametrize("rule", RULES)
def test_what_a_rule_learned_survives_a_round_trip(rule: str) -> None:
    rounds = simulated_rounds(300, seed=1, honesty=0.5)
    controller = Controller(costs_of(), rule)
    _chosen(rounds, controller, 0)
    again = Controller.resume(costs_of(), controller.learned(), rule)
    assert again.learned() == controller.learned() != Controller(costs_of(), rule).learned()
    assert again.num_trees == 0
    another = next(name for name in RULES if name != rule)
    other = Controller.resume(costs_of(), {another: controller.learned()[rule]}, rule)
    assert other.learned() == Controller(costs_of(), rule).learned()
    with pytest.raises(ValueError, match="no rule of width has learned 'luck'"):
        Controller.resume(costs_of(), {"luck": controller.learned()[rule]}, rule)


@pytest.mark.parametrize("values", [[1.0], [-1.0] * NUM_KNOTS, [math.nan] * NUM_KNOTS, "ab"])
def test_sums_of_another_kind_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"none below 0|could not convert"):
        Calibration(values, values)
    with pytest.raises(ValueError, match=r"two positive sums|reshape|could not convert"):
        Standing(costs_of(), tokens=values)  # type: ignore[arg-type]


# Going plain -----------------------------------------------------------------------------------------------------

ONE_LETTER = 2  # the letter comes from prefill, the end of the text from one round


def test_one_letter_answers_cost_what_plain_decoding_costs() -> None:
    """200 prompts from cold: at most 3 % more, although a draft would have to take in each prompt first."""
    controller = Controller(costs_of(ingest=0.02))
    played = play(controller, lengths(ONE_LETTER, 200), simulated_rounds(20, seed=3))
    assert played.speedup >= 0.97
    assert played.choices[0] == "draft", "a cold controller drafts"
    warm = play(controller, lengths(ONE_LETTER, 200), simulated_rounds(20, seed=3))
    assert warm.speedup >= 0.98


def test_long_answers_are_drafted_throughout() -> None:
    played = play(Controller(costs_of(ingest=0.02)), lengths(120, 30), simulated_rounds(300, seed=4))
    assert played.choices.count("plain") <= 0.03 * len(played.choices)
    assert played.speedup > 1.3


def test_long_answers_among_short_ones_are_drafted_after_a_step() -> None:
    """What the first step costs a long answer is little; what a draft costs a short one is a multiple of it."""
    controller = Controller(costs_of(ingest=0.05))
    mixed = [ONE_LETTER] * 9 + [120]
    play(controller, mixed * 5, simulated_rounds(300, seed=5))
    assert controller.choose(Outlook(100, 1, 1000, 100)) == "plain"
    assert controller.choose(Outlook(101, 2, 1000, 101)) == "draft"
    assert play(controller, [120], simulated_rounds(300, seed=6)).speedup > 1.2


def test_a_hopeless_head_costs_little_and_is_noticed_when_it_recovers() -> None:
    controller = Controller(costs_of(plain=4.0, draft=3.0, first=6.0, ingest=0.02))
    hopeless = simulated_rounds(200, seed=7, honesty=-1.0)
    assert play(controller, lengths(100, 60), hopeless).speedup >= 0.95
    late = play(controller, lengths(100, 20), hopeless)
    assert late.speedup >= 0.98
    assert "probe" in late.choices
    good = simulated_rounds(200, seed=8, sharpness=12.0)
    play(controller, lengths(100, 60), good)
    again = play(controller, lengths(100, 20), good)
    assert again.choices.count("draft") > 0.8 * len(again.choices)


def test_a_cap_of_one_token_is_never_drafted_for() -> None:
    assert Controller(costs_of()).choose(Outlook(100, 1, 1, 100)) == "plain"


# The rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("honesty", [1.0, 0.5])
def test_the_exchange_rate_is_as_good_as_any_fixed_width_and_better_than_greed(honesty: float) -> None:
    rounds = simulated_rounds(800, seed=9, honesty=honesty)
    rates = {
        result.rule: result.tokens_per_ms
        for result in compare_rules(
            rounds, costs_of(plain=3.0, draft=0.5, first=3.2, slope=0.08), context=0, budgets=(3, 7, 15, 31, 63, 127)
        )
    }
    fixed = max(rate for rule, rate in rates.items() if rule.startswith("fixed/"))
    assert rates["exchange"] >= 0.995 * fixed
    assert rates["exchange"] >= rates["throughput"] * 0.999
    assert rates["oracle"] >= max(rates.values())


CURVES = {
    "flat": lambda n: 3.0 + 0.002 * n,  # a large model on a GPU
    "rising": lambda n: 3.2 + 0.08 * n,  # a small one on a CPU
    "stepped": lambda n: 3.2 + 1.3 * (n // 16),  # kernels that take rows by sixteens
    "bent": lambda n: 3.0 + 0.001 * max(0, n - 20) ** 2,
}
FIXED = (1, 3, 7, 15, 31, 63, 127)


def curve_costs(name: str, off: Sequence[float] = (1.0,)) -> Costs:
    """A curve measured at ``FIXED``, each point off by a factor in turn."""
    points = [
        Point(context=0, rows=n + 1, ms=CURVES[name](n) * factor)
        for n, factor in zip(FIXED, itertools.cycle(off), strict=False)
    ]
    return Costs(draft_ms=1.0, ingest_ms=0.0, verify=(Point(context=0, rows=1, ms=3.0), *points))


def tokens_per_ms(rounds: Replay, nodes: np.ndarray, name: str) -> float:
    """By the true costs, whatever the controller was told."""
    ms = np.array([1.0 + (CURVES[name](n) if n else 3.0) for n in range(128)])
    return float((rounds.accepted(nodes) + 1).sum() / ms[nodes].sum())


@pytest.mark.parametrize("off", [(1.0,), (1.03, 0.97, 1.0)], ids=["true", "mismeasured"])
@pytest.mark.parametrize("honesty", [1.0, 0.6])
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("rule", ["standing", "exchange"])
def test_a_chosen_width_is_as_good_as_the_best_fixed_one(
    rule: str, curve: str, honesty: float, off: tuple[float, ...]
) -> None:
    """Against an oracle that knows what is accepted and what it costs; the default of 63 is among the fixed ones.

    A standing width also spends ``TRY_SHARE`` of the time on wider trees, and believes the costs that it was told.
    """
    rounds = simulated_rounds(600, seed=12, honesty=honesty)
    chosen = _chosen(rounds, Controller(curve_costs(curve, off), rule), 0)
    fixed = {n: tokens_per_ms(rounds, np.full(len(rounds.places), n), curve) for n in FIXED}
    own = tokens_per_ms(rounds, chosen, curve)
    least = {"standing": (0.98, 0.94), "exchange": (0.99, 0.97)}[rule][off != (1.0,)]
    assert own >= least * max(fixed.values()), (own, fixed)
    assert own >= 0.98 * fixed[63]
    assert set(chosen.tolist()) <= {0, *FIXED}


@pytest.mark.parametrize("curve", CURVES)
def test_a_standing_width_is_found_from_either_side(curve: str) -> None:
    """What an earlier process learned of another text is overcome, and then one width stands."""
    rounds = simulated_rounds(1500, seed=13)
    ms = {n: 1.0 + CURVES[curve](n) for n in FIXED}
    fixed = {n: float((rounds.accepted(n) + 1).sum()) / ms[n] for n in FIXED}
    for ratio in (1.0, 1.6):  # wide trees brought nothing; they brought everything
        kept = {"standing": {"tokens": [[300.0 * ratio, 300.0]] * (len(FIXED) - 1)}}
        controller = Controller.resume(curve_costs(curve), kept)
        chosen = _chosen(rounds, controller, 0)[-300:]
        widths, counts = np.unique(chosen, return_counts=True)
        standing = int(widths[counts.argmax()])
        assert fixed[standing] >= 0.98 * max(fixed.values()), (ratio, standing, fixed)


def test_a_round_that_the_text_ends_teaches_what_a_narrower_tree_would_have_kept() -> None:
    """Three tokens of an accepted path of five, at nodes 0, 4 and 10: widths 7 and 15 keep 3 of them, 3 keeps 2."""
    costs = costs_of()
    rule = Standing(costs)
    before = np.array(rule.learned()["tokens"])
    rule.learn([-1.0] * 15, [0, 4, 10, 11], 3, costs.at(0), is_whole=False)
    kept = np.array(rule.learned()["tokens"]) - before * (1 - 1 / STANDING_MEMORY)
    assert kept[:3].tolist() == pytest.approx(np.array([[2, 2], [3, 2], [3, 3]]))
    assert np.array(rule.learned()["tokens"])[3:].tolist() == before[3:].tolist()


def test_wider_trees_are_tried_within_their_share_of_the_time() -> None:
    """Wider ones bring nothing here, so all that they cost is lost."""
    costs = costs_of(slope=0.2)
    controller, ms, least = Controller(costs), 0.0, costs.at(0).drafted_ms(3)
    widths = []
    for _ in range(1000):
        width = controller.pick([-1.0] * 127, choice="draft", context=0)
        widths.append(width)
        ms += costs.at(0).drafted_ms(width)
        controller.learn("draft", Outlook(0, 1, 99, 0), [-1.0] * width, [0, 2], 3)
    assert set(widths[100:]) > {3}
    assert ms <= 1000 * least * (1 + 3 * TRY_SHARE)


@pytest.mark.parametrize("rule", ["standing", "exchange"])
def test_trees_get_as_many_candidates_as_the_next_one_can_use(rule: str) -> None:
    rounds = simulated_rounds(300, seed=11)
    asked = {}
    for slope in (0.0, 0.5):
        controller = Controller(costs_of(slope=slope), rule)
        play(controller, lengths(100, 20), rounds)
        asked[slope] = controller.num_ranks(0)
        if rule == "standing":
            assert asked[slope] >= controller.pick([-1.0] * 127, choice="draft", context=0)
    assert asked == {0.0: RANKS[-1], 0.5: RANKS[0]}


def test_the_oracle_of_the_replay_is_the_best_ratio_of_sums() -> None:
    """Against every assignment of widths to four rounds."""
    rounds = simulated_rounds(4, seed=10)
    ms = np.array([5.0 + 0.3 * n for n in range(128)])
    nodes = _best_in_hindsight(rounds, ms)
    useful = [sorted({0, *(int(p) for p in row if p <= 60)}) for row in rounds.places]

    def rate(chosen: tuple[int, ...]) -> float:
        return float((rounds.accepted(np.array(chosen)) + 1).sum() / ms[list(chosen)].sum())

    assert rate(tuple(nodes.tolist())) == pytest.approx(max(map(rate, itertools.product(*useful))))


def test_the_rate_is_unknown_while_cold() -> None:
    controller = Controller(costs_of())
    for _ in range(WARM_ROUNDS):
        assert controller.rate is None
        controller.learn("draft", Outlook(100, 1, 99, 0), [-0.1], [0], 2)
    assert controller.rate == pytest.approx(2 / controller.costs.at(64).drafted_ms(1))


@pytest.mark.parametrize("rule", sorted(RULES))
def test_what_a_round_costs_decides_its_width(rule: str) -> None:
    rounds = simulated_rounds(200, seed=11)
    wide, narrow = (
        play(Controller(costs_of(slope=slope), rule), lengths(100, 20), rounds).nodes for slope in (0.0, 0.5)
    )
    assert np.mean(wide) > 2 * np.mean(narrow)
