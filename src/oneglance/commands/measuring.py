"""One benchmark run, journalled: what ``bench``, ``sweep``, ``compare``, ``worth-it`` and ``reproduce`` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneglance.commands import opening, options, terminal
from oneglance.core import DEFAULT_BUDGET, InputError
from oneglance.files import check_free

if TYPE_CHECKING:
    from oneglance.bench.cases import Case
    from oneglance.bench.record import Record
    from oneglance.bench.runner import Bench, Bind
    from oneglance.targets.base import Target

Systems = Annotated[str, typer.Option(metavar="NAMES", help="Comma-separated, plain among them for speedups.")]
Replicates = Annotated[int, typer.Option(metavar="N", min=1, help="How often each prompt is decoded by each system.")]
Warmup = Annotated[int, typer.Option(metavar="N", min=0, help="Prompts a task that are decoded untimed beforehand.")]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=options.OUTPUT,
        help="Also write rows, records and manifest as JSON here; a killed run is gone on with.",
    ),
]


@dataclass(frozen=True, slots=True)
class Setup:
    """What the shared options say.

    Attributes:
        target, head, budget, max_new_tokens, dtype, device, attention, threads, device_map, runner: as the
            options of these names.
    """

    target: str = options.BUILTIN
    head: str | None = None
    budget: int = DEFAULT_BUDGET
    max_new_tokens: int = options.MAX_NEW_TOKENS
    dtype: str = "float32"
    device: str | None = None
    attention: str = "sdpa"
    threads: int | None = None
    device_map: str | None = None
    runner: str = "auto"

    def check(self, *outs: Path | None) -> None:
        """Refuse what can be refused before a target is read.

        Args:
            outs: where results will go.

        Raises:
            InputError: a value that no benchmark can have, or another process is at one of the results.
        """
        if self.max_new_tokens < 2:
            raise InputError(f"a benchmark needs at least two new tokens, got --max-new-tokens {self.max_new_tokens}")
        from oneglance.drafters.settings import check_home
        from oneglance.runner import check_name
        from oneglance.targets import find

        check_name(self.runner)
        check_home(self.target, self.head, opening.as_option)
        find(self.target)
        opening.check_tree(self.budget, None)
        for out in outs:
            check_free(out and partial(out))
        opening.set_threads(self.threads)

    def bind(self, names: Sequence[str]) -> dict[str, Bind]:
        """The systems of these names; checkpoints are loaded now.

        Raises:
            InputError: an unknown system, or one that does not exist for this target.
        """
        from oneglance.bench.systems import prepare_systems

        head = self.head or (self.target if self.target.startswith("builtin:") else None)
        return dict(prepare_systems(list(names), head, budget=self.budget, target=self.target).items())

    def open(self) -> Target:
        """The target."""
        from oneglance.runner import with_runner
        from oneglance.targets import open_target

        opened = open_target(
            self.target,
            dtype=self.dtype,
            device=self.device,
            device_map=self.device_map,
            attention=self.attention,
        )
        return with_runner(opened, self.runner)

    def describe(self, cases: Sequence[Case], **more: Any) -> dict[str, Any]:
        """Everything that a result depends on, for its manifest."""
        from oneglance.bench.cases import prompt_set, task_versions
        from oneglance.stats.bootstrap import RESAMPLES

        return {
            "engine": "oneglance",
            "target": self.target,
            "head": self.head,
            "budget": self.budget,
            "max_new_tokens": self.max_new_tokens,
            "temperature": 0.0,
            "seed": None,  # greedy draws nothing
            "bootstrap": {"resamples": RESAMPLES, "seed": 0},
            "dtype": self.dtype,
            "device": self.device or "cpu",
            "attention": self.attention,
            "runner": self.runner,
            "prompt_set": prompt_set(cases),
            "tasks": task_versions(cases),
            **more,
        }


def measure(
    bench: Bench, cases: Sequence[Case], settings: Mapping[str, Any], *, out: Path | None, show: bool
) -> list[Record]:
    """Run to the end, with a bar on a terminal; with ``out``, finished prompts are kept and a killed run goes on.

    Raises:
        InputError: ``out`` was begun with other settings, or another process is at it.
    """
    from oneglance.bench.journal import journal
    from oneglance.bench.manifest import manifest
    from oneglance.bench.record import record_of

    records: list[Record] = []
    whole = {
        **settings,
        "systems": [*bench.systems, *bench.outside],
        "replicates": bench.replicates,
        "warmup": bench.warmup,
    }
    with nullcontext() if out is None else journal(partial(out), whole) as kept, terminal.bar(show=show) as progress:
        if kept is not None:
            records += [record_of(record) for line in kept.lines for record in _records(line, kept.path)]
            kept.describe(manifest(**settings), whole)
        done = list(dict.fromkeys((r.task, r.prompt) for r in records))
        bar = progress.add_task("decoding", total=len(cases), completed=len(done))
        for made in bench.run(cases, done=done):
            records += made
            if kept is not None:
                kept.append([{"records": [record.as_dict() for record in made]}])
            progress.update(bar, advance=1, description=made[0].task)
    return records


def _records(line: Mapping[str, Any], path: Path) -> list[Any]:
    found = line.get("records")
    if not isinstance(found, list):
        raise InputError(f"{path} is damaged: a line has no records; remove it, or choose another --out")
    return found


def finish(out: Path | None, result: Mapping[str, Any], records: Sequence[Record]) -> None:
    """Write a complete result, and drop the journal of its run."""
    from oneglance.bench.journal import Journal

    if out is None:
        return
    whole = terminal.plain({**result, "records": [record.as_dict() for record in records]})
    opening.write_text(out, terminal.to_json(whole) + "\n")
    Journal.remove_at(partial(out))


def finish_part(out: Path) -> None:
    """Drop the journal of a part whose records are in the whole result."""
    from oneglance.bench.journal import Journal

    Journal.remove_at(partial(out))


def partial(out: Path) -> Path:
    """Where a run that is not complete keeps its records."""
    return out.with_name(out.name + ".records")
