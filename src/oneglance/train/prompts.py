"""What is asked of the target: a JSONL file of prompts, pages of the built-in suite, or questions about a folder of
pictures."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneglance.core import ImageError, InputError, OneglanceWarning
from oneglance.files import parse_json, reason
from oneglance.images import image_sha256, load_image
from oneglance.tasks.synthetic import Split, draw

if TYPE_CHECKING:
    from oneglance.targets.base import Target

KEYS = frozenset({"id", "task", "prompt", "image", "images", "system", "audio", "ocr"})
SUFFIXES = frozenset(".png .jpg .jpeg .webp .gif .bmp .tif .tiff .avif".split())
QUESTIONS = ("Describe the image.", "Transcribe the text in the image.", "What does the image show? Answer briefly.")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question, before it has an answer.

    Attributes:
        id: unique within its source.
        task: family, for reports.
        text: user text.
        images: image sources, see ``traces``.
        system: system prompt.
        audio: path of a WAV file, for speech targets.
        ocr: the text of the images, for benchmarks of systems that read it; no target sees it.
    """

    id: str
    task: str
    text: str
    images: tuple[str, ...] = ()
    system: str | None = None
    audio: str | None = None
    ocr: str | None = None


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a JSONL file, an object a line with ``KEYS``.

    Only ``prompt`` is required, and where there is ``audio`` not even that. Paths are relative to the file's folder.

    Raises:
        InputError: there is no such file, a line is malformed, or an id occurs twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read prompts {path}: {reason(error)}") from error
    found = [prompt_of_line(line, path, number) for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise InputError(f"{path} holds no prompts; give one a line")
    return check_unique(found)


def task_prompts(tasks: Sequence[str], *, split: Split, limit: int, start: int = 0) -> Iterator[Prompt]:
    """``limit`` pages of each task from the ``start``-th on, a task after the other in turn; they are drawn again where
    they are needed."""
    for seed in range(start, start + limit):
        for task in tasks:
            page = draw(task, seed, split=split)
            yield Prompt(page.id, task, page.prompt, (f"synthetic:{task}:{split}:{seed}",))


def read_questions(path: Path | None) -> tuple[str, ...]:
    """One question a line, or the default ones.

    Raises:
        InputError: the file cannot be read or is empty.
    """
    if path is None:
        return QUESTIONS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read prompts {path}: {reason(error)}") from error
    questions = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not questions:
        raise InputError(f"{path} holds no prompts; write one a line")
    if questions[0].startswith("{"):
        raise InputError(f"{path} is JSON; write plain questions, one a line: each is asked of each picture")
    return questions


@dataclass(frozen=True, slots=True)
class Pictures:
    """What a folder holds.

    Attributes:
        found: (content hash, path) of each different readable picture, in order of the hash: random, but stable.
        unreadable: files that look like pictures and are none.
        copies: pictures that are among the found already, under another name.
    """

    found: tuple[tuple[str, Path], ...]
    unreadable: tuple[Path, ...]
    copies: tuple[Path, ...]


def look_for_pictures(folder: Path) -> Pictures:
    """The pictures of a folder and its subfolders.

    Raises:
        InputError: there is no such folder.
    """
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise InputError(f"{what}; --images takes a folder of pictures")
    found: dict[str, Path] = {}
    unreadable, copies = [], []
    for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in {*SUFFIXES, ".pdf"}):
        try:
            sha = image_sha256(load_image(str(path)))
        except ImageError:
            unreadable.append(path)
            continue
        if sha in found:
            copies.append(path)
        else:
            found[sha] = path.resolve()
    return Pictures(tuple(sorted(found.items())), tuple(unreadable), tuple(copies))


def check_readable(target: Target, name: str) -> None:
    """Whether the target reads a prompt that has images.

    Raises:
        InputError: it reads none; the message says how it is asked.
    """
    if not target.takes_images:
        kind, key = ("speech", "audio") if target.takes_audio else ("text-only", "prompt")
        raise InputError(
            f"{target.name} is a {kind} target and takes no images, and prompt {name} has one: give --prompts FILE, "
            f'JSONL with an object {{"{key}": …}} a line'
        )


def note_left_out(reasons: Sequence[str]) -> None:
    """Say what a folder has that could not be asked about, and why."""
    if reasons:
        more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        warnings.warn(f"left out: {reasons[0]}{more}", OneglanceWarning, stacklevel=3)


def check_unique(prompts: Iterable[Prompt]) -> list[Prompt]:
    """The prompts, whose ids all differ.

    Raises:
        InputError: two are equal.
    """
    seen: dict[str, Prompt] = {}
    for prompt in prompts:
        if prompt.id in seen:
            raise InputError(f"the prompt id {prompt.id!r} occurs twice; ids must differ")
        seen[prompt.id] = prompt
    return list(seen.values())


def line_of(path: Path, number: int) -> str:
    """What messages call a line of a file."""
    return f"{path}, line {number}"


def prompt_of_line(line: str, path: Path, number: int, *, default: str | None = None) -> Prompt:
    """One line of such a file.

    Args:
        line: its text.
        path: of the file, to which image paths are relative.
        number: of the line, from 1.
        default: the prompt of a line without one.

    Raises:
        InputError: the line is malformed.
    """
    where = line_of(path, number)
    try:
        raw = parse_json(line)
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {error}") from error
    if default is not None and isinstance(raw, dict):
        raw.setdefault("prompt", default)
    if isinstance(raw, dict) and raw.get("audio") is not None:
        raw.setdefault("prompt", "")
    if not isinstance(raw, dict) or not isinstance(raw.get("prompt"), str):
        raise InputError(f'{where} must be an object with a text "prompt"')
    unknown = sorted(raw.keys() - KEYS)
    if unknown:
        raise InputError(f"{where} has the unknown key {unknown[0]!r}; known: {', '.join(sorted(KEYS))}")
    if not isinstance(raw.get("ocr"), str | None):
        raise InputError(f'{where}: "ocr" is the text of the images, got {raw["ocr"]!r}')
    return Prompt(
        id=str(raw.get("id", f"{path.stem}-{number:06d}")),
        task=str(raw.get("task", path.stem)),
        text=raw["prompt"],
        images=tuple(_source(image, path, f"{where}: an image") for image in _images(raw)),
        system=raw.get("system"),
        audio=None if raw.get("audio") is None else _source(raw["audio"], path, f"{where}: audio"),
        ocr=raw.get("ocr"),
    )


def _images(raw: dict[str, Any]) -> list[Any]:
    given = raw.get("images", raw.get("image"))
    if given is None:
        return []
    return given if isinstance(given, list) else [given]


def _source(source: Any, path: Path, what: str) -> str:
    if not isinstance(source, str) or not source:
        raise InputError(f"{what} must be a path, a URL or a data URI")
    beside = path.parent / source
    if ":" not in source and os.path.exists(beside):  # unlike Path.exists, false for names that are too long
        return str(beside.resolve())
    return source
