"""``oneglance plan``: what decoding will hold in memory, before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oneglance.commands import opening, options, terminal
from oneglance.core import InputError

if TYPE_CHECKING:
    from oneglance.plan import Plan

Context = Annotated[int | None, typer.Option(metavar="N", help="Rows of prompt and answer; default all that fit.")]
Seen = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="Images that a target sees by cross-attention; default 1."),
]
PromptRows = Annotated[int, typer.Option(metavar="N", min=1, help="Rows of the prompt, its images among them.")]
NAMES = {
    "target": "the target's weights",
    "head": "the head's weights",
    "target_kv": "the target's keys and values",
    "head_kv": "the head's keys and values",
    "fixed_kv": "keys and values of images or audio, by cross-attention",
    "growth": "one layer's, while it grows",
    "features": "the prompt's features, during prefill",
    "prefill": "the widest layer, during prefill",
    "verify": "one packed pass",
    "draft": "one draft pass",
}
Check = Annotated[
    bool,
    typer.Option("--check", help="Then load, decode up to the context, and set the tensors' peak beside the estimate."),
]


def plan(
    context: Context = None,
    prompt_rows: PromptRows = 1024,
    num_images: Seen = None,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    drafter: options.Drafter = "block",
    budget: options.Budget = options.BUDGET,
    dtype: options.Dtype = "auto",
    check: Check = False,
    json: options.Json = False,
) -> None:
    """Say what decoding will hold in memory, part by part, without loading a weight.

    From the target's config and the head's alone: weights, keys and values of the whole context, what prefill and one
    packed pass need besides. Buffers of libraries, the vision encoder's own rows, and quantised weights are not
    counted. With --check, exits with 1 where decoding a text then held more than was planned.
    """
    from oneglance.drafters.checkpoint import read_config
    from oneglance.drafters.head import HeadConfig
    from oneglance.drafters.settings import split
    from oneglance.plan import plan as count
    from oneglance.targets import parse_dtype
    from oneglance.targets.outline import outline_target

    opening.check_tree(budget, None)
    kind = split(drafter)[0]
    if kind not in ("block", "none"):
        raise InputError(f"plan knows the drafters block and none, got {kind!r}; use one of these")
    name = opening.head_name(target, head, drafter)
    outline = outline_target(target)
    config = None if name is None or kind == "none" else HeadConfig.from_checkpoint(read_config(name)[1])
    chosen = parse_dtype(dtype)
    rows = outline.context_length if context is None else context
    if not 1 <= rows <= outline.context_length:
        raise InputError(f"--context must lie in 1..{outline.context_length}, the target's own, got {rows}")
    if num_images is not None and not (outline.takes_images and outline.fixed_layers):
        raise InputError(f"--num-images: {target} sees no image by cross-attention; count its rows in --prompt-rows")
    if num_images and check:
        raise InputError("--check decodes a text; leave out --num-images")
    found = count(
        outline,
        config,
        dtype=outline.dtype if isinstance(chosen, str) else chosen,
        context=rows,
        prompt=min(prompt_rows, rows),
        budget=budget,
        images=num_images if num_images is not None else 0 if check else 1,
    )
    result: dict[str, Any] = {
        "target": target,
        "head": name,
        "dtype": found.dtype,
        "context": found.context,
        "prompt_rows": found.prompt,
        "num_images": found.images,
        "budget": found.budget,
        **{f"{part}_bytes": getattr(found, part) for part in NAMES},
        "total_bytes": found.total,
    }
    if check:
        result["measured_bytes"] = _measured(found, target, head, drafter, dtype)
    if json:
        terminal.write_json(result)
    else:
        _show(terminal.console(), found)
        if check:
            measured = result["measured_bytes"]
            print(f"measured: {_size(measured)}, {measured / found.total:.0%} of the estimate")
    if check and result["measured_bytes"] > found.total:
        raise typer.Exit(1)


def _measured(found: Plan, target: str, head: str | None, drafter: str, dtype: str) -> int:
    """What decoding by that plan holds at the most."""
    from oneglance.plan import held

    decoder = opening.open_decoder(target, head, drafter=drafter, budget=found.budget, dtype=dtype)
    return held(decoder.target, decoder.drafter, context=found.context, prompt=found.prompt, budget=found.budget)


def _show(console: Console, found: Plan) -> None:
    title = (
        f"{found.dtype}, context {found.context}, prompt {found.prompt}, trees of {found.budget} nodes: "
        f"about {_size(found.total)} at the peak"
    )
    table = Table("part", "memory", title=title, title_justify="left")
    for part, name in NAMES.items():
        table.add_row(name, _size(getattr(found, part)))
    console.print(table)


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
