"""Draws follow the target's processed distribution, whatever the tree; parameters are checked in one line."""

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from oneglance.accept import Greedy, Rule, Sampled, gumbel, walk
from oneglance.core import EMPTY_TREE, InputError, SamplingParams, TokenTree
from oneglance.decoder import Decoder, SamplingOptions
from oneglance.testing import random_tree

VOCAB = 5
POSITIONS = 3
SEEDS = 1 << 40  # seeds of one test are consecutive from here

# Noise ------------------------------------------------------------------------------------------------------------


def test_noise_is_a_function_of_seed_and_position() -> None:
    assert torch.equal(gumbel(1, 7, 300), gumbel(1, 7, 300))
    assert torch.equal(gumbel(1, 7, 300)[:40], gumbel(1, 7, 40)), "a longer vocabulary changes no other id's noise"
    some = torch.tensor([7, 0, 299])
    assert torch.equal(gumbel(1, 7, 300, some), gumbel(1, 7, 300)[some])
    different = [gumbel(seed, position, 64) for seed in (0, 1, 2**64 - 1) for position in (0, 1, 2**32)]
    assert len({tuple(noise.tolist()) for noise in different}) == len(different)


def philox(key: int, position: int, block: int) -> list[int]:
    """Philox4x64-10 (Salmon et al. 2011, Fig. 2), by hand."""
    mask = 2**64 - 1
    counter, keys = [block, 0, 0, position], [key, 0]
    for _ in range(10):
        high0, low0 = divmod(counter[0] * 0xD2E7470EE14C6C93, 2**64)
        high1, low1 = divmod(counter[2] * 0xCA5A826395121157, 2**64)
        counter = [high1 ^ counter[1] ^ keys[0], low1, high0 ^ counter[3] ^ keys[1], low0]
        keys = [(keys[0] + 0x9E3779B97F4A7C15) & mask, (keys[1] + 0xBB67AE8584CAA73B) & mask]
    return counter


def test_noise_is_the_same_everywhere() -> None:
    """The words are Philox's, keyed by the seed, four a block, with the position in the counter's highest word."""
    words = [word for block in (1, 2) for word in philox(42, 9, block)]
    by_hand = [-math.log(-math.log(((word >> 12) + 0.5) / 2**52)) for word in words]
    assert gumbel(42, 9, 8).tolist() == pytest.approx(by_hand, abs=1e-12)


