"""``oneglance probe image`` and ``probe saliency``: does the image act through entropy, or beside it (§6)?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oneglance.commands import asking, logs, opening, options, terminal
from oneglance.core import InputError
from oneglance.files import check_free

if TYPE_CHECKING:
    from oneglance.bench.cases import Case
    from oneglance.report.causes import ImageEffect, SaliencyEffect
    from oneglance.stats.bootstrap import Interval

Out = Annotated[
    Path,
    typer.Option(
        metavar="FILE", rich_help_panel=options.OUTPUT, help="JSONL log of both arms; a killed run is gone on with."
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Of the order in which images are swapped, and of the bootstrap.")]


def image(
    out: Out = Path("probe-image.jsonl"),
    tasks: options.Tasks = None,
    prompts: options.Prompts = None,
    data: asking.Data = None,
    limit: asking.Limit = 60,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    drafter: options.Drafter = "block",
    tree: options.Tree = "best_first",
    budget: options.Budget = 31,
    branch_k: options.BranchK = None,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    seed: Seed = 0,
    dtype: options.Dtype = "float32",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    json: options.Json = False,
) -> None:
    """Set the right image against another prompt's, along the text that the right one gives.

    Both arms start rounds at the same roots and commit the same tokens; at each root each arm drafts, and accepts by
    its own rows. Images move within a task, none to its own prompt. Gives the lift of accepted length, the change of
    entropy, and what is left of the image's effect with entropy held fixed, intervals by prompt.
    """
    from oneglance.bench.forced import derange
    from oneglance.bench.journal import journal
    from oneglance.bench.manifest import manifest
    from oneglance.report.causes import study_image
    from oneglance.stats.rounds import read_rounds

    if max_new_tokens < 3:
        raise InputError(f"a round with something to accept needs three tokens, got --max-new-tokens {max_new_tokens}")
    cases = asking.choose_cases(tasks, prompts, limit, data)
    swapped = derange(cases, seed=seed)
    check_free(out)
    decoder = opening.open_decoder(
        target,
        head,
        drafter=drafter,
        tree=tree,
        budget=budget,
        branch_k=branch_k,
        dtype=dtype,
        device=device,
        device_map=device_map,
        attention=attention,
        threads=threads,
        runner=runner,
    )
    settings: dict[str, Any] = {
        "target": target,
        "head": head,
        "drafter": drafter,
        "tree": tree,
        "budget": budget,
        "branch_k": branch_k,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "prompts": [f"{case.task}/{case.id}" for case in cases],  # who else is asked decides whose image one gets
        "dtype": dtype,
        "attention": attention,
        "runner": runner,
    }
    others = {(case.task, case.id): other for case, other in zip(cases, swapped, strict=True)}
    with journal(out, settings) as log:
        done = log.take_back_last()
        log.describe(manifest(**settings), settings)
        for case in asking.each(cases, done=done, show=not json):
            log.append(_both_arms(decoder, case, others[case.task, case.id], max_new_tokens))
    found = study_image(read_rounds(out), seed=seed)
    if json:
        terminal.write_json({"out": str(out), "tasks": found})
    else:
        _show_image(terminal.console(), found)
        print(out)


def _both_arms(decoder: Any, case: Case, other: Case, max_new_tokens: int) -> list[dict[str, Any]]:
    """Rows of the right image, then of the other one, at the roots that decoding with the right one has."""
    from oneglance.bench.forced import follow, roots_of
    from oneglance.report.causes import MISMATCHED, RIGHT

    params = opening.sampling(max_new_tokens)
    inputs = case.encode(decoder.target)
    done = decoder.stream_inputs(inputs, params).exhaust()
    if done.fell_back is not None:
        raise InputError(f"drafting ended on prompt {case.id}, and half an arm is no comparison: {done.fell_back}")
    rows = []
    for run, own in ((RIGHT, inputs), (MISMATCHED, other.encode(decoder.target))):
        rows += follow(decoder, own, params, done.token_ids, roots_of(done), run=run, task=case.task, prompt=case.id)
    return [asdict(row) for row in rows]


def saliency(
    files: logs.Files,
    tasks: logs.Tasks = None,
    figures: logs.Figures = None,
    json: options.Json = False,
) -> None:
    """Ask whether attention on the image says more about acceptance than entropy does (Table 13).

    Reads logs of 'oneglance rounds --saliency'. Saliency is the share of the root row's attention that falls on image
    rows, averaged over heads and kept layers. Gives correlations of accepted length with both, with entropy taken out,
    and the gap between high and low saliency within entropy deciles.
    """
    from oneglance.report import figures as draw
    from oneglance.report.causes import study_saliency

    found = study_saliency(logs.read(files, tasks))
    written = logs.draw(figures, {"fig7": lambda: draw.saliency_split(found)})
    if json:
        terminal.write_json({"tasks": found, "figures": written})
        return
    _show_saliency(terminal.console(), found)
    for path in written:
        print(path)


def _show_image(console: Console, found: dict[str, ImageEffect]) -> None:
    names = ("", "roots/prompts", "lift of a", "lift of τ", "H right", "H mismatched", "effect", "with H held fixed")
    table = Table(*names, title="the right image against a mismatched one, same roots", title_justify="left")
    for name, e in found.items():
        left = ("–", "–") if e.effect is None else (_number(e.effect.total), _number(e.effect.residual))
        table.add_row(
            name,
            f"{e.num_roots}/{e.num_prompts}",
            _percent(e.lift),
            _percent(e.lift_tau),
            f"{e.h_right.value:.3f}",
            f"{e.h_mismatched.value:.3f}",
            *left,
        )
    console.print(table)


def _show_saliency(console: Console, found: dict[str, SaliencyEffect]) -> None:
    names = ("", "rounds/prompts", "v", "r(a, H)", "r(a, v)", "r(a, v | H)", "rank r(a, v | H)", "gap in deciles")
    table = Table(*names, title="accepted length, entropy H and image saliency v", title_justify="left")
    for name, e in found.items():
        c = e.correlations
        table.add_row(
            name,
            f"{e.num_rounds}/{e.num_prompts}",
            f"{e.mean_saliency:.3f}",
            *(_number(r) for r in (c.a_h, c.a_v, c.partial, c.rank_partial)),
            f"{e.mean_gap:.2f}",
        )
    console.print(table)


def _number(i: Interval) -> str:
    return f"{i.value:+.2f} [{i.low:+.2f}, {i.high:+.2f}]"


def _percent(i: Interval) -> str:
    return f"{i.value:+.1%} [{i.low:+.1%}, {i.high:+.1%}]"
