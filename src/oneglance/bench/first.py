"""Time to the first token: prefill with and without features, our loop, and transformers' ``generate``, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oneglance.bench.cases import Case
from oneglance.bench.outside import Generate
from oneglance.bench.runner import no_collections, no_old_objects
from oneglance.core import SamplingParams
from oneglance.decoder import Decoder
from oneglance.targets.device import synchronise

WARMUPS = 1


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Medians over turns, in milliseconds; a turn times all four on the same prompt, in an order that rotates.

    Attributes:
        prefill_ms, prefill_capture_ms: the target's prefill, without and with features of the kept layers.
        ttft_ms, hf_ttft_ms: from an encoded prompt to the first token: ours with its drafter, and ``generate``.
        capture_over_prefill, ttft_over_hf: medians of the ratios of each turn.
        turns: how many.
    """

    prefill_ms: float
    prefill_capture_ms: float
    ttft_ms: float
    hf_ttft_ms: float
    capture_over_prefill: float
    ttft_over_hf: float
    turns: int


@no_old_objects()
def first_token(decoder: Decoder, cases: Sequence[Case], *, turns: int) -> FirstToken:
    """Time the four on each prompt, ``turns`` times after one to warm up."""
    target, layers = decoder.target, decoder.drafter.target_layer_ids
    generate, params = Generate(target), SamplingParams(max_new_tokens=1)
    seen: dict[str, list[float]] = {"prefill": [], "capture": [], "ours": [], "theirs": []}
    for index, case in enumerate(cases):
        inputs = case.encode(target)
        calls: dict[str, Callable[[], object]] = {
            "prefill": lambda own=inputs: target.prefill(own),  # type: ignore[misc]
            "capture": lambda own=inputs: target.prefill(own, layers),  # type: ignore[misc]
            "ours": lambda own=inputs: list(decoder.stream_inputs(own, params)),  # type: ignore[misc]
            "theirs": lambda own=inputs, c=case: generate.ask(c, own, max_new_tokens=1),  # type: ignore[misc]
        }
        for turn in range(turns + WARMUPS):
            names = list(calls)
            first = (index + turn) % len(names)
            for name in names[first:] + names[:first]:
                with no_collections():
                    synchronise(target.device)
                    started = time.perf_counter()
                    calls[name]()
                    synchronise(target.device)
                    took = (time.perf_counter() - started) * 1e3
                if turn >= WARMUPS:
                    seen[name].append(took)
    middle = {name: statistics.median(own) for name, own in seen.items()}
    return FirstToken(
        prefill_ms=middle["prefill"],
        prefill_capture_ms=middle["capture"],
        ttft_ms=middle["ours"],
        hf_ttft_ms=middle["theirs"],
        capture_over_prefill=_ratio(seen["capture"], seen["prefill"]),
        ttft_over_hf=_ratio(seen["ours"], seen["theirs"]),
        turns=len(seen["ours"]),
    )


def _ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))
