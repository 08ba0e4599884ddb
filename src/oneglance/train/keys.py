"""The keys of a recipe: all there are, the one that was meant, and where a wrong one came from."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

PLACE = "recipe keys"
Model = type[BaseModel]


def first_problem(error: ValidationError, model: Model, source: str, overrides: Sequence[str]) -> str:
    """What is wrong with a recipe first, in one line that begins with where it came from.

    Args:
        error: of pydantic.
        model: of the recipe.
        source: what the recipe was read from.
        overrides: ``section.key=value`` from the command line.
    """
    first = error.errors()[0]
    key = _known_part(first["loc"], model)
    override = next((given for given in reversed(overrides) if _touches(given.partition("=")[0], key)), None)
    if first["type"] == "extra_forbidden":
        name = override.partition("=")[0] if override else key
        where = "" if override else f"{source}: "
        return f"{where}{name}: no such key; {_advice(name, model)}"
    message = first["msg"].removeprefix("Value error, ")
    where = f"override {override!r}" if override else source
    return f"{where}: {key}: {message}" if key else f"{source}: {message}"


def dotted_keys(model: Model) -> list[str]:
    """All keys, sections before what they hold."""
    return [name for name, _ in _fields(model)]


def nearest(name: str, model: Model) -> str | None:
    """The key that was probably meant: a near name, in a near section or without any."""
    keys = dotted_keys(model)
    section, _, last = name.rpartition(".")
    sections = {key.rpartition(".")[0] for key in keys} - {""}
    if section and section not in sections:
        section = next(iter(get_close_matches(section, sections, 1)), "")
    known = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == section}
    anywhere = {key.rpartition(".")[2]: key for key in keys}
    if last in known or (not section and last in anywhere):
        return known.get(last) or anywhere[last]
    found = get_close_matches(last, known, 1) or ([] if section else get_close_matches(last, anywhere, 1, 0.8))
    return (known.get(found[0]) or anywhere[found[0]]) if found else (section or None)


def table(model: Model) -> str:
    """A Markdown table of all keys that take a value."""
    rows = ["| key | default | what |", "|---|---|---|"]
    for name, info in _fields(model):
        if _section_of(info) is None:
            default = "required" if info.is_required() else f"`{json.dumps(info.get_default(), ensure_ascii=False)}`"
            rows.append(f"| `{name}` | {default} | {' '.join((info.description or '').split())} |")
        elif _is_optional(info):
            rows.append(f"| `{name}` | `null` | The section; none without `kind: conditioned`. |")
    return "\n".join(rows)


def _advice(name: str, model: Model) -> str:
    meant = nearest(name, model)
    keys = dotted_keys(model)
    if meant is not None and not any(key.startswith(f"{meant}.") for key in keys):
        return f"did you mean {meant}?"
    inside = [key for key in keys if key.startswith(f"{meant}.")] or [key for key in keys if "." not in key]
    return f"{meant or 'a recipe'} has {', '.join(key.rpartition('.')[2] for key in inside)}"


def _touches(override: str, key: str) -> bool:
    return bool(key) and (override == key or override.startswith(f"{key}.") or key.startswith(f"{override}."))


def _known_part(location: Sequence[int | str], model: Model) -> str:
    """The dotted key of an error; what pydantic adds of the branches of a union is left out."""
    parts: list[str] = []
    own: Model | None = model
    for part in location:
        parts.append(str(part))
        info = own.model_fields.get(str(part)) if own else None
        own = _section_of(info) if info else None
        if own is None:
            break
    return ".".join(parts)


def _fields(model: Model, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        yield f"{prefix}{name}", info
        section = _section_of(info)
        if section is not None:
            yield from _fields(section, f"{prefix}{name}.")


def _section_of(info: FieldInfo) -> Model | None:
    choices: tuple[Any, ...] = (info.annotation, *get_args(info.annotation))
    return next((own for own in choices if isinstance(own, type) and issubclass(own, BaseModel)), None)


def _is_optional(info: FieldInfo) -> bool:
    return type(None) in get_args(info.annotation)


def write(page: Path) -> None:
    """Put the table between its markers on a page."""
    from oneglance.files import spliced, write_atomically
    from oneglance.train.recipe import HeadRecipe

    write_atomically(page, spliced(page.read_text(encoding="utf-8"), PLACE, table(HeadRecipe)))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
