"""Collect traces: ask the target, write its own greedy answers, go on where a killed run stopped (§4.3)."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from PIL import Image

from oneglance.amounts import duration, plural, size
from oneglance.core import ImageError, InputError, SamplingParams
from oneglance.decoder import Decoder
from oneglance.files import Unchanged, append_lines, parse_json, read_lines, sole_writer
from oneglance.images import MAX_ASPECT, image_sha256
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.train.origin import difference, encoding, settings_of
from oneglance.train.prompts import Prompt, check_readable
from oneglance.train.traces import (
    MANIFEST,
    ROWS,
    Trace,
    append_traces,
    clash,
    contents,
    open_source,
    read_traces,
    shrink,
    write_manifest,
)

SKIPPED = "skipped.jsonl"
NUM_MEASURED = 3
SHOWN_SKIPS = 3
BYTES_A_TOKEN, BYTES_A_ROW = 6, 400  # of a JSON line
Reason = Literal["image", "aspect", "empty", "short", "context", "placeholder", "refused"]


@dataclass(frozen=True, slots=True)
class Skip:
    """A prompt that gives no trace, and why."""

    id: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt whose images were read: what an answerer gets.

    Attributes:
        prompt: as given.
        pictures: its images at the size that the target sees.
        image_sha256: of each image, before it was shrunk.
    """

    prompt: Prompt
    pictures: tuple[Image.Image, ...]
    image_sha256: tuple[str, ...]

    def trace(self, answer_ids: Sequence[int]) -> Trace:
        p = self.prompt
        return Trace(p.id, p.task, p.text, p.images, tuple(answer_ids), self.image_sha256, p.system)


class Answerer(Protocol):
    """Answers prompts greedily, in any order.

    Attributes:
        target: whose answers they are; its weights may be missing.
    """

    target: Target

    def answers(self, asked: Iterable[Asked]) -> Iterator[tuple[Asked, list[int] | Skip]]:
        """Token ids of each answer, the end-of-sequence token included where it came, or why there is none."""

    def manifest(self) -> dict[str, Any]:
        """Where the answers come from."""


class LocalAnswerer:
    """Answers in this process, by the decoder that also serves. A drafter changes the time, never a token."""

    def __init__(self, decoder: Decoder, *, max_new_tokens: int) -> None:
        self.decoder, self.target = decoder, decoder.target
        self.params = SamplingParams(max_new_tokens=max_new_tokens)

    def answers(self, asked: Iterable[Asked]) -> Iterator[tuple[Asked, list[int] | Skip]]:
        for one in asked:
            yield one, self._answer(one)

    def manifest(self) -> dict[str, Any]:
        return {"kind": "in-process", "head": self.decoder.drafter.name, "dtype": str(self.decoder.target.dtype)[6:]}

    def _answer(self, asked: Asked) -> list[int] | Skip:
        prompt = asked.prompt
        inputs = encode(self.decoder.target, prompt.text, images=asked.pictures, system=prompt.system)
        length, room = len(inputs.token_ids), self.decoder.target.context_length
        if length + 2 > room:
            return Skip(prompt.id, "context", f"{length} prompt tokens, the target's context is {room}")
        return self.decoder.stream_inputs(inputs, self.params).exhaust().token_ids


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a collection stands; counts include what earlier runs wrote."""

    done: int
    total: int
    num_tokens: int
    skipped: dict[str, int]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a collection will take, from a few samples.

    Attributes:
        num_prompts: still to be answered.
        trace_bytes: of the JSON lines, at most.
        feature_bytes: of the fused features that training recomputes or keeps in memory (``data.cache_features``).
        seconds: None where nothing was measured.
    """

    num_prompts: int
    prompt_tokens: float
    answer_tokens: float
    trace_bytes: int
    feature_bytes: int
    seconds: float | None

    def line(self) -> str:
        """For a terminal."""
        unknown = ", time unknown: no prompt was asked" if self.num_prompts else ""
        time_text = unknown if self.seconds is None else f", about {duration(self.seconds)}"
        tokens = plural(round(self.prompt_tokens), "token")
        return (
            f"{plural(self.num_prompts, 'prompt')} of about {tokens}, answers of about {self.answer_tokens:.0f}: "
            f"traces {size(self.trace_bytes)}, features {size(self.feature_bytes)} where they are kept{time_text}"
        )


