"""``oneglance audit``: our output against an independent plain loop, prompt by prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oneglance.commands import asking, opening, options, terminal
from oneglance.core import AnyBudget, Drafter, InputError
from oneglance.tree import POLICIES

if TYPE_CHECKING:
    from oneglance.audit import AuditReport, BindDrafter

Budgets = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="N|auto",
        rich_help_panel=options.DECODING,
        help="Nodes of the candidate tree, root excluded; auto: as many as pay here. Repeat for several; default 63.",
    ),
]
Trees = Annotated[
    list[str] | None,
    typer.Option(
        "--tree",
        metavar="NAME",
        rich_help_panel=options.DECODING,
        help=f"{options.listed(POLICIES)}. Repeat for several; default best_first.",
    ),
]
Matrix = Annotated[
    bool,
    typer.Option("--matrix", help="Every arm next to its drafter-free controls, in float32 and bfloat16 (Table 7)."),
]
Out = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=options.OUTPUT,
        help="With --matrix: .json with all token ids, .html with every divergence, .md with the tables (between their "
        "markers, if the page exists). Repeat for several.",
    ),
]
Baselines = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        metavar="NAME=HEAD",
        rich_help_panel=options.MODEL,
        help="With --matrix: another drafter and its checkpoint. Those that need none run anyway.",
    ),
]
CompareHf = Annotated[bool, typer.Option("--hf/--no-hf", help="Also compare with transformers' own generate.")]


def audit(
    prompts: options.AnyPrompts = "50",
    tasks: options.Tasks = None,
    budget: Budgets = None,
    tree: Trees = None,
    hf: CompareHf = True,
    matrix: Matrix = False,
    gate: options.Gate = "off",
    out: Out = None,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    drafter: options.Drafter = "block",
    baseline: Baselines = None,
    branch_k: options.BranchK = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = 0,
    repetition_penalty: options.RepetitionPenalty = None,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    dtype: options.Dtype = "float32",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    fixed_shape: options.FixedShape = False,
    json: options.Json = False,
) -> None:
    """Compare every output with an independent plain loop, token for token.

    Exits with 1 if a divergence is a bug: if both loops also differ in float64, or the logit gap was too wide for
    rounding. Only float32 is called exact: in bfloat16 the target does not reproduce itself either.

    With --temperature, tokens drawn with a seed are compared with those that the plain loop draws with it.

    With --matrix, plain decoding is also compared with itself along other kernels, threads and precisions, each drafter
    stands next to these controls, and the gate's δ is measured unless it is given. Ties are no failure there either.

    With --fixed-shape, both sides run packed passes of one shape, and any difference at all is a failure.
    """
    from oneglance.audit import audit as run
    from oneglance.drafters import prepare
    from oneglance.runner import check_name, with_runner
    from oneglance.targets import open_target

    if max_new_tokens < 1:
        raise InputError(f"an audit needs at least one new token, got --max-new-tokens {max_new_tokens}")
    margin = opening.gate(gate)
    filters: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    params = opening.sampling(max_new_tokens, **filters, seed=seed or 0, repetition_penalty=repetition_penalty)
    if matrix and params != opening.sampling(max_new_tokens, seed=seed or 0):
        raise InputError("--matrix compares greedy text; drop --temperature and its kind")
    sizes = [opening.budget_of(size) for size in budget or []] or [options.BUDGET]
    _check_matrix(matrix, tree=tree, budget=sizes, dtype=dtype, gate=gate, out=out, baseline=baseline)
    if matrix and runner not in ("auto", "eager"):
        raise InputError("--matrix compares kernels of its own; drop --runner")
    check_name(runner)
    opening.set_threads(threads)
    for size in sizes:
        opening.check_tree(size, branch_k)
    asked = asking.choose_prompts(prompts, tasks)
    bind = prepare(drafter, opening.head_name(target, head, drafter))
    arms = _arms(bind, tree or ["best_first"], sizes, branch_k)
    numbers = _numbers(sizes, is_needed=fixed_shape or matrix)
    shape = max(numbers) if fixed_shape else None
    open_in = partial(
        open_target, target, device=device, device_map=device_map, attention=attention, fixed_for_budget=shape
    )
    if matrix:
        from oneglance.commands.matrix import run_matrix

        is_sound = run_matrix(
            lambda name: open_in(dtype=name),
            bind,
            drafter=drafter,
            baselines=baseline or (),
            asked=asked,
            budget=numbers[0],
            branch_k=branch_k,
            max_new_tokens=max_new_tokens,
            gate=margin,
            out=out or (),
            json=json,
        )
        raise typer.Exit(0 if is_sound else 1)
    opened = with_runner(open_in(dtype=dtype), runner)
    cases, passes = asking.encoded(opened, asked), opened.passes.name
    reports = run(opened, arms, cases, max_new_tokens=max_new_tokens, compare_hf=hf, params=params)
    report = _follow(reports, len(asked), show=not json)
    _tell(report, json=json, dtype=dtype, attention=attention, target=target, passes=passes, prompts=len(asked))
    if report.bugs or (fixed_shape and report.divergences):
        raise typer.Exit(1)


def _arms(
    bind: Callable[..., Drafter], trees: Sequence[str], sizes: Sequence[AnyBudget], branch_k: int | None
) -> dict[str, BindDrafter]:
    """Every tree at every budget."""
    from oneglance.drafters.paced import at_budget
    from oneglance.tree import policy

    return {
        f"{name}/{size}": partial(at_budget, bind, policy=policy(name), budget=size, branch_k=branch_k)
        for name in trees
        for size in sizes
    }


def _tell(report: AuditReport, *, json: bool, prompts: int, **settings: Any) -> None:
    """The report as text, or as JSON with what it was made with."""
    from oneglance.bench.manifest import manifest

    if json:
        terminal.write_json({**report.as_dict(), **settings, "manifest": manifest(**settings, prompts=prompts)})
    else:
        _show(Console(highlight=False), report)


def _numbers(sizes: list[AnyBudget], *, is_needed: bool) -> list[int]:
    """The budgets that are numbers.

    Raises:
        InputError: one is not, and must be.
    """
    numbers = [size for size in sizes if size != "auto"]
    if len(numbers) < len(sizes) and is_needed:
        raise InputError("--budget auto does not go with --fixed-shape or --matrix; give numbers")
    return numbers


def _check_matrix(
    matrix: bool,
    *,
    tree: list[str] | None,
    budget: list[AnyBudget],
    dtype: str,
    gate: str,
    out: list[Path] | None,
    baseline: list[str] | None,
) -> None:
    """Refuse options that the mode would not look at."""
    if not matrix and (gate != "off" or out or baseline):
        raise InputError("--gate, --baseline and --out go with --matrix; add it, or drop them")
    if matrix and (tree or len(budget) > 1 or dtype != "float32"):
        raise InputError("--matrix runs chain and tree at one budget, in float32 and bfloat16; drop --tree and --dtype")


def _follow(reports: Iterator[AuditReport], total: int, *, show: bool) -> AuditReport:
    with terminal.bar(show=show) as progress:
        bar = progress.add_task("auditing", total=total)
        for report in reports:
            progress.update(bar, advance=1, description=f"{report.overall.identical}/{report.overall.total} identical")
    return report


def _show(console: Console, report: AuditReport) -> None:
    table = Table("outputs of", "", "identical", title="against the independent plain loop", title_justify="left")
    for kind, tallies in (("task", report.per_task), ("tree/budget", report.per_arm), ("all", {"": report.overall})):
        for name, tally in tallies.items():
            table.add_row(kind, name, f"{tally.identical}/{tally.total}")
        table.add_section()
    console.print(table)
    if report.hf.total:
        same = f"{report.hf.identical}/{report.hf.total}"
        console.print(f"transformers' generate against the same loop: {same} identical")
    console.print(
        f"{report.num_tokens} tokens compared; largest packed-versus-plain logit difference "
        f"{report.max_logit_perturbation:.2g}, smallest top-2 gap {report.min_gap:.2g}"
    )
    for d in report.divergences:
        gap = "none" if d.gap is None else f"{d.gap:.2g}"
        console.print(
            f"{d.verdict}: {d.case} {d.arm}, token {d.position}: expected {d.expected}, got {d.got}, "
            f"gap {gap}, perturbation {d.perturbation:.2g}"
        )
    for f in report.feature_faults:
        console.print(f"bug: {f.case} {f.arm}: features of other rows than the committed ones, off by {f.error:.2g}")
    console.print(f"{report.ties} ties, {report.bugs} bugs")
