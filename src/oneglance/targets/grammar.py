"""Structured output: a JSON schema or a regular expression as a logits processor, by llguidance (``[grammar]``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import transformers

from oneglance.core import InputError, SamplingParams
from oneglance.files import parse_json
from oneglance.targets.base import Target

# Between JSON's tokens one space, or one line break and its indentation: without an end to it, a model that is unsure
# what comes next writes white space until it is cut.
JSON_DEFAULTS = {"whitespace_pattern": r" |\n[ \t]{0,64}"}

_TOKENIZERS: WeakKeyDictionary[Target, Any] = WeakKeyDictionary()  # built once a target: it takes a second


class GrammarMask(transformers.LogitsProcessor):  # type: ignore[misc]
    """Allows the tokens with which the generated text can still become a match; end-of-sequence once it is one.

    Its state follows the tokens it is shown, forwards and back, so that a row may be processed more than once.

    Args:
        matcher: llguidance's, fresh.
        prompt_length: tokens before the generated ones.
    """

    def __init__(self, matcher: Any, prompt_length: int) -> None:
        self._matcher = matcher
        self._prompt_length = prompt_length
        self._consumed: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """(1, T) tokens so far and (1, V) scores → (1, V) scores.

        Raises:
            InputError: the tokens so far cannot become a match.
        """
        self._follow(input_ids[0, self._prompt_length :].tolist())
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(words, bitorder="little")[: scores.shape[1]].astype(bool)
        mask = torch.zeros(scores.shape[1], dtype=torch.bool)
        mask[: len(allowed)] = torch.from_numpy(allowed)
        return scores.masked_fill(~mask.to(scores.device), -torch.inf)

    def num_valid(self, token_ids: list[int], path: list[int]) -> int:
        """How many tokens of ``path`` can follow ``token_ids``, prompt included."""
        self._follow(token_ids[self._prompt_length :])
        return int(self._matcher.validate_tokens(path))

    def _follow(self, generated: list[int]) -> None:
        common = 0
        for ours, theirs in zip(self._consumed, generated, strict=False):
            if ours != theirs:
                break
            common += 1
        if len(self._consumed) > common:
            self._matcher.rollback(len(self._consumed) - common)
        for token in generated[common:]:
            if not self._matcher.consume_token(token):
                raise InputError(f"token {token} cannot continue a match of the grammar: {self._matcher.get_error()}")
        self._consumed = generated


def grammar_mask(target: Target, params: SamplingParams, prompt_length: int) -> GrammarMask | None:
    """The processor for a JSON schema or regular expression, or None where there is neither.

    Raises:
        InputError: llguidance is missing, the grammar is wrong or not supported, or the target has no end of sequence.
    """
    if params.json_schema is None and params.regex is None:
        return None
    try:
        import llguidance
        from llguidance.hf import from_tokenizer
    except ImportError as error:
        raise InputError("json_schema and regex need llguidance; pip install 'oneglance[grammar]'") from error
    if not target.eos_ids:
        raise InputError("a grammar needs an end-of-sequence id in the target's generation config")
    if target not in _TOKENIZERS:
        _TOKENIZERS[target] = from_tokenizer(
            target.tokenizer, n_vocab=target.vocab_size, eos_token=list(target.eos_ids)
        )
    if params.regex is not None:
        grammar = llguidance.LLMatcher.grammar_from_regex(params.regex)
    else:
        schema = _schema(params.json_schema)
        own = schema.get("x-guidance")
        is_said = isinstance(own, Mapping) and "whitespace_flexible" in own
        defaults: Any = {} if is_said else JSON_DEFAULTS  # of the two the pattern would win
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=defaults)
    matcher = llguidance.LLMatcher(_TOKENIZERS[target], grammar, log_level=0)
    if matcher.is_error():
        kind = "regex" if params.regex is not None else "json_schema"
        raise InputError(f"{kind} is wrong or not supported: {matcher.get_error().splitlines()[0]}")
    return GrammarMask(matcher, prompt_length)


def _schema(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    try:
        schema = parse_json(given) if isinstance(given, str) else given
    except ValueError as error:
        raise InputError(f"json_schema is no JSON: {error}") from error
    if not isinstance(schema, Mapping):
        raise InputError(f"json_schema must be an object, got {type(schema).__name__}")
    return dict(schema)
