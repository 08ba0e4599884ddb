"""What a round costs at real geometry: text stacks of Qwen3-VL at full width, random weights, scripted acceptance.

    python benchmarks/geometry.py --geometry 2b --dtype bfloat16 --json geometry.json
    python benchmarks/geometry.py --geometry 8b --layers 4          # as many layers as memory holds
    python benchmarks/geometry.py --geometry mid --contexts 512 1024 2048 4096 8192 --nodes 0 15 63   # cost by context

The passes are the real ones (the target's packed pass, a five-layer draft head, the loop of ``decode.py``); what is
drafted is replaced by a tree of the same size, and how much of it is accepted is drawn from a truncated geometric
distribution. So times are measured and τ is given: the speedup says what such an acceptance would bring, nothing about
any trained head. Text output, and so detokenisation, is left out.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from oneglance.accept import argmax
from oneglance.bench.manifest import manifest
from oneglance.core import AcceptRule, CutReason, Drafter, TokenTree, Verdict
from oneglance.decode import decode
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.head import BlockHead, HeadConfig, kept_layers
from oneglance.drafters.plain import NoDrafter
from oneglance.drafters.timing import draft_costs, verify_costs
from oneglance.stats.geometric import L
from oneglance.targets.base import Target
from oneglance.targets.device import synchronise
from oneglance.targets.state import Inputs
from oneglance.testing import tiny_target

# hidden size, layers, heads, key-value heads, MLP (Qwen3-VL's config.json); head_dim 128 and 151,936 rows in all. "mid"
# is no model's: of a size whose contexts can be gone through on two cores
GEOMETRIES = {
    "mid": (768, 12, 8, 4, 2048),
    "2b": (2048, 28, 16, 8, 6144),
    "4b": (2560, 36, 32, 8, 9728),
    "8b": (4096, 36, 32, 8, 12288),
}
HEAD_LAYERS = 5
LABEL = "random weights, scripted acceptance"


@dataclass
class Cap:
    """Keeps tokens up to a cap."""

    room: int
    cut: CutReason | None = None

    def push(self, token_ids: tuple[int, ...]) -> list[int]:
        kept = list(token_ids[: self.room])
        self.room -= len(kept)
        self.cut = None if self.room else "cap"
        return kept


class Scripted:
    """Runs the real draft pass and proposes a bush of N nodes along a path of L in its place."""

    def __init__(self, drafter: BlockDrafter) -> None:
        self._drafter = drafter
        self.name, self.target_layer_ids = "scripted", drafter.target_layer_ids

    def start(self, state: Any) -> Any:
        return self._drafter.start(state)

    def draft(self, root: int, state: Any, draft_state: Any, *, max_depth: int) -> TokenTree:
        made = self._drafter.draft(root, state, draft_state, max_depth=max_depth)
        return _bush(len(made), min(L, max_depth)) if len(made) else made

    def num_passes(self, tree: TokenTree) -> int:
        return 1 if len(tree) else 0


class ScriptedAccept:
    """Reads every row's argmax, as greedy acceptance does, and then accepts as many nodes of the path as are drawn."""

    def __init__(self, p: float, seed: int) -> None:
        self._p, self._random = p, random.Random(seed)

    def first(self, row: torch.Tensor, prefix: Sequence[int]) -> int:
        return int(argmax(row))

    def __call__(self, tree: TokenTree, rows: torch.Tensor, prefix: Sequence[int]) -> Verdict:
        own = rows.argmax(-1).tolist()
        deepest = max(tree.depths, default=0)
        a = next((i for i in count() if i == deepest or self._random.random() >= self._p), 0)
        path = tuple(range(a + 1))
        return Verdict(path, (*tree.token_ids[:a], own[a]))


def _bush(size: int, depth: int) -> TokenTree:
    """A path of ``depth`` nodes, then siblings of its nodes in turn."""
    depth = min(depth, size)
    parents = [*range(depth), *islice(cycle(range(depth)), size - depth)]
    depths = [*range(1, depth + 1), *(parent + 1 for parent in parents[depth:])]
    return TokenTree(tuple(range(size)), tuple(parents), tuple(depths))


