"""Many pages, one after the other, into a JSONL file: a folder of documents as one resumable job.

A page that cannot be read is counted and the job goes on. A row is written whole and flushed before the next page
begins, so that a killed job goes on with the page that it was at.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from oneglance.acceptance import Acceptance
from oneglance.core import Generation, ImageError, InputError, SamplingParams
from oneglance.decoder import Decoder
from oneglance.files import Unchanged, parse_json, read_object, sole_writer, write_atomically
from oneglance.images import load_image
from oneglance.pdf import is_pdf, num_pages, render_page
from oneglance.train.prompts import Prompt, line_of, prompt_of_line

SUFFIXES = frozenset(".png .jpg .jpeg .webp .gif .bmp .tif .tiff .avif .jp2 .ppm .pgm .pdf".split())
GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Page:
    """One question of the job.

    Attributes:
        id: of its row: the path, a PDF's with ``#page=N``, or the id of a JSONL line.
        place: what a failure is called: the id, or a JSONL file and the number of the line.
        prompt: user text.
        load: its images, read only when their turn comes.
        system: system prompt.
        audio: path of a recording, for speech targets.
    """

    id: str
    prompt: str
    load: Callable[[], list[Image.Image]]
    place: str
    system: str | None = None
    audio: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A page that gave no row: what it is called, and why."""

    id: str
    reason: str

    def line(self) -> str:
        """Both in one line, the name once: most reasons have it already."""
        text = self.reason if self.id in self.reason else f"{self.id}: {self.reason}"
        return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class Row:
    """One answer, as it is written."""

    id: str
    prompt: str
    generation: Generation
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        done = self.generation
        return {
            "id": self.id,
            "prompt": self.prompt,
            "text": done.text,
            "finish_reason": done.finish_reason,
            "num_tokens": done.num_tokens,
            "prefill_ms": done.prefill_ms,
            "decode_ms": done.decode_ms,
            "seconds": self.seconds,
            "seed": done.seed,
            "fell_back": done.fell_back,
            "speculative_decoding": Acceptance.of(done).as_dict(),
        }


def find_pages(inputs: Sequence[str], prompt: str | None, *, dpi: int) -> Iterator[Page | Failure]:
    """Every page that the inputs name, in order, once.

    Args:
        inputs: folders (searched to the bottom), files, glob patterns, and JSONL files of ``{"image", "prompt"}``.
        prompt: asked of each page; a JSONL line's own goes first.
        dpi: at which PDF pages are rendered.

    Raises:
        InputError: an input names nothing, or pages have no prompt.
    """
    seen: set[tuple[str, str | None]] = set()
    for name in inputs:
        for path in _files(name):
            for page in _pages_of(path, prompt, dpi):
                key = (page.id, page.prompt if isinstance(page, Page) else None)
                if key not in seen:
                    seen.add(key)
                    yield page


