"""Tree builders against brute force, and packing against a naive walk up the parents."""

import itertools
import math
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneglance.core import EMPTY_TREE, BlockMarginals, InputError, TokenTree
from oneglance.testing import random_tree
from oneglance.tree import POLICIES, best_first, chain, fixed_width, from_path, pack, policy, truncate

FEW_SCORES = (-0.5, -1.0, -1.0, -2.0, 0.0, -math.inf)  # few values: many ties


def marginals_of(rows: list[list[float]]) -> BlockMarginals:
    """Marginals with these log-probabilities; token ids differ from ranks, and differ between offsets."""
    log_q = np.array(rows, dtype=np.float64).reshape(len(rows), -1)
    num_offsets, num_ranks = log_q.shape
    token_ids = np.arange(num_ranks)[::-1][None] + 100 * np.arange(1, num_offsets + 1)[:, None]
    return BlockMarginals(token_ids, log_q)


@st.composite
def marginals(draw: st.DrawFn, max_offsets: int = 4, max_ranks: int = 4) -> BlockMarginals:
    num_offsets = draw(st.integers(1, max_offsets))
    num_ranks = draw(st.integers(1, max_ranks))
    score = st.one_of(st.sampled_from(FEW_SCORES), st.floats(-8, 0))
    row = st.lists(score, min_size=num_ranks, max_size=num_ranks).map(lambda values: sorted(values, reverse=True))
    return marginals_of(draw(st.lists(row, min_size=num_offsets, max_size=num_offsets)))


@st.composite
def conditioned(draw: st.DrawFn) -> BlockMarginals:
    """Marginals with rescored rows; few values, -inf among them."""
    plain = draw(marginals(max_offsets=4, max_ranks=3))
    num_offsets, num_ranks = plain.log_q.shape
    size = (num_offsets - 1) * num_ranks**2
    score = st.one_of(st.sampled_from(FEW_SCORES), st.floats(-8, 0))
    rows = np.array(draw(st.lists(score, min_size=size, max_size=size)), dtype=np.float64)
    return BlockMarginals(plain.token_ids, plain.log_q, rows.reshape(num_offsets - 1, num_ranks, num_ranks))


@st.composite
def two_back(draw: st.DrawFn) -> BlockMarginals:
    """Scores given two tokens: small whole numbers that add up without rounding, so that there are many ties."""
    num_offsets, num_ranks = draw(st.integers(1, 4)), draw(st.integers(1, 3))

    def table(*shape: int) -> np.ndarray:
        size = math.prod(shape)
        return np.array(draw(st.lists(st.integers(-4, 0), min_size=size, max_size=size)), np.float64).reshape(shape)

    plain = marginals_of((-np.sort(-table(num_offsets, num_ranks))).tolist())
    later = max(num_offsets - 2, 0)
    given, bias = table(num_offsets - 1, num_ranks, num_ranks), table(later, num_ranks, num_ranks)
    above = (given[1:, None] + bias[:, :, None]).max(-1)  # log Z is never below one of its terms
    return BlockMarginals(plain.token_ids, plain.log_q, given, bias, above)


def score_of(marginals: BlockMarginals, ranks: tuple[int, ...]) -> float:
    score = float(marginals.log_q[0, ranks[0]])
    for offset in range(1, len(ranks)):
        rows, earlier, log_z = marginals.log_q_given, marginals.bias_earlier, marginals.log_z
        two, one, own = ranks[offset - 2] if offset > 1 else -1, ranks[offset - 1], ranks[offset]
        term = float(marginals.log_q[offset, own] if rows is None else rows[offset - 1, one, own])
        if offset > 1 and earlier is not None and log_z is not None:
            term += float(earlier[offset - 2, two, own]) - float(log_z[offset - 2, two, one])
        score += term
    return score


def all_prefixes(given: BlockMarginals) -> list[tuple[float, tuple[int, ...]]]:
    """Every prefix of finite score as (score, rank tuple), best first; equal scores by rank tuple."""
    num_offsets, num_ranks = given.log_q.shape
    found = []
    for depth in range(1, num_offsets + 1):
        for ranks in itertools.product(range(num_ranks), repeat=depth):
            score = score_of(given, ranks)
            if score > -math.inf:
                found.append((score, ranks))
    return sorted(found, key=lambda prefix: (-prefix[0], prefix[1]))


def ranks_of(tree: TokenTree, given: BlockMarginals) -> list[tuple[int, ...]]:
    """The rank tuple of each node."""
    tuples: list[tuple[int, ...]] = [()]
    for token, parent, depth in zip(tree.token_ids, tree.parents, tree.depths, strict=True):
        row = given.token_ids[depth - 1].tolist()
        tuples.append((*tuples[parent], row.index(token)))
    return tuples[1:]