@dataclass
class Collection:
    """A folder of traces in the making.

    Args:
        out: the folder; what it already holds is kept, and its prompts are not asked again.
        prompts: all prompts.
        target: gives the encoding, for the manifest.
        long_side: images are scaled down to it.
        max_new_tokens: cap of an answer.
        source: what the prompts are, for the manifest.
        on_bad_sample: count it and go on, or stop.
        disjoint_from: folders of traces that must share no image, nor prompt without image.
    """

    out: Path
    prompts: list[Prompt]
    target: Target
    long_side: int | None
    max_new_tokens: int
    source: dict[str, Any]
    on_bad_sample: Literal["skip", "error"] = "skip"
    disjoint_from: Sequence[Path] = ()
    _skips: list[Skip] = field(default_factory=list)
    _num_rows: int = 0
    _num_tokens: int = 0

    def __post_init__(self) -> None:
        self._forbidden = {
            part: (row.id, str(folder))
            for folder in self.disjoint_from
            for row in read_traces(folder).rows
            for part in contents(row)
        }
        self._read()

    def _read(self) -> None:
        """What is there already, and what is left to do."""
        written = read_traces(self.out).rows if _holds_rows(self.out) else []
        self._num_rows, self._num_tokens = len(written), sum(len(row.answer_ids) for row in written)
        self._skips = [Skip(**raw) for raw in read_lines(self.out / SKIPPED)]
        done = {row.id for row in written} | {skip.id for skip in self._skips}
        self.todo = [prompt for prompt in self.prompts if prompt.id not in done]

    def settings(self, answerer: dict[str, Any]) -> dict[str, Any]:
        """What must be equal for two runs to write into one folder."""
        return {
            **encoding(self.target, self.long_side),
            "max_new_tokens": self.max_new_tokens,
            "source": self.source,
            "answers": answerer,
        }

    def estimate(self, answerer: Answerer | None, *, num_kept: int = 5) -> Estimate:
        """From the first samples; answers count in full where no answerer is given."""
        sample = [one for one in map(self._ask, self.todo[: 2 * NUM_MEASURED]) if isinstance(one, Asked)]
        sample = sample[:NUM_MEASURED]
        lengths = [self._prompt_length(one) for one in sample]
        answers, started = [float(self.max_new_tokens)], time.perf_counter()
        if answerer is not None and sample:
            answers = [float(len(ids)) for _, ids in answerer.answers(sample) if not isinstance(ids, Skip)] or answers
        seconds = (time.perf_counter() - started) * len(self.todo) / len(sample) if answerer and sample else None
        prompt_tokens, answer_tokens = _mean(lengths), _mean(answers)
        width = num_kept * self.target.hidden_size * self.target.dtype.itemsize
        return Estimate(
            num_prompts=len(self.todo),
            prompt_tokens=prompt_tokens,
            answer_tokens=answer_tokens,
            trace_bytes=round(len(self.todo) * (BYTES_A_ROW + BYTES_A_TOKEN * answer_tokens)),
            feature_bytes=round(len(self.todo) * (prompt_tokens + answer_tokens) * width),
            seconds=seconds,
        )

    def run(self, answerer: Answerer) -> Generator[Progress]:
        """Ask what is left, and write each answer as it comes.

        Raises:
            InputError: the folder holds traces of other settings, a leak, or a bad sample under ``error``; another
                process is collecting into it, or something took its files away.
        """
        with sole_writer(self.out):
            self._read()  # again: another process may have ended since
            self._check_settings(answerer)
            self._write_manifest(answerer, complete=False)
            self._files = Unchanged(self.out / ROWS, self.out / SKIPPED, self.out / MANIFEST)
            for asked, answer in answerer.answers(self._asked()):
                outcome = answer if isinstance(answer, Skip) else self._judge(asked, answer)
                if isinstance(outcome, Skip):
                    self._skip(outcome)
                else:
                    with self._files.changing():
                        list(append_traces(self.out, [outcome]))
                    self._num_rows += 1
                    self._num_tokens += len(outcome.answer_ids)
                yield self.progress
            self._files.check()
            self._write_manifest(answerer, complete=True)
        yield self.progress

    @property
    def progress(self) -> Progress:
        skipped = dict(Counter(str(skip.reason) for skip in self._skips))
        return Progress(self._num_rows + len(self._skips), len(self.prompts), self._num_tokens, skipped)

    @property
    def num_traces(self) -> int:
        return self._num_rows

    def why_nothing(self) -> str | None:
        """Why not one prompt gave a trace, with the first few of them; None where some did."""
        if self._num_rows or not self._skips:
            return None
        sources = {prompt.id: prompt.images[0] for prompt in self.prompts if prompt.images}
        named = [(sources.get(skip.id, skip.id), skip.detail) for skip in self._skips]
        details = list(dict.fromkeys(what if name in what else f"{name}: {what}" for name, what in named))
        more = len(details) - SHOWN_SKIPS
        listed = "; ".join(details[:SHOWN_SKIPS]) + (f"; and {more} more" if more > 0 else "")
        count = plural(len(self._skips), "prompt")
        return (
            f"no trace: {count} skipped ({reasons(self.progress.skipped)}): {listed}. All are in {self.out / SKIPPED}; "
            "mend the prompts, and delete their lines there to try them again"
        )

    def _asked(self) -> Iterator[Asked]:
        for prompt in self.todo:
            one = self._ask(prompt)
            if isinstance(one, Skip):
                self._skip(one)
            else:
                yield one

    def _ask(self, prompt: Prompt) -> Asked | Skip:
        if prompt.images:
            check_readable(self.target, prompt.id)
        try:
            pictures = [open_source(source) for source in prompt.images]
        except ImageError as error:
            reason: Reason = "aspect" if f"at most {MAX_ASPECT}:1" in str(error) else "image"
            return Skip(prompt.id, reason, str(error))
        asked = Asked(
            prompt, tuple(shrink(p, self.long_side) for p in pictures), tuple(image_sha256(p) for p in pictures)
        )
        for part in contents(asked.trace(())) & self._forbidden.keys():
            raise InputError(f"prompt {prompt.id} {clash(part, *self._forbidden[part])}; keep the two sets disjoint")
        return asked

    def _judge(self, asked: Asked, answer: list[int]) -> Trace | Skip:
        """Refuse answers that no block can be cut from."""
        eos = set(self.target.eos_ids)
        if not [i for i in answer if i not in eos]:
            return Skip(asked.prompt.id, "empty", "the answer is empty")
        if len(answer) < 2:
            return Skip(asked.prompt.id, "short", "the answer has one token; a training block needs two")
        if set(answer) & set(self.target.banned_ids):
            return Skip(asked.prompt.id, "placeholder", "the answer holds an image placeholder")
        return asked.trace(answer)

    def _skip(self, skip: Skip) -> None:
        if self.on_bad_sample == "error":
            raise InputError(f"bad sample {skip.id}: {skip.detail}; --on-bad-sample skip leaves such samples out")
        with self._files.changing():
            append_lines(self.out / SKIPPED, [{"id": skip.id, "reason": skip.reason, "detail": skip.detail}])
        self._skips.append(skip)

    def _prompt_length(self, asked: Asked) -> int:
        prompt = asked.prompt
        return len(encode(self.target, prompt.text, images=asked.pictures, system=prompt.system).token_ids)

    def _check_settings(self, answerer: Answerer) -> None:
        path = self.out / MANIFEST
        if not path.is_file():
            if _holds_rows(self.out):
                raise InputError(f"{self.out} holds traces without a manifest; choose another --out")
            return
        now = parse_json(json.dumps(self.settings(answerer.manifest())))
        now.pop("answers")
        differing = difference(settings_of(self.out, "choose another --out"), now)
        if differing:
            raise InputError(f"{self.out} was collected with another {differing}; choose another --out")

    def _write_manifest(self, answerer: Answerer, *, complete: bool) -> None:
        from oneglance.bench.manifest import manifest

        progress = self.progress
        counts = {"rows": self._num_rows, "tokens": progress.num_tokens, "skipped": progress.skipped}
        settings = self.settings(answerer.manifest())
        write_manifest(
            self.out, manifest(kind="traces", complete=complete, counts=counts, settings=settings, **_flat(settings))
        )


def answered(folder: Path) -> dict[str, str]:
    """Id and text of the prompts that have a trace in a folder, which may not exist."""
    return {row.id: row.prompt for row in read_traces(folder).rows} if _holds_rows(folder) else {}


def skipped(folder: Path) -> set[str]:
    """Ids of the prompts that were skipped there."""
    return {str(row.get("id")) for row in read_lines(folder / SKIPPED)}


def reasons(skipped: Mapping[str, int]) -> str:
    """Counts by reason, for people."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: settings[key] for key in ("target", "chat_template_sha256", "image_long_side")}


def _holds_rows(folder: Path) -> bool:
    return (folder / ROWS).is_file() and b"\n" in (folder / ROWS).read_bytes()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
