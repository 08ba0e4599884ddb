"""Features of traces, kept between epochs: in memory, or on disk in shards of safetensors.

A disk that fills up costs speed only: what no longer fits is recomputed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from oneglance.amounts import size
from oneglance.core import InputError, OneglanceWarning
from oneglance.files import append_lines, parse_json, read_lines, read_object, write_atomically
from oneglance.train.step import Sample
from oneglance.train.traces import Trace

SHARD_BYTES = 256 * 2**20
INDEX, SETTINGS = "index.jsonl", "settings.json"


def key_of(row: Trace) -> str:
    """What tells two traces apart: ids of two folders may be equal."""
    parts = (row.id, row.system, row.prompt, row.images, row.answer_ids)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


class Store(Protocol):
    """Samples by the key of their trace."""

    def get(self, key: str) -> Sample | None: ...

    def put(self, key: str, sample: Sample) -> None: ...

    def flush(self) -> None: ...


class NoStore:
    """Keeps nothing."""

    def get(self, key: str) -> Sample | None:
        return None

    def put(self, key: str, sample: Sample) -> None:
        pass

    def flush(self) -> None:
        pass


class MemoryStore:
    """Keeps everything in memory."""

    def __init__(self) -> None:
        self._samples: dict[str, Sample] = {}

    def get(self, key: str) -> Sample | None:
        return self._samples.get(key)

    def put(self, key: str, sample: Sample) -> None:
        self._samples[key] = sample

    def flush(self) -> None:
        pass


class DiskStore:
    """Keeps everything in a folder; a later run with the same settings finds it there.

    Args:
        folder: of one process.
        settings: whatever decides a feature.
        shard_bytes: samples are gathered to files of about this size; None is ``SHARD_BYTES``.

    Raises:
        InputError: the folder holds features of other settings.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], *, shard_bytes: int | None = None) -> None:
        self.folder, self.shard_bytes, self.is_full = folder, shard_bytes or SHARD_BYTES, False
        folder.mkdir(parents=True, exist_ok=True)
        differing = difference(folder, settings)
        if differing:
            raise InputError(f"{folder} holds features made with other settings ({differing}); delete it")
        if not (folder / SETTINGS).is_file():
            write_atomically(folder / SETTINGS, json.dumps({"sha256": _sha256(settings), **settings}, default=str))
        self._index: dict[str, dict[str, Any]] = {row["id"]: row for row in read_lines(folder / INDEX)}
        self._waiting: dict[str, Sample] = {}
        self._waiting_bytes = 0

    def __contains__(self, key: str) -> bool:
        return key in self._waiting or key in self._index

    def get(self, key: str) -> Sample | None:
        if key in self._waiting:
            return self._waiting[key]
        row = self._index.get(key)
        if row is None:
            return None
        with safe_open(self.folder / row["shard"], framework="pt") as file:
            names = set(file.keys())
            features = file.get_tensor(key)
            last = file.get_tensor(f"{key}.last") if f"{key}.last" in names else None
        return Sample(tuple(row["token_ids"]), row["prompt_length"], features, last)

    def put(self, key: str, sample: Sample) -> None:
        if self.is_full:
            return
        self._waiting[key] = Sample(
            sample.token_ids,
            sample.prompt_length,
            sample.features.cpu(),
            None if sample.last_hidden is None else sample.last_hidden.cpu(),
        )
        self._waiting_bytes += sum(t.numel() * t.element_size() for t in _tensors(key, sample).values())
        if self._waiting_bytes >= self.shard_bytes:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        if not self._waiting:
            return
        name = f"features-{len(list(self.folder.glob('features-*.safetensors'))):05d}.safetensors"
        scratch = self.folder / f"{name}.partial"
        try:
            tensors = {k: t for key, sample in self._waiting.items() for k, t in _tensors(key, sample).items()}
            save_file({k: t.contiguous().clone() for k, t in tensors.items()}, scratch)
            scratch.replace(self.folder / name)
            rows: list[dict[str, Any]] = [
                {"id": key, "shard": name, "prompt_length": s.prompt_length, "token_ids": list(s.token_ids)}
                for key, s in self._waiting.items()
            ]
            append_lines(self.folder / INDEX, rows)
            self._index |= {row["id"]: row for row in rows}
        except Exception as error:  # safetensors wraps the system's error in its own
            if getattr(error, "errno", None) != errno.ENOSPC and "No space left" not in str(error):
                raise
            scratch.unlink(missing_ok=True)
            self._give_up()
        self._waiting, self._waiting_bytes = {}, 0

    def _give_up(self) -> None:
        self.is_full = True
        warnings.warn(
            f"the disk of {self.folder} is full: further features are recomputed at each epoch",
            OneglanceWarning,
            stacklevel=3,
        )


class FoundStore:
    """What stores of others hold, which are only read; what they lack goes to a store of one's own."""

    def __init__(self, found: Sequence[Store], own: Store) -> None:
        self.found, self.own = found, own

    def get(self, key: str) -> Sample | None:
        return next((sample for store in (*self.found, self.own) if (sample := store.get(key)) is not None), None)

    def put(self, key: str, sample: Sample) -> None:
        self.own.put(key, sample)

    def flush(self) -> None:
        self.own.flush()


def difference(folder: Path, settings: dict[str, Any]) -> str | None:
    """The first setting in which a folder of features differs from these; None where it holds none or the same."""
    if not (folder / SETTINGS).is_file():
        return None
    stored = read_object(folder / SETTINGS, "delete the folder")
    if stored.get("sha256") == _sha256(settings):
        return None
    own = parse_json(json.dumps(settings, default=str))
    return next((key for key in own if stored.get(key) != own[key]), "sha256")


def check_disk(folder: Path, needed: int, *, fix: str = "set data.cache_features=false, which recomputes them") -> None:
    """Name the size before anything is written.

    Raises:
        InputError: it does not fit.
    """
    existing = next(parent for parent in (folder, *folder.resolve().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise InputError(f"features need about {size(needed)} at {folder} and {size(free)} are free; {fix}")


def _sha256(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def _tensors(key: str, sample: Sample) -> dict[str, Tensor]:
    last = {} if sample.last_hidden is None else {f"{key}.last": sample.last_hidden}
    return {key: sample.features, **last}
