"""From token ids to text: incremental detokenisation, stop strings, caps and finish reasons.

``TextStream`` decides which tokens of a round are kept and what text they add. It is asked inside the loop, before
commit, so that nothing after a stop reaches the ids, the text or the cache.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from oneglance.core import CutReason, FinishReason, SamplingParams, TokenLogprobs

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer(Protocol):
    """What is needed of a tokenizer."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """One kept token and the text it released; empty while a character or a stop string may still be incomplete.

    Attributes:
        token_id: the token.
        text: what it released.
        logprobs: its log-probabilities, where they were asked for.
    """

    token_id: int
    text: str
    logprobs: TokenLogprobs | None = None


class Detokenizer:
    """Incremental detokenisation that never emits half a character.

    The concatenated output equals the decoding of all tokens, for tokenizers whose decoding of a text does not
    depend on what comes before the last complete character run.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._context_from = 0  # tokens before this one no longer influence the text that comes
        self._whole_to = 0  # tokens before this one ended on a whole character
        self._num_emitted = 0  # characters of the tokens from _context_from on

    def push(self, token_id: int) -> str:
        """Add a token and return the text that is complete now."""
        self._token_ids.append(token_id)
        return self._emit(flush=False)

    def flush(self) -> str:
        """The rest, incomplete characters included."""
        return self._emit(flush=True)

    def _emit(self, *, flush: bool) -> str:
        text = self._decode(self._token_ids[self._context_from :])
        whole = text if flush else text.rstrip(REPLACEMENT)
        new = whole[self._num_emitted :]
        if new:
            self._num_emitted = len(whole)
        if new and whole == text:
            self._context_from, self._whole_to = self._whole_to, len(self._token_ids)
            self._num_emitted = len(self._decode(self._token_ids[self._context_from :]))
        return new

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True) if token_ids else ""


class TextStream:
    """Keeps the tokens of one generation up to its end, and the text they spell.

    Args:
        tokenizer: decodes ids.
        params: cap and stop strings.
        eos_ids: end-of-sequence ids.
        context_room: tokens that fit into the target's context after the prompt.
    """

    def __init__(
        self, tokenizer: Tokenizer, params: SamplingParams, *, eos_ids: Collection[int], context_room: int
    ) -> None:
        self.token_ids: list[int] = []
        self.text = ""
        self.cut: CutReason | None = None
        self._detokenizer = Detokenizer(tokenizer)
        self._held = ""
        self._stop = params.stop
        self._eos_ids = frozenset() if params.ignore_eos else frozenset(eos_ids)
        self._limit = min(params.max_new_tokens, context_room)
        self._cap_reason: CutReason = "cap" if params.max_new_tokens <= context_room else "context"
        if self._limit <= 0:
            self.cut = self._cap_reason

    @property
    def room(self) -> int:
        """How many more tokens may be kept; 0 when the generation has ended."""
        return 0 if self.cut else self._limit - len(self.token_ids)

    @property
    def finish_reason(self) -> FinishReason:
        """``stop`` for EOS and stop strings, ``length`` for cap and context limit, else ``cancelled``."""
        if self.cut is None:
            return "cancelled"
        return "stop" if self.cut in ("eos", "stop") else "length"

    def push(self, token_ids: Sequence[int]) -> list[Piece]:
        """Keep tokens up to the end of the generation; fewer pieces than tokens means that the rest was cut."""
        pieces: list[Piece] = []
        for token_id in token_ids:
            if self.cut:
                break
            pieces.append(Piece(token_id, self._push_one(token_id)))
        return pieces

    def close(self) -> str:
        """End the generation and return the text still held back."""
        if self.cut == "stop":
            return ""
        rest = self._release(self._detokenizer.flush(), final=True)
        return rest

    def _push_one(self, token_id: int) -> str:
        self.token_ids.append(token_id)
        if token_id in self._eos_ids:
            self.cut = "eos"
            return ""
        text = self._release(self._detokenizer.push(token_id), final=False)
        if self.cut is None and len(self.token_ids) >= self._limit:
            self.cut = self._cap_reason
        return text

    def _release(self, text: str, *, final: bool) -> str:
        """Text that can no longer become part of a stop string; ends the generation where one is complete."""
        self._held += text
        hits = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if hits:
            self.cut, released, self._held = "stop", self._held[: min(hits)], ""
        else:
            keep = 0 if final else self._longest_stop_prefix()
            released = self._held[: len(self._held) - keep]
            self._held = self._held[len(self._held) - keep :]
        self.text += released
        return released

    def _longest_stop_prefix(self) -> int:
        """Length of the longest tail of the held text that begins a stop string."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:size]):
                    longest = size
                    break
        return longest