def build(geometry: str, layers: int | None, dtype: torch.dtype, device: str) -> tuple[Target, BlockDrafter]:
    """A target of that width and its five-layer head, both with random weights made on the device."""
    hidden, depth, heads, kv_heads, mlp = GEOMETRIES[geometry]
    with torch.device(device):
        target = tiny_target(
            "qwen3_vl",
            dtype=dtype,
            hidden_size=hidden,
            intermediate_size=mlp,
            num_hidden_layers=layers or depth,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=128,
            vocab_size=151936,
            max_position_embeddings=16384,
            initializer_range=0.02,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_section": [24, 20, 20],
                "mrope_interleaved": True,
            },
        )
        kept = kept_layers(target.num_layers, 5) if target.num_layers > 7 else range(min(5, target.num_layers - 1))
        config = {
            "block_size": L + 1,
            "num_target_layers": target.num_layers,
            "num_hidden_layers": HEAD_LAYERS,
            "hidden_size": hidden,
            "intermediate_size": mlp,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": 128,
            "vocab_size": target.vocab_size,
            "max_position_embeddings": target.context_length,
            "dflash_config": {"mask_token_id": 151669, "target_layer_ids": list(kept)},
        }
        head = BlockHead(HeadConfig.from_checkpoint(config)).to(device=device, dtype=dtype).eval().requires_grad_(False)
    return target, BlockDrafter(head, target)


def run_arm(target: Target, inputs: Inputs, drafter: Drafter, accept: AcceptRule, cap: int) -> dict[str, float]:
    """One generation: milliseconds of its rounds by stage, and what it kept."""
    state = target.prefill(inputs, drafter.target_layer_ids)
    root = accept.first(state.last_row, state.token_ids)
    state.token_ids.append(root)
    rounds = decode(target, drafter, accept, state, root, Cap(cap))
    first = next(rounds)  # takes in the prompt: left out, as is the first step of the plain arm
    synchronise(target.device)
    started = time.perf_counter()
    done = list(rounds)
    synchronise(target.device)
    whole = (time.perf_counter() - started) * 1e3
    kept = sum(len(r.token_ids) for r in done)
    return {
        "ms": whole,
        "rounds": len(done),
        "tokens": kept,
        "draft_ms": sum(r.t_draft_ms for r in done) / len(done),
        "verify_ms": sum(r.t_verify_ms for r in done) / len(done),
        "nodes": statistics.mean(len(r.tree) for r in (first, *done)),
    }


def matrix_products(target: Target, rows: int) -> Callable[[], None]:
    """The raw matrix products of one packed pass: every linear layer of the text stack and the lm_head, once."""
    weights = [m.weight for m in [*target.text_model.modules(), target.lm_head] if isinstance(m, torch.nn.Linear)]
    given = {w.shape[1]: torch.randn(rows, w.shape[1], dtype=target.dtype, device=target.device) for w in weights}

    @torch.inference_mode()
    def products() -> None:
        for weight in weights:
            F.linear(given[weight.shape[1]], weight)

    return products


