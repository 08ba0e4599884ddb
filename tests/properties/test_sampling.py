"""Seeded draws under everything at once: temperatures, filters, penalties, biases, budgets, trees, gates and heads.

The plain loop of the audit draws with the same seed, a token a pass.
"""

import os
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from helpers import prompt
from oneglance.core import SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.reference import reference
from oneglance.targets.passes import FixedShape
from oneglance.testing import FAMILIES, VISION_FAMILIES, lucky_drafter, tiny_head
from oneglance.tree import POLICIES
from properties.test_identity import target_of

CAP = 14
IS_FUZZ = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"


@st.composite
def options(draw: st.DrawFn, cap: int) -> dict[str, Any]:
    """Parameters of which each is at its default half of the time."""
    ranges: dict[str, st.SearchStrategy[Any]] = {
        "temperature": st.floats(0.05, 3.0),
        "top_k": st.integers(1, 300),
        "top_p": st.floats(0.05, 1.0),
        "min_p": st.floats(0.0, 0.9),
        "repetition_penalty": st.floats(0.5, 2.0),
        "frequency_penalty": st.floats(-2, 2),
        "presence_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, 200), st.floats(-20, 20), min_size=1, max_size=3),
        "bad_words": st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=2), min_size=1, max_size=3),
        "min_new_tokens": st.integers(0, cap),
        "gate": st.floats(0, 3),
    }
    chosen = {name: draw(values, name) for name, values in ranges.items() if draw(st.booleans())}
    return {**chosen, "seed": draw(st.integers(0, 2**64 - 1), "seed")}


@settings(max_examples=settings.default.max_examples if IS_FUZZ else 40)  # a slice in `make test`
@given(data=st.data())
def test_drafted_draws_are_the_plain_ones(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(FAMILIES), "family")
    target = target_of(family)
    if data.draw(st.integers(0, 4)) == 0:
        target = target.with_passes(FixedShape.for_budget(40))
    inputs = prompt(target, data.draw(st.integers(0, 1)) if family in VISION_FAMILIES else 0)
    cap = data.draw(st.integers(1, CAP), "cap")
    params = SamplingParams(**data.draw(options(cap), "options"), max_new_tokens=cap)
    event("drawn" if params.temperature else "greedy")
    truth = reference(target, inputs, max_new_tokens=params.max_new_tokens, params=params)
    seed, budget = data.draw(st.integers(0, 99), "trees"), data.draw(st.integers(1, 40), "budget")
    if data.draw(st.booleans(), "head"):
        policy = POLICIES[data.draw(st.sampled_from(sorted(POLICIES)))]
        drafter: Any = BlockDrafter(tiny_head(target, seed=seed), target, policy=policy, budget=budget)
    else:
        drafter = lucky_drafter(
            truth.token_ids, len(inputs.token_ids), seed=seed, budget=budget, vocab_size=target.vocab_size
        )
    for _ in (stream := Decoder(target, drafter).stream_inputs(inputs, params)):
        pass
    assert stream.generation.token_ids == truth.token_ids
