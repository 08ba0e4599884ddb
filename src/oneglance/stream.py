"""One generation in progress: prefill, then the loop's rounds with the text and figures that they add."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from oneglance.accept import Decision
from oneglance.core import AcceptRule, CutReason, Drafter, Generation, Round, SamplingParams, TokenLogprobs
from oneglance.decode import decode
from oneglance.drafters import weights_of
from oneglance.guard import Guarded
from oneglance.prefixes import PrefixStore, Reuse
from oneglance.targets.base import Target
from oneglance.targets.loading import is_out_of_memory
from oneglance.targets.state import Inputs, TargetState
from oneglance.text import Piece, TextStream


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

    Closing it early (``close``, or leaving a ``with`` block) keeps what was decoded, text that was held back for a stop
    string or a half character included; target and drafter stay usable.
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

    def exhaust(self) -> Generation:
        """Decode to the end, and give the result."""
        for _ in self._steps:
            pass
        return self.generation

    def close(self) -> None:
        """Stop after the round in progress."""
        close = getattr(self._steps, "close", None)
        if close is not None:
            close()

    @property
    def generation(self) -> Generation:
        """The result so far; finished once the stream is exhausted."""
        return self._finish()


class Run:
    """One generation: prefill, then rounds until the text stream ends.

    Args:
        target: the frozen model.
        drafter: proposes; its failures end drafting, not the generation.
        make_rule: the accept rule, given who watches its choices.
        inputs: the prompt.
        params: caps, stop strings, and the seed to report.
        warn: says once what costs speed.
        prefixes: where rows of the prompt may be found, and those of this generation are left; None reuses nothing.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        make_rule: Callable[[Callable[[Decision], None] | None], AcceptRule],
        inputs: Inputs,
        params: SamplingParams,
        warn: Callable[[str], None],
        prefixes: PrefixStore | None = None,
    ) -> None:
        self.target = target
        self.inputs = inputs
        self.params = params
        self.text = self._empty_text()
        self.recorder = Recorder(self.text, params.logprobs)
        self.rule = make_rule(self.recorder.watch)
        self.drafter = Guarded(drafter, target, warn)
        self.head = weights_of(drafter)
        self.warn = warn
        self.reuse = None if prefixes is None else Reuse(prefixes, target, self.drafter, inputs)
        self.rounds: list[Round] = []
        self.prefill_ms = self.decode_ms = 0.0

    def steps(self) -> Iterator[Step]:
        """The first token, then a step a round. However it ends, ids, text and rounds agree afterwards."""
        try:
            yield from self._steps()
        finally:
            self._settle()

    def _steps(self) -> Iterator[Step]:
        if not self.params.max_new_tokens:
            return
        started = time.perf_counter()
        if self.reuse is None:
            yield from self._decode(self.target.prefill(self.inputs, self.drafter.target_layer_ids), started)
            return
        state = self.reuse.prefill()
        try:
            yield from self._decode(state, started)
        except Exception:  # nothing of it is kept
            raise
        except BaseException:  # closed, or Ctrl-C: the state stands after the last whole round
            self._keep(self.reuse, state)
            raise
        self._keep(self.reuse, state)

    def _keep(self, reuse: Reuse, state: TargetState) -> None:
        """Leave the committed rows for later generations; where memory is short, leave none."""
        try:
            reuse.keep(state, self.drafter.rows(state))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.warn("there is no memory to keep this prompt's rows for later ones: use a smaller limit")

    def _decode(self, state: TargetState, started: float) -> Iterator[Step]:
        recorder, rule = self.recorder, self.rule
        root = rule.first(state.last_row, state.token_ids)
        self.prefill_ms = (time.perf_counter() - started) * 1e3
        recorder.push((root,))
        state.token_ids.append(root)
        yield Step(recorder.take(final=not self.text.room), None)
        window = time.perf_counter()
        for done in decode(self.target, self.drafter, rule, state, root, recorder, warn=self.warn):
            self.decode_ms += (time.perf_counter() - window) * 1e3
            self.rounds.append(done)
            yield Step(recorder.take(final=not self.text.room), done)
            window = time.perf_counter()

    def _settle(self) -> None:
        """End the text after the last whole round: drop what an interrupted one pushed, release what was held back."""
        kept = 1 + sum(len(done.token_ids) for done in self.rounds)
        if len(self.text.token_ids) > kept:
            interrupted, self.text = self.text, self._empty_text()
            self.text.push(interrupted.token_ids[:kept])
            del self.recorder.logprobs[kept:]
        self.text.close()

    def _empty_text(self) -> TextStream:
        target, room = self.target, self.target.context_length - len(self.inputs.token_ids)
        return TextStream(target.tokenizer, self.params, eos_ids=target.eos_ids, context_room=room)

    def generation(self) -> Generation:
        """The result so far."""
        return Generation(
            text=self.text.text,
            token_ids=list(self.text.token_ids),
            finish_reason=self.text.finish_reason,
            prefill_ms=self.prefill_ms,
            decode_ms=self.decode_ms,
            target=self.target.name,
            head=self.head,
            rounds=list(self.rounds),
            fell_back=self.drafter.failure,
            seed=self.params.seed if self.params.temperature else None,
            num_reused=0 if self.reuse is None else self.reuse.num_rows,
            logprobs=None if self.params.logprobs is None else list(self.recorder.logprobs),
        )


class Recorder:
    """A text stream that remembers the pieces of the round in progress, and log-probabilities where they are asked for.

    Args:
        text: keeps the tokens.
        num_top: log-probabilities a token besides its own; None records none.

    Attributes:
        logprobs: an entry a kept token.
    """

    def __init__(self, text: TextStream, num_top: int | None) -> None:
        self._text = text
        self._num_top = num_top
        self._chosen: list[TokenLogprobs] = []
        self._pieces: list[Piece] = []
        self.logprobs: list[TokenLogprobs] = []

    @property
    def cut(self) -> CutReason | None:
        return self._text.cut

    @property
    def room(self) -> int:
        return self._text.room

    @property
    def watch(self) -> Callable[[Decision], None] | None:
        """What the accept rule must call for every choice, before those are pushed."""
        return None if self._num_top is None else self._watch

    def push(self, token_ids: tuple[int, ...]) -> list[Piece]:
        """Keep tokens, and remember their pieces until ``take``."""
        self._pieces = self._text.push(token_ids)
        if self._num_top is not None:
            kept = self._chosen[: len(self._pieces)]
            self._pieces = [replace(piece, logprobs=own) for piece, own in zip(self._pieces, kept, strict=True)]
            self.logprobs += kept
            self._chosen.clear()
        return self._pieces

    def take(self, *, final: bool) -> tuple[Piece, ...]:
        """The pieces of the last round; the very last one also carries the text that was held back."""
        pieces = self._pieces
        if final:
            last = pieces[-1]
            pieces = [*pieces[:-1], replace(last, text=last.text + self._text.close())]
        return tuple(pieces)

    def _watch(self, decision: Decision) -> None:
        assert self._num_top is not None
        self._chosen.append(decision.logprobs(self._num_top))
