"""``oneglance demo``: one page, decoded plainly and with the draft head."""

from __future__ import annotations

import difflib
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from oneglance.amounts import plural
from oneglance.commands import opening, options, terminal
from oneglance.commands.opening import open_decoder, read_images, sampling
from oneglance.core import AnyBudget

if TYPE_CHECKING:
    from oneglance.commands.pairs import Comparison, Duel

ASSETS = Path(__file__).parent.parent / "assets"
PAGE, CHART = ASSETS / "demo_page.png", ASSETS / "demo_chart.png"
DRAWN = {PAGE: ("docvqa", 5), CHART: ("chartqa", 3)}  # task and eval seed that each page was drawn from
PROMPT = "Transcribe the document."

Prompt = Annotated[str, typer.Option(metavar="TEXT", help="What to ask about the page.")]
Pairs = Annotated[int, typer.Option(metavar="N", min=1, help="Timed pairs, after one warm-up.")]


def demo(
    image: options.Images = None,
    prompt: Prompt = PROMPT,
    pairs: Pairs = 5,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    tree: options.Tree = "best_first",
    budget: options.AutoBudget = options.AUTO_BUDGET,
    branch_k: options.BranchK = None,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    dtype: options.Dtype = "float32",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    json: options.Json = False,
) -> None:
    """Decode a page plainly and with the draft head, side by side.

    First both arms run live, then they are timed in interleaved pairs without a display. Exits with 1 if a single
    token differs. Without --image it is a page that comes with the package and that the built-in target was trained to
    read: that small model reads only drawn pages of this kind. The default is float32, where both must agree exactly.
    """
    params = sampling(max_new_tokens)
    nodes = opening.budget_of(budget)
    sources = image or [str(PAGE)]
    pictures = read_images(sources)
    decoder = open_decoder(
        target,
        head,
        tree=tree,
        budget=nodes,
        branch_k=branch_k,
        dtype=dtype,
        device=device,
        device_map=device_map,
        attention=attention,
        runner=runner,
        threads=threads,
    )
    from oneglance.commands.pairs import Duel
    from oneglance.targets.chat import encode

    if image is None and not decoder.target.takes_images:
        sources, pictures = [], []
    duel = Duel(decoder, encode(decoder.target, prompt, images=pictures), params)
    page = Page.of(sources, prompt)
    if json:
        duel.pair(0)
        comparison = duel.compare(pairs)
        setting = {"images": sources, "prompt": prompt, **settings(duel, tree=tree, budget=nodes)}
        terminal.write_json({**setting, "true_text": page.true_text, **comparison.as_dict()})
    else:
        console = Console(highlight=False)
        comparison = show(console, duel, page, num_pairs=pairs, tree=tree, budget=nodes, is_live=console.is_terminal)
    if not comparison.is_identical:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Page:
    """What is asked about, and its true text where the page is one of ours."""

    sources: tuple[str, ...]
    prompt: str
    true_text: str | None

    @classmethod
    def of(cls, sources: list[str], prompt: str) -> Page:
        from oneglance.tasks import draw

        if len(sources) == 1 and Path(sources[0]).resolve() in DRAWN:
            task, seed = DRAWN[Path(sources[0]).resolve()]
            example = draw(task, seed, split="eval")
            if example.prompt == prompt:
                return cls(tuple(sources), prompt, example.answer)
        return cls(tuple(sources), prompt, None)


def settings(duel: Duel, *, tree: str, budget: AnyBudget) -> dict[str, Any]:
    """What a figure depends on."""
    import torch

    target = duel.decoders[0].target
    return {
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "threads": torch.get_num_threads(),
        "tree": tree,
        "budget": budget,
    }


