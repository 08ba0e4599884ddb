"""The Python API: a target and a drafter, ready to generate."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oneglance.accept import Greedy
from oneglance.core import (
    DEFAULT_BUDGET,
    AcceptRule,
    CutReason,
    Drafter,
    Generation,
    InputError,
    OneglanceWarning,
    Round,
    SamplingParams,
)
from oneglance.decode import Guarded, decode
from oneglance.drafters import prepare
from oneglance.targets import open_target
from oneglance.targets.base import Target
from oneglance.targets.chat import Message, encode
from oneglance.targets.state import Inputs
from oneglance.text import Piece, TextStream
from oneglance.tree import policy


@dataclass(frozen=True, slots=True)
class Step:
    """What one round (or prefill, where ``round`` is None) added to a stream.

    Attributes:
        pieces: kept tokens with the text each released; the last one is the bonus unless the round was cut.
        round: the round, None for the first token.
    """

    pieces: tuple[Piece, ...]
    round: Round | None

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


class Stream(Iterator[Step]):
    """A generation in progress: iterate over its steps, then read ``generation``.

    Closing it early (``close``, or leaving a ``with`` block) keeps what was decoded; target and drafter stay usable.
    """

    def __init__(self, steps: Iterator[Step], finish: Callable[[], Generation]) -> None:
        self._steps = steps
        self._finish = finish

    def __next__(self) -> Step:
        return next(self._steps)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop after the round in progress."""
        close = getattr(self._steps, "close", None)
        if close is not None:
            close()

    @property
    def generation(self) -> Generation:
        """The result so far; finished once the stream is exhausted."""
        return self._finish()


class Decoder:
    """A target with a drafter. Holds no sequence state; generations may follow one another in any order.

    Args:
        target: the frozen model.
        drafter: proposes trees; see ``oneglance.load``.
    """

    def __init__(self, target: Target, drafter: Drafter) -> None:
        self.target = target
        self.drafter = drafter
        self._said: set[str] = set()

    def generate(
        self,
        prompt: str | Sequence[Message],
        *,
        images: Sequence[Any] = (),
        system: str | None = None,
        max_new_tokens: int = 256,
        stop: Sequence[str] = (),
    ) -> Generation:
        """Decode a prompt to its end.

        Args:
            prompt: a user prompt, or chat messages.
            images: image sources for a plain prompt: paths, URLs, bytes, PIL images, arrays.
            system: system prompt.
            max_new_tokens: cap on new tokens.
            stop: strings that end the text.

        Raises:
            InputError: a bad prompt, image or parameter; the message names the fix.
        """
        stream = self.stream(prompt, images=images, system=system, max_new_tokens=max_new_tokens, stop=stop)
        for _ in stream:
            pass
        return stream.generation

    def stream(
        self,
        prompt: str | Sequence[Message],
        *,
        images: Sequence[Any] = (),
        system: str | None = None,
        max_new_tokens: int = 256,
        stop: Sequence[str] = (),
    ) -> Stream:
        """As ``generate``, a round at a time."""
        params = _params(max_new_tokens, stop)
        return self.stream_inputs(encode(self.target, prompt, images=images, system=system), params)

    def generate_ids(self, *, max_new_tokens: int = 256, **inputs: Any) -> Tensor:
        """Drop-in for ``model.generate(**inputs, do_sample=False)``.

        Args:
            max_new_tokens: cap on new tokens.
            inputs: what the target's processor returned: ``input_ids`` (1, T), ``pixel_values``, …

        Returns:
            (1, T + new) prompt and new tokens.

        Raises:
            InputError: a batch, padding, video, or an argument that is not supported.
        """
        stream = self.stream_inputs(self.target.wrap(inputs), _params(max_new_tokens, ()))
        for _ in stream:
            pass
        new = torch.tensor([stream.generation.token_ids], dtype=torch.long)
        ids: Tensor = inputs["input_ids"]
        return torch.cat([ids, new.to(ids)], dim=1)

    def stream_inputs(self, inputs: Inputs, params: SamplingParams) -> Stream:
        """Decode an encoded prompt, a round at a time."""
        run = _Run(self, inputs, params)
        return Stream(run.steps(), run.generation)

    def accept_rule(self, inputs: Inputs, params: SamplingParams) -> AcceptRule:
        """The target's own greedy rule, with the processors of its generation config."""
        processor = self.target.greedy_processors(len(inputs.token_ids), max_new_tokens=params.max_new_tokens)
        if processor is not None:
            names = ", ".join(type(p).__name__ for p in processor)  # type: ignore[attr-defined]
            self.say_once(f"the target's generation config applies to every token: {names}")
        return Greedy(processor)

    def say_once(self, message: str) -> None:
        """Warn, unless this decoder has said so before."""
        if message not in self._said:
            self._said.add(message)
            warnings.warn(message, OneglanceWarning, stacklevel=2)


