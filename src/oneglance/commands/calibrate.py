"""``oneglance calibrate-gate``: how wide the gate must be on this machine, for one target, dtype and backend."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from oneglance.commands import opening, options, terminal
from oneglance.commands.asking import choose_prompts, encoded
from oneglance.core import InputError

Out = Annotated[Path, typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Where δ is kept.")]


def calibrate_gate(
    prompts: options.AnyPrompts = "30",
    tasks: options.Tasks = None,
    out: Out = Path("gate.json"),
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    drafter: options.Drafter = "block",
    tree: options.Tree = "best_first",
    budget: options.Budget = options.BUDGET,
    branch_k: options.BranchK = None,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    json: options.Json = False,
) -> None:
    """Measure how far packed passes move logits, and keep twice that as the gate's δ.

    Rounds are decoded; the same tokens are then run by the model's own forward, one a pass; the rows that chose each
    token are compared, on the caches that each way of decoding built up. Use the file with --gate FILE.

    A gated choice is the target's single step, but on a cache that packed passes wrote: "single" is what that still
    moves, and a margin under twice as much can change a token even with the gate.
    """
    from oneglance.bench.manifest import manifest
    from oneglance.calibrate import calibrate

    if max_new_tokens < 2:
        raise InputError(f"a calibration needs at least two new tokens, got --max-new-tokens {max_new_tokens}")
    asked = choose_prompts(prompts, tasks)
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
    cases = (case.inputs for case in encoded(decoder.target, asked))
    *_, result = calibrate(decoder.target, decoder.drafter, cases, max_new_tokens=max_new_tokens)
    names = list(dict.fromkeys(case.task for case in asked))
    result.provenance = manifest(tree=tree, budget=budget, tasks=names, max_new_tokens=max_new_tokens, runner=runner)
    opening.write_text(out, jsonlib.dumps(result.as_dict(), indent=2) + "\n")
    if json:
        terminal.write_json(result.as_dict())
    else:
        print(
            f"δ {result.delta:.3g}: packed rows differ by up to {result.packed:.3g} over {result.num_rows} rows of "
            f"{result.num_prompts} prompts; single steps on the same caches by up to {result.single:.3g}. In {out}"
        )
