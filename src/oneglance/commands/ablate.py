"""``oneglance ablate``: what the drafter's visual state is worth, and which kept layers carry it (§5.5, Table 16)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oneglance.commands import asking, opening, options, terminal
from oneglance.core import InputError
from oneglance.files import check_free

if TYPE_CHECKING:
    from oneglance.bench.cases import Case
    from oneglance.bench.conditioning import Reading
    from oneglance.core import Drafter
    from oneglance.decoder import Decoder
    from oneglance.report.causes import Ablation

    ReadingOf = Callable[[Case], Reading]

TREE, CHAIN = "tree", "chain"
CONDITIONING, LAYERS = "conditioning", "layers"  # what a log of this command says it is
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=options.OUTPUT,
        help="JSONL, a line a prompt; a killed run is gone on with.",
    ),
]
Twin = Annotated[
    str | None,
    typer.Option(metavar="NAME", rich_help_panel=options.MODEL, help="A text-only model of the target's tokenizer."),
]
Subsets = Annotated[
    str | None,
    typer.Option(
        metavar="IDS;IDS", help="Kept layers to leave in, as '1,9;17,25'; default each alone and each left out."
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Of the order in which images are swapped, and of the bootstrap.")]


def conditioning(
    twin: Twin = None,
    out: Out = None,
    tasks: options.Tasks = None,
    prompts: options.Prompts = None,
    data: asking.Data = None,
    limit: asking.Limit = 60,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    drafter: options.Drafter = "block",
    budget: options.Budget = 31,
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
    """Swap what the drafter reads, as tree and as chain, and say how much of τ is kept.

    fused: the target's own states. zeroed: none. text-only: those of the target's text stack without the image, zeros
    at image rows; twin: the same of a text-only model. mismatched: those under another prompt's image. The target
    verifies as ever, so every arm writes the same text.
    """
    from oneglance.bench import conditioning as ways
    from oneglance.bench.forced import derange

    cases = asking.choose_cases(tasks, prompts, limit, data)
    others = {(case.task, case.id): case for case in derange(cases, seed=seed)}
    check_free(out)
    decoder = _open(target, head, drafter, budget, dtype, device, device_map, attention, threads, runner)
    own = decoder.target
    arms: dict[str, ReadingOf] = {
        "zeroed": lambda _: ways.zeroed,
        "text-only": lambda _: ways.text_only(own, own),
        "mismatched": lambda case: ways.other_images(own, others[case.task, case.id].encode(own)),
    }
    if twin is not None:
        from oneglance.targets import open_target

        model = open_target(twin, dtype=str(own.dtype).removeprefix("torch."), device=str(own.device))
        ways.check_twin(model, own, decoder.drafter.target_layer_ids)
        arms["twin"] = lambda _: ways.text_only(own, model)
    settings: dict[str, Any] = {
        "ablation": CONDITIONING,
        "twin": twin,
        "target": target,
        "head": head,
        "drafter": drafter,
    }
    settings |= {"budget": budget, "max_new_tokens": max_new_tokens, "seed": seed, "dtype": dtype}
    settings |= {"attention": attention, "runner": runner, "prompts": [f"{case.task}/{case.id}" for case in cases]}
    found = _ablate(decoder, cases, arms, (TREE, CHAIN), max_new_tokens, out, settings, seed, show=not json)
    _report(found, "share of τ kept when the drafter reads something else", json=json)


def layers(
    subsets: Subsets = None,
    out: Out = None,
    tasks: options.Tasks = None,
    prompts: options.Prompts = None,
    data: asking.Data = None,
    limit: asking.Limit = 20,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    drafter: options.Drafter = "block",
    budget: options.Budget = 31,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    seed: options.Seed = 0,
    dtype: options.Dtype = "float32",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    json: options.Json = False,
) -> None:
    """Leave out some of the layers that the head reads, and say how much of τ is kept.

    Their features become zeros; the head is not trained again, so this is what it relies on, not what it could do with
    fewer layers.
    """
    from oneglance.bench.conditioning import only_layers

    cases = asking.choose_cases(tasks, prompts, limit, data)
    check_free(out)
    decoder = _open(target, head, drafter, budget, dtype, device, device_map, attention, threads, runner)
    ids = decoder.drafter.target_layer_ids

    def reading_of(kept: tuple[int, ...]) -> ReadingOf:
        return lambda _: only_layers(kept, ids)

    arms = {" ".join(map(str, kept)): reading_of(kept) for kept in _subsets(subsets, ids)}
    settings: dict[str, Any] = {
        "ablation": LAYERS,
        "subsets": list(arms),
        "target": target,
        "head": head,
        "drafter": drafter,
    }
    settings |= {"budget": budget, "max_new_tokens": max_new_tokens, "dtype": dtype, "attention": attention}
    settings |= {"runner": runner}
    settings |= {"prompts": [f"{case.task}/{case.id}" for case in cases]}
    found = _ablate(decoder, cases, arms, (TREE,), max_new_tokens, out, settings, seed or 0, show=not json)
    _report(found, f"share of τ kept with some of the layers {' '.join(map(str, ids))}", json=json)


def _open(
    target: str,
    head: str | None,
    drafter: str,
    budget: int,
    dtype: str,
    device: str | None,
    device_map: str | None,
    attention: str,
    threads: int | None,
    runner: str,
) -> Decoder:
    """A decoder whose drafter reads states and makes trees of any kind.

    Raises:
        InputError: another drafter than a block head.
    """
    from oneglance.drafters.settings import wants_block_head

    if not wants_block_head(drafter):
        raise InputError(
            f"only a block head has states to swap and drafts trees and chains alike, got {drafter!r}; use block"
        )
    return opening.open_decoder(
        target,
        head,
        drafter=drafter,
        budget=budget,
        dtype=dtype,
        device=device,
        device_map=device_map,
        attention=attention,
        threads=threads,
        runner=runner,
    )


def _subsets(text: str | None, ids: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Each layer alone and each left out, or those that were named.

    Raises:
        InputError: a subset names no layer, or one that the head does not read.
    """
    if text is None:
        chosen = [(i,) for i in ids] + [tuple(j for j in ids if j != i) for i in ids]
        return [kept for kept in dict.fromkeys(chosen) if kept and kept != ids]
    found = []
    for part in text.split(";"):
        try:
            kept = tuple(sorted({int(word) for word in part.split(",")}))
        except ValueError as error:
            raise InputError(
                f"--subsets takes layer ids, such as '{ids[0]};{ids[0]},{ids[-1]}', got {text!r}"
            ) from error
        if not set(kept) <= set(ids):
            raise InputError(
                f"the head reads layers {', '.join(map(str, ids))}, not {part.strip()}; choose among them in --subsets"
            )
        found.append(kept)
    return list(dict.fromkeys(found))