def timed(target: Target, call: Callable[[], object], repeats: int) -> float:
    """Median milliseconds, after two calls to warm up."""
    took = []
    for turn in range(repeats + 2):
        synchronise(target.device)
        started = time.perf_counter()
        call()
        synchronise(target.device)
        if turn > 1:
            took.append((time.perf_counter() - started) * 1e3)
    return statistics.median(took)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Passes alone, then plain and speculative generations in turn."""
    dtype = getattr(torch, options.dtype)
    target, drafter = build(options.geometry, options.layers, dtype, options.device)
    parameters = sum(p.numel() for p in [*target.text_model.parameters(), *target.lm_head.parameters()])
    prompt = Inputs({"input_ids": torch.arange(options.context, device=target.device)[None] % 200})
    passes = verify_costs(target, prompt, options.nodes, repeats=options.repeats)
    by_nodes = {cost.nodes: cost.ms for cost in passes}
    budget = options.budget
    products = timed(target, matrix_products(target, budget + 1), options.repeats)
    scripted = Scripted(drafter.with_budget(budget))
    arms = {"plain": [], "speculative": []}
    for pair in range(options.pairs + 1):
        speculative = run_arm(target, prompt, scripted, ScriptedAccept(options.accept, pair), options.new_tokens)
        plain = run_arm(target, prompt, NoDrafter(), ScriptedAccept(0.0, pair), max(8, options.new_tokens // 4))
        if pair:  # the first pair warms up
            arms["plain"].append(plain)
            arms["speculative"].append(speculative)
    step = _per(arms["plain"], "ms", "tokens")
    draft, verify = (statistics.median(arm[name] for arm in arms["speculative"]) for name in ("draft_ms", "verify_ms"))
    a_round, tau = _per(arms["speculative"], "ms", "rounds"), _per(arms["speculative"], "tokens", "rounds")
    speedups = [
        tau * _per([p], "ms", "tokens") / _per([s], "ms", "rounds") for p, s in zip(*arms.values(), strict=True)
    ]
    return {
        "label": LABEL,
        "geometry": options.geometry,
        "layers": target.num_layers,
        "parameters": parameters,
        "head_parameters": drafter.num_parameters,
        "context": options.context,
        "budget": budget,
        "accept": options.accept,
        "t_plain_ms": step,
        "t_draft_ms": draft,
        "t_verify_ms": verify,
        "t_round_ms": a_round,
        "t_host_ms": a_round - draft - verify,
        "verify_alone_ms": by_nodes,
        "matrix_products_ms": products,
        "verify_over_products": by_nodes[budget] / products if budget in by_nodes else None,
        "tau": tau,
        "speedup": tau * step / a_round,
        "speedup_of_pairs": sorted(speedups),
        "loop_efficiency": (draft + by_nodes[budget]) / a_round if budget in by_nodes else None,
        "pairs": options.pairs,
        "manifest": manifest(dtype=options.dtype, device=target.device.type, budget=budget),
    }


def over_contexts(options: argparse.Namespace) -> dict[str, Any]:
    """The two passes alone by context: two prefills each, and no generation."""
    target, drafter = build(options.geometry, options.layers, getattr(torch, options.dtype), options.device)
    rows = []
    for context in options.contexts:
        prompt = Inputs({"input_ids": torch.arange(context, device=target.device)[None] % 200})
        passes = verify_costs(target, prompt, options.nodes, repeats=options.repeats, seconds=options.seconds)
        draft = draft_costs(target, drafter.with_budget(options.budget), prompt)
        by_nodes = {cost.nodes: cost.ms for cost in passes}
        rows.append({"context": context, "draft_ms": draft.low_ms, "ingest_ms": draft.ingest_ms, "verify_ms": by_nodes})
        print(
            f"context {context}: draft {draft.low_ms:.2f} ms, "
            + ", ".join(f"verify({nodes}) {ms:.2f}" for nodes, ms in by_nodes.items()),
            flush=True,
        )
    return {
        "label": LABEL,
        "geometry": options.geometry,
        "layers": target.num_layers,
        "contexts": rows,
        "manifest": manifest(dtype=options.dtype, device=target.device.type, budget=options.budget),
    }


def _per(arms: Sequence[dict[str, float]], name: str, unit: str) -> float:
    return sum(arm[name] for arm in arms) / sum(arm[unit] for arm in arms)


def show(found: dict[str, Any]) -> None:
    print(
        f"{found['label']}: {found['geometry']}, {found['layers']} layers, {found['parameters'] / 1e9:.2f} B parameters"
    )
    print(
        f"plain step {found['t_plain_ms']:.2f} ms, draft pass {found['t_draft_ms']:.2f}, host {found['t_host_ms']:.2f}"
    )
    for nodes, ms in found["verify_alone_ms"].items():
        print(f"verify({nodes}) {ms:.2f} ms, {ms / found['t_plain_ms']:.2f} plain steps")
    print(f"matrix products at {found['budget'] + 1} rows {found['matrix_products_ms']:.2f} ms")
    low, *_, high = found["speedup_of_pairs"]
    print(
        f"at τ {found['tau']:.2f} (given) {found['speedup']:.2f}x [{low:.2f}, {high:.2f} over {found['pairs']} pairs]"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--geometry", choices=GEOMETRIES, default="2b")
    parser.add_argument("--layers", type=int, help="of the target; default all")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--context", type=int, default=512, help="rows of the prompt")
    parser.add_argument("--budget", type=int, default=63, help="nodes of the tree in the loop")
    parser.add_argument("--nodes", type=int, nargs="+", default=[0, 1, 3, 7, 15, 31, 63, 127])
    parser.add_argument("--accept", type=float, default=0.85, help="each offset's chance of being accepted")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--contexts", type=int, nargs="+", help="instead: both passes alone at these rows of context")
    parser.add_argument("--seconds", type=float, default=15.0, help="with --contexts: of verify passes, a context")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    if options.contexts:
        found = over_contexts(options)
    else:
        found = measure(options)
        show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
