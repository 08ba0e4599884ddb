"""Faults at every stage of a round: the text stays exact where decoding goes on, and committed tokens stay."""

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from conformance.conftest import tiny
from helpers import PlannedDrafter, decode_ids, hf_generate, prompt
from oneglance.accept import Greedy
from oneglance.core import Drafter, OneglanceWarning, SamplingParams, TokenTree
from oneglance.decode import decode, first_nodes
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.stream import Stream
from oneglance.targets.base import Target
from oneglance.targets.loading import is_out_of_memory
from oneglance.targets.state import Inputs
from oneglance.testing import random_tree, tiny_head
from oneglance.text import TextStream
from oneglance.tree import best_first, from_path

NUM_TOKENS = 24
STAGES: dict[str, tuple[type, str]] = {
    "start": (BlockDrafter, "start"),
    "draft": (BlockDrafter, "draft"),
    "verify": (Target, "verify"),
    "accept": (Greedy, "__call__"),
    "text": (TextStream, "push"),
    "commit": (Target, "commit"),
}
ERRORS = {
    "exception": RuntimeError("injected"),
    "interrupt": KeyboardInterrupt(),
    "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
}


def problem() -> tuple[Target, Inputs, list[int]]:
    target = tiny("qwen3", "sdpa")
    inputs = prompt(target)
    return target, inputs, hf_generate(target, inputs, NUM_TOKENS)


def fail_once(patch: pytest.MonkeyPatch, stage: str, error: BaseException, *, at: int, late: bool = False) -> None:
    """Make the stage's call number ``at`` raise, before or after it did its work."""
    owner, name = STAGES[stage]
    right, calls = getattr(owner, name), iter(range(1 << 30))

    def faulty(*args: Any, **kwargs: Any) -> Any:
        is_due = next(calls) == at
        if is_due and not late:
            raise error
        result = right(*args, **kwargs)
        if is_due:
            raise error
        return result

    patch.setattr(owner, name, faulty)


def consume(stream: Stream) -> BaseException | None:
    try:
        for _ in stream:
            pass
    except BaseException as error:
        return error
    return None


