"""``oneglance worth-it``: would drafting pay on your own images and prompts?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from oneglance.commands import measuring, opening, options, terminal
from oneglance.commands.bench import interval

Questions = Annotated[
    Path | None, typer.Option("--prompts", metavar="FILE", help="Questions, one a line; they take turns, one a page.")
]
Limit = Annotated[int, typer.Option(metavar="N", min=2, help="Prompts in all, at most.")]


def worth_it(
    images: options.ImagesFolder,
    prompts: Questions = None,
    limit: Limit = 20,
    out: measuring.Out = None,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    budget: options.Budget = options.BUDGET,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    json: options.Json = False,
) -> None:
    """Decode your prompts plainly, with a chain and with a tree, and say which one to use, if any.

    One question about each page of the folder, of images and PDFs. The advice is the faster of the two where its
    speedup's interval lies above 1, else off. Nothing is trained.
    """
    from oneglance.bench.advice import advise
    from oneglance.bench.cases import own_images
    from oneglance.bench.manifest import manifest
    from oneglance.bench.metrics import summarise
    from oneglance.bench.runner import Bench
    from oneglance.train.prompts import read_questions

    setup = measuring.Setup(target, head, budget, max_new_tokens, dtype, device, attention, threads, runner=runner)
    setup.check(out)
    cases = own_images(images, read_questions(prompts), limit)
    bound = setup.bind(["plain", "chain", "tree"])
    opening.note_foreign(target)
    settings = setup.describe(cases, limit=limit)
    clock = Bench(setup.open(), bound, opening.sampling(max_new_tokens))
    records = measuring.measure(clock, cases, settings, out=out, show=not json)
    more = "raise --limit" if len(cases) == limit else "add pages to the folder: each is asked one question"
    advice = advise(records, more)
    result = {
        "manifest": manifest(**settings),
        "advice": advice.choice,
        "reason": advice.reason,
        "findings": advice.findings,
        "rows": [row.as_dict() for row in summarise(records)],
    }
    measuring.finish(out, result, records)
    if json:
        terminal.write_json(result)
        return
    console: Console = terminal.console()
    for name, found in advice.findings.items():
        tau, gain = found.tau, found.speedup
        console.print(
            f"{name}: τ {tau.value:.2f}{interval(tau.low, tau.high, '.2f')}, speedup {gain.value:.2f}"
            f"{interval(gain.low, gain.high, '.2f')} on {found.n} prompts"
        )
    console.print(f"advice: {advice.choice}; {advice.reason}")
