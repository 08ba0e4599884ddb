"""``oneglance report``: results as one page, or as tables for other documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from oneglance.commands import opening, options, terminal
from oneglance.commands.audit import choose_tasks
from oneglance.commands.tail import Resamples
from oneglance.core import InputError
from oneglance.files import parse_json

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
    str,
    typer.Option(
        metavar="NAME",
        help="md: write between <!-- NAME: written by the command --> and <!-- /NAME --> of a page that has them.",
    ),
]
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
    place: Place = "report",
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
    decoded texts whose rounds open their candidate trees. It needs the [report] extra.
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
    rows = [row for result in read for row in result["rows"]]
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
    elif studies:
        text = _into_page(out, place, rows, studies)
    else:
        text = FORMATS[form](rows)
    opening.write_text(out, text)
    if json:
        terminal.write_json({"out": str(out), "format": form, "rows": sum(len(result["rows"]) for result in read)})
    else:
        print(out)


def _into_page(out: Path, place: str, rows: list[dict[str, Any]], studies: list[Any]) -> str:
    """Markdown of rows and studies, between the markers of the page where it has them."""
    from oneglance.files import spliced
    from oneglance.report.tables import document, markdown

    text = (markdown(rows) + "\n" if rows else "") + document(studies)
    try:
        page = out.read_text(encoding="utf-8") if out.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot go on with {out}: {error}") from error
    return spliced(page, place, text) if "<!-- " in page else text


def _strips(tasks: list[str], max_new_tokens: int, *, target: str, head: str | None, **machine: Any) -> list[Any]:
    from oneglance.bench.cases import suite
    from oneglance.report.strips import strip

    decoder = opening.open_decoder(target, head, **machine)
    return [strip(decoder, case, max_new_tokens=max_new_tokens) for case in suite(tasks, 1)]


def _read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        if data["rows"] and all({"task", "system"} <= row.keys() for row in data["rows"]):
            return data
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the result {path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise InputError(f"{path} is no result; bench, sweep and worth-it write them with --out")