def goes_on(stage: str, error: str) -> bool:
    return (stage in ("start", "draft") and error != "interrupt") or (stage == "verify" and error == "memory")


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_fault_at_any_stage(stage: str, kind: str, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    target, inputs, reference = problem()
    decoder = Decoder(target, BlockDrafter(tiny_head(target), target, budget=15))
    with warnings.catch_warnings(record=True) as said, monkeypatch.context() as patch:
        warnings.simplefilter("always")
        fail_once(patch, stage, ERRORS[kind], at=0 if stage == "start" else 2, late=late)
        stream = decoder.stream_inputs(inputs, SamplingParams(max_new_tokens=NUM_TOKENS))
        error = consume(stream)
    generation = stream.generation
    if goes_on(stage, kind):
        assert error is None
        assert generation.token_ids == reference
        assert len(said) == 1
        assert issubclass(said[0].category, OneglanceWarning)
        assert (generation.fell_back is not None) == (stage != "verify")
    else:
        assert error is ERRORS[kind]
        assert not said
        assert generation.finish_reason == "cancelled"
        assert 0 < len(generation.token_ids) < NUM_TOKENS
        assert generation.token_ids == reference[: len(generation.token_ids)]
        assert len(generation.token_ids) == 1 + sum(len(r.token_ids) for r in generation.rounds), "a token of no round"
        assert generation.text == target.tokenizer.decode(generation.token_ids, skip_special_tokens=True)
    assert decode_ids(decoder, inputs, NUM_TOKENS).generation.token_ids == reference
    assert next(stream, None) is None, "a stream that failed is at its end"


@pytest.mark.parametrize("kind", ["interrupt", "exception"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stage", ["draft", "verify", "accept", "text", "commit"])
def test_the_state_can_go_on_after_a_fault(stage: str, kind: str, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop leaves a state that is committed up to the last whole round: a new loop on it continues the text."""
    if stage == "commit" and late:
        pytest.skip("what was committed is committed")
    target, inputs, reference = problem()
    drafter = PlannedDrafter(reference, len(inputs.token_ids), target.vocab_size, budget=15, ranks=(0, 1, None))
    state = target.prefill(inputs)
    state.token_ids.append(reference[0])

    def text() -> TextStream:
        kept = len(state.token_ids) - len(inputs.token_ids)
        params = SamplingParams(max_new_tokens=NUM_TOKENS - kept)
        return TextStream(target.tokenizer, params, eos_ids=(), context_room=1000)

    if stage == "draft":
        monkeypatch.setitem(STAGES, "draft", (PlannedDrafter, "draft"))
    with monkeypatch.context() as patch:
        fail_once(patch, stage, ERRORS[kind], at=2, late=late)
        with pytest.raises(type(ERRORS[kind])):
            list(decode(target, drafter, Greedy(), state, reference[0], text()))
    assert state.pending is None
    assert state.length == len(state.token_ids) - 1
    assert 1 < len(state.token_ids) - len(inputs.token_ids) < NUM_TOKENS
    list(decode(target, drafter, Greedy(), state, state.token_ids[-1], text()))
    assert state.token_ids[len(inputs.token_ids) :] == reference


def out_of_memory_above(patch: pytest.MonkeyPatch, limit: int) -> list[int]:
    """Verify passes of more than ``limit`` nodes fail after the target has run. Returns the sizes that were tried."""
    right, sizes = Target.verify, []

    def verify(self: Target, state: Any, root: int, tree: TokenTree) -> torch.Tensor:
        sizes.append(len(tree))
        rows = right(self, state, root, tree)
        if len(tree) > limit:
            self.rollback(state)
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"
            )
        return rows

    patch.setattr(Target, "verify", verify)
    return sizes


@pytest.mark.parametrize(("limit", "largest"), [(40, 31), (31, 31), (20, 0), (0, 0)])
def test_out_of_memory_halves_the_tree_and_then_leaves_it(
    limit: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, inputs, reference = problem()
    drafter = PlannedDrafter(reference, len(inputs.token_ids), target.vocab_size, budget=63, policy=best_first)
    sizes = out_of_memory_above(monkeypatch, limit)
    decoder = Decoder(target, drafter)
    with pytest.warns(OneglanceWarning, match="ran out of memory; it is repeated with smaller trees") as said:
        generation = decode_ids(decoder, inputs, NUM_TOKENS).generation
    assert len(said) == 1
    assert generation.token_ids == reference
    assert sizes[0] > limit
    assert max(len(r.tree) for r in generation.rounds) <= largest
    failed = [size for size in sizes if size > limit]
    assert len(failed) == (1 if largest else 2), "what did not fit was tried again"


def test_a_single_step_that_does_not_fit_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    target, inputs, _ = problem()
    out_of_memory_above(monkeypatch, -1)
    with (
        pytest.warns(OneglanceWarning, match="out of memory"),
        pytest.raises(RuntimeError, match="can't allocate memory"),
    ):
        decode_ids(Decoder(target, BlockDrafter(tiny_head(target), target)), inputs, NUM_TOKENS)


def test_first_nodes_are_prefix_closed() -> None:
    tree = random_tree(random.Random(1), 9, budget=30, max_depth=6)
    for limit in range(31):
        part = first_nodes(tree, limit)
        assert len(part) == limit
        assert all(parent < node for node, parent in enumerate(part.parents, start=1))
    assert first_nodes(tree, None) is tree
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def nan_features(target: Target, patch: pytest.MonkeyPatch, after: int) -> None:
    """Features of every commit from number ``after`` on are NaN, as from a broken hook."""
    right, calls = Target.commit, iter(range(1 << 30))

    def commit(self: Target, state: Any, path: Any, token_ids: Any) -> None:
        right(self, state, path, token_ids)
        if next(calls) >= after and state.fresh:
            state.fresh[-1] = torch.full_like(state.fresh[-1], torch.nan)

    patch.setattr(Target, "commit", commit)


@pytest.mark.parametrize("after", [0, 3])
def test_nan_features_end_drafting_only(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target, inputs, reference = problem()
    decoder = Decoder(target, BlockDrafter(tiny_head(target), target, budget=15))
    nan_features(target, monkeypatch, after)
    with pytest.warns(OneglanceWarning, match="NaN"):
        generation = decode_ids(decoder, inputs, NUM_TOKENS).generation
    assert generation.token_ids == reference
    assert generation.num_draft_passes == after + 1
    assert "NaN" in (generation.fell_back or "")


class Wayward(PlannedDrafter):
    """A good drafter that does something wrong once, in its third round."""

    budget = 15

    def __init__(self, wrong: Callable[[TokenTree, int], Any], *args: Any, stage: str = "draft") -> None:
        super().__init__(*args, budget=15, ranks=(0, 1, None))
        self.wrong, self.stage = wrong, stage

    def start(self, state: Any) -> Any:
        return self

    def draft(self, root: int, state: Any, draft_state: Any, *, max_depth: int) -> Any:
        tree = super().draft(root, state, draft_state, max_depth=max_depth)
        return self.wrong(tree, max_depth) if self.stage == "draft" and self.calls == 3 else tree

    def num_passes(self, tree: TokenTree) -> Any:
        return self.wrong(tree, 0) if self.stage == "num_passes" and self.calls == 3 else 1

    def observe(self, done: Any) -> None:
        if self.stage == "observe" and self.calls == 3:
            self.wrong(done.tree, 0)


def fail(tree: TokenTree, max_depth: int) -> None:
    raise KeyError("nope")


def with_tokens(token: Any) -> Callable[[TokenTree, int], TokenTree]:
    """The last node holds another token."""
    return lambda tree, max_depth: TokenTree((*tree.token_ids[:-1], token), tree.parents, tree.depths, tree.scores)


def shorter_scores(tree: TokenTree, max_depth: int) -> TokenTree:
    return TokenTree(tree.token_ids, tree.parents, tree.depths, tree.scores[:-1])


WAYWARD: dict[str, tuple[str, Callable[[TokenTree, int], Any], str]] = {
    "raises": ("draft", fail, r"KeyError: 'nope'"),
    "nothing": ("draft", lambda tree, max_depth: None, "a NoneType, not a core.TokenTree"),
    "list": ("draft", lambda tree, max_depth: [1, 2], "a list, not a core.TokenTree"),
    "beyond the vocabulary": ("draft", with_tokens(10**7), r"token 10000000; the target's vocabulary has ids 0 to"),
    "just beyond": ("draft", lambda tree, _: with_tokens(VOCABULARY)(tree, 0), "the target's vocabulary has ids 0 to"),
    "negative": ("draft", with_tokens(-1), "token -1"),
    "float": ("draft", with_tokens(5.5), "token ids of type float, not int"),
    "tensor": ("draft", with_tokens(torch.tensor(5)), "token ids of type Tensor, not int"),
    "too deep": ("draft", lambda tree, max_depth: from_path([1] * (max_depth + 1)), "in a row where max_depth is"),
    "too wide": (
        "draft",
        lambda tree, _: TokenTree(tuple(range(16)), (0,) * 16, (1,) * 16),
        "16 nodes where its budget",
    ),
    "twins": ("draft", lambda tree, _: TokenTree((7, 7), (0, 0), (1, 1)), "the same token twice below one node"),
    "nan": ("draft", lambda tree, _: TokenTree((7,), (0,), (1,), (float("nan"),)), "scored a node with nan"),
    "scores": ("draft", shorter_scores, "a tree of 15 tokens has 14 scores"),
    "counts": ("num_passes", lambda tree, _: None, "TypeError: 'NoneType' object"),
    "count fails": ("num_passes", fail, r"KeyError: 'nope'"),
    "observer fails": ("observe", fail, r"KeyError: 'nope'"),
}
VOCABULARY = tiny("qwen3", "sdpa").vocab_size


@pytest.mark.parametrize("name", WAYWARD)
def test_a_drafter_that_breaks_its_word_ends_drafting_only(name: str) -> None:
    stage, wrong, message = WAYWARD[name]
    target, inputs, reference = problem()
    drafter = Wayward(wrong, reference, len(inputs.token_ids), target.vocab_size, stage=stage)
    told = f"the rest is decoded plainly: drafter {drafter.name}: .*{message}"
    with pytest.warns(OneglanceWarning, match=told) as said:
        generation = decode_ids(Decoder(target, drafter), inputs, NUM_TOKENS).generation
    assert len(said) == 1
    assert generation.token_ids == reference
    assert generation.fell_back
    drafted = [len(done.tree) > 0 for done in generation.rounds]
    num_drafted = 2 if stage == "draft" else 3
    assert drafted == [True] * num_drafted + [False] * (len(drafted) - num_drafted)
    assert len(drafted) > num_drafted


def broken_for(stream: Stream) -> None:
    for index, _ in enumerate(stream):
        if index == 2:
            raise ValueError("the consumer failed")


def left_with(stream: Stream) -> None:
    with stream:
        for index, _ in enumerate(stream):
            if index == 2:
                raise ValueError("the consumer failed")


def closed(stream: Stream) -> None:
    next(stream)
    next(stream)
    next(stream)
    stream.close()


def dropped(stream: Stream) -> None:
    next(stream)


@pytest.mark.parametrize("leave", [broken_for, left_with, closed, dropped])
def test_a_consumer_may_leave_at_any_time(leave: Callable[[Stream], None]) -> None:
    target, inputs, reference = problem()
    drafter: Drafter = BlockDrafter(tiny_head(target), target, budget=15)
    decoder = Decoder(target, drafter)
    stream = decoder.stream_inputs(inputs, SamplingParams(max_new_tokens=NUM_TOKENS))
    with contextlib.suppress(ValueError):
        leave(stream)
    generation = stream.generation
    assert generation.finish_reason == "cancelled"
    assert generation.token_ids == reference[: len(generation.token_ids)]
    del stream
    assert decode_ids(decoder, inputs, NUM_TOKENS).generation.token_ids == reference


def test_streams_may_take_turns() -> None:
    """Sequence state lives in the stream: two at a time on one object do not meet."""
    target, inputs, reference = problem()
    other = prompt(target, text="another text")
    expected = hf_generate(target, other, NUM_TOKENS)
    decoder = Decoder(target, BlockDrafter(tiny_head(target), target, budget=15))
    streams = [decoder.stream_inputs(i, SamplingParams(max_new_tokens=NUM_TOKENS)) for i in (inputs, other)]
    running: list[Iterator[Any]] = list(streams)
    while running:
        running = [stream for stream in running if next(stream, None) is not None]
    assert [stream.generation.token_ids for stream in streams] == [reference, expected]
