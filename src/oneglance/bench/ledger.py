"""Results on disk, each with its manifest, and what may be divided by what.

Milliseconds are a property of a machine, its threads, kernels, dtype and engine, so a ratio across any of them, or
across prompt sets, is refused with both values named. τ is not, which is why ``diff`` compares it, and each result's
own speedups, across machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneglance.bench.metrics import Row, summarise
from oneglance.bench.record import Record, record_of
from oneglance.core import InputError
from oneglance.files import parse_json
from oneglance.stats.bootstrap import Interval, resample_ratio

MACHINE = ("engine", "cpu", "gpu", "threads", "dtype", "attention")
SAME = (*MACHINE, "kernels", "runner", "target", "prompt_set", "max_new_tokens", "temperature")
RUNS = ("context", "temperature", "threads")  # axes whose values are runs of their own


@dataclass(frozen=True, slots=True)
class Result:
    """What ``oneglance bench --out`` wrote.

    Attributes:
        path: where.
        manifest: machine, versions, settings.
        records: one a generation.
    """

    path: Path
    manifest: Mapping[str, Any]
    records: tuple[Record, ...]

    @property
    def rows(self) -> list[Row]:
        return summarise(self.records)


@dataclass(frozen=True, slots=True)
class Change:
    """One system on one task in two results.

    Attributes:
        tau, tau_other: in each, and tau_drift: the second over the first, less one.
        speedup, speedup_other, speedup_drift: the same of each result's own speedup, None without a plain arm.
    """

    system: str
    task: str
    tau: float | None
    tau_other: float | None
    tau_drift: float | None
    speedup: float | None
    speedup_other: float | None
    speedup_drift: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Two results beside each other.

    Attributes:
        manifest: fields of the manifest that differ, with both values.
        is_comparable: whether milliseconds may be divided across the two.
        changes: of systems and tasks that both have.
    """

    manifest: dict[str, tuple[Any, Any]]
    is_comparable: bool
    changes: tuple[Change, ...]


def read(path: Path) -> Result:
    """A result file.

    Raises:
        InputError: it cannot be read, or is none.
    """
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
        records, manifest = data["records"], data["manifest"]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the result {path}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no result; oneglance bench --out writes one") from error
    if data.get("axis") in RUNS:
        raise InputError(f"{path} is a sweep of {data['axis']}, many runs in one; compare results of oneglance bench")
    if not isinstance(records, list) or not records or not isinstance(manifest, dict):
        raise InputError(f"{path} holds no records; oneglance bench --out writes them")
    return Result(path, manifest, tuple(record_of(record) for record in records))


def check_comparable(one: Mapping[str, Any], two: Mapping[str, Any]) -> None:
    """Refuse to divide milliseconds of one manifest by those of another that differs where it matters.

    Raises:
        InputError: naming the field and both values.
    """
    for name in SAME:
        if one.get(name) != two.get(name):
            raise InputError(
                f"no ratio across results that differ in {name}: {one.get(name)!r} and {two.get(name)!r}; "
                "run both systems in one bench"
            )


def ratio(one: Result, system: str, two: Result, other: str, task: str) -> Interval:
    """Milliseconds a token of one system over another's, paired by prompt.

    Raises:
        InputError: the two may not be compared, or share no prompt of the task.
    """
    check_comparable(one.manifest, two.manifest)
    first, second = _times(one, system, task), _times(two, other, task)
    both = [prompt for prompt in first if prompt in second]
    if not both:
        raise InputError(
            f"{one.path} ({system}) and {two.path} ({other}) share no prompt of task {task!r}; choose another task"
        )
    return resample_ratio([first[p] for p in both], [second[p] for p in both])


def diff(one: Result, two: Result) -> Difference:
    """τ drift and speedup drift of two results, apart; never a ratio of their milliseconds."""
    names = [name for name in dict.fromkeys((*one.manifest, *two.manifest)) if name not in ("time", "command")]
    both = {name: (one.manifest.get(name), two.manifest.get(name)) for name in names}
    differs = {name: values for name, values in both.items() if values[0] != values[1]}
    others = {(row.system, row.task): row for row in two.rows}
    changes = [_change(row, others[row.system, row.task]) for row in one.rows if (row.system, row.task) in others]
    return Difference(differs, not any(name in differs for name in SAME), tuple(changes))


def _change(row: Row, other: Row) -> Change:
    return Change(
        row.system,
        row.task,
        row.tau,
        other.tau,
        _drift(row.tau, other.tau),
        row.speedup,
        other.speedup,
        _drift(row.speedup, other.speedup),
    )


def _drift(one: float | None, two: float | None) -> float | None:
    return two / one - 1 if one and two else None


def _times(result: Result, system: str, task: str) -> dict[str, float]:
    own = [r for r in result.records if r.system == system and r.task == task and r.decoded > 0]
    if not own:
        systems = ", ".join(dict.fromkeys(r.system for r in result.records))
        raise InputError(f"{result.path} has no {system!r} on task {task!r}; its systems: {systems}")
    times: dict[str, list[float]] = {}
    for record in own:
        times.setdefault(record.prompt, []).append(record.decode_ms / record.decoded)
    return {prompt: sum(values) / len(values) for prompt, values in times.items()}
