"""V(H) and its peak, regret bounds, and width policies replayed against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneglance.core import BlockMarginals, InputError
from oneglance.stats.law import law
from oneglance.stats.replay import (
    POLICIES,
    Replay,
    best_first_places,
    entropy_learned,
    oracle,
    pareto,
    replay,
    score_keyed,
)
from oneglance.stats.width import bimodality, conditional_variance, headroom, peak, regret, share_out, width_value
from oneglance.tree import best_first


def marginals(rng: np.random.Generator, num_offsets: int = 4, num_ranks: int = 8) -> np.ndarray:
    """(L, K) log q, best first, of a head that is surer here than there."""
    logits = rng.normal(0, rng.uniform(0.5, 4), (num_offsets, num_ranks))
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -np.sort(-logits, axis=1)


def simulated(num_rounds: int, seed: int, *, num_offsets: int = 6) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Sidecars, the target's ranks drawn from them (a calibrated head), and an entropy that goes with their spread."""
    rng = np.random.default_rng(seed)
    tables = [marginals(rng, num_offsets) for _ in range(num_rounds)]
    ranks = np.array([[rng.choice(8, p=np.exp(row)) for row in table] for table in tables])
    entropies = np.array([-(np.exp(table[0]) * table[0]).sum() for table in tables])
    return tables, ranks, np.maximum(0.0, entropies)


def places_of(rows: list[list[int]], max_budget: int) -> Replay:
    size = len(rows)
    return Replay(
        np.array(rows), np.zeros((size, max_budget)), np.linspace(0, 1, size), np.array([f"p{i}" for i in range(size)])
    )


def test_the_peak_of_the_truncated_value() -> None:
    """argmax p(1 - p^15) is 0.8312, logit 1.594; an untruncated V is p itself and has none."""
    found = peak(law(1.226, 0.95))
    assert found.p == pytest.approx(0.8312, abs=1e-4)
    assert found.logit == pytest.approx(1.594, abs=1e-3)
    grid = np.linspace(0, 1, 100_001)
    assert grid[np.argmax(grid * (1 - grid**15))] == pytest.approx(found.p, abs=1e-5)


@pytest.mark.parametrize(("b0", "b1"), [(0.96, 0.63), (1.226, 0.95), (1.169, 0.8), (1.504, 1.71)])
def test_no_published_fit_reaches_the_peak(b0: float, b1: float) -> None:
    """Prop. 4's intermediate band: V only falls with entropy under every published law."""
    assert peak(law(b0, b1)).h_nats is None
    assert np.all(np.diff(width_value(law(b0, b1), np.linspace(0, 5, 200))) < 0)


def test_a_surer_law_does() -> None:
    found = peak(law(3.0, 2.0))
    assert found.h_nats == pytest.approx((3 - 1.594) / 2, abs=1e-3)
    h = np.linspace(0, 3, 3001)
    assert h[np.argmax(width_value(law(3.0, 2.0), h))] == pytest.approx(found.h_nats, abs=2e-3)
    assert peak(law(3.0, 0.0)).h_nats is None


@given(st.integers(0, 10_000), st.integers(1, 20))
@settings(max_examples=60)
def test_regret_never_exceeds_its_first_bound(seed: int, chosen: int) -> None:
    rng = np.random.default_rng(seed)
    true, guess = rng.exponential(1, 20), rng.exponential(1, 20)
    found = regret(true, guess, rng.random(20), chosen)
    assert 0 <= found.regret <= found.bound + 1e-12


def test_the_papers_second_bound_is_none() -> None:
    """Prop. 6 writes 2K E|V* - V̂|. One round of value that the estimate does not see is enough to exceed it."""
    true = np.zeros(1000)
    true[-1] = 1.0
    found = regret(true, np.zeros(1000), np.zeros(1000), 1)
    assert found.regret == 1.0
    assert found.regret <= found.bound
    assert found.mean_bound == pytest.approx(0.002)


