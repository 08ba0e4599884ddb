"""``oneglance export`` and ``push``: a head for other programs and other people."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from oneglance.amounts import size
from oneglance.commands import options, terminal

HeadName = Annotated[str, typer.Argument(metavar="HEAD", help="The head: a folder, a hub id, or builtin:reader.")]
HeadFolder = Annotated[Path, typer.Argument(metavar="HEAD", help="The folder of the head, such as runs/NAME/head.")]
Repository = Annotated[
    str, typer.Argument(metavar="OWNER/NAME", help="The repository on the hub; a bare NAME is among your own.")
]
Format = Annotated[
    str, typer.Option(metavar="NAME", help="dflash, specforge, speculators, vllm, sglang or transformers.")
]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder.")]
TensorType = Annotated[
    str, typer.Option("--dtype", metavar="NAME", help="Of the tensors: bfloat16, float16 or float32.")
]
DraftsFor = Annotated[
    str | None, typer.Option("--target", metavar="NAME", help="What it drafts for; default as its card says.")
]
Licence = Annotated[
    str, typer.Option("--licence", "--license", metavar="NAME", help="Of the weights, as the hub names it: apache-2.0.")
]
Scores = Annotated[
    Path | None, typer.Option(metavar="FILE", help="What 'eval-head --json' wrote: τ per task, for the card.")
]
Private = Annotated[bool, typer.Option("--private", help="Make the repository private.")]
Revision = Annotated[str | None, typer.Option(metavar="NAME", help="Branch to upload to.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would go where, show the card, and stop: nothing is written.")
]


def export(
    head: HeadName,
    out: Out,
    format: Format = "dflash",
    dtype: TensorType = "bfloat16",
    target: DraftsFor = None,
    json: options.Json = False,
) -> None:
    """Write a head in the layout of another program, and say how to start that.

    dflash, specforge, vllm and sglang are one layout. transformers is for the block drafting built into transformers
    5.24 and later, on text-only targets: elsewhere it costs acceptance, since it reads features before a DeepStack add.
    """
    from oneglance.train.export import export as write

    done = write(head, out, format, dtype=dtype, target=target)
    if json:
        terminal.write_json({"folder": str(done.folder), "format": format, "dtype": dtype, "use": done.hint})
    else:
        print(terminal.visible(f"{format} head in {done.folder}\n{done.hint}"))


def push(
    head: HeadFolder,
    repository: Repository,
    licence: Licence,
    scores: Scores = None,
    private: Private = False,
    revision: Revision = None,
    dry_run: DryRun = False,
    json: options.Json = False,
) -> None:
    """Write a head's model card, and upload both to the hub.

    The card says what was measured and nothing else: without --scores it calls τ unknown.
    """
    from oneglance.train.card import (
        CARD,
        check_repository,
        files_of,
        model_card,
        open_head,
        read_scores,
        upload,
        write_card,
    )

    check_repository(repository)
    checkpoint = open_head(head)
    tasks, budget = read_scores(scores, str(head))
    card = model_card(checkpoint, licence=licence, tasks=tasks, budget=budget)
    plan = {
        "repository": repository,
        "private": private,
        "revision": revision,
        "licence": licence,
        "tau": {row["task"]: row["tau"] for row in tasks} or None,
        "files": files_of(head, card),
    }
    if dry_run:
        _report(json, {**plan, "card": None, "text": card, "uploaded": None}, f"{_announced(plan)}\n\n{card.rstrip()}")
        return
    if not json:
        print(terminal.visible(_announced(plan)), file=sys.stderr)
    write_card(head, card)
    address = upload(head, repository, private=private, revision=revision)
    _report(
        json, {**plan, "card": str(head / CARD), "uploaded": address}, f"card in {head / CARD}; uploaded: {address}"
    )


def _announced(plan: dict[str, Any]) -> str:
    """What goes where, a line a fact."""

    where = plan["repository"] if "/" in plan["repository"] else f"{plan['repository']}, among your own repositories"
    kind = "private if it is new" if plan["private"] else "public if it is new"
    branch = f", branch {plan['revision']}" if plan["revision"] else ""
    tau = plan["tau"] and ", ".join(
        f"{task} {'–' if tau is None else f'{tau:.2f}'}" for task, tau in plan["tau"].items()
    )
    return "\n".join(
        [
            f"repository: {where} ({kind}{branch})",
            f"files: {', '.join(f'{name} {size(count)}' for name, count in plan['files'].items())}",
            f"licence: {plan['licence']}",
            f"τ: {tau or 'unknown; --scores FILE takes what eval-head --json wrote'}",
        ]
    )


def _report(json: bool, value: dict[str, Any], line: str) -> None:
    if json:
        terminal.write_json(value)
    else:
        print(terminal.visible(line))
