"""The official tasks, a YAML each: how they are asked, where they lie, how they are scored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from oneglance.core import InputError
from oneglance.files import parse_yaml
from oneglance.tasks.layouts import LAYOUTS, LETTERS, Item
from oneglance.tasks.scores import SCORES

HF = "hf"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A data set on the Hugging Face hub, read with ``datasets``.

    Attributes:
        id, config, split: of the data set.
        columns: our names (id, question, answers, image, choices) → its own.
    """

    id: str
    split: str
    columns: dict[str, str]
    config: str | None = None


@dataclass(frozen=True, slots=True)
class OfficialTask:
    """One task.

    Attributes:
        name, version: of this definition; the version rises when prompts or scores change.
        layout: key of ``LAYOUTS``; folder: where it lies below the data folder, if it is not that itself.
        split: held-out one.
        prompt: with ``{question}`` in it where the item has one.
        metric: key of ``SCORES``, or none.
        long_side_px: what the paper scales images down to; None leaves them.
        hub: the same on the hub.
        source: where data and prompt come from, for people.
    """

    name: str
    version: int
    layout: str
    split: str
    prompt: str
    metric: str
    folder: str = ""
    long_side_px: int | None = None
    hub: HubSource | None = None
    source: str = field(default="", compare=False)

    def ask(self, item: Item) -> str:
        """The prompt of an item."""
        return self.prompt.replace("{question}", item.question)

    def score(self, answer: str, references: tuple[str, ...]) -> float:
        """The item's score, in 0..1."""
        return SCORES[self.metric](answer, references)

    def items(self, data: str) -> Iterator[Item]:
        """Items of the held-out split.

        Raises:
            InputError: the files are not there, or hold something else.
        """
        if data == HF:
            return _from_hub(self)
        folder = Path(data) / self.folder
        return self._on_disk(folder if folder.is_dir() else Path(data))

    def _on_disk(self, folder: Path) -> Iterator[Item]:
        try:
            yield from LAYOUTS[self.layout](folder, self.split)
        except OSError as error:
            raise InputError(
                f"cannot read {error.filename or folder} ({error.strerror}); give --data another folder"
            ) from error
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"the files in {folder} are not in the layout {self.layout!r}: {what}") from error

    def sample(self, data: str, limit: int) -> list[Item]:
        """The ``limit`` items whose ids hash lowest, so that the choice depends on nothing else."""

        def key(item: Item) -> str:
            return hashlib.sha256(f"{self.name}/{item.id}".encode()).hexdigest()

        found = sorted(self.items(data), key=key)[:limit]
        if not found:
            raise InputError(
                f"{data} holds no examples of {self.name} in its split {self.split}; give --data another folder"
            )
        return found


def names() -> tuple[str, ...]:
    """Names of the official tasks."""
    folder = resources.files("oneglance.tasks") / "official"
    return tuple(sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")))


def load_task(name: str) -> OfficialTask:
    """The task of that name.

    Raises:
        InputError: there is none, or its YAML is no task.
    """
    if name not in names():
        raise InputError(f"no official task {name!r}; there are {', '.join(names())}")
    file = resources.files("oneglance.tasks") / "official" / f"{name}.yaml"
    data: dict[str, Any] = parse_yaml(file.read_text(encoding="utf-8"))
    return task_of(name, data)


def task_of(name: str, data: Mapping[str, Any]) -> OfficialTask:
    """A task from what its YAML says.

    Raises:
        InputError: it says too little, too much, or names a layout or metric that does not exist.
    """
    for key, known in (("layout", [*LAYOUTS]), ("metric", [*SCORES, "none"])):
        if data.get(key) not in known:
            raise InputError(f"task {name}: unknown {key} {data.get(key)!r}; choose one of {', '.join(known)}")
    own = dict(data)
    hub = own.pop("hub", None)
    try:
        return OfficialTask(name=name, hub=None if hub is None else HubSource(**hub), **own)
    except TypeError as error:
        keys = ", ".join(sorted({field.name for field in fields(OfficialTask)} - {"name"}))
        raise InputError(f"task {name}: {error}; a task has the keys {keys}") from error


def _from_hub(task: OfficialTask) -> Iterator[Item]:
    if task.hub is None:
        raise InputError(f"{task.name} has no data set on the hub; give --data FOLDER")
    try:
        load_dataset: Any = import_module("datasets").load_dataset
    except ImportError as error:
        raise InputError("data sets of the hub need datasets: pip install 'oneglance[data]'") from error
    try:
        rows = load_dataset(task.hub.id, task.hub.config, split=task.hub.split)
    except (OSError, ValueError) as error:  # offline, gated, renamed
        raise InputError(f"cannot load {task.hub.id} ({task.hub.split}): {error}") from error
    for index, row in enumerate(rows):
        yield _hub_item(task.hub, row, index)


def _hub_item(hub: HubSource, row: dict[str, Any], index: int) -> Item:
    own = {ours: row.get(theirs) for ours, theirs in hub.columns.items()}
    answers = own.get("answers")
    question = str(own.get("question") or "")
    choices: Any = own.get("choices")
    if choices:
        question += "\n" + "\n".join(f"{LETTERS[i]}. {choice}" for i, choice in enumerate(choices))
        answers = LETTERS[int(answers)] if answers is not None else None
    listed = answers if isinstance(answers, list) else [] if answers is None else [answers]
    image = own.get("image")
    pictures: list[Any] = [] if image is None else [image]
    return Item(str(own.get("id", index)), question, tuple(str(a) for a in listed), lambda: pictures)