def test_noise_is_gumbel_and_uncorrelated_between_positions_and_seeds() -> None:
    noise = np.array([[gumbel(seed, position, 50).numpy() for position in range(20)] for seed in range(20)])
    assert np.isfinite(noise).all()
    assert stats.kstest(noise.ravel(), stats.gumbel_r.cdf).pvalue > 0.01
    for one, other in ((noise[:, 1:], noise[:, :-1]), (noise[1:], noise[:-1]), (noise[..., 1:], noise[..., :-1])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.03


# The distribution -------------------------------------------------------------------------------------------------

LOGITS = torch.tensor(np.random.default_rng(5).normal(scale=1.5, size=(VOCAB, VOCAB)), dtype=torch.float32)
TEMPERATURES = (0.3, 0.7, 1.0, 1.5)
FILTERS: dict[str, tuple[Any, Callable[[np.ndarray], np.ndarray]]] = {
    "none": (None, lambda p: np.ones(len(p), bool)),
    "top_k": (TopKLogitsWarper(3), lambda p: p >= np.sort(p)[-3]),
    "top_p": (TopPLogitsWarper(0.8), lambda p: mass_before(p) < 0.8),
    "min_p": (MinPLogitsWarper(0.15), lambda p: p >= 0.15 * p.max()),
}


def mass_before(p: np.ndarray) -> np.ndarray:
    """For each token, the mass of those that are likelier."""
    return np.array([p[p > own].sum() for own in p])


def expected_joint(temperature: float, keep: Callable[[np.ndarray], np.ndarray]) -> dict[tuple[int, ...], float]:
    """Probability of each string of three tokens of the Markov chain ``LOGITS`` that starts after token 0."""
    rows = []
    for logits in LOGITS.double().numpy() / temperature:
        p = np.exp(logits - logits.max())
        p /= p.sum()
        p = np.where(keep(p), p, 0)
        rows.append(p / p.sum())
    return {(a, b, c): rows[0][a] * rows[a][b] * rows[b][c] for a, b, c in product(range(VOCAB), repeat=POSITIONS)}


class Memo:
    """A stateless processor, called once a row instead of once a draw."""

    def __init__(self, processor: LogitsProcessorList) -> None:
        self.processor = processor
        self.known: dict[int, torch.Tensor] = {}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        last = int(input_ids[0, -1])
        if last not in self.known:
            self.known[last] = self.processor(input_ids, scores)
        return self.known[last]


def three_tokens(rule: Rule, tree_of: Callable[[], TokenTree]) -> tuple[int, ...]:
    """What the loop would draw after token 0 of the Markov chain, with trees from ``tree_of``."""
    tokens = [rule.first(LOGITS[0], [0])]
    while len(tokens) < POSITIONS:
        tree = tree_of()
        rows = LOGITS[[tokens[-1], *tree.token_ids]]
        tokens += rule(tree, rows, [0, *tokens]).token_ids
    return tuple(tokens[:POSITIONS])


def p_value(counts: Mapping[tuple[int, ...], int], expected: Mapping[tuple[int, ...], float]) -> float:
    """χ² of joint counts; rare strings are pooled."""
    total = sum(counts.values())
    impossible = [string for string in counts if expected[string] == 0]
    assert not impossible, f"drawn although filtered: {impossible}"
    frequent = [string for string, p in expected.items() if p * total >= 5]
    observed = [counts.get(string, 0) for string in frequent]
    wanted = [expected[string] * total for string in frequent]
    if total - sum(wanted) > 1:
        observed.append(total - sum(observed))
        wanted.append(total - sum(wanted))
    assert len(wanted) > 1
    return float(stats.chisquare(observed, np.array(wanted) * total / sum(wanted)).pvalue)


NUM_DRAWS = 100_000
NUM_WALKED = 2_000


@cache
def noise_of_seeds(num_draws: int) -> np.ndarray:
    """(draws, positions, V) noise of consecutive seeds, at the positions after token 0."""
    return np.stack(
        [[gumbel(SEEDS + seed, 1 + at, VOCAB).numpy() for at in range(POSITIONS)] for seed in range(num_draws)]
    )


def check_joint(temperature: float, kind: str, num_draws: int) -> None:
    """χ² of many draws at once, the first of which are also walked along trees by the rule itself."""
    warper, keep = FILTERS[kind]
    steps = [TemperatureLogitsWarper(temperature)] if temperature != 1 else []
    memo = Memo(LogitsProcessorList([*steps, *([warper] if warper else [])]))
    scores = torch.cat([memo(torch.tensor([[last]]), LOGITS[last][None].clone()) for last in range(VOCAB)])
    noise, last, drawn = noise_of_seeds(num_draws), np.zeros(num_draws, int), []
    for at in range(POSITIONS):
        last = (scores.double().numpy()[last] + noise[:, at]).argmax(axis=1)
        drawn.append(last)
    strings = list(zip(*(tokens.tolist() for tokens in drawn), strict=True))
    assert p_value(Counter(strings), expected_joint(temperature, keep)) > 1e-3
    rng = random.Random(f"{temperature} {kind}")
    trees = [random_tree(rng, VOCAB, budget=budget, max_depth=3) for budget in (0, 1, 2, 6, 12) for _ in range(20)]
    for seed in range(min(NUM_WALKED, num_draws)):
        assert three_tokens(Sampled(SEEDS + seed, memo), lambda: rng.choice(trees)) == strings[seed]


@pytest.mark.parametrize(("temperature", "kind"), [(0.7, "none"), (1.0, "top_p")])
def test_joint_distribution_in_small(temperature: float, kind: str) -> None:
    check_joint(temperature, kind, 3_000)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILTERS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_joint_distribution(temperature: float, kind: str) -> None:
    check_joint(temperature, kind, NUM_DRAWS)


@pytest.mark.parametrize("mistake", ["order of draws", "one noise for all positions", "noise of the offset"])
def test_the_check_of_the_distribution_can_fail(mistake: str) -> None:
    """Noise that is shared between positions makes joint draws dependent though each marginal is right."""

    class Wrong(Sampled):
        def decide(self, row: torch.Tensor, prefix: Any) -> Any:
            position = {"order of draws": len(prefix) // 2, "noise of the offset": len(prefix) % 2}.get(mistake, 1)
            return super().decide(row, [0] * position)

    counts = Counter(three_tokens(Wrong(SEEDS + seed), lambda: EMPTY_TREE) for seed in range(2_000))
    assert p_value(counts, expected_joint(1.0, FILTERS["none"][1])) < 1e-6


def test_draws_do_not_depend_on_the_tree() -> None:
    rng = random.Random(0)
    for seed in range(200):
        plain = three_tokens(Sampled(seed), lambda: EMPTY_TREE)
        for budget in (1, 4, 12):
            assert plain == three_tokens(Sampled(seed), lambda b=budget: random_tree(rng, VOCAB, budget=b, max_depth=3))


# Rules ------------------------------------------------------------------------------------------------------------


def test_processors_run_lazily_in_path_order() -> None:
    """Once a visited row, prefix and path in order: a processor that counts its calls is exact."""
    seen: list[list[int]] = []

    def record(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(input_ids[0].tolist())
        return scores

    tree = TokenTree((4, 1, 2, 3), (0, 0, 2, 3), (1, 1, 2, 3))
    rows = torch.nn.functional.one_hot(torch.tensor([1, 0, 2, 0, 4]), 5).float()
    for rule in (Greedy(record), Sampled(3, lambda ids, scores: record(ids, scores * 1e4))):
        seen.clear()
        verdict = rule(tree, rows, [7, 8])
        assert (verdict.path, verdict.token_ids) == ((0, 2, 3), (1, 2, 0))
        assert seen == [[7, 8], [7, 8, 1], [7, 8, 1, 2]]


def test_walk_stops_at_the_first_token_that_was_not_proposed() -> None:
    tree = TokenTree((4, 1, 2), (0, 0, 2), (1, 1, 2))
    assert walk(tree, lambda node, chosen: [1, 9, 9, 9][node]).token_ids == (1, 9)
    assert walk(tree, lambda node, chosen: 3).path == (0,)


def test_nothing_to_draw_is_an_error() -> None:
    rule = Sampled(0, lambda ids, scores: torch.full_like(scores, -torch.inf))
    with pytest.raises(InputError, match="no token to draw at position 2"):
        rule.first(LOGITS[0], [1, 2])
    with pytest.raises(InputError, match="nan"):
        Sampled(0).first(torch.full((4,), torch.nan), [1])


# Parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0, got -1"),
        ({"max_new_tokens": float("inf")}, "max_new_tokens must be at least 0, got inf"),
        ({"temperature": -0.1}, r"temperature must be 0 \(greedy\) or at least 0.001, got -0.1"),
        ({"temperature": 1e-9}, "temperature must be 0"),
        ({"temperature": float("nan")}, "temperature must be 0"),
        ({"temperature": "hot"}, "temperature must be 0 .* got 'hot'"),
        ({"top_k": -1}, "top_k must be a whole number"),
        ({"top_k": 1.5}, "top_k must be a whole number"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p must be above 0"),
        ({"min_p": 1.1}, "min_p must be between 0 and 1"),
        ({"repetition_penalty": 0}, "repetition_penalty must be above 0"),
        ({"frequency_penalty": 3}, "frequency_penalty must be between -2 and 2"),
        ({"presence_penalty": -3}, "presence_penalty must be between -2 and 2"),
        ({"min_new_tokens": -1}, "min_new_tokens must be at least 0"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens is 9 and max_new_tokens 8"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"seed": 2**64}, "seed must be a whole number"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"stop": "x"}, r"stop takes a sequence, got one value; write \[stop\]"),
        ({"stop": [""]}, "a stop string is empty"),
        ({"stop": ("a", 5)}, "a stop string must be a string, got 5"),
        ({"stop": None}, r"stop takes a sequence; leave it out, or write \[\]"),
        ({"stop": 5}, "stop takes a sequence"),
        ({"bad_words": [5]}, "a bad word must be a string or a sequence of token ids, got 5"),
        ({"logits_processors": None}, "logits_processors takes a sequence"),
        ({"max_new_tokens": None}, "max_new_tokens must be at least 0, got None"),
        ({"temperature": None}, "temperature must be 0"),
        ({"bad_words": "x"}, "bad_words takes a sequence"),
        ({"bad_words": [()]}, "a bad word is empty"),
        ({"logit_bias": {3: float("inf")}}, "logit_bias must be finite"),
        ({"logits_processors": len}, "logits_processors takes a sequence"),
    ],
)
def test_bad_parameters_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        SamplingParams(**options)
    assert "\n" not in str(error.value)


def test_options_are_the_fields() -> None:
    assert list(SamplingOptions.__annotations__) == [field.name for field in dataclasses.fields(SamplingParams)]


@pytest.mark.parametrize(
    "given",
    [
        {"logit_bias": [1, 2]},
        {"logit_bias": {True: 1.0}},
        {"logit_bias": {1: "x"}},
        {"logit_bias": {1: None}},
        {"bad_words": [b"a"]},
        {"max_new_tokens": True},
        {"max_new_tokens": 1.5},
    ],
)
def test_odd_values_are_refused_at_once(given: dict[str, object]) -> None:
    with pytest.raises(InputError):
        SamplingParams(**given)  # type: ignore[arg-type]


def test_whole_numbers_of_other_types_count() -> None:
    params = SamplingParams(max_new_tokens=20.0, top_k=np.int64(3))  # type: ignore[arg-type]
    assert (params.max_new_tokens, type(params.max_new_tokens), type(params.top_k)) == (20, int, int)


@pytest.mark.parametrize("function", ["generate", "stream"])
@pytest.mark.parametrize(("name", "near"), [("image", "images"), ("max_tokens", "max_new_tokens"), ("zzz", None)])
def test_an_unknown_argument_is_told_by_its_function(function: str, name: str, near: str | None) -> None:
    decoder: Any = Decoder(None, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError) as error:
        getattr(decoder, function)("x", **{name: "a"})
    advice = f"; did you mean '{near}'?" if near else ""
    assert str(error.value) == f"{function}() got an unexpected keyword argument '{name}'{advice}"