def _ablate(
    decoder: Decoder,
    cases: list[Case],
    arms: Mapping[str, ReadingOf],
    trees: tuple[str, ...],
    max_new_tokens: int,
    out: Path | None,
    settings: dict[str, Any],
    seed: int,
    *,
    show: bool,
) -> Ablation:
    """Decode every prompt by every arm, and compare."""
    from oneglance.bench.journal import journal
    from oneglance.bench.manifest import manifest
    from oneglance.report.causes import WHOLE, lengths_of, study_ablation

    lines: list[dict[str, Any]] = []
    with nullcontext() if out is None else journal(out, settings) as kept:
        if kept is not None:
            lines += kept.lines
            kept.describe(manifest(**settings), settings)
        before = {(line["task"], line["prompt"]) for line in lines}
        for case in asking.each(cases, done=before, show=show):
            rounds = _rounds(decoder, case, arms, trees, max_new_tokens)
            lines.append({"task": case.task, "prompt": case.id, "rounds": rounds})
            if kept is not None:
                kept.append(lines[-1:])
    lengths = lengths_of(lines)
    if not lengths:
        raise InputError("no prompt had a round; give more new tokens (--max-new-tokens)")
    return study_ablation(lengths, baseline=WHOLE, seed=seed)


def _rounds(
    decoder: Decoder, case: Case, arms: Mapping[str, ReadingOf], trees: tuple[str, ...], max_new_tokens: int
) -> dict[str, dict[str, list[int]]]:
    """Tree → arm → kept tokens of each round of one prompt.

    Raises:
        InputError: drafting ended early in an arm.
    """
    from oneglance.bench.conditioning import Conditioned
    from oneglance.decoder import Decoder
    from oneglance.drafters.block import BlockDrafter
    from oneglance.report.causes import WHOLE
    from oneglance.tree import policy

    assert isinstance(decoder.drafter, BlockDrafter)
    inputs, params = case.encode(decoder.target), opening.sampling(max_new_tokens)
    readings = {arm: reading_of(case) for arm, reading_of in arms.items()}
    found: dict[str, dict[str, list[int]]] = {}
    for tree in trees:
        shaped = decoder.drafter.with_policy(policy("chain" if tree == CHAIN else "best_first"), decoder.drafter.budget)
        drafters: dict[str, Drafter] = {
            WHOLE: shaped,
            **{arm: Conditioned(shaped, reading) for arm, reading in readings.items()},
        }
        for arm, drafter in drafters.items():
            done = Decoder(decoder.target, drafter).stream_inputs(inputs, params).exhaust()
            if done.fell_back is not None:
                raise InputError(f"drafting ended in arm {arm} of prompt {case.id}: {done.fell_back}")
            found.setdefault(tree, {})[arm] = [len(own.token_ids) for own in done.rounds]
    return found


def _report(found: Ablation, title: str, *, json: bool) -> None:
    if json:
        terminal.write_json(found)
    else:
        _show(terminal.console(), found, title)


def _show(console: Console, found: Ablation, title: str) -> None:
    from oneglance.report.causes import WHOLE

    for tree in next(iter(found.kept.values())):
        table = Table("", "", "rounds/prompts", "τ", "share [95 %]", title=f"{tree}: {title}", title_justify="left")
        for task, by_tree in found.kept.items():
            for arm, kept in by_tree[tree].items():
                share = kept.share
                table.add_row(
                    task if arm == WHOLE else "",
                    arm,
                    f"{kept.num_rounds}/{kept.num_prompts}",
                    f"{kept.tau.value:.2f}",
                    "" if arm == WHOLE else f"{share.value:.0%} [{share.low:.0%}, {share.high:.0%}]",
                )
        console.print(table)
    for task, gaps in found.gaps.items():
        for arm, gap in gaps.items():
            console.print(
                f"{task}, {arm}: share kept by the tree less share kept by the chain {gap.value:+.1%} "
                f"[{gap.low:+.1%}, {gap.high:+.1%}]",
                markup=False,
            )
