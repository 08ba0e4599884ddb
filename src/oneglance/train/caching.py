"""Features of traces beside the traces: ``collect --cache-features`` writes them, training with the same settings reads
them. They are what a prefill gives, so that keeping them changes no number."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneglance.core import OneglanceWarning
from oneglance.files import sole_writer
from oneglance.targets.base import Target
from oneglance.train.collect import NUM_MEASURED
from oneglance.train.features import DiskStore, FoundStore, Store, difference, key_of
from oneglance.train.origin import encoding
from oneglance.train.step import Sample, run_target
from oneglance.train.traces import Trace, read_traces

FEATURES = "features"  # folder beside the traces


@dataclass(frozen=True, slots=True)
class Layout:
    """What of a target's states is kept of a trace.

    Attributes:
        layer_ids: kept layers.
        long_side: images are scaled down to it.
        max_length: tokens of a sample; longer answers are cut.
        soft: also the states that the lm_head reads, for soft objectives.
    """

    layer_ids: tuple[int, ...]
    long_side: int | None
    max_length: int
    soft: bool = False

    def settings(self, target: Target) -> dict[str, Any]:
        """Whatever decides a feature."""
        return {
            **encoding(target, self.long_side),
            "dtype": str(target.dtype),
            "target_layer_ids": self.layer_ids,
            "max_length": self.max_length,
            "soft": self.soft,
        }

    def sample(self, target: Target, row: Trace) -> Sample:
        """A trace, run through the target."""
        inputs = row.encode(target, long_side=self.long_side)
        answer = row.answer_ids[: max(2, self.max_length - len(inputs.token_ids))]
        return run_target(target, inputs, answer, self.layer_ids, soft=self.soft)


def feature_bytes(rows: Sequence[Trace], target: Target, layout: Layout) -> int:
    """About what the features of traces take: prompts are as long as the first few, answers are known."""
    few = [len(row.encode(target, long_side=layout.long_side).token_ids) for row in rows[:NUM_MEASURED]]
    prompt = sum(few) / max(1, len(few))
    width = (len(layout.layer_ids) + layout.soft) * target.hidden_size * target.dtype.itemsize
    return round(sum(min(layout.max_length, prompt + len(row.answer_ids)) for row in rows) * width)


def cache_features(traces: Path, target: Target, layout: Layout) -> Iterator[int]:
    """Write the features of a folder of traces; those that are there stay. Yields the samples done so far.

    Raises:
        InputError: the folder holds features of other settings, or another process is writing to it.

    Warns:
        OneglanceWarning: the disk is full; what is missing is recomputed in training.
    """
    with sole_writer(traces):
        store = DiskStore(traces / FEATURES, layout.settings(target))
        for count, row in enumerate(read_traces(traces).rows, start=1):
            if store.is_full:
                return
            if key_of(row) not in store:
                store.put(key_of(row), layout.sample(target, row))
            yield count
        store.flush()


def with_collected(own: Store, folders: Sequence[Path], target: Target, layout: Layout) -> Store:
    """A store that first looks beside the traces.

    Warns:
        OneglanceWarning: features lie there that were made with other settings; they are recomputed.
    """
    settings, found = layout.settings(target), []
    for folder in dict.fromkeys(traces / FEATURES for traces in folders):
        differing = difference(folder, settings)
        if differing:
            warnings.warn(
                f"{folder} holds features of another {differing} than this run's; they are recomputed",
                OneglanceWarning,
                stacklevel=3,
            )
        elif folder.is_dir():
            found.append(DiskStore(folder, settings))
    return FoundStore(found, own) if found else own
