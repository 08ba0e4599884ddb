"""The official layouts on disk: annotation files as their authors publish them, read into items.

A reader takes a folder and a split and yields items in the file's order. Images are looked for only where they
are asked for. What is missing is refused by name: ``first_of``, ``any_below``, ``read_json`` and ``find_image`` do that
for every reader, here or in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from PIL import Image

from oneglance.core import InputError
from oneglance.files import parse_json, parse_object

LETTERS: Final = "ABCDEFGHIJ"


@dataclass(frozen=True, slots=True)
class Item:
    """One example of a data set.

    Attributes:
        id: unique within the data set.
        question: empty where the task's prompt says it all.
        answers: references, any number.
        find: its image sources, as ``images.load_image`` takes them.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    find: Callable[[], list[Path | Image.Image]]


Reader = Callable[[Path, str], Iterator[Item]]


def coco(folder: Path, split: str) -> Iterator[Item]:
    """COCO captions: ``captions_<split>2017.json`` (in ``annotations/`` or not) and the images of that split."""
    path = first_of(folder, f"annotations/captions_{split}2017.json", f"captions_{split}2017.json")
    data = read_json(path)
    captions: dict[Any, list[str]] = {}
    for annotation in data["annotations"]:
        captions.setdefault(annotation["image_id"], []).append(annotation["caption"])
    for image in data["images"]:
        own = partial(find_image, folder, (f"{split}2017", "images", "."), image["file_name"])
        yield Item(str(image["id"]), "", tuple(captions.get(image["id"], ())), own)


def textvqa(folder: Path, split: str) -> Iterator[Item]:
    """TextVQA: ``TextVQA_0.5.1_<split>.json`` and OpenImages pictures named by their id."""
    for row in read_json(any_below(folder, f"TextVQA*_{split}.json"))["data"]:
        own = partial(find_image, folder, ("train_images", "images", "."), f"{row['image_id']}.jpg")
        yield Item(str(row["question_id"]), row["question"], tuple(row.get("answers", ())), own)


def docvqa(folder: Path, split: str) -> Iterator[Item]:
    """DocVQA: ``<split>_v1.0*.json`` with ``documents/``."""
    for row in read_json(any_below(folder, f"{split}_v*.json"))["data"]:
        own = partial(find_image, folder, (".", "spdocvqa_images"), row["image"], Path(row["image"]).name)
        yield Item(str(row["questionId"]), row["question"], tuple(row.get("answers", ())), own)


def infovqa(folder: Path, split: str) -> Iterator[Item]:
    """InfographicVQA: ``infographicsVQA_<split>_v1.0*.json`` with pictures by their local name."""
    for row in read_json(any_below(folder, f"infographicsVQA_{split}_v*.json"))["data"]:
        own = partial(find_image, folder, ("infographicsvqa_images", "images", "."), row["image_local_name"])
        yield Item(str(row["questionId"]), row["question"], tuple(row.get("answers", ())), own)


def chartqa(folder: Path, split: str) -> Iterator[Item]:
    """ChartQA: ``<split>/<split>_human.json`` and ``_augmented.json`` with ``<split>/png/``."""
    found = False
    for part in ("human", "augmented"):
        path = next((p for p in (folder / split / f"{split}_{part}.json", folder / f"{split}_{part}.json")
                     if p.is_file()), None)  # fmt: skip
        if path is None:
            continue
        found = True
        for index, row in enumerate(read_json(path)):
            own = partial(find_image, folder, (f"{split}/png", "png"), row["imgname"])
            yield Item(f"{part}-{index:05d}", row["query"], (str(row["label"]),), own)
    if not found:
        raise InputError(
            f"{folder} has no {split}/{split}_human.json or {split}_augmented.json; give the folder that holds {split}"
        )


def scienceqa(folder: Path, split: str) -> Iterator[Item]:
    """ScienceQA: ``problems.json`` and ``pid_splits.json``; only problems with a picture."""
    problems, splits = read_json(any_below(folder, "problems.json")), read_json(any_below(folder, "pid_splits.json"))
    if split not in splits:
        raise InputError(f"{folder}/pid_splits.json has no split {split!r}; it has {', '.join(splits)}")
    for name in splits[split]:
        row = problems[name]
        if not row.get("image"):
            continue
        choices = "\n".join(f"{LETTERS[i]}. {choice}" for i, choice in enumerate(row["choices"]))
        hint = f"{row['hint']}\n" if row.get("hint") else ""
        own = partial(find_image, folder, (f"images/{split}/{name}", f"{split}/{name}"), row["image"])
        yield Item(str(name), f"{hint}{row['question']}\n{choices}", (LETTERS[row["answer"]],), own)


def text(folder: Path, split: str) -> Iterator[Item]:
    """Text prompts: ``<split>.jsonl``, an object a line with ``prompt`` or ``turns``, and maybe ``answer``."""
    path = first_of(folder, f"{split}.jsonl", f"{folder.name}.jsonl")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            row = parse_object(line)
        except ValueError as error:
            raise InputError(f"{path}, line {index + 1} is no JSON object: {error}") from error
        prompt = row.get("prompt") or (row.get("turns") or [None])[0]
        if not isinstance(prompt, str):
            raise InputError(f"{path}, line {index + 1}: need a text prompt, or turns whose first one is a text")
        answer = row.get("answer")
        yield Item(str(row.get("id", row.get("question_id", index))), prompt, (answer,) if answer else (), list)


LAYOUTS: Final[dict[str, Reader]] = {
    "coco": coco,
    "textvqa": textvqa,
    "docvqa": docvqa,
    "infovqa": infovqa,
    "chartqa": chartqa,
    "scienceqa": scienceqa,
    "text": text,
}


def first_of(folder: Path, *names: str) -> Path:
    """The first of some files that is there.

    Raises:
        InputError: none is; the message names them.
    """
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"{folder} has no {' or '.join(names)}; give --data the folder that does")


def any_below(folder: Path, pattern: str) -> Path:
    """The first file of a pattern, in a folder or below it.

    Raises:
        InputError: there is none; the message names the pattern.
    """
    found = sorted(folder.rglob(pattern)) if folder.is_dir() else []
    if not found:
        raise InputError(f"{folder} has no {pattern}, in it or below it; give --data the folder that does")
    return found[0]


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        InputError: it cannot be read; the message names it.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def find_image(folder: Path, places: tuple[str, ...], *names: str) -> list[Path | Image.Image]:
    """An item's picture, under one of its names in one of the places; ``partial`` of it is an item's ``find``.

    Raises:
        InputError: it is nowhere; the message says where it was looked for.
    """
    for place in places:
        for name in names:
            path = folder / place / name
            if path.is_file():
                return [path]
    raise InputError(
        f"the image {names[0]} is not in {', '.join(str(folder / place) for place in places)}; put it there"
    )
