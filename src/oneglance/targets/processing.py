"""From sampling parameters to transformers' logits processors, in transformers' order."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import transformers

from oneglance.accept import LogitsProcessor
from oneglance.core import InputError, SamplingParams
from oneglance.targets import hf
from oneglance.targets.base import Target
from oneglance.targets.grammar import grammar_mask
from oneglance.targets.state import Inputs


def processors(target: Target, inputs: Inputs, params: SamplingParams) -> LogitsProcessor | None:
    """What is done to every row before a token is chosen, or None where that is nothing.

    The order is that of ``generate``: biases, penalties, bad words, minimum length, then frequency and presence
    penalties, the caller's own processors, the grammar, temperature, and filters. At temperature 0 and without other
    choices this is what ``generate(do_sample=False)`` does under the target's generation config.

    Args:
        target: gives the generation config and the tokenizer.
        inputs: the prompt.
        params: how tokens are chosen.

    Raises:
        InputError: a token id outside the vocabulary, or a processor that is none.
    """
    words = _bad_words_ids(target, params)
    _check_ids(target, "logit_bias", params.logit_bias or ())
    prompt = inputs.tensors["input_ids"].to(target.lm_head_device)  # where the rows are
    extra: list[object] = target.own_processors(prompt)
    if params.frequency_penalty or params.presence_penalty:
        extra.append(CountPenalty(prompt.shape[1], params.frequency_penalty, params.presence_penalty))
    for processor in params.logits_processors:
        if not callable(processor):
            raise InputError(f"{processor!r} is no logits processor; give objects called as (input_ids, scores)")
        extra.append(processor)
    grammar = grammar_mask(target, params, prompt.shape[1])
    extra += [grammar] if grammar is not None else []
    config = hf.processing_config(target.model, params, words)
    built = hf.processors(target.model, config, prompt, extra=extra)
    return built if len(built) else None


class CountPenalty(transformers.LogitsProcessor):  # type: ignore[misc]
    """Frequency and presence penalties as OpenAI defines them; transformers has none.

    logit ← logit - frequency × count - presence × (count > 0), with counts over the generated tokens only.

    Args:
        prompt_length: tokens before the generated ones.
        frequency, presence: the two penalties, in logit units.
    """

    def __init__(self, prompt_length: int, frequency: float, presence: float) -> None:
        self.prompt_length = prompt_length
        self.frequency = frequency
        self.presence = presence

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """(1, T) tokens so far and (1, V) scores → (1, V) scores."""
        generated = input_ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, generated, torch.ones_like(generated, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)


def _bad_words_ids(target: Target, params: SamplingParams) -> list[list[int]]:
    """Token ids of the bad words; a string counts with and without a space before it."""
    words: list[list[int]] = []
    for word in params.bad_words or ():
        texts = [word, f" {word}"] if isinstance(word, str) else []
        spelled = [target.tokenizer.encode(text, add_special_tokens=False) for text in texts] or [list(word)]
        words += [ids for ids in spelled if ids not in words]
    _check_ids(target, "bad_words", [token for ids in words for token in ids])
    return words


def _check_ids(target: Target, name: str, token_ids: Iterable[object]) -> None:
    for token in token_ids:
        if not isinstance(token, int) or not 0 <= token < target.vocab_size:
            raise InputError(
                f"{name} names token {token!r}, but the vocabulary has ids 0 to {target.vocab_size - 1}; "
                "use one of them"
            )
