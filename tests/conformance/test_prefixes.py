"""Reuse of earlier prompts' rows: the text of a fresh decoder, token for token, and no row or image computed twice."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import tiny_eagle3, tiny_medusa
from helpers import cache_rows, counting, picture, vision_encoder
from oneglance.core import InputError, OneglanceWarning
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.eagle3 import Eagle3Drafter
from oneglance.drafters.medusa import MedusaDrafter
from oneglance.drafters.ngram import NgramDrafter, NgramSettings
from oneglance.prefixes import PrefixStore, Reuse
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.state import Inputs
from oneglance.testing import CHAT_FAMILIES, VISION_FAMILIES, tiny_head, tiny_target

from .checks import CACHE_TOLERANCE, LOGIT_TOLERANCE, close

NUM_TOKENS = 6
SIZES = ((32, 32), (48, 32), (16, 64))
Messages = list[dict[str, Any]]


@cache
def fresh(family: str) -> Decoder:
    """A decoder that reuses nothing, and never ends by itself."""
    target = tiny_target(family, seed=5)
    target.model.generation_config.eos_token_id = None
    return Decoder(target, BlockDrafter(tiny_head(target), target, budget=7))


def user(text: str, *pictures: int) -> dict[str, Any]:
    images = [{"type": "image", "image": picture(seed, *SIZES[seed % 3])} for seed in pictures]
    return {"role": "user", "content": [*images, {"type": "text", "text": text}]}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def num_common(target: Target, one: Inputs, other: Sequence[int]) -> int:
    """Rows with which two sequences of ids begin alike, at least one of the first left over."""
    ids = one.token_ids
    return next((i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), min(len(ids) - 1, len(other)))


def check(decoder: Decoder, messages: Messages, **sampling: Any) -> tuple[Any, int]:
    """Generate with and without reuse; the generation with it, and how often the vision encoder ran."""
    options = {"max_new_tokens": NUM_TOKENS, **sampling}
    alone = Decoder(decoder.target, decoder.drafter).generate(messages, **options)
    with counting(vision_encoder(decoder.target) if decoder.target.takes_images else decoder.target.model) as passes:
        reusing = decoder.generate(messages, **options)
    assert reusing.token_ids == alone.token_ids
    assert reusing.text == alone.text
    assert [r.tree.token_ids for r in reusing.rounds] == [r.tree.token_ids for r in alone.rounds], "another draft"
    assert alone.num_reused == 0
    assert decoder.prefixes is not None
    assert check_memory(decoder.prefixes) <= decoder.prefixes.limit_bytes
    return reusing, len(passes)


def check_memory(store: PrefixStore) -> int:
    """The bytes that the store's tensors really hold are those that it counts."""
    tensors = [t for run in store._runs() for part in run.parts.values() for t in (*part.rows, *part.fixed)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.numel()}
    assert sum(storages.values()) == store.nbytes
    return store.nbytes


@pytest.mark.parametrize("family", CHAT_FAMILIES)
def test_every_turn_prefills_only_what_is_new(family: str) -> None:
    decoder = fresh(family).with_prefixes(64)
    target, messages, before = decoder.target, [{"role": "system", "content": "Be brief."}], None
    for turn in range(3):
        messages.append(user(f"question {turn}"))
        inputs = encode(target, messages)
        done, _ = check(decoder, messages)
        assert done.fell_back is None
        assert done.num_reused == (num_common(target, inputs, before) if before else 0)
        before = [*inputs.token_ids, *done.token_ids[:-1]]
        messages.append(said(done.text))
    assert done.num_reused > 40


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_images_are_encoded_once(family: str) -> None:
    decoder = fresh(family).with_prefixes(64)
    has_rows = decoder.target.has_image_rows
    _, passes = check(decoder, [user("first", 1)])
    assert passes == 1
    done, passes = check(decoder, [user("another question", 1)])  # the same picture, by content
    assert (passes, done.num_reused > 4) == (0, True)
    done, passes = check(decoder, [user("first", 2)])
    assert passes == 1
    shown = [user("first", 1), said("yes"), user("and this?", 2)]  # an image comes in a later turn
    done, passes = check(decoder, shown)
    assert (passes, done.num_reused > 20) == (1, has_rows)
    done, passes = check(decoder, [*shown, said("no"), user("so?")])
    assert (passes, done.num_reused > 40) == (0, True)
    both = [user("first", 1, 2)]
    done, passes = check(decoder, both)  # the images of ``shown``, in another place: cross-attention has them both
    assert (passes, done.num_reused > 4) == (has_rows, True)
    done, passes = check(decoder, [user("second", 1, 2)])
    assert passes == 0
    done, passes = check(decoder, [user("first", 2, 1)])  # other order, other prompt
    assert passes == 1
    done, passes = check(decoder, [user("no image at all")])
    assert passes == 0


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_only_new_images_reach_the_vision_encoder(family: str) -> None:
    decoder = fresh(family).with_prefixes(64)
    target = decoder.target
    check(decoder, [user("first", 1)])
    seen = []
    handle = vision_encoder(target).register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(args[0] if args else kwargs["pixel_values"]), with_kwargs=True
    )
    decoder.generate([user("first", 1), said("a"), user("b", 2)], max_new_tokens=2)
    handle.remove()
    alone = encode(target, [user("b", 2)]).tensors["pixel_values"]
    [pixels] = seen
    if target.has_image_rows:
        torch.testing.assert_close(pixels.flatten(), alone.flatten())
    else:
        assert pixels.numel() > alone.numel(), "cross-attention needs all of them anew"


