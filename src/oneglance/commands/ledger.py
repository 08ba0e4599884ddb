"""``oneglance ledger``: results beside each other, and ratios only where they mean something."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oneglance.commands import options, terminal
from oneglance.core import InputError

Action = Annotated[str, typer.Argument(metavar="diff|ratio", help="What to do with the two results.")]
One = Annotated[Path, typer.Argument(metavar="RESULT", help="What 'oneglance bench --out' wrote.")]
Two = Annotated[Path, typer.Argument(metavar="RESULT", help="Another one.")]
Base = Annotated[str, typer.Option(metavar="NAME", help="ratio: system of the first result.")]
Other = Annotated[str, typer.Option(metavar="NAME", help="ratio: system of the second result.")]
Task = Annotated[str | None, typer.Option(metavar="NAME", help="ratio: task; default the only one.")]


def ledger(
    action: Action,
    one: One,
    two: Two,
    base: Base = "plain",
    other: Other = "tree",
    task: Task = None,
    json: options.Json = False,
) -> None:
    """Compare two results.

    diff shows where the manifests differ, and τ drift and speedup drift apart: each result's own speedup, never a ratio
    of milliseconds. ratio divides milliseconds a token, and refuses where machine, threads, engine, dtype, kernels,
    target or prompts differ.
    """
    from oneglance.bench import ledger as book

    first, second = book.read(one), book.read(two)
    if action == "diff":
        found = book.diff(first, second)
        if json:
            terminal.write_json(found)
            return
        console = terminal.console()
        for name, (a, b) in found.manifest.items():
            console.print(f"{name}: {a} | {b}", markup=False)
        for c in found.changes:
            tau = "" if c.tau_drift is None else f"τ {c.tau:.2f} → {c.tau_other:.2f} ({c.tau_drift:+.1%})"
            speedup = (
                ""
                if c.speedup_drift is None
                else f"speedup {c.speedup:.2f} → {c.speedup_other:.2f} ({c.speedup_drift:+.1%})"
            )
            if tau or speedup:
                console.print(f"{c.task} {c.system}: {'; '.join(part for part in (tau, speedup) if part)}")
        says = "may be divided by one another" if found.is_comparable else "may not be divided by one another"
        console.print(f"milliseconds of the two {says}")
    elif action == "ratio":
        tasks = list(dict.fromkeys(record.task for record in first.records))
        if task is None and len(tasks) > 1:
            raise InputError(f"{one} has several tasks; give --task, one of {', '.join(tasks)}")
        value = book.ratio(first, base, second, other, task or tasks[0])
        if json:
            terminal.write_json(value)
        else:
            print(f"{base} / {other}: {value.value:.3f} [{value.low:.3f}, {value.high:.3f}] ms/token")
    else:
        raise InputError(f"ledger takes diff or ratio, got {action!r}")
