"""How tokens are chosen and where a text ends: the parameters of one generation, checked."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from oneglance.errors import InputError

MIN_TEMPERATURE = 1e-3  # below it, logits / temperature leave float32's useful range


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one generation chooses its tokens and how it stops.

    What is None is as in the target's generation config; its temperature and filters (top-k, top-p, …) are never used.

    Attributes:
        max_new_tokens: cap on generated tokens, at least 0.
        stop: strings that end the text; the text is cut before the first one, the token ids after the token that
            completed it.
        ignore_eos: go on after an end-of-sequence token (timing runs of equal length).
        temperature: 0 takes the largest logit; above, a token is drawn from softmax(logits / temperature).
        top_k, top_p, min_p: keep the k largest; the smallest set of mass p; what has at least this share of the
            largest probability. No effect at temperature 0.
        repetition_penalty: divides positive and multiplies negative logits of all tokens seen, prompt included.
        frequency_penalty, presence_penalty: subtracted from a logit per occurrence, and once, of the generated tokens
            only (OpenAI's definition); -2 to 2.
        logit_bias: token id → what is added to its logit.
        bad_words: never generated: strings (with and without a space before them) or sequences of token ids.
        min_new_tokens: no end-of-sequence token before as many.
        seed: of the draws, 0 to 2^64 - 1; drawn and reported where it is None.
        logits_processors: more of transformers' logits processors, after its own and before temperature.
        json_schema, regex: what the text must match; at most one of them.
        logprobs: report the log-probability of each token, and of as many of the likeliest; None reports none.
        gate: where a packed row's choice has a smaller margin over the second (logit units), the target's own single
            step chooses instead; 0 is off.
    """

    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    bad_words: tuple[str | tuple[int, ...], ...] | None = None
    min_new_tokens: int | None = None
    seed: int | None = None
    logits_processors: tuple[Any, ...] = ()
    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    logprobs: int | None = None
    gate: float = 0.0

    def __post_init__(self) -> None:
        for name, (allows, wanted) in _RANGES.items():
            value, default = getattr(self, name), self.__dataclass_fields__[name].default
            if value is None and default is None:
                continue
            if not (
                isinstance(value, int | float | numbers.Integral) and not isinstance(value, bool) and allows(value)
            ):
                raise InputError(f"{name} must be {wanted}, got {value!r}")
            if name in _COUNTS:
                object.__setattr__(self, name, int(getattr(self, name)))  # 20.0 and numpy's integers count as well
        for name in ("stop", "bad_words", "logits_processors"):
            given = getattr(self, name)
            if given is None and name != "bad_words":
                raise InputError(f"{name} takes a sequence; leave it out, or write []")
            if given is not None and (isinstance(given, str) or not isinstance(given, Iterable)):
                raise InputError(f"{name} takes a sequence, got one value; write [{name}]")
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "logits_processors", tuple(self.logits_processors))
        if self.bad_words is not None:
            object.__setattr__(self, "bad_words", tuple(map(_bad_word, self.bad_words)))
        odd = [stop for stop in self.stop if not isinstance(stop, str)]
        if odd:
            raise InputError(f"a stop string must be a string, got {odd[0]!r}; text cannot stop at token ids")
        if not all(self.stop):
            raise InputError("a stop string is empty; leave it out")
        if not all(self.bad_words or (True,)):
            raise InputError("a bad word is empty; leave it out")
        _check_bias(self.logit_bias)
        if self.json_schema is not None and self.regex is not None:
            raise InputError("give json_schema or regex, not both")
        if self.gate and self.logits_processors:
            raise InputError("the gate processes some rows twice, which logits_processors may not survive; drop one")
        if (self.min_new_tokens or 0) > self.max_new_tokens:
            raise InputError(
                f"min_new_tokens is {self.min_new_tokens} and max_new_tokens {self.max_new_tokens}; raise the latter"
            )


def _check_bias(given: Any) -> None:
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise InputError(f"logit_bias maps token ids to numbers, got {given!r}; give a mapping")
    for token, bias in given.items():
        if isinstance(token, bool) or not isinstance(token, numbers.Integral):
            raise InputError(f"logit_bias maps token ids to numbers, and {token!r} is none; use whole numbers")
        if not isinstance(bias, int | float) or not abs(bias) < 1e9:
            raise InputError(f"logit_bias must be finite, got {bias!r}; use bad_words for tokens that must never come")


def _bad_word(word: Any) -> str | tuple[int, ...]:
    if isinstance(word, str):
        return word
    if isinstance(word, bytes) or not isinstance(word, Iterable):
        raise InputError(f"a bad word must be a string or a sequence of token ids, got {word!r}")
    return tuple(word)


_COUNTS = frozenset({"max_new_tokens", "top_k", "min_new_tokens", "logprobs"})
_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": (lambda n: n >= 0 and n % 1 == 0, "at least 0"),
    "temperature": (lambda t: t == 0 or MIN_TEMPERATURE <= t < math.inf, f"0 (greedy) or at least {MIN_TEMPERATURE}"),
    "top_k": (lambda k: k >= 0 and k % 1 == 0, "a whole number, 0 for no limit"),
    "top_p": (lambda p: 0 < p <= 1, "above 0 and at most 1"),
    "min_p": (lambda p: 0 <= p <= 1, "between 0 and 1"),
    "repetition_penalty": (lambda r: 0 < r < math.inf, "above 0; 1 is none"),
    "frequency_penalty": (lambda f: -2 <= f <= 2, "between -2 and 2"),
    "presence_penalty": (lambda f: -2 <= f <= 2, "between -2 and 2"),
    "min_new_tokens": (lambda n: n >= 0 and n % 1 == 0, "at least 0"),
    "logprobs": (lambda n: n >= 0 and n % 1 == 0, "a whole number, 0 for the chosen token alone"),
    "gate": (lambda g: 0 <= g < math.inf, "at least 0"),
    "seed": (lambda s: isinstance(s, int) and 0 <= s < 1 << 64, "a whole number from 0 to 2^64 - 1"),
}
