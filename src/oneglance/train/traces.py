"""Traces: the target's own greedy answers, one JSON line each, with a manifest beside them.

A trace names its image by a source that can be opened again (a path, a URL, or ``synthetic:<task>:<split>:<seed>`` for
pages of the built-in suite), so that features are recomputed on the fly and images are never copied.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from PIL import Image
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from oneglance.core import ImageError, InputError
from oneglance.files import append_lines, parse_json, read_object, write_atomically
from oneglance.images import load_image
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.state import Inputs

SCHEMA_VERSION = 1
ROWS, MANIFEST = "traces.jsonl", "manifest.json"
REMAKE = "collect the traces anew"
MAX_DIGITS = 18  # of the number of a drawn page


@dataclass(frozen=True, slots=True)
class Trace:
    """One prompt and the target's own answer to it.

    Attributes:
        id: unique within its folder.
        task: family, for reports.
        prompt: user text.
        images: image sources.
        answer_ids: the target's greedy tokens, the end-of-sequence token included where it came.
        image_sha256: of each image after normalisation, for leakage checks.
        system: system prompt.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    id: str
    task: str
    prompt: str
    images: tuple[str, ...]
    answer_ids: tuple[Annotated[int, Field(ge=0)], ...]
    image_sha256: tuple[str, ...] = ()
    system: str | None = None

    def encode(self, target: Target, *, long_side: int | None = None) -> Inputs:
        """The prompt, as the target sees it."""
        pictures = [shrink(open_source(source), long_side) for source in self.images]
        return encode(target, self.prompt, images=pictures, system=self.system)


_TRACE = TypeAdapter(Trace)


@dataclass(frozen=True, slots=True)
class Traces:
    """A folder of traces."""

    rows: list[Trace]
    manifest: dict[str, Any] = field(default_factory=dict)


def open_source(source: str) -> Image.Image:
    """The image behind a trace's source.

    Raises:
        ImageError: it cannot be read.
    """
    if not source.startswith("synthetic:"):
        return load_image(source)
    from oneglance.tasks import synthetic

    _, task, *rest = source.split(":")
    split, seed = rest if len(rest) == 2 else ("", "")
    if split not in ("train", "eval") or not (seed.isascii() and seed.isdecimal() and len(seed) <= MAX_DIGITS):
        raise ImageError(f"{source!r} is no drawn page; such a source looks like synthetic:docvqa:train:17")
    return synthetic.draw(task, int(seed), split="train" if split == "train" else "eval").image


def shrink(image: Image.Image, long_side: int | None) -> Image.Image:
    """The image with its long side at most ``long_side`` pixels."""
    if long_side is None or max(image.size) <= long_side:
        return image
    scale = long_side / max(image.size)
    return image.resize(
        (max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.Resampling.BICUBIC
    )


def append_traces(folder: Path, rows: Iterable[Trace]) -> Iterator[Trace]:
    """Append traces a line at a time, flushed, so that a killed run loses at most the line in progress."""
    for row in rows:
        append_lines(folder / ROWS, [asdict(row)])
        yield row


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / MANIFEST, json.dumps({"schema_version": SCHEMA_VERSION, **manifest}, indent=2) + "\n")


def read_traces(folder: str | Path) -> Traces:
    """Read a folder of traces; a torn last line (a killed run) is dropped.

    Raises:
        InputError: there are none, or a line is damaged.
    """
    path = Path(folder) / ROWS
    if not path.is_file():
        raise InputError(f"no traces at {folder}: run 'oneglance collect --out {folder}' first")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} ({error}); collect the traces anew") from error
    rows = [_parse(line, path, number) for number, line in enumerate(lines[:-1], start=1)]
    if not rows:
        raise InputError(f"{path} holds no traces; write some with 'oneglance collect'")
    manifest = Path(folder) / MANIFEST
    return Traces(rows, read_object(manifest, REMAKE) if manifest.is_file() else {})


def read_mixed(folders: Iterable[str | Path]) -> list[Trace]:
    """The traces of several folders, one after the other.

    Raises:
        InputError: as ``read_traces``, or an id occurs twice.
    """
    seen: dict[str, str | Path] = {}
    rows = []
    for folder in folders:
        for row in read_traces(folder).rows:
            if row.id in seen:
                raise InputError(f"sample {row.id} is in {seen[row.id]} and in {folder}; ids must differ")
            seen[row.id] = folder
            rows.append(row)
    return rows


def check_disjoint(train: Iterable[Trace], heldout: Iterable[Trace]) -> None:
    """Refuse a held-out set that shares an image (or, without images, a prompt) with training.

    Raises:
        InputError: a leak, with both ids.
    """
    seen = {part: row.id for row in train for part in contents(row)}
    for row in heldout:
        for part in contents(row) & seen.keys():
            shared = clash(part, seen[part], "training")
            raise InputError(f"held-out sample {row.id} {shared}; keep the two sets disjoint")


def contents(row: Trace) -> set[tuple[str, ...]]:
    """What no sample of another set may hold: each image after normalisation or, without images, the prompt."""
    return {(image,) for image in row.image_sha256} or {(row.system or "", row.prompt)}


def counts(rows: Iterable[Trace]) -> dict[str, Any]:
    """Rows, and how many of each task; for a head's card."""
    tasks = Counter(row.task for row in rows)
    return {"rows": tasks.total(), "tasks": dict(sorted(tasks.items()))}


def clash(part: tuple[str, ...], other: str, where: str) -> str:
    """What two samples share; ``other`` is the second one's id."""
    what = "an image" if len(part) == 1 else "its prompt"
    return f"shares {what} with sample {other} of {where}"


def _parse(line: str, path: Path, number: int) -> Trace:
    try:
        return _TRACE.validate_python(parse_json(line))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}, line {number} is not a trace: {where}: {first['msg']}; {REMAKE}") from error
    except ValueError as error:
        raise InputError(f"{path}, line {number} is not a trace: {error}; {REMAKE}") from error
