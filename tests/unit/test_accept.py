"""The greedy walk against a slow one, ties, and logits processors along the path."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LogitsProcessorList, NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from helpers import walk
from oneglance.accept import Gated, Greedy, Sampled, argmax, greedy
from oneglance.core import EMPTY_TREE, TokenTree
from oneglance.testing import random_tree
from oneglance.tree import from_path

VOCAB = 6


@given(st.integers(0, 2**20), st.integers(0, 30), st.integers(1, 6))
def test_greedy_walks_as_far_as_the_target_agrees(seed: int, budget: int, max_depth: int) -> None:
    rng = random.Random(seed)
    tree = random_tree(rng, VOCAB, budget=budget, max_depth=max_depth)
    choices = [rng.randrange(VOCAB) for _ in range(len(tree) + 1)]
    path, tokens = walk(tree, choices)
    verdict = greedy(tree, choices)
    assert list(verdict.path) == path
    assert list(verdict.token_ids) == tokens
    assert verdict.num_accepted == len(path) - 1
    rows = torch.nn.functional.one_hot(torch.tensor(choices), VOCAB).float()
    assert Greedy()(tree, rows, [1, 2]) == verdict


@given(st.integers(0, 2**20))
def test_the_walk_equals_decoding_one_token_at_a_time(seed: int) -> None:
    """A target that is a function of the last two tokens, an adversarial tree, and plain decoding as oracle."""
    rng = random.Random(seed)
    table = {(a, b): rng.randrange(VOCAB) for a in range(VOCAB) for b in range(VOCAB)}
    prefix = [rng.randrange(VOCAB), rng.randrange(VOCAB)]
    plain = list(prefix)
    for _ in range(12):
        plain.append(table[plain[-2], plain[-1]])
    tree = random_tree(rng, VOCAB, budget=20, max_depth=8, along=plain[2:])
    histories = [prefix]
    for token, parent in zip(tree.token_ids, tree.parents, strict=True):
        histories.append([*histories[parent], token])
    verdict = greedy(tree, [table[h[-2], h[-1]] for h in histories])
    assert list(verdict.token_ids) == plain[2 : 2 + len(verdict.token_ids)]
    tip = verdict.path[-1]
    assert plain[2 + verdict.num_accepted] not in tree.children[tip], "the walk stopped early"


def test_nothing_proposed_gives_the_bonus_alone() -> None:
    verdict = Greedy()(EMPTY_TREE, torch.tensor([[0.0, 2.0, 1.0]]), [5])
    assert (verdict.path, verdict.token_ids) == ((0,), (1,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [3, 17, 1000, 151_936])
def test_the_first_index_wins_a_tie(dtype: torch.dtype, size: int) -> None:
    rows = torch.zeros(4, size, dtype=dtype)
    assert argmax(rows).tolist() == [0, 0, 0, 0]
    rows[1, size - 2 :] = 1
    rows[2, 1:] = 1
    assert argmax(rows).tolist() == [0, size - 2, 1, 0]
    assert Greedy().first(rows[1], [1]) == size - 2
    assert Greedy(LogitsProcessorList()).first(rows[1], [1]) == size - 2


class Recorder:
    """A processor that notes what it saw and changes nothing."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert input_ids.shape[0] == scores.shape[0] == 1
        assert scores.dtype == torch.float32
        self.seen.append(input_ids[0].tolist())
        return scores


def test_processors_see_prefix_and_path_once_a_row_in_order() -> None:
    tree = TokenTree((9, 1, 2, 3), (0, 0, 2, 3), (1, 1, 2, 3))
    rows = torch.zeros(5, 10, dtype=torch.bfloat16)
    rows[0, 1] = rows[2, 2] = rows[3, 4] = 1
    recorder = Recorder()
    verdict = Greedy(recorder)(tree, rows, [7, 8])
    assert verdict.path == (0, 2, 3)
    assert verdict.token_ids == (1, 2, 4)
    assert recorder.seen == [[7, 8], [7, 8, 1], [7, 8, 1, 2]]
    assert Greedy(recorder).first(rows[0], [7]) == 1
    assert recorder.seen[-1] == [7]


@pytest.mark.parametrize("kind", ["greedy", "watched", "sampled", "gated"])
def test_no_choice_is_made_past_the_end_of_the_text(kind: str) -> None:
    """A processor that keeps a state, or that knows nothing to say after the end, must never see it."""
    tree = from_path([1, 2, 3, 4])
    rows = torch.nn.functional.one_hot(torch.tensor([1, 2, 3, 4, 5]), 10).float() * 1e4
    recorder, eos_ids = Recorder(), [9, 2]
    rules = {
        "greedy": Greedy(eos_ids=eos_ids),
        "watched": Greedy(recorder, eos_ids=eos_ids),
        "sampled": Sampled(3, recorder, eos_ids=eos_ids),
        "gated": Gated(Greedy(recorder, eos_ids=eos_ids), 0.1),
    }
    verdict = rules[kind](tree, rows, [7])
    assert (verdict.path, verdict.token_ids, verdict.is_gated) == ((0, 1), (1, 2), False)
    assert verdict.num_accepted == 2, "it was proposed"
    assert recorder.seen == ([] if kind == "greedy" else [[7], [7, 1]])
    assert rules[kind](from_path([1]), rows[:2], [7]).num_accepted == 1, "here it is the bonus"


def test_processors_do_not_write_into_the_rows() -> None:
    rows = torch.tensor([[0.0, 3.0, 2.0]])
    before = rows.clone()
    processor = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(9.0)])
    assert Greedy(processor)(EMPTY_TREE, rows, [1]).token_ids == (2,)
    assert torch.equal(rows, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_do_not_write_into_the_rows(dtype: torch.dtype) -> None:
    row = torch.tensor([0.0, 3.0, 2.0], dtype=dtype)
    before = row.clone()
    decision = Sampled(1).decide(row, [1])
    assert torch.equal(row, before)
    assert torch.equal(decision.scores, before)


def test_a_token_repeated_inside_one_block_is_penalised() -> None:
    """The path itself is history: the second 1 of the chain is never taken, though its row asks for it."""
    rows = torch.tensor([[0.0, 3.0, 2.0, 1.0]]).repeat(4, 1)
    processor = LogitsProcessorList([NoRepeatNGramLogitsProcessor(1)])
    verdict = Greedy(processor)(from_path([1, 1, 1]), rows, [0])
    assert verdict.token_ids == (1, 2)
    assert Greedy(processor)(from_path([1, 2, 3]), rows, [0]).token_ids == (1, 2, 3, 0)