@pytest.mark.parametrize("family", CHAT_FAMILIES)
def test_edited_turns_share_what_comes_before(family: str) -> None:
    decoder = fresh(family).with_prefixes(64)
    pictures = (3,) if decoder.target.takes_images else ()
    start = [user("look at this", *pictures), said("I see it well.")]
    for last in ("What is it?", "Where is it?", "What is it?"):
        done, _ = check(decoder, [*start, user(last), said("hm"), user("sure?")])
    assert done.num_reused == len(encode(decoder.target, [*start, user(last), said("hm"), user("sure?")]).token_ids) - 1
    edited = [user("look at that", *pictures), *start[1:], user("What is it?")]
    done, _ = check(decoder, edited)
    assert 0 < done.num_reused < 40


@pytest.mark.parametrize("family", CHAT_FAMILIES)
def test_a_continued_state_is_that_of_a_whole_pass(family: str) -> None:
    decoder = fresh(family).with_prefixes(64)
    target, drafter, store = decoder.target, decoder.drafter, decoder.prefixes
    assert store is not None
    pictures = (1,) if target.takes_images else ()
    turns = [user("first", *pictures)]
    decoder.generate(turns, max_new_tokens=NUM_TOKENS)
    later = (2,) if target.has_image_rows and target.takes_images else ()
    inputs = encode(target, [*turns, said("yes"), user("second", *later)])
    reuse = Reuse(store, target, drafter, inputs)
    state, whole = reuse.prefill(), target.prefill(inputs, drafter.target_layer_ids)
    assert reuse.num_rows > 10
    assert (state.length, state.rope_delta, state.token_ids) == (whole.length, whole.rope_delta, whole.token_ids)
    close(state.last_row, whole.last_row, LOGIT_TOLERANCE, "last row")
    layers = range(target.num_layers)
    for index, pairs in enumerate(zip(cache_rows(state.cache, layers), cache_rows(whole.cache, layers), strict=True)):
        for actual, wanted in zip(*pairs, strict=True):
            close(actual, wanted, CACHE_TOLERANCE * max(1.0, float(wanted.abs().max())), f"cache of layer {index}")
    own, other = drafter.start(state), drafter.start(whole)
    for actual, wanted in zip(own.rows(state), other.rows(whole), strict=True):
        close(actual, wanted, 1e-4, "draft rows")


@pytest.mark.parametrize("family", ["qwen3_vl", "mllama", "llama"])
def test_sampling_with_a_seed(family: str) -> None:
    decoder = fresh(family).with_prefixes(64)
    pictures = (1,) if decoder.target.takes_images else ()
    for seed in range(2):
        done, _ = check(decoder, [user("first", *pictures)], temperature=0.9, seed=seed, logprobs=2)
        assert (done.num_reused > 0) == (seed > 0)
        done, _ = check(decoder, [user("first", *pictures), said(done.text), user("?")], temperature=0.9, seed=seed)
        assert done.num_reused > 10


def test_drafters_without_rows_start_from_the_targets() -> None:
    target = fresh("qwen3_vl").target
    for drafter, reuses in (
        (NgramDrafter(target, NgramSettings()), True),
        (MedusaDrafter(tiny_medusa(target), target, budget=7), True),
        (Eagle3Drafter(tiny_eagle3(target), target, budget=7), False),  # reads the features of the whole prompt
    ):
        decoder = Decoder(target, drafter).with_prefixes(64)
        check(decoder, [user("first", 1)])
        done, passes = check(decoder, [user("first", 1), said("a"), user("b")])
        assert (done.num_reused > 10, passes) == (reuses, not reuses), drafter.name
        assert done.fell_back is None
        # plain decoding may use what this one left, and not the other way round where rows of the drafter are missing
        plain = decoder.plain()
        done, passes = check(plain, [user("first", 1), said("other"), user("b")])
        assert (done.num_reused > 10, passes) == (True, 0)


def test_what_plain_decoding_leaves_is_completed_by_the_head() -> None:
    decoder = fresh("qwen3_vl").with_prefixes(64)
    messages = [user("first", 1)]
    assert check(decoder.plain(), messages)[0].num_reused == 0
    assert check(decoder, messages)[0].num_reused == 0, "there are no draft rows yet"
    for other in (decoder, decoder.with_budget(3), decoder.plain()):
        assert check(other, messages)[0].num_reused == len(encode(decoder.target, messages).token_ids) - 1


