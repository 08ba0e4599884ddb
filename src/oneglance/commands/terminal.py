"""What commands write: JSON, streamed text, one-line summaries. Nothing that a model wrote reaches a terminal raw."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TextIO

import typer

from oneglance.amounts import duration, plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from oneglance.core import Generation
    from oneglance.decoder import Step, Stream

# C0 but tab and newline, DEL, C1, and the marks that reorder a line: as escape sequences they could rewrite the screen
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\ud800-\udfff]")
PIPE_WIDTH = 120
ROUND_COLOURS = ("cyan", "yellow")


def visible(text: str) -> str:
    """``text`` with control characters shown instead of obeyed: ESC as ␛, others by their code."""

    def show(match: re.Match[str]) -> str:
        code = ord(match[0])
        return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"<U+{code:04X}>"

    return CONTROL.sub(show, text)


def plain(value: object) -> object:
    """What JSON can hold: dataclasses and mappings as objects, arrays as lists, numbers that are not finite as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {own.name: plain(getattr(value, own.name)) for own in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):  # numpy's arrays and scalars
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_object(value: object) -> dict[str, Any]:
    """A dataclass or mapping as a JSON object."""
    shown = plain(value)
    assert isinstance(shown, dict)
    return shown


def to_json(value: object) -> str:
    """JSON text that any terminal survives."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=2)
    return UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def write_json(value: object) -> None:
    """One object on stdout."""
    sys.stdout.write(to_json(value) + "\n")


def is_coloured(out: TextIO) -> bool:
    """Whether ``out`` is a terminal that wants styles."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def split_bonus(step: Step) -> tuple[str, str]:
    """The text of a step's accepted run and of its bonus token, which is empty where there was nothing to accept."""
    texts = [piece.text for piece in step.pieces]
    if round_colour(step) is None or step.round is None:
        return "".join(texts), ""
    verdict = step.round.verdict
    if verdict.is_gated or len(texts) < len(verdict.token_ids):
        return "".join(texts), ""  # the bonus was cut off, or left to a single step
    return "".join(texts[:-1]), texts[-1]


def round_colour(step: Step) -> str | None:
    """The colour of a round that had a tree, alternating; None for prefill and plain rounds."""
    if step.round is None or not len(step.round.tree):
        return None
    return ROUND_COLOURS[step.round.index % len(ROUND_COLOURS)]


def console() -> Console:
    """Where tables go: as wide as the terminal, and wide enough for a table where there is none."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def bar(*, show: bool, console: Console | None = None) -> Progress:
    """A progress bar with the time that is left, on a terminal only; on stderr unless a console is given."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    quiet = not (show and sys.stderr.isatty())
    return Progress(*columns, console=console or Console(stderr=True), disable=quiet, transient=True)


class Pulse:
    """How far a long job is, for logs: a line on stderr now and then where that is no terminal and shows no bar.

    Args:
        total: of whatever is counted.
        noun: its plural.
        done: before this run, so not of its rate.
        show: say anything at all.
    """

    EVERY_S = 30.0

    def __init__(self, total: int, noun: str, *, done: int = 0, show: bool) -> None:
        self._total, self._noun, self._first = total, noun, done
        self._shows = show and not sys.stderr.isatty()
        self._began = self._said = time.monotonic()

    def beat(self, done: int) -> None:
        """Say it, if the last line is old enough."""
        now = time.monotonic()
        if not self._shows or now - self._said < self.EVERY_S or not self._first < done < self._total:
            return
        self._said, rate = now, (done - self._first) / (now - self._began)
        pace = f"{rate:.1f} a second" if rate >= 1 else f"{1 / rate:.1f} s each"
        left = duration((self._total - done) / rate)
        print(f"{done} of {self._total} {self._noun}, {pace}, about {left} left", file=sys.stderr, flush=True)


@contextlib.contextmanager
def told(line: str | Callable[[], str]) -> Iterator[None]:
    """Say on stderr what an interrupt leaves, and let it go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(visible(f"\n{line if isinstance(line, str) else line()}"), file=sys.stderr)
        raise


class StreamPrinter:
    """Writes steps as they come.

    On a terminal, the run that each round accepted has one of two alternating colours and the bonus token is bold and
    underlined. Anywhere else the text comes out as it is, and a newline where it lacks one at the end.

    Attributes:
        num_written: characters of the answer so far.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._is_coloured = is_coloured(out)
        self.num_written = 0

    def write(self, step: Step) -> None:
        accepted, bonus = split_bonus(step)
        colour = round_colour(step)
        style = {"fg": colour} if colour else {}
        self._write(accepted, style)
        self._write(bonus, {**style, "bold": True, "underline": True})
        self._out.flush()

    def finish(self, text: str) -> None:
        """Write what no step has brought: the rest of an interrupted answer, and a last newline on a terminal."""
        rest = text[self.num_written :]
        self._write(rest, {})
        if self._is_terminal or not text.endswith("\n"):
            self._out.write("\n")
        self._out.flush()

    def _write(self, text: str, style: dict[str, Any]) -> None:
        self.num_written += len(text)
        if not text:
            return
        shown = visible(text) if self._is_terminal else text
        self._out.write(typer.style(shown, **style) if self._is_coloured and style else shown)


def follow(stream: Stream, printer: StreamPrinter | None) -> bool:
    """Decode to the end, or to Ctrl-C, writing what comes; whether it was the end."""
    is_whole = True
    try:
        for step in stream:
            if printer:
                printer.write(step)
    except KeyboardInterrupt:
        is_whole = False
        stream.close()
    if printer:
        printer.finish(stream.generation.text)
    return is_whole


ENDINGS = {"stop": "complete", "length": "cut at the length limit", "cancelled": "interrupted"}


def summary(generation: Generation) -> str:
    """The last line of ``oneglance generate``."""
    parts = [
        f"{plural(generation.num_tokens, 'token')}, {ENDINGS[generation.finish_reason]}",
        plural(len(generation.rounds), "round"),
        f"τ {_figure(generation.tau)}",
        plural(generation.num_draft_passes, "draft pass", "draft passes"),
        f"{_figure(generation.ms_per_token)} ms/token",
        f"prefill {generation.prefill_ms:.0f} ms",
    ]
    if any(r.gated for r in generation.rounds):
        parts.append(f"{generation.gate_rate:.1%} of choices gated")
    if generation.seed is not None:
        parts.append(f"seed {generation.seed}")
    if generation.fell_back:
        parts.append(f"drafting ended early: {generation.fell_back}")
    return " · ".join(parts)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