def test_conditional_variance_is_what_entropy_leaves() -> None:
    rng = np.random.default_rng(0)
    h = rng.random(20_000)
    assert conditional_variance(3 * h + rng.normal(0, 0.5, h.size), h) == pytest.approx(0.25, abs=0.02)
    with pytest.raises(InputError, match="cannot choose 3 of 2"):
        regret([1, 2], [1, 2], [0, 0], 3)


def test_bimodality() -> None:
    rng = np.random.default_rng(0)
    assert bimodality(rng.random(50_000)) == pytest.approx(5 / 9, abs=0.01)
    assert bimodality([0, 0, 1, 1]) == pytest.approx(1.0)
    assert np.isnan(bimodality([1.0, 1.0]))


def test_headroom_dies_at_the_extremes_only_where_the_law_is_sure_enough() -> None:
    """Prop. 5 needs V ≈ 0 at both ends. A law of b0 = 6 has that; at b0 = 1.2 the certain end keeps V = 0.75, and
    two far modes give *more* headroom than an even spread."""
    even, two = np.linspace(0, 4, 200), np.repeat([0.0, 12.0], 100)
    sure, published = law(6.0, 2.0), law(1.226, 0.95)
    assert headroom(sure, two).gain < 0.1 * headroom(sure, even).gain
    assert headroom(sure, two).at_extremes == 1.0
    assert headroom(published, two).gain > headroom(published, even).gain
    assert headroom(published, two).bimodality > headroom(published, even).bimodality


def test_a_steep_law_thins_the_band() -> None:
    h = np.random.default_rng(0).uniform(0, 10, 2000)
    gains = [headroom(law(3 * b1, b1), h, share=0.05).at_extremes for b1 in (1.0, 3.0, 9.0)]
    assert gains[0] < gains[1] < gains[2]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=20), st.integers(0, 200), st.integers(1, 12))
@settings(max_examples=60)
def test_shares_add_up_and_respect_the_most(weights: list[float], total: int, most: int) -> None:
    shares = share_out(weights, total, most)
    assert shares.sum() == min(total, most * len(weights))
    assert shares.min() >= 0
    assert shares.max() <= most


def test_shares_are_proportional() -> None:
    np.testing.assert_array_equal(share_out([1, 2, 1], 8, 100), [2, 4, 2])
    for wrong in (float("nan"), float("inf"), -1.0):
        with pytest.raises(InputError, match="round 1 has weight"):
            share_out([1, wrong, 1], 8, 100)
    np.testing.assert_array_equal(share_out([1, 100], 10, 6), [4, 6])


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_places_agree_with_the_tree_builder(seed: int) -> None:
    """A tree of N nodes accepts as many tokens as there are places ≤ N, for every N."""
    rng = np.random.default_rng(seed)
    table = marginals(rng)
    own = rng.integers(0, 4, 4)
    places, scores = best_first_places(table, own, max_budget=40)
    ids = np.tile(np.arange(8), (4, 1))
    for budget in (1, 3, 10, 40):
        tree = best_first(BlockMarginals(ids, table), budget)
        node, accepted = 0, 0
        while accepted < 4 and int(own[accepted]) in tree.children[node]:
            node = tree.children[node][int(own[accepted])]
            accepted += 1
        assert (places <= budget).sum() == accepted
        np.testing.assert_allclose(scores[:budget], tree.scores)


def test_text_that_ends_and_ranks_beyond_the_sidecar_are_never_met() -> None:
    table = np.log([[0.9, 0.1], [0.9, 0.1]])
    places, scores = best_first_places(table, [0, -1], max_budget=10)
    np.testing.assert_array_equal(places, [1, 11])
    np.testing.assert_array_equal(best_first_places(table, [2, 0], max_budget=10)[0], [11, 11])
    assert np.isfinite(scores).sum() == 6  # all prefixes of a 2 × 2 sidecar
    assert best_first_places(np.full((2, 2), -np.inf), [0, 0], max_budget=3)[0].tolist() == [4, 4]