def show(
    console: Console, duel: Duel, page: Page, *, num_pairs: int, tree: str, budget: AnyBudget, is_live: bool = True
) -> Comparison:
    """The demo itself: panels on a terminal, then the measured table."""
    from oneglance.commands.race import run_race, side_by_side

    for source in page.sources:
        console.print(Text.assemble(("page    ", "bold"), terminal.visible(short(source))), soft_wrap=True)
    console.print(Text.assemble(("prompt  ", "bold"), terminal.visible(page.prompt)), soft_wrap=True)
    warm_up = duel.pair(0)
    if console.is_terminal:
        lanes = run_race(console, duel, expected_ms=warm_up[0].decode_ms, is_live=is_live)
        console.print(side_by_side(lanes))
        console.print(Text("one colour a round; underlined: the token that the target added itself", style="dim"))
    if not is_live:
        print(f"timing {num_pairs} pairs of {warm_up[0].num_tokens} tokens each …", file=sys.stderr, flush=True)
    with Live(console=console, auto_refresh=False, transient=True) if is_live else nullcontext() as live:

        def on_pair(index: int) -> None:
            if live:
                live.update(Text(f"timing pair {index + 1} of {num_pairs}", style="dim"), refresh=True)

        comparison = duel.compare(num_pairs, on_pair=on_pair)
    if not console.is_terminal:
        console.print(Text(f"\n{terminal.visible(comparison.drafted.text)}\n"), soft_wrap=True)
    console.print(table(comparison))
    console.print(Text(footnote(duel, comparison, tree=tree, budget=budget), style="dim"))
    console.print(Text(reading(page, comparison)))
    return comparison


def short(path: str) -> str:
    """A path below the current folder without what leads there."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def table(comparison: Comparison) -> Table:
    """The measured figures."""
    from oneglance.commands.pairs import ARMS

    names = ("tokens", "rounds", "τ", "ms/token", "speedup", "identical")
    columns = [Column(name, justify="right", no_wrap=True) for name in names]
    grid = Table(Column("", no_wrap=True), *columns, box=box.SIMPLE_HEAD, pad_edge=False)
    verdict = Text("yes", "bold green") if comparison.is_identical else Text("NO", "bold red")
    for arm, generation in enumerate((comparison.plain, comparison.drafted)):
        tau = "–" if generation.tau is None else f"{generation.tau:.2f}"
        speedup = ("1", "") if arm == 0 else (str(comparison.speedup or "–"), verdict)
        spread = comparison.ms_per_token(arm)
        timing = f"{spread.median:.2f}" if spread else "–"
        grid.add_row(ARMS[arm], str(generation.num_tokens), str(len(generation.rounds)), tau, timing, *speedup)
    return grid


def footnote(duel: Duel, comparison: Comparison, *, tree: str, budget: AnyBudget) -> str:
    """What the figures are."""
    setting = settings(duel, tree=tree, budget=budget)
    threads = plural(setting["threads"], "thread")
    num_pairs = len(comparison.pairs)
    size = "as many nodes as pay" if budget == "auto" else f"{budget} nodes"
    return (
        f"Median of {plural(num_pairs, 'interleaved pair')} after a warm-up, lowest and highest in "
        f"brackets. Decoding only: prefill takes {comparison.drafted.prefill_ms:.0f} ms in either arm. "
        f"{setting['dtype']}, {setting['device']}, {threads}; {tree} tree of {size}."
    )


def reading(page: Page, comparison: Comparison) -> str:
    """Whether the page was read right, where its true text is known, and what the built-in target can read."""
    lines = []
    if page.true_text is not None:
        true, read = page.true_text.splitlines(), comparison.drafted.text.splitlines()
        matcher = difflib.SequenceMatcher(None, true, read, autojunk=False)
        num_right = sum(block.size for block in matcher.get_matching_blocks())
        lines.append(f"{num_right} of {len(true)} lines were read right.")
        if num_right < len(true):
            lines.append("The page says: " + " / ".join(true))
    if comparison.drafted.target == options.BUILTIN:
        lines.append(
            f"{options.BUILTIN} is a small model that reads only drawn pages of this kind; "
            "for other pages give --target and --head."
        )
    return "\n".join(lines)
