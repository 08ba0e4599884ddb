"""The two passes of a round, timed alone on an opened target: what the width controller reckons with (Table 11)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, cycle, islice
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch

from oneglance.amounts import plural
from oneglance.core import EMPTY_TREE, BlockMarginals, Drafter, TokenTree
from oneglance.cost import MAX_NODES, Costs, Point, cpu_name
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.device import synchronise
from oneglance.targets.state import Inputs, TargetState
from oneglance.tree import best_first
from oneglance.widths import RANKS

SIZES = (0, 1, 3, 7, 15, 31, 63, MAX_NODES)  # nodes of the timed passes
CONTEXTS = (256, 2048)  # rows in the cache; at most half of the target's own context
REPEATS, WARMUPS = 15, 2
ENOUGH_S = 20.0  # no further turn of a series begins after that, once there are three
TRIES = 3  # of a series whose times do not fit together
SPREAD = 1.5  # most of the upper quartile over the lower one, where nothing else runs
DIP = 1.5  # most that fewer rows take over more rows: kernels like round numbers, though not so much


@runtime_checkable
class MarginalDrafter(Drafter, Protocol):
    """A drafter whose tree is a policy's, over marginals from one pass."""

    def marginals(
        self, root: int, state: TargetState, draft_state: Any, num_offsets: int, num_ranks: int | None = None
    ) -> BlockMarginals:
        """Top ranks of q_1..q_L after ``root``, as many as the budget needs or at most ``num_ranks``; takes in fresh
        rows."""


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """One packed pass over N nodes and the root, on one prompt's state: median of ``repeats``, and its quartiles."""

    nodes: int
    ms: float
    low_ms: float
    high_ms: float
    repeats: int
    kind: ClassVar[str] = "pass"


@dataclass(frozen=True, slots=True)
class DraftCost:
    """A draft pass that takes in one row, on one prompt's state.

    Attributes:
        nodes: of the tree that is built as well; 0 for the pass alone.
        ms, low_ms, high_ms: median and quartiles.
        ingest_ms: each further row, from the first draft of the prompt.
    """

    nodes: int
    ms: float
    low_ms: float
    high_ms: float
    ingest_ms: float
    kind: ClassVar[str] = "draft"


Cost = TypeVar("Cost", VerifyCost, DraftCost)


@dataclass(frozen=True, slots=True)
class Measured:
    """Costs, and why they cannot be those of a machine that does nothing else; None where they can."""

    costs: Costs
    doubt: str | None = None


def provenance(target: Target, drafter: Drafter) -> dict[str, str | int | None]:
    """What costs depend on."""
    device = target.device
    return {
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "target": target.name,
        "layers": target.num_layers,
        "hidden_size": target.hidden_size,
        "dtype": str(target.dtype).removeprefix("torch."),
        "attention": str(target.text_config._attn_implementation),
        "passes": target.passes.name,
        "drafter": type(drafter).__name__,
        "head": drafter.name,
        "scores": getattr(drafter, "score_source", None),
    }