@given(st.integers(0, 10_000), st.integers(1, 6))
@settings(max_examples=40)
def test_oracle_is_within_one_step_of_brute_force(seed: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [sorted(rng.choice(np.arange(1, 10), 3, replace=False).tolist()) for _ in range(3)]
    rounds = places_of(rows, 8)
    nodes = oracle(rounds, budget)
    assert nodes.sum() <= 3 * budget
    best = max(
        int(rounds.accepted(list(split)).sum())
        for split in itertools.product(range(9), repeat=3)
        if sum(split) <= 3 * budget
    )
    got = int(rounds.accepted(nodes).sum())
    assert best - 3 < got <= best  # a step of a hull is worth at most a round's three tokens
    assert got >= 0


def test_policies_spend_the_same_and_the_oracle_wins() -> None:
    tables, ranks, h = simulated(400, 1)
    rounds = replay(tables, ranks, h, [f"p{i // 4}" for i in range(400)], max_budget=48)
    points = pareto(rounds, law(1.2, 0.9, num_offsets=6), budgets=(4, 12))
    assert [p.policy for p in points] == [*POLICIES, *POLICIES]
    for n in (0, 5):
        by = {p.policy: p for p in points[n : n + 5]}
        assert all(p.used <= p.budget for p in by.values())
        assert by["fixed"].lift == 0
        assert max(by.values(), key=lambda p: p.mean_a).policy == "oracle"
        assert by["scores"].mean_a > by["fixed"].mean_a  # the head is calibrated, so its scores are worth following
        assert by["entropy_learned"].mean_a > 0.97 * by["fixed"].mean_a
    assert points[9].mean_a > points[4].mean_a


def test_shared_scores_take_the_highest_of_all_rounds() -> None:
    rounds = places_of([[1, 2, 3], [1, 2, 3]], 3)
    scores = np.array([[-0.1, -0.2, -3.0], [-1.0, -2.0, -np.inf]])
    shared = Replay(rounds.places, scores, rounds.h_nats, rounds.prompts)
    np.testing.assert_array_equal(score_keyed(shared, 1), [2, 0])
    np.testing.assert_array_equal(score_keyed(shared, 2), [2, 2])


def test_learned_widths_go_where_entropy_says_they_pay() -> None:
    """Rounds of low entropy accept at once, those of high entropy only with eight nodes: the lesson carries over."""
    rows = [[1, 2, 3] if i % 2 == 0 else [8, 9, 9] for i in range(80)]
    h = np.array([0.01 if i % 2 == 0 else 2.0 for i in range(80)])
    rounds = Replay(np.array(rows), np.zeros((80, 12)), h, np.array([f"p{i // 2}" for i in range(80)]))
    nodes = entropy_learned(rounds, 3)
    assert set(nodes[h < 1]) == {3}
    assert rounds.accepted(nodes).sum() == rounds.accepted(3).sum()
    nodes = entropy_learned(rounds, 6)
    assert nodes.sum() <= 480
    assert set(nodes[h < 1]) == {3}
    assert np.all(nodes[h > 1] >= 8)
    assert rounds.accepted(nodes).sum() > rounds.accepted(6).sum()


def test_no_replay_accepts_beyond_its_horizon() -> None:
    """The cap leaves the last token to the bonus, so its rank is known and still out of reach."""
    tables, ranks, h = simulated(30, 2)
    horizon = np.arange(30) % 6 + 1
    free, bound = (
        replay(tables, ranks, h, ["p"] * 30, horizon=own, max_budget=200).accepted(200) for own in (None, horizon)
    )
    np.testing.assert_array_equal(bound, np.minimum(free, horizon))


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="sidecar must belong"):
        replay([], np.zeros((1, 3)), [0.0], ["a"])
    with pytest.raises(InputError, match="budget 9 is outside"):
        pareto(places_of([[1, 2, 3]], 8), law(1, 1), budgets=(9,))
