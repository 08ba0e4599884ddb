"""Structured output: a match always, and identical to constrained plain decoding whatever the drafter."""

import json
import random
import re
import sys
from functools import cache
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

from conformance.conftest import tiny
from conformance.test_sampling import oracle, sampled
from helpers import PlannedDrafter, path_to, prompt
from oneglance.core import Drafter, InputError, SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.plain import NoDrafter
from oneglance.drafters.pruned import Pruned
from oneglance.targets.base import Target
from oneglance.targets.grammar import grammar_mask
from oneglance.targets.state import Inputs
from oneglance.testing import lucky_drafter, random_tree, tiny_head, tiny_target
from oneglance.tree import best_first, chain

llguidance = pytest.importorskip("llguidance")

NUM_TOKENS = 80
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["receipt", "letter", "form"]},
        "total": {"type": "integer", "minimum": 0, "maximum": 9999},
        "names": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["kind", "total", "names"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
REGEX = r"(INV|PO)-[0-9]{4,6}( (paid|due [0-9]{2}/[0-9]{2})){0,2}"
GRAMMARS: dict[str, dict[str, Any]] = {"json": {"json_schema": SCHEMA}, "regex": {"regex": REGEX}}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.2, "top_p": 0.9},
    "penalised": {"frequency_penalty": 1.0, "temperature": 0.6},
}


class Constrained(LogitsProcessor):
    """A matcher made anew at every step."""

    def __init__(self, target: Target, prompt_length: int, grammar: str) -> None:
        from llguidance.hf import from_tokenizer

        self.tokenizer = from_tokenizer(target.tokenizer, target.vocab_size, list(target.eos_ids))
        self.prompt_length, self.grammar = prompt_length, grammar

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        matcher = llguidance.LLMatcher(self.tokenizer, self.grammar)
        assert matcher.consume_tokens(input_ids[0, self.prompt_length :].tolist())
        bias = torch.frombuffer(bytearray(matcher.compute_logit_bias()), dtype=torch.uint8)
        return scores.masked_fill(bias[None] == 0, -torch.inf)


@cache
def problem(kind: str, setting: str) -> tuple[Target, Inputs, list[int]]:
    target = tiny("qwen3", "sdpa")
    inputs = prompt(target)
    matcher = llguidance.LLMatcher
    grammar = matcher.grammar_from_json_schema(SCHEMA) if kind == "json" else matcher.grammar_from_regex(REGEX)
    constrained = Constrained(target, len(inputs.token_ids), grammar)
    options = {**SETTINGS[setting], "logits_processors": [constrained]}
    return target, inputs, oracle(target, inputs, NUM_TOKENS, **options)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", GRAMMARS)
def test_text_matches_and_equals_constrained_plain_decoding(kind: str, setting: str) -> None:
    target, inputs, reference = problem(kind, setting)
    length, vocabulary = len(inputs.token_ids), target.vocab_size
    drafters: list[Drafter] = [
        NoDrafter(),
        BlockDrafter(tiny_head(target), target, budget=15),
        lucky_drafter(reference, length, seed=2, budget=31, vocab_size=vocabulary),
        PlannedDrafter(reference, length, vocabulary, policy=chain),
        PlannedDrafter(reference, length, vocabulary, policy=best_first, budget=31, ranks=(0, 1)),
    ]
    for drafter, gate in [*((drafter, 0.0) for drafter in drafters), (drafters[-1], 1.0)]:
        options = {"max_new_tokens": NUM_TOKENS, "gate": gate, **GRAMMARS[kind], **SETTINGS[setting]}
        generation = sampled(target, drafter, inputs, **options)
        assert generation.token_ids == reference
        assert generation.finish_reason == "stop"
    if kind == "regex":
        assert re.fullmatch(REGEX, generation.text)
    else:
        answer = json.loads(generation.text)
        assert answer["kind"] in ("receipt", "letter", "form")
        assert 0 <= answer["total"] <= 9999
        assert len(answer["names"]) <= 2
        assert list(answer) == ["kind", "total", "names"]