def measure(target: Target, drafter: MarginalDrafter) -> Measured:
    """Time packed passes at a few widths and contexts, and the draft pass at the shorter context. Takes seconds.

    A series whose times do not fit together is repeated, a few times at most.
    """
    contexts = sorted({min(size, target.context_length // 2) for size in CONTEXTS})
    prompts = [prompt_of(target, size) for size in contexts]
    sizes = unpadded(target, SIZES)
    points, doubts = [], []
    for prompt in prompts:
        passes, doubt = _settled(partial(verify_costs, target, prompt, sizes, repeats=REPEATS, seconds=ENOUGH_S))
        # what disturbs a pass only ever adds to it: the lower quartile is nearer to its cost than the median
        points += [Point(context=len(prompt.token_ids), rows=cost.nodes + 1, ms=cost.low_ms) for cost in passes]
        doubts.append(doubt)
    narrow, wide = RANKS[0], RANKS[2]
    (few, many), doubt = _settled(
        lambda: [draft_costs(target, drafter, prompts[0], num_nodes=nodes) for nodes in (narrow, wide)]
    )
    costs = Costs(
        provenance=provenance(target, drafter),
        draft_ms=few.low_ms,
        node_ms=max(0.0, many.low_ms - few.low_ms) / (wide - narrow),
        ingest_ms=few.ingest_ms,
        verify=tuple(points),
        is_padded=len(sizes) < len(SIZES),
    )
    return Measured(costs, next((own for own in (*doubts, doubt) if own), None))


def _settled(series: Callable[[], list[Cost]]) -> tuple[list[Cost], str | None]:
    """The first series whose times fit together, else the last one and what is wrong with it."""
    for _ in range(TRIES):
        found = series()
        doubt = doubt_of(found)
        if doubt is None:
            break
    return found, doubt


def doubt_of(series: Sequence[Cost]) -> str | None:
    """What no machine that does nothing else would show: wide quartiles, or more work in much less time.

    Args:
        series: of one kind, in order of nodes.
    """
    for cost in series:
        if cost.high_ms > SPREAD * cost.low_ms:
            return f"a {_called(cost)} took {cost.low_ms:.3g} ms, and then {cost.high_ms:.3g} ms"
    for less, more in combinations(series, 2):
        if less.low_ms > DIP * more.high_ms:
            return f"a {_called(less)} took {less.low_ms:.3g} ms, and a {_called(more)} {more.high_ms:.3g} ms"
    return None


def _called(cost: VerifyCost | DraftCost) -> str:
    return f"{cost.kind} of {plural(cost.nodes, 'node')}"


def unpadded(target: Target, sizes: Sequence[int]) -> list[int]:
    """Those numbers of nodes whose passes have no padded rows: of a runner with a few widths, their ends."""
    return [size for size in sizes if len(target.passes.lay_out(0, bush(size)).token_ids) == size + 1]


def verify_costs(
    target: Target, inputs: Inputs, sizes: Sequence[int], *, repeats: int = 20, seconds: float = float("inf")
) -> list[VerifyCost]:
    """Time packed passes of N nodes on one prefilled prompt; sizes take turns, so that a drift hits all of them.

    Args:
        target: verifies.
        inputs: the prompt.
        sizes: N each.
        repeats: times each, after two to warm up.
        seconds: no further turn begins after that, once there are three.
    """
    state = target.prefill(inputs)
    root = int(state.last_row.argmax())
    trees = {size: bush(size) for size in sizes}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    ends_at = time.perf_counter() + seconds
    for turn in range(repeats + WARMUPS):
        if turn >= WARMUPS + 3 and time.perf_counter() > ends_at:
            break
        for size, tree in trees.items():
            took = _timed(target, partial(target.verify, state, root, tree))
            target.rollback(state)
            if turn >= WARMUPS:
                times[size].append(took)
    found = []
    for size, own in times.items():
        low, middle, high = statistics.quantiles(own, n=4, method="inclusive")
        found.append(VerifyCost(size, middle, low, high, len(own)))
    return found


@torch.inference_mode()
def draft_costs(target: Target, drafter: MarginalDrafter, inputs: Inputs, *, num_nodes: int | None = None) -> DraftCost:
    """Time draft passes after a prompt.

    Args:
        num_nodes: of a tree that is built as well, from as many candidates an offset; None for the pass alone.
    """

    def draft(root: int, state: TargetState, draft_state: Any) -> None:
        marginals = drafter.marginals(root, state, draft_state, 15, num_nodes)
        if num_nodes is not None:
            best_first(marginals, num_nodes)

    later: list[float] = []
    first = 0.0
    for turn in range(2):  # the first prompt warms up
        state = target.prefill(inputs, drafter.target_layer_ids)
        num_rows = state.length
        root = int(state.last_row.argmax())
        state.token_ids.append(root)
        draft_state = drafter.start(state)
        for step in range(REPEATS):
            took = _timed(target, partial(draft, root, state, draft_state))
            if step == 0:
                first = took
            elif turn:
                later.append(took)
            token = int(target.verify(state, root, EMPTY_TREE)[0].argmax())
            target.commit(state, (0,), (token,))
            root = token
    low, middle, high = statistics.quantiles(later, n=4, method="inclusive")
    return DraftCost(num_nodes or 0, middle, low, high, max(0.0, first - low) / num_rows)


def prompt_of(target: Target, num_rows: int) -> Inputs:
    """A prompt of about that many rows: the chat template, then ordinary tokens in turn."""
    start = encode(target, "x")
    special = {*target.tokenizer.all_special_ids, *target.placeholder_ids, *target.eos_ids}
    ordinary = [token for token in range(min(target.vocab_size, 256)) if token not in special]
    return target.extend(start, list(islice(cycle(ordinary), max(0, num_rows - len(start.token_ids)))))


def bush(size: int) -> TokenTree:
    """A tree of that many nodes, four a level on the first node of the level above: what it proposes costs nothing."""
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    tip = 0
    for node in range(1, size + 1):
        if node > 1 and (node - 1) % 4 == 0:
            tip = node - 4
        tokens.append(node % 4)
        parents.append(tip)
        depths.append((depths[tip - 1] if tip else 0) + 1)
    return TokenTree(tuple(tokens), tuple(parents), tuple(depths)) if size else EMPTY_TREE


def _timed(target: Target, call: Callable[[], object]) -> float:
    synchronise(target.device)
    started = time.perf_counter()
    call()
    synchronise(target.device)
    return (time.perf_counter() - started) * 1e3
