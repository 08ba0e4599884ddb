"""Answers in OpenAI's shapes, whole and as chunks. A stream's deltas concatenate to the text of the whole answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from oneglance.acceptance import Acceptance
from oneglance.core import Generation, TokenLogprobs
from oneglance.serve.reading import Parser
from oneglance.serve.rounds import describe
from oneglance.serve.tools import Arguments, CallStart, Content, Delta

if TYPE_CHECKING:
    from oneglance.stream import Step

Json = dict[str, Any]


class Answer:
    """What both endpoints share.

    Args:
        model: name that the answer carries.
        tokenizer: spells tokens for log-probabilities.
        logprobs: whether they were asked for.
        rounds: whether each round is described.
        include_usage: whether a stream ends with a chunk of usage.
    """

    prefix, kind, chunk_kind = "", "", ""

    def __init__(
        self, model: str, tokenizer: Any, parser: Parser, *, logprobs: bool, rounds: bool, include_usage: bool
    ) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.model = model
        self._tokenizer = tokenizer
        self._parser = parser
        self._has_logprobs = logprobs
        self._has_rounds = rounds
        self._include_usage = include_usage
        self._num_characters = 0

    def opening(self) -> Iterator[Json]:
        """Chunks before the first token."""
        yield from ()

    def step(self, step: Step) -> Iterator[Json]:
        """Chunks of one step."""
        choices = self._choices(step)
        described = describe(step, self._tokenizer) if self._has_rounds else None
        if described is not None and not choices:
            choices = [self._empty_choice()]
        for index, choice in enumerate(choices):
            is_last = index == len(choices) - 1
            yield self._chunk([choice], {"round": described} if described is not None and is_last else {})

    def closing(self, generation: Generation, num_prompt: int) -> Iterator[Json]:
        """Chunks after the last token."""
        for choice in self._last_choices(generation):
            yield self._chunk([choice])
        yield self._chunk([self._final_choice(generation)], {"metrics": metrics(generation)})
        if self._include_usage:
            yield self._chunk([], {"usage": usage(generation, num_prompt)})

    def whole(self, steps: Sequence[Step], generation: Generation, num_prompt: int) -> Json:
        """The answer in one object."""
        value: Json = {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "choices": [self._whole_choice(generation)],
            "usage": usage(generation, num_prompt),
            "metrics": metrics(generation),
        }
        if self._has_rounds:
            value["rounds"] = [describe(step, self._tokenizer) for step in steps]
        return value

    def _chunk(self, choices: list[Json], more: Json | None = None) -> Json:
        return {
            "id": self.id,
            "object": self.chunk_kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **(more or {}),
        }

    def _choices(self, step: Step) -> list[Json]:
        raise NotImplementedError

    def _empty_choice(self) -> Json:
        raise NotImplementedError

    def _last_choices(self, generation: Generation) -> list[Json]:
        return []

    def _final_choice(self, generation: Generation) -> Json:
        raise NotImplementedError

    def _whole_choice(self, generation: Generation) -> Json:
        raise NotImplementedError

    def _spell(self, token_id: int) -> str:
        text: str = self._tokenizer.decode([token_id])
        return text


class ChatAnswer(Answer):
    """``chat.completion`` and its chunks."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self) -> Iterator[Json]:
        """The role."""
        yield self._chunk([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])

    def _choices(self, step: Step) -> list[Json]:
        deltas = [_delta(self._calls(delta)) for delta in self._parser.feed(step.text)]
        entries = [piece.logprobs for piece in step.pieces if piece.logprobs is not None]
        if self._has_logprobs and entries:
            choices = deltas or [{"content": ""}]
            first, *rest = (_choice(delta) for delta in choices)
            return [{**first, "logprobs": {"content": self._logprobs(entries)}}, *rest]
        return [_choice(delta) for delta in deltas]

    def _empty_choice(self) -> Json:
        return _choice({})

    def _last_choices(self, generation: Generation) -> list[Json]:
        return [_choice(_delta(self._calls(delta))) for delta in self._parser.close()]

    def _final_choice(self, generation: Generation) -> Json:
        return {"index": 0, "delta": {}, "finish_reason": self._finish_reason(generation)}

    def _whole_choice(self, generation: Generation) -> Json:
        content: list[str] = []
        calls: list[Json] = []
        for delta in (*self._parser.feed(generation.text), *self._parser.close()):
            delta = self._calls(delta)
            if isinstance(delta, Content):
                content.append(delta.text)
            elif isinstance(delta, CallStart):
                calls.append(_new_call(delta))
            else:
                calls[delta.index]["function"]["arguments"] += delta.text
        message: Json = {"role": "assistant", "content": "".join(content) if content or not calls else None}
        if calls:
            message["tool_calls"] = [{key: value for key, value in call.items() if key != "index"} for call in calls]
        entries = generation.logprobs if self._has_logprobs else None
        return {
            "index": 0,
            "message": message,
            "logprobs": None if entries is None else {"content": self._logprobs(entries)},
            "finish_reason": self._finish_reason(generation),
        }

    _has_calls = False

    def _calls(self, delta: Delta) -> Delta:
        self._has_calls = self._has_calls or isinstance(delta, CallStart)
        return delta

    def _finish_reason(self, generation: Generation) -> str:
        is_stopped = generation.finish_reason == "stop"
        return "tool_calls" if self._has_calls and is_stopped else generation.finish_reason

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> list[Json]:
        return [
            {
                **self._token(entry.token_id, entry.log_p),
                "top_logprobs": [self._token(token, log_p) for token, log_p in entry.top],
            }
            for entry in entries
        ]

    def _token(self, token_id: int, log_p: float) -> Json:
        text = self._spell(token_id)
        # half a character has no text of its own: its bytes are not known from the replacement mark
        data = None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode())
        return {"token": text, "logprob": log_p, "bytes": data}