def assert_valid(tree: TokenTree, *, budget: int, max_depth: int) -> None:
    assert len(tree) <= budget
    assert len(tree.token_ids) == len(tree.parents) == len(tree.depths)
    assert len(set(zip(tree.parents, tree.token_ids, strict=True))) == len(tree), "two siblings propose the same token"
    depths = [0, *tree.depths]
    for node, parent in enumerate(tree.parents, start=1):
        assert 0 <= parent < node, "a parent comes before its children"
        assert depths[node] == depths[parent] + 1
    assert max(depths) <= max_depth


@given(marginals(), st.integers(1, 40))
def test_best_first_is_the_brute_force_top_n(given: BlockMarginals, budget: int) -> None:
    tree = best_first(given, budget)
    expected = all_prefixes(given)[:budget]
    assert ranks_of(tree, given) == [ranks for _, ranks in expected]
    assert tree.scores == pytest.approx([score for score, _ in expected], abs=0)
    assert_valid(tree, budget=budget, max_depth=given.log_q.shape[0])


@given(conditioned() | two_back(), st.integers(0, 60))
def test_best_first_over_conditioned_scores_is_the_brute_force_top_n(given: BlockMarginals, budget: int) -> None:
    tree = best_first(given, budget)
    wanted = all_prefixes(given)[:budget]
    assert list(tree.scores) == [score for score, _ in wanted]
    found = ranks_of(tree, given)
    assert len(set(found)) == len(found)
    assert [score_of(given, ranks) for ranks in found] == list(tree.scores)
    assert_valid(tree, budget=budget, max_depth=len(given.log_q))


@given(two_back(), st.integers(0, 3))
def test_fewer_offsets_of_scores_given_two_tokens_are_the_same_scores(given: BlockMarginals, depth: int) -> None:
    shorter = [prefix for prefix in all_prefixes(given) if len(prefix[1]) <= depth]
    assert list(best_first(truncate(given, depth), 60).scores) == [score for score, _ in shorter[:60]]
    if depth and len(given.log_q) >= depth:
        best: tuple[int, ...] = ()
        for _ in range(depth):
            best = max(((*best, k) for k in range(given.log_q.shape[1])), key=lambda ranks: score_of(given, ranks))
        assert chain(given, depth).scores[-1] == score_of(given, best)


def test_a_conditioned_chain_follows_the_best_child() -> None:
    rows = np.log(np.array([[[0.1, 0.9], [0.5, 0.5]], [[0.3, 0.7], [0.8, 0.2]]]))
    given = BlockMarginals(np.array([[1, 2], [3, 4], [5, 6]]), np.log(np.array([[0.6, 0.4]] * 3)), rows)
    assert chain(given, 9).token_ids == (1, 4, 5)
    assert fixed_width(given, 9, width=2).token_ids == (1, 2, 4, 3, 5, 6)
    shorter = truncate(given, 2)
    assert shorter.log_q_given is not None
    assert shorter.log_q_given.shape == (1, 2, 2)
    assert truncate(given, 1).log_q_given is not None
    assert best_first(truncate(given, 0), 5) == EMPTY_TREE


@given(marginals(max_offsets=6, max_ranks=5), st.integers(1, 40), st.sampled_from(sorted(POLICIES)))
def test_every_policy_gives_a_valid_tree(given: BlockMarginals, budget: int, name: str) -> None:
    tree = policy(name)(given, budget)
    assert_valid(tree, budget=budget, max_depth=given.log_q.shape[0])
    assert all(score > -math.inf for score in tree.scores)
    assert len(tree.scores) == len(tree)


@given(marginals(max_offsets=4, max_ranks=4), st.integers(1, 12), st.integers(1, 4))
def test_fewer_ranks_give_the_best_tree_within_them(given: BlockMarginals, budget: int, ranks: int) -> None:
    """``branch_k`` cuts the marginals: exact if it is at least the budget."""
    cut = BlockMarginals(given.token_ids[:, :ranks], given.log_q[:, :ranks])
    tree = best_first(cut, budget)
    within = [prefix for prefix in all_prefixes(given) if max(prefix[1]) < ranks]
    assert ranks_of(tree, cut) == [prefix for _, prefix in within[:budget]]
    if ranks >= min(budget, given.log_q.shape[1]):
        assert tree == best_first(given, budget)


def test_ties_are_ordered_by_score_then_rank_tuple() -> None:
    tied = marginals_of([[-1.0, -1.0], [0.0, 0.0]])
    assert ranks_of(best_first(tied, 6), tied) == [(0,), (0, 0), (0, 1), (1,), (1, 0), (1, 1)]


