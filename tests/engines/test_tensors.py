"""The batched round against the host's tree, mask, walk, commit and sampling, on CPU tensors."""

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from oneglance import tree as host
from oneglance.accept import greedy
from oneglance.core import BlockMarginals, TokenTree
from oneglance.engines import tensors

VOCAB = 11
LENGTHS = (3, 9, 5)


@dataclass(frozen=True)
class Case:
    """A batch of marginals, and the host's tree of each request."""

    marginals: list[BlockMarginals]
    budget: int

    @property
    def depth(self) -> int:
        return len(self.marginals[0].token_ids)

    @property
    def roots(self) -> list[int]:
        return [index + 2 for index in range(len(self.marginals))]

    @property
    def oracle(self) -> list[TokenTree]:
        return [host.best_first(marginals, self.budget) for marginals in self.marginals]

    @property
    def trees(self) -> tensors.Trees:
        ids = torch.tensor(np.stack([m.token_ids for m in self.marginals]))
        log_q = torch.tensor(np.stack([m.log_q for m in self.marginals]))
        return tensors.best_first(torch.tensor(self.roots), ids, log_q, self.budget)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Coarse scores tie often; zeros make a child score as its parent; some ranks can never be proposed."""
    depth, ranks = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    coarse, seed = draw(st.booleans()), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    marginals = []
    for _ in LENGTHS:
        ids = np.stack([rng.permutation(VOCAB)[:ranks] for _ in range(depth)])
        steps = rng.integers(0, 3, (depth, ranks)) * 0.5 if coarse else rng.exponential(1.0, (depth, ranks))
        log_q = -np.cumsum(steps, axis=1)
        if rng.random() < 0.4:
            log_q[rng.integers(depth), rng.integers(ranks) :] = -np.inf
        marginals.append(BlockMarginals(ids, log_q))
    return Case(marginals, draw(st.integers(1, 24)))


def lively(case: Case, seed: int) -> np.ndarray:
    """(R, N+1) choices that follow the tree at most nodes, so that paths get long."""
    rng = np.random.default_rng(seed)
    choices = rng.integers(0, VOCAB, (len(LENGTHS), case.budget + 1))
    for row, tree in zip(choices, case.oracle, strict=True):
        for node, children in enumerate(tree.children):
            if children and rng.random() < 0.8:
                row[node] = rng.choice(list(children))
    return choices


@settings(max_examples=40)
@given(cases())
def test_trees_are_the_hosts(case: Case) -> None:
    trees = case.trees
    for row, (root, tree) in enumerate(zip(case.roots, case.oracle, strict=True)):
        size, packed = len(tree) + 1, host.pack(root, tree)
        assert trees.is_node[row].tolist() == [True] * size + [False] * (case.budget + 1 - size)
        assert trees.token_ids[row, :size].tolist() == packed.token_ids.tolist()
        assert trees.parents[row, 1:size].tolist() == list(tree.parents)
        assert trees.depths[row, :size].tolist() == packed.depths.tolist()
        assert trees.scores[row, 1:size].tolist() == list(tree.scores)


@settings(max_examples=40)
@given(cases())
def test_mask_positions_and_links(case: Case) -> None:
    trees = case.trees
    seen = tensors.visible(trees, case.depth)
    where = tensors.positions(trees, torch.tensor(LENGTHS))
    kernel = tensors.links(trees)
    for row, (root, tree) in enumerate(zip(case.roots, case.oracle, strict=True)):
        size, packed = len(tree) + 1, host.pack(root, tree)
        assert np.array_equal(seen[row, :size, :size].numpy(), packed.visible)
        assert not seen[row, :size, size:].any(), "no node may see padding"
        assert where[row, :size].tolist() == (LENGTHS[row] + packed.depths).tolist()
        assert kernel.index[row].tolist() == list(range(row * (case.budget + 1), (row + 1) * (case.budget + 1)))
        for node in range(case.budget + 1):
            children = list(tree.children[node].values()) if node < size else []
            found, child = [], int(kernel.first_child[row, node])
            while child != -1:
                found.append(child)
                child = int(kernel.next_sibling[row, child])
            assert found == children


@settings(max_examples=40)
@given(cases(), st.integers(0, 5))
def test_the_ragged_mask_is_every_requests_own(case: Case, slack: int) -> None:
    seen = tensors.visible(case.trees, case.depth)
    flat, size = tensors.flat_mask(seen, torch.tensor(LENGTHS), sum(LENGTHS) + slack), case.budget + 1
    used = sum(size * (length + size) for length in LENGTHS)
    assert len(flat) == used + size * slack
    assert bool(flat[used:].all())
    start = 0
    for row, length in enumerate(LENGTHS):
        own = flat[start : start + size * (length + size)].view(size, length + size)
        assert bool(own[:, :length].all())
        assert torch.equal(own[:, length:], seen[row])
        start += own.numel()


@settings(max_examples=40)
@given(cases(), st.integers(0, 999), st.sets(st.integers(0, VOCAB - 1), max_size=2))
def test_the_walk_is_the_hosts(case: Case, seed: int, eos: set[int]) -> None:
    trees, choices = case.trees, lively(case, seed)
    seen = tensors.visible(trees, case.depth)
    verdicts = tensors.walk(trees, seen, torch.tensor(choices), case.depth, sorted(eos))
    kept = tensors.kept_tokens(trees, verdicts)
    for row, tree in enumerate(case.oracle):
        verdict = greedy(tree, choices[row].tolist(), eos_ids=eos)
        count = len(verdict.path)
        assert verdicts.path[row].tolist() == [*verdict.path, *[0] * (case.depth + 1 - count)]
        assert verdicts.num_accepted[row] == count - 1  # rows to keep: a proposed end has none
        assert verdicts.is_kept[row].sum() == count
        assert verdicts.bonus[row] == verdict.token_ids[-1]
        assert kept[row].tolist() == [*verdict.token_ids, *[0] * (case.depth + 1 - count)]


@settings(max_examples=40)
@given(cases(), st.integers(0, 999))
def test_moves_and_compaction_leave_what_commit_leaves(case: Case, seed: int) -> None:
    """Slots lie anywhere in the pool; rows are known by their values. As in ``Target.commit``: a request's first a+1
    slots hold root and accepted path in order, the rest of the pool is untouched."""
    trees, choices = case.trees, lively(case, seed)
    verdicts = tensors.walk(trees, tensors.visible(trees, case.depth), torch.tensor(choices), case.depth)
    size = case.budget + 1
    num_slots = len(LENGTHS) * size + 7
    slots = torch.tensor(np.random.default_rng(seed).permutation(num_slots)[: len(LENGTHS) * size]).view(-1, size)
    pool = torch.arange(num_slots, dtype=torch.float64)
    before = pool.clone()
    read, write = tensors.moves(verdicts, slots)
    pool[write] = pool[read]
    rows = before[slots][:, :, None]
    taken = tensors.compacted(verdicts, rows)
    kept = tensors.rows_kept(verdicts, size)
    touched = set(slots[:, : case.depth + 1].flatten().tolist())
    for row, tree in enumerate(case.oracle):
        path = list(greedy(tree, choices[row].tolist()).path)
        expected = before[slots[row, path]]
        assert torch.equal(pool[slots[row, : len(path)]], expected)
        assert torch.equal(taken[row, : len(path), 0], expected)
        assert not taken[row, len(path) :].any()
        rest_of_row = [-1] * (case.depth + 1 - len(path))
        assert kept[row].tolist() == [*(row * size + node for node in path), *rest_of_row]
    rest = [slot for slot in range(num_slots) if slot not in touched]
    assert torch.equal(pool[rest], before[rest])


def test_draws_follow_the_targets_own_distribution() -> None:
    """χ² over many draws of one row; a token without probability never comes."""
    wanted = np.array([0.5, 0.0, 0.3, 0.15, 0.05])
    rng = torch.Generator().manual_seed(3)
    noise = torch.empty(1, 20_000, 5).exponential_(generator=rng)
    found = torch.bincount(tensors.drawn(7 * torch.tensor(wanted).expand(1, 20_000, 5), noise)[0], minlength=5).numpy()
    assert found[1] == 0
    seen = wanted > 0
    assert chisquare(found[seen], 20_000 * wanted[seen]).pvalue > 1e-3


def test_no_value_is_read_back_to_the_host() -> None:
    """On the meta device a tensor has no values: whatever asked for one would fail."""
    roots = torch.zeros(2, dtype=torch.int64, device="meta")
    ids = torch.zeros(2, 15, 63, dtype=torch.int64, device="meta")
    trees = tensors.best_first(roots, ids, torch.zeros(2, 15, 63, dtype=torch.float64, device="meta"), 63)
    seen = tensors.visible(trees, 15)
    verdicts = tensors.walk(trees, seen, torch.zeros(2, 64, dtype=torch.int64, device="meta"), 15, [1])
    slots = torch.zeros(2, 64, dtype=torch.int64, device="meta")
    read, write = tensors.moves(verdicts, slots)
    assert (trees.token_ids.shape, seen.shape, read.shape, write.shape) == ((2, 64), (2, 64, 64), (32,), (32,))
    assert tensors.links(trees).first_child.shape == (2, 64)
    assert tensors.kept_tokens(trees, verdicts).shape == (2, 16)
    assert tensors.flat_mask(seen, roots, 9).shape == (64 * (9 + 2 * 64),)
