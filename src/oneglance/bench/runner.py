"""Run systems on the same prompts, interleaved prompt by prompt in one process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from oneglance.bench.metrics import Record
from oneglance.core import Drafter, Generation, SamplingParams
from oneglance.decoder import Decoder
from oneglance.reference import Reference, reference
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.state import Inputs
from oneglance.tasks import grading, synthetic
from oneglance.tasks.base import Example


def run(
    target: Target,
    systems: Mapping[str, Callable[[Target], Drafter]],
    tasks: Sequence[str],
    *,
    limit: int,
    max_new_tokens: int = 256,
    warmup: int = 2,
    shaped: Target | None = None,
) -> Iterator[list[Record]]:
    """Benchmark systems on held-out prompts of the built-in suite.

    The order of systems rotates from prompt to prompt; the first ``warmup`` prompts of each task are decoded once
    more beforehand, untimed. The reference pass that identity and entropy come from is never timed.

    Args:
        target: the frozen model.
        systems: name → drafter for a target.
        tasks: task names.
        limit: prompts a task.
        max_new_tokens: cap.
        warmup: prompts a task decoded untimed first.
        shaped: the same target in passes of a fixed shape: systems other than ``plain`` run on it, and their identity
            is with single rows in passes of that shape.

    Yields:
        The records of one prompt, one a system.
    """
    on = {name: target if shaped is None or name == "plain" else shaped for name in systems}
    decoders = {name: Decoder(on[name], bind(on[name])) for name, bind in systems.items()}
    names, params = list(decoders), SamplingParams(max_new_tokens=max_new_tokens)
    for task in tasks:
        for index, example in enumerate(synthetic.examples(task, split="eval", limit=limit)):
            inputs = encode(target, example.prompt, images=[example.image])
            truth = reference(target, inputs, max_new_tokens=max_new_tokens)
            same_shape = truth if shaped is None else reference(shaped, inputs, max_new_tokens=max_new_tokens)
            if index < warmup:
                for decoder in decoders.values():
                    _decode(decoder, inputs, params)
            turn = index % len(names)
            done = {name: _decode(decoders[name], inputs, params) for name in names[turn:] + names[:turn]}
            yield [_record(name, example, done[name], truth if on[name] is target else same_shape) for name in names]


def _decode(decoder: Decoder, inputs: Inputs, params: SamplingParams) -> Generation:
    gc.collect()
    gc.disable()  # a collection inside one arm and not the other is noise
    try:
        stream = decoder.stream_inputs(inputs, params)
        for _ in stream:
            pass
        return stream.generation
    finally:
        gc.enable()


def _record(system: str, example: Example, done: Generation, truth: Reference) -> Record:
    log_p = truth.rows.log_softmax(-1)
    entropy = -torch.where(torch.isfinite(log_p), log_p.exp() * log_p, 0.0).sum(-1)
    grade = grading.grade(example, done.text)
    return Record(
        system=system,
        task=example.task,
        prompt=example.id,
        token_ids=tuple(done.token_ids),
        kept=tuple(len(r.token_ids) for r in done.rounds),
        decode_ms=done.decode_ms,
        prefill_ms=done.prefill_ms,
        identical=done.token_ids == truth.token_ids,
        entropy_nats=float(entropy.mean()),
        right=grade.right,
        total=grade.total,
        char_errors=grade.char_errors,
        num_chars=grade.num_chars,
        wording=grade.wording,
    )