class _Run:
    """One generation: prefill, then rounds until the text stream ends."""

    def __init__(self, decoder: Decoder, inputs: Inputs, params: SamplingParams) -> None:
        self.decoder = decoder
        self.inputs = inputs
        self.params = params
        target = decoder.target
        self.text = TextStream(
            target.tokenizer, params, eos_ids=target.eos_ids, context_room=target.context_length - len(inputs.token_ids)
        )
        self.drafter = Guarded(decoder.drafter, decoder.say_once)
        self.rounds: list[Round] = []
        self.prefill_ms = self.decode_ms = 0.0

    def steps(self) -> Iterator[Step]:
        target, rule = self.decoder.target, self.decoder.accept_rule(self.inputs, self.params)
        if not self.text.room:
            return
        started = time.perf_counter()
        state = target.prefill(self.inputs, self.drafter.target_layer_ids)
        root = rule.first(state.last_row, state.token_ids)
        self.prefill_ms = (time.perf_counter() - started) * 1e3
        recorder = _Recorder(self.text)
        recorder.push((root,))
        state.token_ids.append(root)
        yield Step(recorder.take(final=not self.text.room), None)
        window = time.perf_counter()
        for done in decode(target, self.drafter, rule, state, root, recorder):
            self.decode_ms += (time.perf_counter() - window) * 1e3
            self.rounds.append(done)
            yield Step(recorder.take(final=not self.text.room), done)
            window = time.perf_counter()

    def generation(self) -> Generation:
        return Generation(
            text=self.text.text,
            token_ids=list(self.text.token_ids),
            finish_reason=self.text.finish_reason,
            prefill_ms=self.prefill_ms,
            decode_ms=self.decode_ms,
            target=self.decoder.target.name,
            head=self.decoder.drafter.name,
            rounds=list(self.rounds),
            fell_back=self.drafter.failure,
        )


class _Recorder:
    """A text stream that remembers the pieces of the round in progress."""

    def __init__(self, text: TextStream) -> None:
        self._text = text
        self._pieces: list[Piece] = []

    @property
    def cut(self) -> CutReason | None:
        return self._text.cut

    @property
    def room(self) -> int:
        return self._text.room

    def push(self, token_ids: tuple[int, ...]) -> list[Piece]:
        self._pieces = self._text.push(token_ids)
        return self._pieces

    def take(self, *, final: bool) -> tuple[Piece, ...]:
        """The pieces of the last round; the very last one also carries the text that was held back."""
        pieces = self._pieces
        if final:
            last = pieces[-1]
            pieces = [*pieces[:-1], Piece(last.token_id, last.text + self._text.close())]
        return tuple(pieces)


def load(
    target: str = "builtin:reader",
    head: str | None = None,
    *,
    drafter: str = "block",
    tree: str = "best_first",
    budget: int = DEFAULT_BUDGET,
    branch_k: int | None = None,
    dtype: str = "auto",
    device: str | None = None,
    device_map: str | None = None,
    attention: str = "sdpa",
) -> Decoder:
    """Open a target and its drafter.

    Args:
        target: ``builtin:reader``, a folder, or a hub id.
        head: draft head; default ``builtin:reader`` for the built-in target.
        drafter: ``block`` or ``none``.
        tree: ``best_first``, ``chain`` or ``fixed``.
        budget: nodes of the candidate tree, root excluded.
        branch_k: ranks looked at per offset; default as many as the budget (exact).
        dtype: ``auto``, ``float32``, ``bfloat16``, ``float16``, ``float64``.
        device: ``cpu``, ``cuda``, ``mps``.
        device_map: for accelerate, e.g. ``auto``.
        attention: ``sdpa`` or ``eager``.

    Raises:
        InputError: something does not exist, does not fit, or is not supported; the message names the fix.
    """
    if drafter == "block" and head is None and not target.startswith("builtin:"):
        raise InputError(f"target {target!r} needs a draft head: give head=…, or drafter='none' for plain decoding")
    chosen = policy(tree)
    bind = prepare(drafter, head or target)
    opened = open_target(target, dtype=dtype, device=device, device_map=device_map, attention=attention)
    return Decoder(opened, bind(opened, policy=chosen, budget=budget, branch_k=branch_k))


def _params(max_new_tokens: int, stop: Sequence[str]) -> SamplingParams:
    if isinstance(stop, str):
        raise InputError("stop takes a sequence of strings, got one string; write [stop]")
    return SamplingParams(max_new_tokens=max_new_tokens, stop=tuple(stop))
