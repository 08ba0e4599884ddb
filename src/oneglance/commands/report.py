"""``oneglance report``: results as one page, or as tables for other documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneglance.commands import opening, options, terminal
from oneglance.commands.asking import choose_tasks
from oneglance.commands.tail import Resamples
from oneglance.core import InputError
from oneglance.files import parse_json, parse_object

if TYPE_CHECKING:
    from oneglance.report.section import Section

Results = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[RESULT]...", help="What bench, sweep, cost, worth-it or train-matched wrote."),
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
        help="html, md: round logs whose law, tail and width replay to show.",
    ),
]
Probe = Annotated[
    Path | None,
    typer.Option("--image-probe", metavar="LOG", help="html, md: what 'oneglance probe image' wrote."),
]
Ablations = Annotated[
    list[Path] | None, typer.Option("--ablation", metavar="LOG", help="html, md: what 'oneglance ablate' wrote.")
]
TransferLogs = Annotated[
    list[str] | None,
    typer.Option("--transfer", metavar="[NAME=]LOG", help="html, md: round logs to compare in one table."),
]
Place = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="md: write between <!-- NAME: written by the command --> and <!-- /NAME --> of a page that has them; "
        "default by what is written: bench, sweep-budget and so on, cost, matched, and report for logs.",
    ),
]
WRITTEN = ": written by the command -->\n"  # a page with places of other names is somebody's, and not replaced
Title = Annotated[str, typer.Option(metavar="TEXT", help="html: of the page.")]


def report(
    results: Results = None,
    out: Out = Path("report.html"),
    rounds: Log = None,
    image_probe: Probe = None,
    ablation: Ablations = None,
    transfer: TransferLogs = None,
    resamples: Resamples = 999,
    strips: Strips = "caption,docvqa",
    title: Title = "oneglance",
    place: Place = None,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    budget: options.Budget = options.BUDGET,
    max_new_tokens: options.MaxNewTokens = 96,
    dtype: options.Dtype = "float32",
    device: options.Device = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    json: options.Json = False,
) -> None:
    """Write results as one self-contained HTML page, or their rows as markdown, CSV or LaTeX.

    The page needs no network: sortable tables, forest plots of margins and speedups, curves, the cost of a round, and
    decoded texts whose rounds open their candidate trees.

    A Markdown page that has the lines <!-- NAME: written by the command --> and <!-- /NAME --> gets its tables between
    them. Everything else in it stays.
    """
    from oneglance.commands.studies import sections
    from oneglance.report.tables import FORMATS

    form = out.suffix.removeprefix(".")
    if form not in ("html", *FORMATS):
        raise InputError(f"--out must end in .html, .{', .'.join(FORMATS)}, got {out}")
    read = [_read(path) for path in results or []]
    logs = {"--rounds": rounds, "--image-probe": image_probe, "--ablation": ablation, "--transfer": transfer}
    given = [name for name, value in logs.items() if value]
    if given and form not in ("html", "md"):
        raise InputError(f"{given[0]} goes into a page; use --out report.html or report.md instead of {out}")
    if form != "html" and not read and not given:
        raise InputError("there are no rows to write; name a result that 'oneglance bench --out' wrote")
    studies = sections(
        rounds=rounds or [],
        probe=image_probe,
        ablations=ablation or [],
        transfer=transfer or [],
        resamples=resamples,
    )
    if form == "html":
        from oneglance.report.page import render

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
                runner=runner,
            )
        text = render(read, made, title=title, studies=studies)
    elif form == "md":
        text = _into_page(out, place, read, studies)
    else:
        text = "\n".join(FORMATS[form](own.rows, own.columns) for own in tables(read))
    opening.write_text(out, text)
    if json:
        terminal.write_json({"out": str(out), "format": form, "num_rows": sum(len(own.rows) for own in tables(read))})
    else:
        print(out)


def tables(results: Sequence[dict[str, Any]]) -> list[Section]:
    """The tables of results: one for all rows of the same columns, so that a CSV of several benches is one table."""
    from oneglance.report.results import sections

    found: dict[tuple[str, ...], Section] = {}
    for own in (own for result in results for own in sections(result)):
        known = found.setdefault(tuple(own.columns), own)
        if known is not own:
            known.rows.extend(own.rows)
    return list(found.values())


def _into_page(out: Path, place: str | None, results: Sequence[dict[str, Any]], studies: list[Section]) -> str:
    """Markdown of results and studies, between the markers of a page that has them."""
    from oneglance.files import has_place, spliced
    from oneglance.report.results import sections
    from oneglance.report.summary import place_of, summary
    from oneglance.report.tables import document

    try:
        page = out.read_text(encoding="utf-8") if out.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot go on with {out}: {error}") from error
    parts = [(place or place_of(result), summary(result)) for result in results]
    parts += [(place or "report", document(studies))] if studies else []
    places = [own for own, _ in parts]
    if WRITTEN not in page and not any(has_place(page, own) for own in places):
        return document([own for result in results for own in sections(result)] + studies)
    if len(set(places)) < len(places):
        raise InputError(f"{out} has one place for each kind; name one result of each, or one and --place")
    for own, text in parts:
        page = spliced(page, own, text)
    return page


def _strips(tasks: list[str], max_new_tokens: int, *, target: str, head: str | None, **machine: Any) -> list[Any]:
    from oneglance.bench.cases import suite
    from oneglance.report.strips import strip

    decoder = opening.open_decoder(target, head, **machine)
    return [strip(decoder, case, max_new_tokens=max_new_tokens) for case in suite(tasks, 1)]


def _read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        if _is_result(data):
            return data
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the result {path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    option = _option_of(path)
    if option is not None:
        raise InputError(f"{path} is a log, and no result; name it by {option} {path}")
    raise InputError(f"{path} is no result; bench, sweep, cost, worth-it and train-matched write them")


def _option_of(path: Path) -> str | None:
    """The option that takes a log of another command; None for what is none."""
    from oneglance.report.causes import MISMATCHED, RIGHT

    try:
        with path.open(encoding="utf-8") as file:
            first = parse_object(file.readline())
    except (OSError, ValueError):
        return None
    if "h_nats" in first:
        return "--image-probe" if first.get("run") in (RIGHT, MISMATCHED) else "--rounds"
    return "--ablation" if {"task", "prompt", "rounds"} <= first.keys() else None


def _is_result(data: dict[str, Any]) -> bool:
    from oneglance.report.matched import is_matched

    if is_matched(data):
        return bool(data["probe"] and data["heads"] and data["manifest"])
    if "regression" in data:
        return bool(data["systems"] and data["verify"] and data["manifest"])
    from dataclasses import fields

    from oneglance.bench.metrics import Row

    needed = {own.name for own in fields(Row)} - {"extra_input"}  # results of before have no such column
    return bool(data["manifest"] and data["rows"] and all(needed <= row.keys() for row in data["rows"]))
