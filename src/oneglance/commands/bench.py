"""``oneglance bench``: systems against plain decoding, on the same prompts, interleaved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oneglance.amounts import plural
from oneglance.commands import asking, measuring, opening, options, terminal
from oneglance.core import InputError

Ours = Annotated[str, typer.Option(metavar="NAME", help="The system whose margins over the others are given.")]
ChargeTau = Annotated[
    list[str] | None,
    typer.Option(metavar="SYSTEM=TAU", help="Project a system at this τ and its own round cost. Repeat for several."),
]


def bench(
    systems: measuring.Systems = "plain,chain,tree",
    ours: Ours = "tree",
    tasks: options.Tasks = None,
    prompts: options.Prompts = None,
    data: asking.Data = None,
    limit: asking.Limit = 20,
    replicates: measuring.Replicates = 1,
    warmup: measuring.Warmup = 2,
    charge_tau: ChargeTau = None,
    out: measuring.Out = None,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    budget: options.Budget = options.BUDGET,
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
    """Time systems against plain decoding, prompt by prompt in one process.

    Decode-only, batch one, from the end of the target's prefill; the paper's window, which opens after the first draft,
    is the column paper_window. The speedup is a ratio of summed times with a paired bootstrap interval over prompts;
    identity is against an independent plain loop. Exits with 1 if, in float32, an output differs from it.

    Systems from outside (transformers, transformers-lookup, transformers-assisted@MODEL, transformers-dflash@FOLDER,
    server@URL) take their turn on the same prompts; they are timed end to end and stand in a table of their own.

    With --fixed-shape, systems other than plain run packed passes of one shape, and their identity is with single rows
    in that shape: any difference is then a failure, in every dtype. plain-shaped is what that costs plain decoding;
    speedups are against ordinary plain decoding as ever.
    """
    from oneglance.bench import compare
    from oneglance.bench.manifest import manifest
    from oneglance.bench.metrics import geomean, summarise
    from oneglance.bench.outside import open_outside, split
    from oneglance.bench.runner import Bench
    from oneglance.targets import open_fixed

    setup = measuring.Setup(target, head, budget, max_new_tokens, dtype, device, attention, threads, device_map, runner)
    setup.check(out)
    charges = compare.charges(charge_tau or [])
    names, others = split(opening.names_of(systems))
    if "plain-shaped" in names and not fixed_shape:
        raise InputError("the system plain-shaped goes with --fixed-shape; add that, or drop the system")
    if fixed_shape and runner not in ("auto", "eager"):
        raise InputError(f"--fixed-shape is a way of its own to run passes; drop --runner {runner}")
    bound = setup.bind(names)
    cases = asking.choose_cases(tasks, prompts, limit, data)
    settings = setup.describe(cases, limit=limit, fixed_shape=fixed_shape)
    opened = setup.open()
    shaped = open_fixed(opened, budget) if fixed_shape else None
    params = opening.sampling(max_new_tokens)
    outside = open_outside(others, opened)
    clock = Bench(opened, bound, params, warmup=warmup, replicates=replicates, outside=outside, shaped=shaped)
    records = measuring.measure(clock, cases, settings, out=out, show=not json)
    rows = summarise(records)
    alike = [row for row in rows if row.extra_input is None]
    gains = {s: [r.speedup for r in alike if r.system == s and r.speedup is not None] for s in names}
    result: dict[str, Any] = {
        "manifest": manifest(**settings),
        "rows": [row.as_dict() for row in rows],
        "geomean_speedup": {system: geomean(values) for system, values in gains.items() if values},
        "margins": compare.margins(records, ours),
        "plain_drift": compare.drift(records),
        "projections": compare.project(records, charges),
    }
    measuring.finish(out, result, records)
    if json:
        terminal.write_json(result)
    else:
        show(terminal.console(), terminal.as_object(result))
    own = [r for r in records if not r.is_outside]
    judged = [r for r in own if dtype == "float32" or (fixed_shape and r.system != "plain")]
    if any(not record.identical for record in judged):
        raise typer.Exit(1)


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Tables of a result, as JSON holds it."""
    from oneglance.bench.metrics import MIN_PROMPTS
    from oneglance.report.results import split

    rows = result["rows"]
    own, more, _ = split(rows)
    for task in dict.fromkeys(row["task"] for row in rows):
        _show_task(console, [row for row in own if row["task"] == task])
        _show_task(console, [row for row in more if row["task"] == task])
    _show_outside(console, rows)
    _show_facts(console, [row for row in (*own, *more) if row["system"] != "plain"])
    if len({row["task"] for row in rows}) > 1:
        for system, value in result["geomean_speedup"].items():
            console.print(f"{system}: geometric mean of the tasks' speedups {value:.2f}")
    for m in result["margins"]:
        console.print(_margin(m))
    for p in result["projections"]:
        console.print(
            f"{p['task']}: {p['system']} charged with τ {p['tau']:.2f} instead of {p['measured_tau']:.2f}: "
            f"{p['ms_per_token']:.2f} ms/token, speedup {p['speedup']:.2f} ({p['label']})"
        )
    if steady := _steadiness(result):
        console.print(steady)
    if any(row["n"] < MIN_PROMPTS for row in rows):
        console.print(f"no interval for fewer than {MIN_PROMPTS} prompts: give a larger --limit")
    console.print(
        "τ: kept tokens a round, bonus included. paper's window: the speedup by a clock that starts after the first "
        "draft. draft, verify, rest: a round's time; draft has the tree's making, rest commit and host."
    )


