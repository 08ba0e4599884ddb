"""``oneglance fit-head``: a head for one's own images."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from oneglance.commands import collect, opening, options, terminal
from oneglance.commands.heads import show
from oneglance.commands.train import follow, introduce, process_state
from oneglance.core import OneglanceWarning
from oneglance.files import check_free

if TYPE_CHECKING:
    from oneglance.train.select import TaskScore

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="Changes to the recipe.")]
Out = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Traces, run and head go here; a killed run is gone on with.")
]
Questions = Annotated[
    Path | None, typer.Option("--prompts", metavar="FILE", help="Questions, one a line; each is asked of each picture.")
]
Init = Annotated[
    str | None, typer.Option(metavar="HEAD", help="Warm start, such as the DFlash head of the text model.")
]
HeldOutShare = Annotated[float, typer.Option(metavar="X", min=0.0, max=0.9, help="Share of the pictures to judge by.")]
Limit = Annotated[int | None, typer.Option(metavar="N", min=2, help="Pictures, at most.")]


def fit_head(
    images: options.ImagesFolder,
    overrides: Overrides = None,
    out: Out = Path("runs/fit-head"),
    target: options.Target = options.BUILTIN,
    prompts: Questions = None,
    init: Init = None,
    heldout_share: HeldOutShare = 0.1,
    limit: Limit = None,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    dry_run: options.DryRun = False,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Make a draft head for a target and your own images: collect, train, select.

    Time and memory are estimated first, on a few samples. At the end τ stands beside what it was before: that of the
    warm start, or 1, plain decoding.
    """
    state = process_state(device)
    opening.set_threads(threads)
    from oneglance.decoder import Decoder
    from oneglance.drafters.plain import NoDrafter
    from oneglance.targets import open_target
    from oneglance.train import fit
    from oneglance.train.collect import LocalAnswerer
    from oneglance.train.prompts import read_questions
    from oneglance.train.trainer import HeadTrainer

    collect.check_answers(max_new_tokens)
    changes = [f"target_dtype={dtype}", *([f"init={init}"] if init else []), *(overrides or [])]
    plan = fit.make_plan(
        images,
        out,
        target=target,
        questions=read_questions(prompts),
        heldout_share=heldout_share,
        limit=limit,
        max_new_tokens=max_new_tokens,
        overrides=changes,
    )
    done = None if dry_run else fit.kept_result(plan)
    if done:
        _report(json, done, f"already finished: {_line(done)}")
        return
    if state.is_main_process:
        for folder in fit.folders(out).values():
            check_free(folder)
    fit.check_begun(plan)
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, quiet=json)
    console.print(terminal.visible(plan.line()))
    opened = open_target(target, dtype=dtype, device=device or str(state.device))
    fit.check_target(opened)
    answerer = LocalAnswerer(Decoder(opened, NoDrafter()), max_new_tokens=max_new_tokens)
    with terminal.told("stopped before training; the same command goes on"):
        cost = fit.measure(plan, answerer)
        console.print(cost.line())
        if cost.memory.advice():
            warnings.warn(str(cost.memory.advice()), OneglanceWarning, stacklevel=2)
        if dry_run:
            _report(json, {"estimate": fit.as_dict(cost)}, "nothing was trained")
            return
        for folder in plan.parts:
            part = fit.collection(plan, folder, answerer)
            collect.follow(part, answerer, show=not json)
            fit.check_some(part)
    trainer = HeadTrainer(plan.recipe, opened, plan.run)
    introduce(trainer, console, with_memory=False)
    follow(trainer, console, resume=True, again="the same command")
    before, after, step = _judge(trainer)
    result = {"head": str(plan.run / "head"), "step": step, "estimate": fit.as_dict(cost), **_figures(before, after)}
    fit.keep_result(plan, result)
    if not json and after:
        _show(after, plan.questions)
    _report(json, result, _line(result))


def _show(scores: list[TaskScore], questions: Sequence[str]) -> None:
    """The table, and what its rows are."""
    console = Console(file=sys.stderr, highlight=False)
    show(console, scores)
    for index, question in enumerate(questions, start=1):
        console.print(terminal.visible(f"question-{index}: {question}"), markup=False)


def _judge(trainer: Any) -> tuple[list[TaskScore], list[TaskScore], int]:
    """Scores of the warm start (none without one) and of the selected head, and its step."""
    from oneglance.train.select import evaluate_head, select

    best = select(trainer.out)
    recipe = trainer.recipe
    settings = {"long_side": recipe.image_long_side, "budget": recipe.schedule.tau_budget}
    after = evaluate_head(str(trainer.out / "head"), trainer.target, trainer.heldout_rows, **settings)
    before = []
    if recipe.init and not trainer.reinitialised:
        before = evaluate_head(recipe.init, trainer.target, trainer.heldout_rows, **settings)
    return before, after, best.step


def _figures(before: list[TaskScore], after: list[TaskScore]) -> dict[str, Any]:
    from oneglance.train.select import as_table

    return {"before": as_table(before) or None, "after": as_table(after)}


def _line(result: dict[str, Any]) -> str:
    """The last line: what is where, and what it brings."""
    return (
        f"head of step {result['step']} in {result['head']}: τ {_tau(result['after'])}, before {_tau(result['before'])}"
    )


def _tau(scores: list[dict[str, Any]] | None) -> str:
    if not scores:
        return "none (plain decoding, 1.00)"
    tau = scores[-1]["tau"]
    return "–" if tau is None else f"{tau:.2f}"


def _report(json: bool, value: dict[str, Any], line: str) -> None:
    if json:
        terminal.write_json(value)
    else:
        print(terminal.visible(line))
