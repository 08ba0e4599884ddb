"""Cache layers that are written in place, against transformers' own, which concatenate."""

import random

import pytest
import torch
import transformers
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from helpers import prompt
from oneglance.targets import hf, kv
from oneglance.testing import tiny_target

CONFIG = transformers.Qwen3Config(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, vocab_size=10)
GROWTH = 16


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "GROWTH", GROWTH)


def rows(count: int) -> Tensor:
    return torch.randn(1, 2, count, 4)


def assert_equal(ours: Cache, theirs: Cache) -> None:
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        assert mine.get_seq_length() == other.get_seq_length()
        assert torch.equal(mine.keys, other.keys)
        assert torch.equal(mine.values, other.values)


@pytest.mark.parametrize("seed", range(4))
def test_any_rounds_leave_what_concatenation_leaves(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    ours, theirs = hf.roomy_cache(CONFIG, (0, 1), 64), hf.new_cache(CONFIG)
    length = 0
    for _ in range(30):
        count = rng.randint(1, 9)
        for layer in (0, 1):
            keys, values = rows(count), rows(count)
            mine, other = ours.update(keys, values, layer), theirs.update(keys, values, layer)
            assert torch.equal(mine[0], other[0])
            assert torch.equal(mine[1], other[1])
        path = [0, *sorted(rng.sample(range(1, count), rng.randint(0, count - 1)))]
        for cache in (ours, theirs):
            hf.keep_rows(cache, (0, 1), length, path, count)
        length += len(path)
        assert_equal(ours, theirs)
        if rng.random() < 0.2:
            for cache in (ours, theirs):
                for layer in cache.layers:
                    layer.crop(-(length // 2))
            length -= length // 2
            assert_equal(ours, theirs)


def layer_with(count: int, limit: int) -> kv.RoomyLayer:
    layer = kv.RoomyLayer(limit)
    layer.update(rows(count), rows(count))
    return layer


def test_a_pass_that_fits_moves_nothing() -> None:
    layer = layer_with(5, limit=1000)
    assert layer.room is not None
    place = layer.keys.data_ptr()
    for _ in range(4):
        layer.update(rows(11), rows(11))
        assert (layer.keys.data_ptr(), layer.capacity) == (place, GROWTH)
        layer.crop(-11)


@pytest.mark.parametrize(("count", "limit", "capacity"), [(1, 64, 16), (16, 64, 16), (17, 64, 32), (17, 20, 20)])
def test_it_grows_in_steps_up_to_the_context(count: int, limit: int, capacity: int) -> None:
    layer = layer_with(count, limit)
    assert layer.capacity == capacity
    assert layer.room is not None
    assert not bool(layer.room[0][:, :, count:].any()), "room is zero until it is written"


def test_packed_rows_may_pass_the_context_while_they_are_pending() -> None:
    layer = layer_with(18, limit=20)
    kept = layer.keys.clone()
    layer.update(rows(7), rows(7))
    assert layer.get_seq_length() == layer.capacity == 25
    layer.crop(-7)
    assert torch.equal(layer.keys, kept)


def test_reset_forgets_the_room() -> None:
    layer = layer_with(5, limit=64)
    layer.reset()
    assert (layer.get_seq_length(), layer.capacity) == (0, 0)
    keys, _ = layer.update(rows(2), rows(2))
    assert keys.shape[2] == 2


def test_cross_attention_keeps_transformers_own_layers() -> None:
    target = tiny_target("mllama")
    cache = target.prefill(prompt(target, 1)).cache
    kinds = [type(layer) for layer in cache.layers]
    assert kinds == [kv.RoomyLayer if i in target.self_attention_layers else DynamicLayer for i in range(6)]