def _files(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        found = [Path(at) / file for at, _, files in os.walk(path) for file in files]
        found = [file for file in found if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")]
        if not found:
            raise InputError(f"there is no image or PDF below {name}; give another folder")
        return sorted(found)
    if path.exists():
        return [path]
    if GLOB & set(name):
        if matches := sorted(Path(match) for match in glob.glob(name, recursive=True) if Path(match).is_file()):
            return matches
        raise InputError(f"no file matches {name!r}; check the pattern")
    raise InputError(f"there is no file or folder {name!r}; check the path")


def _pages_of(path: Path, prompt: str | None, dpi: int) -> Iterator[Page | Failure]:
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        yield from _lines(path, prompt)
        return
    if prompt is None:
        raise InputError("give --prompt: what to ask about each page")
    if not is_pdf(path):
        yield Page(str(path), prompt, lambda: [load_image(path)], str(path))
        return
    try:
        count = num_pages(path)
    except ImageError as error:
        yield Failure(str(path), str(error))
        return
    for index in range(count):
        name = f"{path}#page={index + 1}"
        yield Page(name, prompt, partial(_render, path, index, dpi), name)


def _lines(path: Path, prompt: str | None) -> Iterator[Page | Failure]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            asked = prompt_of_line(line, path, number, default=prompt)
        except InputError as error:
            yield Failure(line_of(path, number), str(error))
            continue
        yield _page_of_line(asked, line_of(path, number))


def _page_of_line(asked: Prompt, place: str) -> Page:
    def load() -> list[Image.Image]:
        return [load_image(image) for image in asked.images]

    return Page(asked.id, asked.text, load, place, asked.system, asked.audio)


def _render(path: Path, index: int, dpi: int) -> list[Image.Image]:
    return [render_page(path, index, dpi=dpi)]


@dataclass
class Job:
    """The pages and where their rows go.

    Args:
        out: JSONL file; rows that it has already are not decoded again.
        pages: what to do.
        settings: what the answers depend on; a job is gone on with only under the same ones.

    Attributes:
        failures: pages without a row.
        acceptance: sum over the rows written by this run.
        num_written, num_tokens, decode_ms: of the rows written by this run.
        num_rows: in the file, whoever wrote them.
    """

    out: Path
    pages: Sequence[Page | Failure]
    settings: dict[str, Any]
    failures: list[Failure] = field(default_factory=list)
    acceptance: Acceptance = field(default_factory=Acceptance)
    num_written: int = 0
    num_rows: int = 0
    num_tokens: int = 0
    decode_ms: float = 0.0

    def __post_init__(self) -> None:
        self.failures = [page for page in self.pages if isinstance(page, Failure)]
        self._read()

    def _read(self) -> None:
        """What is there already, and what is left to do."""
        self._check_settings()
        done = self._rows_there()
        self.num_rows = len(done)
        self.todo = [page for page in self.pages if isinstance(page, Page) and (page.id, page.prompt) not in done]
        self.num_skipped = len(self.pages) - len(self.failures) - len(self.todo)

    def run(self, decoder: Decoder, params: SamplingParams) -> Iterator[Row | Failure]:
        """Decode page after page; what each one gave.

        Raises:
            InputError: another job is at this file, or something else took it away meanwhile.
        """
        with sole_writer(self.out):
            self._read()  # again: another job may have ended since
            self._write_settings()
            # a file name that is no UTF-8 holds lone surrogates, which JSON can say as escapes only
            with self.out.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.truncate(self._num_whole_bytes)
                files = Unchanged(self.out, self._settings_file)
                for page in self.todo:
                    result = _answer(decoder, page, params)
                    if isinstance(result, Failure):
                        self.failures.append(result)
                    else:
                        with files.changing():
                            file.write(json.dumps(result.as_dict(), ensure_ascii=False) + "\n")
                            file.flush()
                            os.fsync(file.fileno())
                        self._count(result)
                    yield result
                files.check()

    def summary(self) -> dict[str, Any]:
        """The totals of this run, and what failed."""
        return {
            "out": str(self.out),
            "written": self.num_written,
            "already_there": self.num_skipped,
            "num_rows": self.num_rows,
            "failed": [asdict(failure) for failure in self.failures],
            "num_tokens": self.num_tokens,
            "decode_ms": self.decode_ms,
            "speculative_decoding": self.acceptance.as_dict(),
            "fell_back": self.acceptance.fell_back,
        }

    def _count(self, row: Row) -> None:
        self.num_written += 1
        self.num_rows += 1
        self.num_tokens += row.generation.num_tokens
        self.decode_ms += row.generation.decode_ms
        self.acceptance = self.acceptance + Acceptance.of(row.generation)

    @property
    def _settings_file(self) -> Path:
        return self.out.with_name(self.out.name + ".settings.json")

    def _check_settings(self) -> None:
        if not self.out.exists() or not self.out.stat().st_size:
            return
        if not self._settings_file.is_file():
            raise InputError(f"{self.out} is not from this command; choose another --out")
        old = read_object(self._settings_file, "choose another --out")
        changed = sorted(key for key in self.settings.keys() | old.keys() if self.settings.get(key) != old.get(key))
        if changed:
            key = changed[0]
            raise InputError(
                f"{self.out} was written with {key} {old.get(key)!r}, not {self.settings.get(key)!r}; "
                "choose another --out, or the same settings"
            )

    def _write_settings(self) -> None:
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._settings_file, json.dumps(self.settings, indent=2, sort_keys=True) + "\n")
        except OSError as error:
            raise InputError(f"cannot write beside {self.out}: {error.strerror}") from error

    def _rows_there(self) -> set[tuple[str, str]]:
        """Ids and prompts of the rows that are whole: the last line may be cut off."""
        data = self.out.read_bytes() if self.out.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        self._num_whole_bytes = len(whole)
        try:
            rows = [parse_json(line) for line in whole.decode("utf-8").split("\n") if line]
            return {(str(row["id"]), str(row["prompt"])) for row in rows}
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.out} is damaged ({error}); choose another --out") from error


def settings_of(decoder: Decoder, params: SamplingParams, **others: Any) -> dict[str, Any]:
    """What the rows of a job depend on."""
    sampling = {key: value for key, value in asdict(params).items() if key != "logits_processors"}
    identity = json.dumps(decoder.target.fingerprint(), sort_keys=True, default=str)
    return {
        "schema_version": 1,
        "target": decoder.target.name,
        "target_sha256": hashlib.sha256(identity.encode()).hexdigest(),
        "dtype": str(decoder.target.dtype),
        "sampling": parse_json(json.dumps(sampling, default=str)),
        **others,
    }


def _answer(decoder: Decoder, page: Page, params: SamplingParams) -> Row | Failure:
    started = time.perf_counter()
    try:
        stream = decoder.stream_params(page.prompt, params, images=page.load(), system=page.system, audio=page.audio)
        done = stream.exhaust()
    except InputError as error:
        return Failure(page.place, str(error))
    except (RuntimeError, MemoryError) as error:  # the device has no room for this page: the next may be smaller
        return Failure(page.place, f"{type(error).__name__}: {error}")
    return Row(page.id, page.prompt, done, time.perf_counter() - started)
