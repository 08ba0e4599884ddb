"""``oneglance export`` and ``push``: a head for other programs and other people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oneglance.commands import options, terminal

HeadName = Annotated[str, typer.Argument(metavar="HEAD", help="The head: a folder, a hub id, or builtin:reader.")]
HeadFolder = Annotated[Path, typer.Argument(metavar="HEAD", help="The folder of the head, such as runs/NAME/head.")]
Repository = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository on the hub.")]
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
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write the card and stop: nothing leaves this machine.")]


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
    from oneglance.train.card import model_card, open_head, read_scores, upload, write_card

    checkpoint = open_head(head)
    tasks, budget = read_scores(scores, str(head))
    write_card(head, model_card(checkpoint, licence=licence, tasks=tasks, budget=budget))
    address = None if dry_run else upload(head, repository, private=private, revision=revision)
    if json:
        terminal.write_json({"card": str(head / "README.md"), "uploaded": address})
    else:
        print(terminal.visible(f"card in {head / 'README.md'}" + (f"; uploaded: {address}" if address else "")))