class CompletionAnswer(Answer):
    """``text_completion`` and its chunks."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def _choices(self, step: Step) -> list[Json]:
        entries = [piece.logprobs for piece in step.pieces if piece.logprobs is not None]
        if not step.text and not (self._has_logprobs and entries):
            return []
        choice = {**self._empty_choice(), "text": step.text}
        if self._has_logprobs:
            choice["logprobs"] = self._logprobs(entries)
        return [choice]

    def _empty_choice(self) -> Json:
        return {"index": 0, "text": "", "logprobs": None, "finish_reason": None}

    def _final_choice(self, generation: Generation) -> Json:
        return {**self._empty_choice(), "finish_reason": generation.finish_reason}

    def _whole_choice(self, generation: Generation) -> Json:
        entries = generation.logprobs if self._has_logprobs else None
        logprobs = None if entries is None else self._logprobs(entries)
        return {"index": 0, "text": generation.text, "logprobs": logprobs, "finish_reason": generation.finish_reason}

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> Json:
        tokens = [self._spell(entry.token_id) for entry in entries]
        offsets = []
        for token in tokens:
            offsets.append(self._num_characters)
            self._num_characters += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [entry.log_p for entry in entries],
            "top_logprobs": [{self._spell(token): log_p for token, log_p in entry.top} for entry in entries],
            "text_offset": offsets,
        }


def usage(generation: Generation, num_prompt: int) -> Json:
    """Tokens in and out."""
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": generation.num_tokens,
        "total_tokens": num_prompt + generation.num_tokens,
        "prompt_tokens_details": {"cached_tokens": generation.num_reused},
    }


def metrics(generation: Generation) -> Json:
    """Times, and the acceptance of this answer in the shape of vLLM's per-request statistics."""
    drafted = {**Acceptance.of(generation).as_dict(), "fell_back": generation.fell_back}
    return {
        "prefill_ms": generation.prefill_ms,
        "decode_ms": generation.decode_ms,
        "seed": generation.seed,
        "speculative_decoding": drafted,
    }


def _choice(delta: Json) -> Json:
    return {"index": 0, "delta": delta, "finish_reason": None}


def _delta(delta: Delta) -> Json:
    if isinstance(delta, Content):
        return {"content": delta.text}
    if isinstance(delta, Arguments):
        return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
    return {"tool_calls": [_new_call(delta)]}


def _new_call(delta: CallStart) -> Json:
    return {
        "index": delta.index,
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": delta.name, "arguments": ""},
    }