def test_trees_hold_what_the_grammar_allows() -> None:
    """Against a matcher made anew for every node; and what is allowed stays."""
    target, inputs, reference = problem("regex", "greedy")
    grammar, length = llguidance.LLMatcher.grammar_from_regex(REGEX), len(inputs.token_ids)
    tokenizer = Constrained(target, length, grammar).tokenizer
    mask = grammar_mask(target, SamplingParams(regex=REGEX), length)
    assert mask is not None
    pruned = Pruned(NoDrafter(), mask)
    rng = random.Random(0)
    num_kept = 0
    for done in (0, 1, 4, 2, len(reference) - 1, 3):
        tree = random_tree(rng, 60, budget=40, max_depth=6, along=reference[done:])
        left = pruned.prune(tree, [*inputs.token_ids, *reference[:done]])
        wanted = set()
        for node in range(1, len(tree) + 1):
            path = [tree.token_ids[i - 1] for i in path_to(tree, node)]
            if llguidance.LLMatcher(tokenizer, grammar).consume_tokens(reference[:done] + path):
                wanted.add(tuple(path))
        found = [tuple(left.token_ids[i - 1] for i in path_to(left, node)) for node in range(1, len(left) + 1)]
        assert len(found) == len(set(found))
        assert set(found) == wanted
        assert left.depths == tuple(len(path) for path in found)
        num_kept += len(found)
    assert num_kept > 10


def test_generations_do_not_share_a_state() -> None:
    target, _, reference = problem("regex", "greedy")
    decoder = Decoder(target, NoDrafter())
    for _ in range(2):
        stopped = decoder.generate("hello there", regex=REGEX, max_new_tokens=3)
        assert stopped.token_ids == reference[:3]
        assert decoder.generate("hello there", regex=REGEX, max_new_tokens=NUM_TOKENS).token_ids == reference
        assert json.loads(decoder.generate("x", json_schema=json.dumps(SCHEMA)).text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "("}, "regex is wrong or not supported"),
        ({"json_schema": "{"}, "json_schema is no JSON"),
        ({"json_schema": "[1]"}, "json_schema must be an object, got list"),
        ({"json_schema": {"type": "circle"}}, "json_schema is wrong or not supported"),
    ],
)
def test_wrong_grammars_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        Decoder(tiny("qwen3", "sdpa"), NoDrafter()).generate("x", **options)
    assert "\n" not in str(error.value)


def test_white_space_has_an_end() -> None:
    """A model that would rather write nothing but white space answers all the same."""
    target = tiny("qwen3", "sdpa")
    words = {token_id: target.tokenizer.decode([token_id]) for token_id in range(target.vocab_size)}
    bias = {token_id: 100.0 for token_id, word in words.items() if word and word.isspace()}
    assert bias
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 1, "maxItems": 1}
    options: dict[str, Any] = {"json_schema": schema, "logit_bias": bias, "max_new_tokens": 400}
    plain = Decoder(target, NoDrafter()).generate("x", **options)
    assert plain.finish_reason == "stop"
    assert len(json.loads(plain.text)) == 1
    assert len(plain.text) > len(json.dumps([0]))
    drafted = Decoder(target, BlockDrafter(tiny_head(target), target, budget=15)).generate("x", **options)
    assert drafted.token_ids == plain.token_ids


@pytest.mark.parametrize("own", [5, None, "whitespace_flexible", ["whitespace_flexible"], {}])
def test_guidance_of_a_strange_shape_is_what_the_library_makes_of_it(own: Any) -> None:
    """It passes over what is no object, and white space has its end then too."""
    target = tiny("qwen3", "sdpa")
    mask = grammar_mask(target, SamplingParams(json_schema={"type": "array", "x-guidance": own}), 0)
    assert mask is not None
    spaces = [target.tokenizer.encode(text, add_special_tokens=False) for text in ("[", "  ")]
    assert mask.num_valid(spaces[0], spaces[1] * 2) < 2 * len(spaces[1])


def test_both_is_too_much() -> None:
    with pytest.raises(InputError, match="json_schema or regex, not both"):
        SamplingParams(json_schema={}, regex="a")


def test_without_end_of_sequence_or_library(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target("qwen3")
    target.model.generation_config.eos_token_id = None
    with pytest.raises(InputError, match="needs an end-of-sequence id"):
        Decoder(target, NoDrafter()).generate("x", regex="a")
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InputError, match=r"need llguidance; pip install 'oneglance\[grammar\]'"):
        Decoder(target, NoDrafter()).generate("x", regex="a")