def test_raw_ids_that_end_inside_an_image_begin_before_it() -> None:
    decoder = fresh("qwen3_vl").with_prefixes(64)
    target = decoder.target
    inputs = encode(target, [user("", 1)])
    end = int(target.image_rows(inputs)[-1]) + 1
    cut = {**inputs.tensors, "input_ids": inputs.tensors["input_ids"][:, :end]}
    cut.pop("mm_token_type_ids", None)
    first = decoder.generate_ids(**cut, max_new_tokens=4)
    with counting(vision_encoder(target)) as passes:
        assert torch.equal(decoder.generate_ids(**cut, max_new_tokens=4), first)
    assert len(passes) == 1, "the last row needs a pass, and so does its image"


@pytest.mark.parametrize("limit_kb", [1, 150, 10_000])
def test_memory_stays_within_the_limit(limit_kb: int) -> None:
    plain = fresh("qwen3")
    decoder = Decoder(plain.target, plain.drafter, PrefixStore(limit_kb * 1024))
    reused = []
    for index in range(8):
        messages = [user(f"{index % 4} has its own beginning"), said("ok"), user(f"{index}")]
        reused.append(check(decoder, messages)[0].num_reused)
    assert decoder.prefixes is not None
    assert (decoder.prefixes.nbytes > 0) == (limit_kb > 1)
    assert min(reused[4:]) > 40 if limit_kb == 10_000 else max(reused[4:]) < 30
    decoder.prefixes.clear()
    assert check_memory(decoder.prefixes) == 0


def test_the_least_recently_used_goes_first() -> None:
    plain = fresh("qwen3")
    one = plain.with_prefixes(64)
    check(one, [user("a" * 40)])
    assert one.prefixes is not None
    size = one.prefixes.nbytes
    decoder = Decoder(plain.target, plain.drafter, PrefixStore(2 * size + size // 2))
    for letter in "abac":
        check(decoder, [user(letter * 40)])
    assert check(decoder, [user("a" * 40 + "?")])[0].num_reused > 40
    assert check(decoder, [user("b" * 40 + "?")])[0].num_reused < 40


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
@pytest.mark.parametrize("stage", ["verify", "commit"])
def test_interrupted_generations_leave_the_store_usable(
    stage: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = fresh("qwen3_vl").with_prefixes(64)
    target, messages, calls = decoder.target, [user("first", 1)], []
    original = getattr(target, stage)

    def failing(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise error
        return original(*args)

    monkeypatch.setattr(target, stage, failing)
    with pytest.raises(type(error)):
        decoder.generate(messages, max_new_tokens=NUM_TOKENS)
    monkeypatch.undo()
    done, _ = check(decoder, messages)
    assert (done.num_reused > 0) == isinstance(error, KeyboardInterrupt)
    assert check(decoder, [*messages, said(done.text), user("more")])[0].num_reused > 10


def test_a_stream_that_is_left_keeps_its_rows() -> None:
    decoder = fresh("qwen3_vl").with_prefixes(64)
    for steps in range(3):
        messages = [user(f"{steps} is the number", steps)]
        with decoder.stream(messages, max_new_tokens=NUM_TOKENS) as stream:
            for _ in range(steps):
                next(stream)
        done, passes = check(decoder, messages)
        assert (done.num_reused > 10, passes) == (steps > 0, steps == 0)


def test_memory_that_runs_out_costs_the_store_only(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = fresh("qwen3").with_prefixes(64)
    messages = [user("first")]
    check(decoder, messages)
    assert decoder.prefixes is not None
    with monkeypatch.context() as patch:
        patch.setattr("oneglance.prefixes.hf.filled", raising)
        done = decoder.generate(messages, max_new_tokens=NUM_TOKENS)
    assert done.num_reused == 0
    with monkeypatch.context() as patch:
        patch.setattr("oneglance.prefixes.hf.cached_rows", raising)
        with pytest.warns(OneglanceWarning, match="smaller limit"):
            assert decoder.generate(messages, max_new_tokens=NUM_TOKENS).token_ids == done.token_ids
    assert check(decoder, messages)[0].token_ids == done.token_ids


def raising(*_: Any) -> Any:
    raise torch.OutOfMemoryError("out of memory")


def test_limits_must_be_positive() -> None:
    with pytest.raises(InputError, match="above 0"):
        fresh("qwen3").with_prefixes(-1)
    assert fresh("qwen3").with_prefixes(0).prefixes is None


@settings(max_examples=max(10, settings.default.max_examples // 15))  # each is a dozen generations
@given(data=st.data())
def test_any_series_of_conversations(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(CHAT_FAMILIES), "family")
    plain = fresh(family)
    decoder = Decoder(plain.target, plain.drafter, PrefixStore(data.draw(st.sampled_from([60, 200, 10_000])) * 1024))
    turn = st.tuples(st.sampled_from(["a", "ab", "b c"]), st.lists(st.integers(0, 2), max_size=2))
    for _ in range(data.draw(st.integers(2, 3), "conversations")):
        messages: Messages = []
        for text, pictures in data.draw(st.lists(turn, min_size=1, max_size=3), "turns"):
            messages.append(user(text, *(pictures if plain.target.takes_images else [])))
            use = decoder if data.draw(st.booleans(), "drafts") else decoder.plain()
            done, _ = check(use, messages, max_new_tokens=data.draw(st.integers(1, 6), "cap"))
            messages.append(said(done.text))