def test_a_rank_of_no_probability_is_never_proposed() -> None:
    some = marginals_of([[-1.0, -math.inf], [-1.0, -2.0], [-math.inf, -math.inf], [-1.0, -1.0]])
    for name in POLICIES:
        tree = policy(name)(some, 30)
        assert max(tree.depths) == 2
        assert some.token_ids[0, 1] not in tree.token_ids
    nothing = marginals_of([[-math.inf, -math.inf]])
    assert all(len(policy(name)(nothing, 30)) == 0 for name in POLICIES)


def test_chain_is_the_top_rank_of_each_offset() -> None:
    given = marginals_of([[-1.0, -2.0]] * 5)
    for budget, size in ((1, 1), (3, 3), (5, 5), (99, 5)):
        tree = chain(given, budget)
        assert tree.token_ids == tuple(int(row[0]) for row in given.token_ids[:size])
        assert tree.parents == tuple(range(size))
        assert tree.depths == tuple(range(1, size + 1))
        assert tree.scores == tuple(-1.0 * depth for depth in tree.depths)


def test_fixed_width_hangs_all_candidates_below_the_best_prefix() -> None:
    given = marginals_of([[-1.0, -2.0, -3.0]] * 3)
    tree = fixed_width(given, 8, width=3)
    assert tree.parents == (0, 0, 0, 1, 1, 1, 4, 4)
    assert tree.depths == (1, 1, 1, 2, 2, 2, 3, 3)
    assert ranks_of(tree, given) == [(0,), (1,), (2,), (0, 0), (0, 1), (0, 2), (0, 0, 0), (0, 0, 1)]
    assert policy("fixed")(marginals_of([[-1.0] * 6] * 2), 99).parents == (0,) * 4 + (1,) * 4


def test_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'beam'.*best_first, chain, fixed"):
        policy("beam")


def test_truncate_keeps_the_first_offsets() -> None:
    given = marginals_of([[-1.0, -2.0]] * 5)
    assert truncate(given, 2).log_q.shape == (2, 2)
    assert len(best_first(truncate(given, 0), 9)) == 0
    assert max(best_first(truncate(given, 2), 9).depths) == 2


def test_from_path_is_a_chain() -> None:
    assert from_path([]) is EMPTY_TREE
    assert from_path([7, 8]) == TokenTree((7, 8), (0, 1), (1, 2))


# Packing ---------------------------------------------------------------------------------------------------------


def ancestors(tree: TokenTree, node: int) -> Iterator[int]:
    yield node
    while node:
        node = tree.parents[node - 1]
        yield node


@given(st.integers(0, 2**20), st.integers(0, 40), st.integers(1, 6))
def test_pack_lets_a_node_see_itself_and_its_ancestors(seed: int, budget: int, max_depth: int) -> None:
    tree = random_tree(random.Random(seed), 50, budget=budget, max_depth=max_depth)
    assert_valid(tree, budget=budget, max_depth=max_depth)
    packed = pack(7, tree)
    assert packed.token_ids.tolist() == [7, *tree.token_ids]
    assert packed.depths.tolist() == [len(list(ancestors(tree, node))) - 1 for node in range(len(tree) + 1)]
    assert packed.visible.shape == (len(tree) + 1, len(tree) + 1)
    for node in range(len(tree) + 1):
        assert np.flatnonzero(packed.visible[node]).tolist() == sorted(ancestors(tree, node))


@pytest.mark.parametrize("parents", [(1,), (0, 2), (2, 0), (0, -1)])
def test_a_tree_whose_parent_does_not_come_first_cannot_be(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a parent must come before its children"):
        TokenTree((1, 2)[: len(parents)], parents, (1,) * len(parents))


@pytest.mark.parametrize("depths", [(1, 1), (2, 3), (1, 3), (0, 1)])
def test_a_tree_whose_depths_contradict_its_parents_cannot_be(depths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"node \d has depth \d, its parent \d"):
        TokenTree((1, 2), (0, 1), depths)


@pytest.mark.parametrize(("parents", "depths"), [((0,), (1, 2)), ((0, 1), (1,)), ((0, 1, 2), (1, 2, 3))])
def test_a_tree_has_a_parent_and_a_depth_a_token(parents: tuple[int, ...], depths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"a tree of 2 tokens has \d parents and \d depths"):
        TokenTree((1, 2), parents, depths)


def test_children_by_token() -> None:
    tree = TokenTree((5, 6, 5), (0, 0, 1), (1, 1, 2))
    assert tree.children == ({5: 1, 6: 2}, {5: 3}, {}, {})
