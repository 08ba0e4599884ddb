"""``oneglance compare``: one prompt, all systems, side by side."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oneglance.commands import measuring, opening, options, terminal

Prompt = Annotated[str | None, typer.Argument(metavar="[PROMPT]", help="Default: a held-out page and its prompt.")]


def compare(
    prompt: Prompt = None,
    image: options.Images = None,
    systems: measuring.Systems = "plain,chain,tree",
    replicates: measuring.Replicates = 3,
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
    """Decode one prompt by all systems: rounds, τ, milliseconds, and how each system cut the text into rounds.

    One prompt has no interval; the replicates show how steady its times are. Exits with 1 if, in float32, an output
    differs from the independent plain loop.
    """
    from oneglance.bench.cases import Case, suite
    from oneglance.bench.metrics import by_prompt, mean_ms
    from oneglance.bench.runner import Bench

    setup = measuring.Setup(target, head, budget, max_new_tokens, dtype, device, attention, threads, runner=runner)
    setup.check()
    names = opening.names_of(systems)
    bound = setup.bind(names)
    pictures = opening.read_images(image)
    (case,) = suite(["docvqa"], 1) if prompt is None else [Case("prompt", "yours", prompt, lambda: pictures)]
    opened = setup.open()
    clock = Bench(opened, bound, opening.sampling(max_new_tokens), warmup=1, replicates=replicates)
    records = measuring.measure(clock, [case], {}, out=None, show=False)
    rows: list[dict[str, Any]] = []
    for name in names:
        (own,) = by_prompt([r for r in records if r.system == name]).values()
        rows.append(
            {
                "system": name,
                "identical": all(r.identical for r in own),
                "num_tokens": len(own[0].token_ids),
                "num_rounds": len(own[0].kept),
                "tau": sum(own[0].kept) / len(own[0].kept) if own[0].kept else None,
                "decode_ms": mean_ms(own),
                "decode_ms_min": min(r.decode_ms for r in own),
                "decode_ms_max": max(r.decode_ms for r in own),
                "prefill_ms": own[0].prefill_ms,
                "text": opened.tokenizer.decode(own[0].token_ids, skip_special_tokens=True),
                "strip": pieces(opened.tokenizer, own[0].token_ids, own[0].kept),
            }
        )
    plain_ms = next((row["decode_ms"] for row in rows if row["system"] == "plain"), None)
    for row in rows:
        is_speculative = plain_ms is not None and row["system"] != "plain" and row["decode_ms"] > 0
        row["speedup"] = plain_ms / row["decode_ms"] if plain_ms is not None and is_speculative else None
    if json:
        terminal.write_json({"prompt": case.text, "replicates": replicates, "systems": rows})
    else:
        _show(terminal.console(), case.text, rows)
    if dtype == "float32" and not all(row["identical"] for row in rows):
        raise typer.Exit(1)


def pieces(tokenizer: Any, token_ids: tuple[int, ...], kept: tuple[int, ...]) -> list[str]:
    """The text of prefill's token and of each round."""
    cuts, at = [1], 1
    for count in kept:
        at += count
        cuts.append(at)
    texts, before = [], ""
    for cut in cuts:
        whole = tokenizer.decode(token_ids[:cut], skip_special_tokens=True)
        shown = whole if cut == len(token_ids) else whole.rstrip("\ufffd")  # half a character waits for its rest
        texts.append(shown[len(before) :])
        before = shown
    return texts


def _show(console: Console, prompt: str, rows: list[dict[str, Any]]) -> None:
    table = Table(
        "system", "rounds", "τ", "decode ms (min–max)", "speedup", "identical", title=prompt, title_justify="left"
    )
    for row in rows:
        table.add_row(
            row["system"],
            str(row["num_rounds"]),
            "" if row["tau"] is None else f"{row['tau']:.2f}",
            f"{row['decode_ms']:.1f} ({row['decode_ms_min']:.1f}–{row['decode_ms_max']:.1f})",
            "" if row["speedup"] is None else f"{row['speedup']:.2f}",
            "yes" if row["identical"] else "no",
        )
    console.print(table)
    for row in rows:
        text = "·".join(terminal.visible(piece).replace("\n", "⏎") for piece in row["strip"])
        console.print(f"{row['system']}: {text}", markup=False)
