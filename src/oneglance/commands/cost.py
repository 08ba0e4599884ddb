"""``oneglance cost``: what a round costs, part by part, in one process (Table 11)."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oneglance.commands import asking, measuring, opening, options, terminal
from oneglance.core import MAX_BUDGET, InputError

Systems = Annotated[str, typer.Option(metavar="NAMES", help="Drafting systems, comma-separated; the first one leads.")]
Budgets = Annotated[
    str | None, typer.Option(metavar="N,N,…", help="More budgets of each system, for the regression on draft passes.")
]
Sizes = Annotated[str, typer.Option(metavar="N,N,…", help="Nodes of the packed passes that are timed alone.")]
Repeats = Annotated[int, typer.Option(metavar="N", min=2, help="How often each packed pass is timed.")]


def cost(
    systems: Systems = "tree",
    budgets: Budgets = None,
    sizes: Sizes = "0,15,31,47,63,127",
    repeats: Repeats = 20,
    tasks: options.Tasks = None,
    prompts: options.Prompts = None,
    data: asking.Data = None,
    limit: asking.Limit = 5,
    out: measuring.Out = None,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    budget: options.Budget = options.BUDGET,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    dtype: options.Dtype = "float32",
    device: options.Device = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    json: options.Json = False,
) -> None:
    """Time a plain step, the draft, the packed pass and the rest of a round, in one process.

    Also packed passes of several sizes alone, and round time regressed on draft passes a round, where the systems
    differ in them. Prefill with and without features and the time to the first token stand beside transformers'. The
    bars say which limits the first system keeps; timings mean something only on a machine that does nothing else.
    """
    from dataclasses import asdict
    from functools import partial

    from oneglance.bench import cost as parts
    from oneglance.bench.first import first_token
    from oneglance.bench.manifest import manifest
    from oneglance.bench.runner import Bench
    from oneglance.decoder import Decoder
    from oneglance.drafters.timing import MarginalDrafter, bush, verify_costs

    setup = measuring.Setup(target, head, budget, max_new_tokens, dtype, device, attention, threads, runner=runner)
    setup.check(out)
    names = [name for name in opening.names_of(systems) if name != "plain"]
    if not names:
        raise InputError("cost needs a drafting system; name one with --systems")
    fixed = [name for name in names if name == "auto" or ":budget=" in name]
    if fixed:
        raise InputError(f"cost times trees of given sizes; name them with --budgets instead of {fixed[0]}")
    more = opening.numbers("--budgets", budgets, least=1, most=MAX_BUDGET) if budgets else []
    nodes = opening.numbers("--sizes", sizes, least=0, most=MAX_BUDGET)
    bound = setup.bind(["plain", *names])
    sized = dict.fromkeys(names, budget)
    for name in names:
        for size in more:
            bound[f"{name}/{size}"] = partial(bound[name], budget=size)
            sized[f"{name}/{size}"] = size
    cases = asking.choose_cases(tasks, prompts, limit, data)
    settings = setup.describe(cases, limit=limit, sizes=nodes, repeats=repeats)
    opened, params = setup.open(), opening.sampling(max_new_tokens)
    clock = Bench(opened, bound, params)
    records = measuring.measure(clock, cases, settings, out=out, show=not json)
    found = parts.costs(records, sized)
    first = found[0]
    drafter, inputs = bound[names[0]](opened), cases[0].encode(opened)
    passes = verify_costs(opened, inputs, nodes, repeats=repeats)
    decoder = Decoder(opened, drafter)
    opening_ms = first_token(decoder, cases, turns=max(2, repeats // 4))
    efficiency = None
    if isinstance(drafter, MarginalDrafter):
        efficiency = parts.efficiency(decoder, drafter, cases, params, nodes=first.budget, repeats=repeats)
    limits = parts.bars(
        first,
        pack_ms=parts.pack_cost(bush(first.budget)),
        efficiency=efficiency,
        first=opening_ms,
    )
    result: dict[str, Any] = {
        **{key: getattr(first, key) for key in ("t_plain_ms", "t_draft_ms", "t_build_ms", "t_verify_ms", "t_host_ms")},
        **{key: getattr(first, key) for key in ("host_share", "budget", "round_ms", "round_over_plain", "system")},
        "systems": found,
        "verify": passes,
        "first_token": opening_ms,
        "bars": [{**asdict(bar), "is_met": bar.is_met} for bar in limits],
        "regression": parts.regress(found),
        "manifest": manifest(**settings),
    }
    measuring.finish(out, result, records)
    if json:
        terminal.write_json(result)
    else:
        _show(terminal.console(), terminal.as_object(result))


def _show(console: Console, result: dict[str, Any]) -> None:
    names = (
        "system",
        "budget",
        "draft",
        "of it tree",
        "verify",
        "host",
        "host share",
        "round",
        "in plain steps",
        "passes",
    )
    title = f"milliseconds a round; a plain step takes {result['t_plain_ms']:.2f}"
    table = Table(*names, title=title, title_justify="left")
    for c in result["systems"]:
        table.add_row(
            c["system"],
            str(c["budget"]),
            f"{c['t_draft_ms']:.2f}",
            "–" if c["t_build_ms"] is None else f"{c['t_build_ms']:.2f}",
            f"{c['t_verify_ms']:.2f}",
            f"{c['t_host_ms']:.2f}",
            f"{c['host_share']:.1%}",
            f"{c['round_ms']:.2f}",
            f"{c['round_over_plain']:.2f}",
            f"{c['passes']:.2f}",
        )
    console.print(table)
    passes = Table("nodes", "ms", "quartiles", title="one packed pass alone", title_justify="left")
    for v in result["verify"]:
        passes.add_row(str(v["nodes"]), f"{v['ms']:.2f}", f"{v['low_ms']:.2f}–{v['high_ms']:.2f}")
    console.print(passes)
    own = result["first_token"]
    console.print(
        f"prefill {own['prefill_ms']:.2f} ms, with features {own['prefill_capture_ms']:.2f}; first token after "
        f"{own['ttft_ms']:.2f} ms, transformers' generate {own['hf_ttft_ms']:.2f} ({own['turns']} turns)"
    )
    limits = Table("bar", "measured", "limit", "", title=f"{result['system']}, {result['budget']} nodes")
    for bar in result["bars"]:
        verdict = {True: "pass", False: "FAIL", None: "not told"}[bar["is_met"]]
        value = "–" if bar["value"] is None else f"{bar['value']:.3f}"
        limits.add_row(bar["name"], value, f"{'≥' if bar['is_least'] else '≤'} {bar['limit']}", verdict)
    console.print(limits)
    line = result["regression"]
    if line["reason"]:
        console.print(f"no regression on draft passes: {line['reason']}")
    else:
        console.print(
            f"round = {line['constant_ms']:.2f} ms + {line['per_pass_ms']:.2f} ms a draft pass over {line['num_arms']} "
            f"arms (R² {line['r2']:.2f}); the constant is {line['in_plain_steps']:.2f} plain steps"
        )
