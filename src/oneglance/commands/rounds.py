"""``oneglance rounds``: a row a round, for the entropy law and its tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oneglance.commands import asking, opening, options, terminal
from oneglance.core import InputError
from oneglance.files import check_free

if TYPE_CHECKING:
    from oneglance.bench.cases import Case
    from oneglance.core import SamplingParams
    from oneglance.decoder import Decoder

Out = Annotated[
    Path,
    typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="JSONL log; a killed run is gone on with."),
]
Marginals = Annotated[
    bool,
    typer.Option(
        "--marginals",
        rich_help_panel=options.OUTPUT,
        help="Also keep log q of each offset's 64 best tokens, in FILE.marginals, for the width replay.",
    ),
]
Saliency = Annotated[
    bool,
    typer.Option(
        "--saliency",
        rich_help_panel=options.OUTPUT,
        help="Also measure attention on the image at every root, for 'probe saliency'; a pass more a round.",
    ),
]


def rounds(
    out: Out = Path("rounds.jsonl"),
    marginals: Marginals = False,
    saliency: Saliency = False,
    tasks: options.Tasks = None,
    prompts: options.Prompts = None,
    data: asking.Data = None,
    limit: asking.Limit = 20,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    drafter: options.Drafter = "block",
    tree: options.Tree = "best_first",
    budget: options.Budget = 31,
    branch_k: options.BranchK = None,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    gate: options.Gate = "off",
    dtype: options.Dtype = "float32",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    json: options.Json = False,
) -> None:
    """Write a row a round: entropy at the root, accepted length, and what the drafter gave the target's own tokens.

    Entropy, top probability and gap are of the target's own row, before any processor or temperature. The log is what
    the commands law, tail and width read; a killed run goes on where it stopped.
    """
    if max_new_tokens < 2:
        raise InputError(f"a round log needs at least two new tokens, got --max-new-tokens {max_new_tokens}")
    margin = opening.gate(gate)
    opening.sampling(max_new_tokens, temperature=temperature, seed=seed or 0)
    cases = asking.choose_cases(tasks, prompts, limit, data)
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
    params = opening.sampling(
        max_new_tokens, temperature=temperature, seed=seed or 0, gate=opening.delta(margin, decoder.target)
    )
    settings: dict[str, Any] = {
        "target": target,
        "head": head,
        "drafter": drafter,
        "tree": tree,
        "budget": budget,
        "branch_k": branch_k,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed or 0,
        "gate": params.gate,
        "dtype": dtype,
        "attention": attention,
        "runner": runner,
        "marginals": marginals,
        "saliency": saliency,
        "vocab_size": decoder.target.vocab_size,
    }
    name = f"{drafter}/{tree}/{budget}"
    fell_back = _record(
        decoder, cases, params, out, settings, name, marginals=marginals, saliency=saliency, show=not json
    )
    _report(out, fell_back, json=json)


def _record(
    decoder: Decoder,
    cases: Sequence[Case],
    params: SamplingParams,
    out: Path,
    settings: dict[str, Any],
    name: str,
    *,
    marginals: bool,
    saliency: bool,
    show: bool,
) -> int:
    """Log what is not in the log yet; on how many prompts drafting ended early."""
    from oneglance.bench.journal import journal
    from oneglance.bench.manifest import manifest
    from oneglance.bench.roundlog import SIDECAR_RANKS, record
    from oneglance.targets.saliency import ImageAttention

    measure = ImageAttention(decoder.target, decoder.drafter.target_layer_ids) if saliency else None
    fell_back = 0
    with journal(out, settings) as log:
        done_before = log.take_back_last()
        log.describe(manifest(**settings), settings)
        for case in asking.each(cases, done=done_before, show=show):
            done = record(
                decoder,
                case.encode(decoder.target),
                params,
                run=name,
                task=case.task,
                prompt=case.id,
                num_ranks=SIDECAR_RANKS if marginals else 0,
                saliency=measure,
            )
            fell_back += done.generation.fell_back is not None
            log.check()
            if done.marginals is not None:
                save_marginals(out, case.task, case.id, done.marginals)
            log.append([asdict(row) for row in done.rows])
    return fell_back


def save_marginals(log: Path, task: str, prompt: str, table: Any) -> None:
    """Write one prompt's sidecar, whole or not at all."""
    import numpy as np

    from oneglance.stats.sidecar import place

    path = place(log, task, prompt)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.save(file, table)
    partial.replace(path)


def _report(out: Path, fell_back: int, *, json: bool) -> None:
    from oneglance.stats.rounds import read_rounds

    log = read_rounds(out)
    drafted = log.drafted
    per_task = {
        task: {
            "num_rounds": len(log.of(task)),
            "num_prompts": len(set(log.of(task).prompts)),
            "mean_a": float(drafted.of(task).ints("a").mean()) if len(drafted.of(task)) else None,
            "mean_h_nats": float(log.of(task).h_nats.mean()),
        }
        for task in log.tasks
    }
    result = {
        "out": str(out),
        "num_rounds": len(log),
        "num_drafted": len(drafted),
        "num_prompts": len(set(log.prompts)),
        "fell_back": fell_back,
        "tasks": per_task,
    }
    if json:
        terminal.write_json(result)
        return
    for task, row in per_task.items():
        mean = "–" if row["mean_a"] is None else f"{row['mean_a']:.2f}"
        counts = f"{row['num_rounds']} rounds of {row['num_prompts']} prompts"
        print(f"{task}: {counts}, a {mean}, H {row['mean_h_nats']:.3f} nats")
    print(f"{result['num_rounds']} rounds of {result['num_prompts']} prompts in {out}")
    if fell_back:
        print(f"on {fell_back} prompts drafting ended early; the rounds after that count as not drafted")
