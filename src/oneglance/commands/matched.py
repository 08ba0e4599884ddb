"""``oneglance train-matched``: an EAGLE-3 head on a block head's traces, schedule and batch, and both on one probe."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oneglance.commands import opening, options, terminal
from oneglance.commands.train import Overrides, Recipe, Resume, follow, introduce, process_state
from oneglance.core import InputError
from oneglance.files import check_free

if TYPE_CHECKING:
    from oneglance.train.matched import Score
    from oneglance.train.trainer import HeadTrainer

RESULT = "matched.json"
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Both runs; default runs/ and the recipe's name.")]
Layers = Annotated[
    str | None, typer.Option(metavar="N,N,…", help="EAGLE-3's kept layers; default its own rule, early, middle, late.")
]
DraftVocab = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="EAGLE-3 drafts over the N most frequent ids; default all.")
]
Depths = Annotated[str, typer.Option(metavar="N,N,…", help="Lengths of EAGLE-3's chains.")]
Sizes = Annotated[str | None, typer.Option(metavar="N,N,…", help="Probe prompts; default 16 to 256, as there are.")]
Second = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Traces of a second corpus to score both on.")]


def train_matched(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Out = None,
    layers: Layers = None,
    draft_vocab: DraftVocab = None,
    depths: Depths = "3,7",
    sizes: Sizes = None,
    second: Second = None,
    max_new_tokens: options.MaxNewTokens = 64,
    budget: options.Budget = options.BUDGET,
    resume: Resume = False,
    device: options.Device = None,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Train an EAGLE-3 head and the block head of RECIPE alike, then compare them on the held-out traces.

    Both start from scratch and see the same samples in the same order, batch and learning rate; head and objective
    differ. The probe decodes greedily under every arm in turn, plain decoding among them: τ, time, and their ratios,
    with 95 % bootstrap intervals over prompts, written to matched.json in the folder. --resume goes on with whichever
    run was killed and skips what is done.
    """
    state = process_state(device)
    from oneglance.bench.manifest import manifest
    from oneglance.targets import open_target
    from oneglance.train.matched import arms, by_turns, matched_recipe, probe, probe_sizes, scores
    from oneglance.train.origin import check_origin
    from oneglance.train.recipe import load_recipe
    from oneglance.train.traces import read_traces
    from oneglance.train.trainer import HeadTrainer

    plan = load_recipe(recipe, overrides or [])
    opening.check_tree(budget, None)
    if max_new_tokens < 2:
        raise InputError(f"a probe answer needs a round: give --max-new-tokens 2 or more, got {max_new_tokens}")
    lengths = opening.numbers("--depths", depths, least=1)
    asked = opening.numbers("--sizes", sizes, least=1) if sizes else None
    kept = tuple(opening.numbers("--layers", layers, least=0)) if layers else None
    theirs = matched_recipe(plan, layer_ids=kept, draft_vocab_size=draft_vocab)
    folder = out or Path("runs") / plan.name
    recipes = {"block": plan, "eagle3": theirs}
    for name in recipes if state.is_main_process else ():
        check_free(folder / name)
    if plan.data.heldout is None:
        raise InputError(f"recipe {plan.name!r} has no data.heldout, which the probe decodes; collect some and name it")
    corpora = {str(plan.data.heldout): read_traces(plan.data.heldout).rows}
    corpora |= {str(second): read_traces(second).rows} if second else {}
    chosen = {name: probe_sizes(asked, len(rows)) for name, rows in corpora.items()}
    opening.set_threads(threads)
    target = open_target(plan.target, dtype=plan.target_dtype, device=device or str(state.device))
    check_origin([second] if second else [], target, fix="give --second this target's own answers")
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, quiet=json)
    # both are made before one is trained: what is wrong with the second is said at once
    trainers = {name: HeadTrainer(own, target, folder / name) for name, own in recipes.items()}
    heads = {name: train_one(trainer, console, resume=resume) for name, trainer in trainers.items()}
    if not state.is_main_process:
        return
    drafters = arms(folder / "block" / "head", folder / "eagle3" / "head", target, budget=budget, depths=lengths)
    found: list[Score] = []
    for name, rows in corpora.items():
        first = by_turns(rows)[: max(chosen[name])]
        done = probe(target, drafters, first, long_side=plan.image_long_side, max_new_tokens=max_new_tokens)
        with terminal.bar(show=not json, console=console) as bar:
            answered = list(bar.track(done, total=len(first), description=f"probe {name}"))
        found += scores(name, answered, chosen[name])
    result = {
        "out": str(folder),
        "heads": heads,
        "probe": [score.as_dict() for score in found],
        "manifest": manifest(recipe=plan.model_dump(mode="json"), budget=budget, max_new_tokens=max_new_tokens),
    }
    opening.write_text(folder / RESULT, terminal.to_json(result) + "\n")
    if json:
        terminal.write_json(result)
    else:
        show(terminal.console(), terminal.as_object(result))


def train_one(trainer: HeadTrainer, console: Console, *, resume: bool) -> dict[str, Any]:
    """Train one of the two to its end; where it is there already, nothing.

    Returns:
        ``train_s`` is of this call, None where it took no step.
    """
    from oneglance.train.runlog import read_log

    facts = {"head": str(trainer.out / "head"), "parameters": trainer.num_parameters, "steps": trainer.num_steps}
    introduce(trainer, console)
    started = time.perf_counter()
    reports = follow(trainer, console, resume=resume)
    train_s = time.perf_counter() - started if reports else None
    return {**facts, "loss": read_log(trainer.out)[-1]["loss"], "train_s": train_s}


def show(console: Console, result: Mapping[str, Any]) -> None:
    """A table a corpus."""
    from oneglance.report.matched import matched_sections
    from oneglance.report.tables import cell

    for section in matched_sections(result):
        table = Table(title=terminal.visible(section.name), title_justify="left")
        for name, label in section.columns.items():
            table.add_column(label, no_wrap=name in ("task", "arm"))
        for row in section.rows:
            table.add_row(*(cell(row[name], name) for name in section.columns))
        console.print(table)
        for note in section.notes:
            console.print(note)
