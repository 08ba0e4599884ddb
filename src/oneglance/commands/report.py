"""``oneglance report``: results as one page, or as tables for other documents."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from oneglance.commands import logs, opening, options, terminal
from oneglance.commands.audit import choose_tasks
from oneglance.commands.tail import Resamples
from oneglance.core import InputError

Results = Annotated[
    list[Path] | None, typer.Argument(metavar="[RESULT]...", help="What bench, sweep or worth-it wrote with --out.")
]
Out = Annotated[
    Path,
    typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Suffix: html, md, csv or tex."),
]
Strips = Annotated[
    str,
    typer.Option(metavar="NAMES", help="html: show a held-out page of these tasks, round by round; or none."),
]
Log = Annotated[
    list[Path] | None,
    typer.Option(
        "--rounds",
        metavar="LOG",
        help="html: round logs whose law, tail and width replay to show.",
    ),
]
Title = Annotated[str, typer.Option(metavar="TEXT", help="html: of the page.")]


def report(
    results: Results = None,
    out: Out = Path("report.html"),
    rounds: Log = None,
    resamples: Resamples = 999,
    strips: Strips = "caption,docvqa",
    title: Title = "oneglance",
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    budget: options.Budget = options.BUDGET,
    max_new_tokens: options.MaxNewTokens = 96,
    dtype: options.Dtype = "float32",
    device: options.Device = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Write results as one self-contained HTML page, or their rows as markdown, CSV or LaTeX.

    The page needs no network: sortable tables, forest plots of margins and speedups, curves, the cost of a round, and
    decoded texts whose rounds open their candidate trees. It needs the [report] extra.
    """
    from oneglance.report.tables import FORMATS

    form = out.suffix.removeprefix(".")
    if form not in ("html", *FORMATS):
        raise InputError(f"--out must end in .html, .{', .'.join(FORMATS)}, got {out}")
    read = [_read(path) for path in results or []]
    if form != "html" and rounds:
        raise InputError(f"--rounds goes into a page; use --out report.html instead of {out}")
    if form != "html" and not read:
        raise InputError("there are no rows to write; name a result that 'oneglance bench --out' wrote")
    if form == "html":
        from oneglance.report.page import render

        studies = _studies(rounds, resamples)
        made = []
        if strips != "none":
            made = _strips(
                choose_tasks(strips),
                max_new_tokens,
                target=target,
                head=head,
                budget=budget,
                dtype=dtype,
                device=device,
                attention=attention,
                threads=threads,
            )
        text = render(read, made, title=title, studies=studies)
    else:
        text = FORMATS[form]([row for result in read for row in result["rows"]])
    opening.write_text(out, text)
    if json:
        terminal.write_json({"out": str(out), "format": form, "rows": sum(len(result["rows"]) for result in read)})
    else:
        print(out)


def _studies(files: list[Path] | None, resamples: int) -> list[Any]:
    """Sections of the page on the logs of one drafter, tree and budget.

    Raises:
        InputError: a log cannot be read, or the logs do not go together.
    """
    if not files:
        return []
    import numpy as np

    from oneglance.report.entropy import sections
    from oneglance.stats.sidecar import folder, read_marginals

    log = logs.read(files, None)
    table = None
    if all(folder(file).is_dir() for file in files):
        table = np.concatenate([read_marginals(file, logs.read([file], None)) for file in files])
    return sections(log, marginals=table, vocab_size=logs.vocab_size(files), resamples=resamples)


def _strips(tasks: list[str], max_new_tokens: int, *, target: str, head: str | None, **machine: Any) -> list[Any]:
    from oneglance.bench.cases import suite
    from oneglance.report.strips import strip

    decoder = opening.open_decoder(target, head, **machine)
    return [strip(decoder, case, max_new_tokens=max_new_tokens) for case in suite(tasks, 1)]


def _read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = jsonlib.loads(path.read_text(encoding="utf-8"))
        if data["rows"] and all({"task", "system"} <= row.keys() for row in data["rows"]):
            return data
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the result {path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise InputError(f"{path} is no result; bench, sweep and worth-it write them with --out")