def _margin(m: Mapping[str, Any]) -> str:
    """How far ours is ahead of another system or behind it, in both conventions."""
    faster, less = ("faster", "less") if m["over_ours"] >= 0 else ("slower", "more")
    return (
        f"{m['task']}: {m['ours']} is {abs(m['over_ours']):.1%} {faster} than {m['other']}"
        f"{interval(m['low'], m['high'], '+.1%')} and takes {abs(m['over_other']):.1%} {less} time a token; it is "
        f"ahead on {m['wins']} of {m['n']} prompts"
    )


def _steadiness(result: Mapping[str, Any]) -> str:
    """How steady plain decoding was over tasks and over the run; nothing where neither can be told."""
    found = result["plain_drift"]
    if found is None:
        return ""
    parts = []
    if len({row["task"] for row in result["rows"]}) > 1:
        parts.append(f"its time a token differs by at most {found['spread']:.1%} between tasks")
    halves = ", ".join(f"{value - 1:+.1%} in {task}" for task, value in found["halves"].items())
    if halves:
        parts.append(f"in the second half of the prompts it is {halves} against the first")
    return f"plain decoding: {'; '.join(parts)}" if parts else ""


def _show_outside(console: Console, rows: list[dict[str, Any]]) -> None:
    """Systems from outside beside ours, end to end, without a ratio."""
    outside = [row for row in rows if row.get("is_outside")]
    if not outside:
        return
    names = ("task", "system", "to first token ms", "end to end ms", "τ, own count", "identical", "")
    table = Table(*names, title="end to end, prefill included; no ratio is made across systems", title_justify="left")
    for row in rows:
        times = [f"{row[name]:.1f}" if row[name] is not None else "" for name in ("first_ms", "end_to_end_ms")]
        count = f"{row['tau']:.2f}" if row["tau"] and row["is_outside"] else ""
        failed = f"failed {row['failures']} times, {row['failure']}" if row["failures"] else ""
        identical = f"{row['identical']}/{row['n'] * row['replicates']}"
        table.add_row(row["task"], row["system"], *times, count, identical, failed)
    console.print(table)


def _show_facts(console: Console, rows: list[dict[str, Any]]) -> None:
    """What each drafting system is."""
    from oneglance.report.summary import FACTS, facts
    from oneglance.report.tables import cell

    table = Table(*FACTS.values(), title="what drafted, averaged over tasks", title_justify="left")
    for line in facts(rows):
        table.add_row(*(cell(line[name], name) for name in FACTS))
    if rows:
        console.print(table)


def _show_task(console: Console, own: list[dict[str, Any]]) -> None:
    if not own:
        return
    first = own[0]
    score = "" if first["score"] is None else f", score {first['score']:.3f}"
    share = first["prefill_share"]
    context = "" if share is None else f", prefill {share:.0%} of plain decoding's whole time"
    size = f"{plural(first['n'], 'prompt')} of {first['tokens']:.0f} new tokens"
    title = f"{first['task']}: {size}{score}, mean next-token entropy {first['entropy_nats']:.3f} nats"
    if first.get("extra_input"):
        title = f"{first['task']}, given {first['extra_input']} as well"
        context = ""
    names = (
        "system",
        "τ",
        "ms/token",
        "speedup [95 %]",
        "paper's window",
        *("draft ms", "verify ms", "rest ms"),
        "wins",
        "identical",
    )
    table = Table(*names, title=title + context, title_justify="left")
    for row in own:
        has_speedup = row["speedup"] is not None
        table.add_row(
            row["system"],
            f"{row['tau']:.2f}" if row["tau"] else "",
            f"{row['ms_per_token']:.2f}",
            f"{row['speedup']:.2f}{interval(row['ci_low'], row['ci_high'], '.2f')}" if has_speedup else "",
            f"{row['paper_window']:.2f}" if has_speedup else "",
            *_stages(row),
            f"{row['wins']}/{row['n']}" if has_speedup else "",
            f"{row['identical']}/{row['n'] * row['replicates']}",
        )
    console.print(table)


def _stages(row: Mapping[str, Any]) -> list[str]:
    """Draft, verify and the rest of a round."""
    if row["verify_ms"] is None:
        return ["", "", ""]
    draft = row["draft_ms"] + (row["build_ms"] or 0.0)
    return [f"{value:.1f}" for value in (draft, row["verify_ms"], row["commit_ms"] + row["host_ms"])]


def interval(low: float | None, high: float | None, form: str) -> str:
    """Of a table cell; nothing where there is none."""
    return "" if low is None or high is None or low != low else f" [{low:{form}}, {high:{form}}]"
