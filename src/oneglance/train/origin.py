"""Whose answers a folder of traces holds: what its manifest says of the target is compared wherever traces are used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from oneglance.core import InputError
from oneglance.files import read_object
from oneglance.targets.base import Target
from oneglance.train.traces import MANIFEST, REMAKE, Trace

NAMES = ("target", "target_revision")  # where a target lies; the same weights may lie elsewhere
HASHES = {
    "target_geometry_sha256": "target",
    "target_weights_sha256": "fine-tune of the target",
    "chat_template_sha256": "chat template",
    "image_processor_sha256": "image processor",
}


def encoding(target: Target, long_side: int | None) -> dict[str, Any]:
    """What decides the tokens of a prompt: target, chat template and image size, hashed."""
    fingerprint = target.fingerprint()
    images = getattr(target.processor, "image_processor", None)
    sizes = json.dumps(images.to_dict() if images is not None else None, sort_keys=True, default=str)
    return {
        **{key: fingerprint[key] for key in (*NAMES, "target_geometry_sha256")},
        **{key: fingerprint[key] for key in ("target_weights_sha256", "chat_template_sha256")},
        "image_long_side": long_side,
        "image_processor_sha256": hashlib.sha256(sizes.encode()).hexdigest(),
    }


def other_target(stored: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """What differs between the targets of two encodings, in words; what either does not know is not compared."""
    known = [key for key in HASHES if stored.get(key) is not None and own.get(key) is not None]
    return next((HASHES[key] for key in known if stored[key] != own[key]), None)


def difference(stored: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """What keeps two collections out of one folder, in words. Where the weights are known to be the same, it does not
    matter where they lie; where they are not (answers of servers), another name may be another fine-tune."""
    found = other_target(stored, own)
    same = own.get("target_weights_sha256") is not None
    same = same and stored.get("target_weights_sha256") == own["target_weights_sha256"]
    compared = [key for key in own if key not in HASHES and not (same and key in NAMES)]
    return found or next((key for key in compared if stored.get(key) != own[key]), None)


def settings_of(folder: Path, fix: str = REMAKE) -> dict[str, Any]:
    """What the manifest of a folder of traces says of how they were made; empty where there is none.

    Raises:
        InputError: it is damaged.
    """
    manifest = folder / MANIFEST
    found = read_object(manifest, fix).get("settings", {}) if manifest.is_file() else {}
    if not isinstance(found, dict):
        raise InputError(f"{manifest} is damaged: its settings are no object; {fix}")
    return found


def check_origin(folders: Iterable[str | Path], target: Target, *, fix: str) -> None:
    """Refuse traces that hold another target's answers.

    Args:
        folders: of traces; one without a manifest cannot be judged and passes.
        target: whose answers they should be.
        fix: what to do, for the message; ``{}`` stands for the target that the traces name.

    Raises:
        InputError: target, fine-tune, chat template or image processor differ.
    """
    own = encoding(target, None)
    for folder in folders:
        stored = settings_of(Path(folder))
        found = other_target(stored, own)
        if found:
            name = str(stored.get("target") or "unknown")
            raise InputError(
                f"the traces in {folder} were collected with another {found}: with {name}, and this is {target.name}; "
                + fix.format(name)
            )


def check_image_size(folders: Iterable[str | Path], target: Target, long_side: int | None) -> None:
    """Refuse traces of images of another size than the head will see.

    Raises:
        InputError: the manifest names another long side.
    """
    for folder in folders if target.takes_images else ():
        stored = settings_of(Path(folder))
        if stored.get("image_long_side", long_side) != long_side:
            raise InputError(
                f"the traces in {folder} were collected at an image long side of {stored['image_long_side'] or 'any'} "
                f"and the recipe says {long_side or 'any'}; collect and train at the size that you will serve"
            )


def check_ids(rows: Iterable[Trace], target: Target) -> None:
    """Refuse answers whose tokens the target does not have.

    Raises:
        InputError: the first such sample.
    """
    size = target.embedding.num_embeddings
    for row in rows:
        if max(row.answer_ids, default=0) >= size:
            raise InputError(
                f"sample {row.id} has token {max(row.answer_ids)} and {target.name} has {size} tokens: it is another "
                f"target's answer; {REMAKE}"
            )
