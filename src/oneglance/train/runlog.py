"""What a training run leaves behind besides checkpoints: its recipe and its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from oneglance.core import InputError
from oneglance.files import append_lines, read_lines, read_object, write_atomically
from oneglance.train.recipe import HeadRecipe

LOG, RECIPE, ROWS = "log.jsonl", "recipe.json", "rows.json"
FREE = ("schedule", "save_dtype", "ours")  # sections that a resumed run may change: no weight depends on them


def open_run(out: Path, recipe: HeadRecipe, *, rows: dict[str, int], start: int, resume: bool) -> None:
    """Prepare the folder of a run that begins after ``start`` steps; what a killed run logged past it goes.

    Args:
        out: the folder.
        recipe: of this run.
        rows: usable samples by set, and processes: with others, the order of the data would be another.
        start: steps done.
        resume: go on with what is there.

    Raises:
        InputError: the folder holds a run that is not to be resumed, or one of another recipe or other data.
    """
    check_run(out, recipe, resume=resume)
    stored = read_object(out / ROWS, "choose another --out") if start and (out / ROWS).is_file() else {}
    if stored.get("processes", rows.get("processes")) != rows.get("processes"):
        raise InputError(
            f"{out} was begun in {stored['processes']} processes; go on with as many, or choose another --out"
        )
    if any(stored.get(name, count) != count for name, count in rows.items()):
        raise InputError(f"the traces of {out} have changed since it began; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / ROWS, json.dumps(rows))
    write_atomically(out / RECIPE, json.dumps(recipe.model_dump(mode="json"), indent=2) + "\n")
    kept = [row for row in read_lines(out / LOG) if row.get("step", start) <= start] if start else []
    write_atomically(out / LOG, "".join(json.dumps(row) + "\n" for row in kept))


def check_run(out: Path, recipe: HeadRecipe, *, resume: bool) -> None:
    """Refuse a folder whose run this recipe cannot go on with. It reads one file: ask before a model is loaded.

    Raises:
        InputError: the folder holds a run that is not to be resumed, or one of another recipe.
    """
    path = out / RECIPE
    if path.is_file() and not resume:
        raise InputError(f"{out} already holds a run; --resume goes on with it, another --out starts anew")
    if path.is_file():
        own = recipe.model_dump(mode="json")
        before = {key: value for key, value in read_object(path, "choose another --out").items() if key not in FREE}
        differing = differences(before, {key: value for key, value in own.items() if key not in FREE})
        if differing:
            key, (old, new) = next(iter(differing.items()))
            more = f" (and {', '.join(list(differing)[1:])})" if len(differing) > 1 else ""
            raise InputError(
                f"{out} holds a run with {key}={json.dumps(old)}, and now it is {json.dumps(new)}{more}: give what it "
                "had to go on with it, or choose another --out"
            )


def differences(before: Any, now: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted name → both values, of whatever differs between two recipes; what one lacks is None."""
    if isinstance(before, dict) and isinstance(now, dict):
        found: dict[str, tuple[Any, Any]] = {}
        for key in {**now, **before}:
            found |= differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
        return found
    return {} if before == now else {name: (before, now)}


def read_recipe(out: Path) -> HeadRecipe:
    """The recipe of a run.

    Raises:
        InputError: there is none, or it is damaged.
    """
    fix = f"give the folder of a run that 'oneglance train' wrote, with its {RECIPE}"
    try:
        return HeadRecipe(**read_object(out / RECIPE, fix))
    except (ValidationError, TypeError) as error:
        raise InputError(f"{out / RECIPE} holds no recipe of this version; {fix}") from error


def log(out: Path, row: dict[str, Any]) -> None:
    """Append a row."""
    append_lines(out / LOG, [row])


def read_log(out: Path) -> list[dict[str, Any]]:
    """All rows so far."""
    return read_lines(out / LOG)
