"""What a rescorer costs at a real vocabulary: parameters, memory, the batched product, and the tree on top of it.

    python benchmarks/rescorer_cost.py --json rescorer-cost.json
    python benchmarks/rescorer_cost.py --ranks 64 --branch-k 16 32 63 --kinds previous_token

Weights, slots and marginals are random and of the real shapes, so times and sizes are measured and nothing is said of
acceptance. A line is one kind, rank and choice of factors; ``none`` is the same head without a rescorer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oneglance.bench.manifest import manifest
from oneglance.decode import synchronise
from oneglance.drafters.block import as_marginals, candidates
from oneglance.drafters.rescorer import RESCORERS, RescorerConfig, build
from oneglance.stats.geometric import L
from oneglance.tree import best_first

SHARPNESS = 4.0  # standard deviation of the random logits: the best of them is likely, and the tree is deep
BIAS = 1.0  # standard deviation of the random biases, in nats
WARMUPS = 3
REPEATED = 1024


@dataclass(frozen=True)
class Cost:
    """One rescorer.

    Attributes:
        kind: in ``RESCORERS``, or none; rank: R; factors: own tables or projections of the target's embedding.
        branch_k: candidates an offset.
        parameters, weights_mb: of the rescorer alone, in its dtype.
        host_mb: what goes to the host a round, marginals included.
        rescore_ms, host_ms, tree_ms: the product on the device, the copy with its check, and the tree; medians.
        tree_high_ms: 90th percentile of the tree.
    """

    kind: str
    rank: int | None
    factors: str | None
    branch_k: int
    parameters: int
    weights_mb: float
    host_mb: float
    rescore_ms: float
    host_ms: float
    tree_ms: float
    tree_high_ms: float


def measure(options: argparse.Namespace) -> Iterator[Cost]:
    """A line for no rescorer, and one a kind, rank and choice of factors, for each number of candidates."""
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    torch.manual_seed(options.seed)
    embedding = random_embedding(options) if "embedding" in options.factors else nn.Embedding(1, options.hidden)
    states = torch.randn(L, options.hidden, device=device)
    logits = SHARPNESS * torch.randn(L, options.vocab, device=device)
    none = torch.tensor([], dtype=torch.long, device=device)
    for branch_k in options.branch_k:
        ids, log_q = candidates(logits.clone(), none, branch_k)
        yield _cost(options, "none", None, lambda ids=ids, log_q=log_q: (ids, log_q))
        for kind in options.kinds:
            for factors in options.factors:
                for rank in options.ranks:
                    shape = {"vocab_size": options.vocab, "hidden_size": options.hidden}
                    with device:
                        rescorer = build(RescorerConfig(kind=kind, rank=rank, factors=factors, **shape))
                    rescorer = scattered(rescorer.to(dtype).requires_grad_(False), embedding)

                    def scored(ids: Tensor = ids, log_q: Tensor = log_q, own: Any = rescorer) -> Sequence[Tensor]:
                        return (ids, log_q, *own.rescore(states, ids, log_q, embedding))

                    yield _cost(options, kind, rescorer, scored)


def random_embedding(options: argparse.Namespace) -> nn.Embedding:
    """The target's in size and place; every ``REPEATED`` rows are the same numbers, which are drawn sooner."""
    dtype = getattr(torch, options.embedding_dtype)
    drawn = torch.randn(REPEATED, options.hidden, device=options.device).to(dtype)
    rows = drawn[torch.arange(options.vocab, device=options.device) % REPEATED]
    return nn.Embedding.from_pretrained(rows)


def scattered(rescorer: Any, embedding: nn.Embedding) -> Any:
    """Biases of the size of ``BIAS``: a fresh rescorer has none, and its tree would be that of the marginals."""
    weight = rescorer.after.weight
    size = rescorer.config.rank if rescorer.config.factors == "own" else rescorer.config.rank * embedding.embedding_dim
    weight.normal_(std=2 * BIAS * size**-0.5)  # a gate halves its term
    return rescorer


def _cost(options: argparse.Namespace, kind: str, rescorer: Any, scored: Callable[[], Sequence[Tensor]]) -> Cost:
    device = torch.device(options.device)
    tables = scored()
    marginals = as_marginals(*tables)
    weights = list(rescorer.parameters()) if rescorer is not None else []
    trees = timed(lambda: best_first(marginals, options.budget), device, options.repeats)
    rescoring = timed(scored, device, options.repeats) if rescorer is not None else [0.0]
    config = rescorer.config if rescorer is not None else None
    return Cost(
        kind=kind,
        rank=config and config.rank,
        factors=config and config.factors,
        branch_k=tables[0].shape[1],
        parameters=sum(weight.numel() for weight in weights),
        weights_mb=sum(weight.nbytes for weight in weights) / 1e6,
        host_mb=sum(table.nbytes for table in tables) / 1e6,
        rescore_ms=statistics.median(rescoring),
        host_ms=statistics.median(timed(lambda: as_marginals(*tables), device, options.repeats)),
        tree_ms=statistics.median(trees),
        tree_high_ms=sorted(trees)[int(0.9 * len(trees))],
    )


@torch.inference_mode()
def timed(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Milliseconds of each call, warm."""
    took = []
    for turn in range(repeats + WARMUPS):
        synchronise(device)
        started = time.perf_counter()
        call()
        synchronise(device)
        if turn >= WARMUPS:
            took.append((time.perf_counter() - started) * 1e3)
    return took


def parser() -> argparse.ArgumentParser:
    """The options; the defaults are those of Qwen3-VL-8B."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--vocab", type=int, default=151936, help="rows of the embedding")
    made.add_argument("--hidden", type=int, default=4096, help="width of the target")
    made.add_argument("--kinds", nargs="+", choices=sorted(RESCORERS), default=sorted(RESCORERS))
    made.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 128])
    made.add_argument("--factors", nargs="+", choices=["own", "embedding"], default=["own", "embedding"])
    made.add_argument("--branch-k", type=int, nargs="+", default=[63], help="candidates an offset")
    made.add_argument("--budget", type=int, default=63, help="nodes of the tree")
    made.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of the rescorer")
    made.add_argument("--embedding-dtype", default="bfloat16", choices=["float32", "bfloat16"])
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--threads", type=int, help="of torch")
    made.add_argument("--repeats", type=int, default=50)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--json", type=Path, help="also write the figures and their manifest here")
    return made


def main(words: Sequence[str] | None = None) -> None:
    options = parser().parse_args(words)
    if options.threads:
        torch.set_num_threads(options.threads)
    print(
        "kind            factors    rank    K  parameters  weights MB  host MB  rescore ms  host ms  tree ms   p90",
        flush=True,
    )
    rows = []
    for row in measure(options):
        rows.append(asdict(row))
        print(
            f"{row.kind:<15} {row.factors or '':<10} {row.rank or '':>4} {row.branch_k:>4} {row.parameters:>11,} "
            f"{row.weights_mb:>11.1f} {row.host_mb:>8.2f} {row.rescore_ms:>11.3f} {row.host_ms:>8.3f} "
            f"{row.tree_ms:>8.3f} {row.tree_high_ms:>5.2f}",
            flush=True,
        )
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name not in ("json", "threads")}
        found = {"rows": rows, "manifest": manifest(**settings)}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
