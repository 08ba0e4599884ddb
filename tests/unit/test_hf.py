"""What this package assumes of transformers: caches that can be gathered and rolled back."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.cache_utils import Cache

from oneglance.core import TargetError
from oneglance.targets import hf

CONFIG = transformers.Qwen3Config(num_hidden_layers=3, hidden_size=8, num_attention_heads=2, vocab_size=10)


def filled(*lengths: int) -> Cache:
    """A cache whose row i of every layer holds the number i."""
    cache = hf.new_cache(CONFIG)
    for layer, length in enumerate(lengths):
        append(cache, layer, range(length))
    return cache


def append(cache: Cache, layer: int, rows: Sequence[int]) -> None:
    states = torch.tensor(list(rows), dtype=torch.float32)[None, None, :, None].expand(1, 2, -1, 4)
    cache.update(states, -states, layer)


def rows_of(cache: Cache, layer: int) -> list[int]:
    keys: Tensor = cache.layers[layer].keys
    values: Tensor = cache.layers[layer].values
    assert torch.equal(keys, -values)
    assert bool((keys == keys[:1, :1, :, :1]).all())
    return [int(row) for row in keys[0, 0, :, 0]]


@pytest.mark.parametrize(
    ("path", "num_rows", "expected"),
    [
        ([0], 1, [0, 1, 2, 3]),  # a single step: nothing to drop
        ([0, 1, 2], 3, [0, 1, 2, 3, 4, 5]),  # a chain that was accepted to its end
        ([0], 4, [0, 1, 2, 3]),
        ([0, 1], 4, [0, 1, 2, 3, 4]),  # contiguous
        ([0, 2], 4, [0, 1, 2, 3, 5]),  # a rank-2 child
        ([0, 1, 3], 4, [0, 1, 2, 3, 4, 6]),
        ([0, 2, 5, 6], 8, [0, 1, 2, 3, 5, 8, 9]),
    ],
)
def test_rows_of_the_accepted_path_are_kept(path: list[int], num_rows: int, expected: list[int]) -> None:
    cache = filled(3 + num_rows, 3 + num_rows, 9)
    hf.keep_rows(cache, [0, 1], 3, path, num_rows)
    assert rows_of(cache, 0) == rows_of(cache, 1) == expected
    assert rows_of(cache, 2) == list(range(9)), "a layer that is not named is left alone"
    append(cache, 0, [77])
    assert rows_of(cache, 0) == [*expected, 77]


@pytest.mark.parametrize("seed", range(5))
def test_many_rounds_equal_a_list(seed: int) -> None:
    rng = random.Random(seed)
    cache, kept = filled(4), [0, 1, 2, 3]
    for turn in range(20):
        num_rows = rng.randint(1, 9)
        packed = [100 * turn + i for i in range(num_rows)]
        append(cache, 0, packed)
        path = [0, *sorted(rng.sample(range(1, num_rows), rng.randint(0, num_rows - 1)))]
        hf.keep_rows(cache, [0], len(kept), path, num_rows)
        kept += [packed[i] for i in path]
        assert rows_of(cache, 0) == kept
        assert hf.cached_length(cache, 0) == len(kept)


@pytest.mark.parametrize("dropped", [0, 1, 5])
def test_crop_drops_that_many_rows_and_none_for_zero(dropped: int) -> None:
    """``rollback`` and ``keep_rows`` rest on this; its meaning has changed between versions."""
    cache = filled(5)
    cache.layers[0].crop(-dropped)
    assert hf.cached_length(cache, 0) == 5 - dropped
    append(cache, 0, [9])
    assert rows_of(cache, 0) == [*range(5 - dropped), 9]


def test_an_empty_layer_has_no_rows() -> None:
    assert hf.cached_length(filled(), 0) == 0


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_the_cache_argument_is_found_by_name(name: str) -> None:
    namespace: dict[str, type[nn.Module]] = {}
    exec(f"class M(nn.Module):\n    def forward(self, input_ids, {name}=None): ...", {"nn": nn}, namespace)
    assert hf.cache_keyword(namespace["M"]()) == name


def model_with(**generation: Any) -> transformers.PreTrainedModel:
    model = transformers.AutoModelForCausalLM.from_config(CONFIG)
    model.generation_config.update(**generation)
    return model


def test_greedy_config_changes_a_copy() -> None:
    model = model_with(do_sample=True, temperature=0.7, repetition_penalty=1.2, max_length=5)
    config = hf.greedy_config(model, max_new_tokens=7)
    assert (config.do_sample, config.max_length, config.max_new_tokens) == (False, None, 7)
    assert config.repetition_penalty == 1.2
    assert (model.generation_config.do_sample, model.generation_config.max_length) == (True, 5)


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"num_beams": 4}, "num_beams=4"),
        ({"stop_strings": ["\n\n"]}, r"stop_strings=.* and give stop="),
        ({"guidance_scale": 1.5}, r"guidance_scale=1\.5"),
    ],
)
def test_another_search_than_token_by_token_is_refused_by_name(generation: dict[str, Any], message: str) -> None:
    """``generate(do_sample=False)`` would not give the argmax of each row."""
    with pytest.raises(TargetError, match=f"generation config sets {message}"):
        hf.greedy_config(model_with(**generation), max_new_tokens=7)
    hf.greedy_config(model_with(num_beams=1, guidance_scale=1.0), max_new_tokens=7)


@pytest.mark.parametrize(
    ("generation", "cap"),
    [({}, None), ({"max_length": 9}, "max_length=9"), ({"max_new_tokens": 4, "max_length": 9}, "max_new_tokens=4")],
)
def test_the_configs_own_cap_is_known(generation: dict[str, Any], cap: str | None) -> None:
    assert hf.own_cap(model_with(**generation)) == cap
