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
    path, own = out / RECIPE, recipe.model_dump(mode="json")
    if path.is_file() and not resume:
        raise InputError(f"{out} already holds a run; --resume goes on with it, another --out starts anew")
    if path.is_file():
        before = read_object(path, "choose another --out")
        differing = [key for key in own if key not in FREE and before.get(key) != own[key]]
        if differing:
            raise InputError(
                f"{out} holds a run with another {differing[0]}; resume it as it was, or choose another --out"
            )
    stored = read_object(out / ROWS, "choose another --out") if start and (out / ROWS).is_file() else {}
    if stored.get("processes", rows.get("processes")) != rows.get("processes"):
        raise InputError(
            f"{out} was begun in {stored['processes']} processes; go on with as many, or choose another --out"
        )
    if any(stored.get(name, count) != count for name, count in rows.items()):
        raise InputError(f"the traces of {out} have changed since it began; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / ROWS, json.dumps(rows))
    write_atomically(path, json.dumps(own, indent=2) + "\n")
    kept = [row for row in read_lines(out / LOG) if row.get("step", start) <= start] if start else []
    write_atomically(out / LOG, "".join(json.dumps(row) + "\n" for row in kept))


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
