"""Identity under everything at once: prompts, pictures, caps, stop strings, end-of-sequence ids, budgets and luck."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from hypothesis import event, given
from hypothesis import strategies as st

from helpers import PlannedDrafter, decode_ids, hf_generate, noise, picture
from oneglance.core import Drafter
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.state import Inputs
from oneglance.testing import FAMILIES, VISION_FAMILIES, lucky_drafter, tiny_head, tiny_target
from oneglance.tree import POLICIES

MAX_TOKENS = 24
SIZES = ((32, 32), (64, 32), (16, 48), (80, 80), (17, 33))


@cache
def target_of(family: str) -> Target:
    return tiny_target(family, seed=3)


@cache
def encoded(family: str, text: str, sizes: tuple[tuple[int, int], ...], seed: int) -> tuple[Inputs, list[int]]:
    """A prompt and the oracle's continuation, with no end-of-sequence id in the way."""
    target = target_of(family)
    images = [picture(seed + i, width, height) for i, (width, height) in enumerate(sizes)]
    inputs = encode(target, text, images=images, audio=noise(seed) if target.takes_audio else None)
    with end_of_sequence(target, None):
        return inputs, hf_generate(target, inputs, MAX_TOKENS)


@contextmanager
def end_of_sequence(target: Target, ids: list[int] | None) -> Iterator[None]:
    config = target.model.generation_config
    before, config.eos_token_id = config.eos_token_id, ids
    try:
        yield
    finally:
        config.eos_token_id = before


@dataclass(frozen=True)
class Expected:
    token_ids: list[int]
    text: str
    finish_reason: str


def expect(target: Target, stream: Sequence[int], cap: int, stop: Sequence[str], eos: Sequence[int]) -> Expected:
    """One token at a time, decoding everything so far anew: the slow and obvious way."""
    kept: list[int] = []
    text = ""
    for token in stream[:cap]:
        kept.append(token)
        if token in eos:
            return Expected(kept, text, "stop")
        text = target.tokenizer.decode(kept, skip_special_tokens=True)
        hits = [text.find(s) for s in stop if s in text]
        if hits:
            return Expected(kept, text[: min(hits)], "stop")
    return Expected(kept, text, "length")


def substrings(text: str) -> st.SearchStrategy[str]:
    """Stop strings that occur in ``text``; half a character never counts as one."""
    runs = [run for run in text.split("\N{REPLACEMENT CHARACTER}") if run]
    if not runs:
        return st.just("never")
    pieces = st.sampled_from(runs).flatmap(
        lambda run: st.tuples(st.integers(0, len(run) - 1), st.integers(1, 4)).map(lambda at: run[at[0] :][: at[1]])
    )
    return st.one_of(pieces, st.sampled_from(["never", "zz", "é"]))


@st.composite
def drafters(draw: st.DrawFn, target: Target, inputs: Inputs, reference: Sequence[int]) -> Drafter:
    kind = draw(st.sampled_from(["head", "planned", "random trees", "none"]))
    event(f"drafter: {kind}")
    budget = draw(st.one_of(st.sampled_from([1, 2, 15, 31, 63, 127]), st.integers(1, 127)))
    policy = POLICIES[draw(st.sampled_from(sorted(POLICIES)))]
    seed = draw(st.integers(0, 2**16))
    length = len(inputs.token_ids)
    if kind == "head":
        branch_k = draw(st.one_of(st.none(), st.integers(1, 8)))
        num_layers = draw(st.integers(1, 3))
        head = tiny_head(target, seed=seed, num_layers=num_layers)
        return BlockDrafter(head, target, policy=policy, budget=budget, branch_k=branch_k)
    if kind == "planned":
        ranks = draw(st.lists(st.one_of(st.integers(0, 3), st.none()), min_size=1, max_size=5))
        return PlannedDrafter(reference, length, target.vocab_size, policy=policy, budget=budget, ranks=ranks)
    if kind == "random trees":
        return lucky_drafter(reference, length, seed=seed, budget=budget, vocab_size=target.vocab_size)
    return NoDrafter()


@given(data=st.data())
def test_output_is_the_targets_own(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(FAMILIES), "family")
    num_images = data.draw(st.sampled_from([0, 1, 1, 2, 2, 8]), "images") if family in VISION_FAMILIES else 0
    sizes = tuple(data.draw(st.lists(st.sampled_from(SIZES), min_size=num_images, max_size=num_images), "sizes"))
    text = data.draw(st.text(min_size=0 if num_images else 1, max_size=10), "text")
    target = target_of(family)
    inputs, stream = encoded(family, text, sizes, data.draw(st.integers(0, 3), "picture seed"))
    cap = data.draw(st.one_of(st.integers(0, MAX_TOKENS), st.just(MAX_TOKENS)), "cap")
    eos = data.draw(st.lists(st.sampled_from([*stream, 0, 1]), max_size=2), "eos")
    # what plain decoding would write if it never stopped
    stop = data.draw(st.lists(substrings(target.tokenizer.decode(stream)), max_size=2), "stop")
    drafter = data.draw(drafters(target, inputs, stream), "drafter")
    expected = expect(target, stream, cap, stop, eos)
    event(f"ends by {expected.finish_reason}")
    with end_of_sequence(target, eos or None):
        run = decode_ids(Decoder(target, drafter), inputs, cap, stop=stop)
    generation = run.generation
    assert generation.token_ids == expected.token_ids
    assert generation.text == expected.text
    assert generation.finish_reason == expected.finish_reason
    if eos and not stop:
        with end_of_sequence(target, eos):
            assert hf_generate(target, inputs, cap) == expected.token_ids if cap else not expected.token_ids
    if generation.rounds:
        assert generation.num_tokens == 1 + sum(len(r.token_ids) for r in generation.rounds)
