"""The plain loop that everything is compared with, and transformers' own ``generate``.

``reference`` decodes with the model's own forward, one token a pass. It shares no tree, mask, position or commit code
with the loop that it judges.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oneglance.accept import argmax, gumbel
from oneglance.core import EMPTY_TREE, SamplingParams
from oneglance.targets import hf
from oneglance.targets.base import Target
from oneglance.targets.processing import processors
from oneglance.targets.state import Inputs


@dataclass(frozen=True, slots=True)
class Reference:
    """One decoded prompt, with what each token was chosen from.

    Attributes:
        token_ids: (T,) new tokens.
        rows: (T, V) float32, the model's logits before each, without processors.
        gaps: (T,) how far the second choice was behind, in logit units, after processors and with the noise of a draw.
    """

    token_ids: list[int]
    rows: Tensor
    gaps: list[float]


def plain_rows(target: Target, inputs: Inputs) -> Generator[Tensor, int, None]:
    """The model's own forward, one token a pass: yields (1, V) logits in float32 and is sent the next token."""
    model, cache = target.model, target.plain_cache()
    keyword = hf.cache_keyword(model)
    last = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    hf.forget_positions(model)
    arguments = target.model_arguments(inputs)
    while True:
        with torch.inference_mode():
            output = model(**arguments, **{keyword: cache}, use_cache=True, **last)
        token = yield output.logits[:, -1].float()
        arguments = target.step_arguments(inputs, output, token)


def shaped_rows(target: Target, inputs: Inputs) -> Generator[Tensor, int, None]:
    """As ``plain_rows``, by packed passes of which one row is used."""
    state = target.prefill(inputs)
    token = yield state.last_row[None].float()
    state.token_ids.append(token)
    while True:
        row = target.verify(state, token, EMPTY_TREE).float()
        token = yield row
        target.commit(state, (0,), (token,))


@torch.inference_mode()
def reference(
    target: Target,
    inputs: Inputs,
    *,
    max_new_tokens: int,
    params: SamplingParams | None = None,
    along: Sequence[int] | None = None,
) -> Reference:
    """Plain decoding by the model's own forward, one token a pass, with nothing of ours in between.

    Where the target's packed passes have a fixed shape, the same with single rows in passes of that shape.

    Args:
        target: only its HF model is used, and the processors of its generation config.
        inputs: an encoded prompt.
        max_new_tokens: cap, at least 1.
        params: how tokens are chosen, with a seed where they are drawn; greedily if not given. Stop strings are not
            looked at.
        along: (T,) go along these tokens and say at each prefix what would have been chosen: teacher forcing.
    """
    params = capped(params or SamplingParams(), max_new_tokens)
    eos = set(target.eos_ids)
    processor = processors(target, inputs, params)
    steps = (shaped_rows if target.passes.is_fixed else plain_rows)(target, inputs)
    token_ids: list[int] = []
    rows, gaps = [], []
    context = inputs.tensors["input_ids"]
    row = next(steps)
    while True:
        rows.append(row[0])
        keys = row if processor is None else processor(context, row.clone())
        if params.temperature:
            assert params.seed is not None
            keys = keys.cpu().double() + gumbel(params.seed, context.shape[1], keys.shape[1])
        best = keys[0].topk(2).values.tolist()
        gaps.append((best[0] - best[1]) * (params.temperature or 1.0))
        token = argmax(keys).to(context.device)
        token_ids.append(int(token))
        size = len(token_ids)
        if size == (max_new_tokens if along is None else len(along)) or (along is None and token_ids[-1] in eos):
            return Reference(token_ids, torch.stack(rows), gaps)
        following = token_ids[-1] if along is None else along[size - 1]
        context = torch.cat([context, context.new_tensor([[following]])], dim=1)
        row = steps.send(following)


@torch.inference_mode()
def hf_generate(target: Target, inputs: Inputs, *, max_new_tokens: int) -> Reference:
    """transformers' own ``generate(do_sample=False)``."""
    config = hf.greedy_config(target.model, max_new_tokens=max_new_tokens)
    config.return_dict_in_generate = config.output_logits = config.output_scores = True
    hf.forget_positions(target.model)
    out = target.generate(inputs, config)
    best = torch.cat(out.scores).topk(2).values.float()
    return Reference(
        out.sequences[0, len(inputs.token_ids) :].tolist(),
        torch.cat(out.logits).float(),
        (best[:, 0] - best[:, 1]).tolist(),
    )


def capped(params: SamplingParams, max_new_tokens: int) -> SamplingParams:
    """``params`` with another cap: the tokens up to it stay the same."""
    minimum = params.min_new_tokens
    least = None if minimum is None else min(minimum, max_new_tokens)
    return replace(params, max_new_tokens=max_new_tokens, min_new_tokens=least)
