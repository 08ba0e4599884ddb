"""The Python API: a target and a drafter, ready to generate."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from oneglance.accept import Decision, Gated, Greedy, LogitsProcessor, Rule, Sampled
from oneglance.core import (
    DEFAULT_BUDGET,
    AcceptRule,
    AnyBudget,
    Drafter,
    Generation,
    InputError,
    OneglanceWarning,
    SamplingParams,
)
from oneglance.drafters import prepare
from oneglance.drafters.paced import at_budget, check_auto
from oneglance.drafters.plain import NoDrafter
from oneglance.drafters.pruned import Pruned
from oneglance.drafters.settings import head_for
from oneglance.prefixes import PrefixStore
from oneglance.runner import check_name, with_runner
from oneglance.stream import Run, Step, Stream
from oneglance.targets import find, locate, open_target
from oneglance.targets.base import Target
from oneglance.targets.chat import Message, encode
from oneglance.targets.grammar import grammar_mask
from oneglance.targets.hf import own_cap
from oneglance.targets.processing import processors
from oneglance.targets.state import Inputs
from oneglance.tree import policy

__all__ = ["Decoder", "SamplingOptions", "Step", "Stream", "load"]


class SamplingOptions(TypedDict, total=False):
    """Keyword arguments of ``generate`` and ``stream``: the fields of ``SamplingParams``, which explains them."""

    max_new_tokens: int
    stop: Sequence[str]
    ignore_eos: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float | None
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float] | None
    bad_words: Sequence[str | Sequence[int]] | None
    min_new_tokens: int | None
    seed: int | None
    logits_processors: Sequence[LogitsProcessor]
    json_schema: Mapping[str, Any] | str | None
    regex: str | None
    logprobs: int | None
    gate: float


class Decoder:
    """A target with a drafter. Holds no sequence state; generations may follow one another in any order.

    Args:
        target: the frozen model.
        drafter: proposes trees; see ``oneglance.load``.
        prefixes: where prompts that begin as earlier ones did find their rows; None prefills every prompt as a whole.
    """

    def __init__(self, target: Target, drafter: Drafter, prefixes: PrefixStore | None = None) -> None:
        self.target = target
        self.drafter = drafter
        self.prefixes = prefixes
        self._said: set[str] = set()

    def with_budget(self, budget: int) -> Decoder:
        """The same target and drafter with trees of another size; shares their weights.

        Raises:
            InputError: the drafter has no such setting, or the budget is below 1.
        """
        resized = getattr(self.drafter, "with_budget", None)
        if resized is None:
            raise InputError(f"the drafter {self.drafter.name or 'none'} has no budget; leave it out")
        return Decoder(self.target, resized(budget), self.prefixes)

    def plain(self) -> Decoder:
        """The same target without a drafter."""
        return Decoder(self.target, NoDrafter(), self.prefixes)

    def with_prefixes(self, limit_mb: int) -> Decoder:
        """The same target and drafter with a prefix store of its own: system prompts, images and earlier turns that
        come again are not prefilled again (docs/serve.md says what that means for identity).

        Args:
            limit_mb: MiB that the stored rows may take; 0 stores nothing.
        """
        return Decoder(self.target, self.drafter, PrefixStore(limit_mb * 2**20) if limit_mb else None)

    def generate(
        self,
        prompt: str | Sequence[Message],
        *,
        images: Sequence[Any] = (),
        system: str | None = None,
        audio: Any = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Generation:
        """Decode a prompt to its end.

        Args:
            prompt: a user prompt, or chat messages.
            images: image sources for a plain prompt: paths, URLs, bytes, PIL images, arrays.
            system: system prompt.
            audio: a recording for a speech target: a WAV file's path or bytes, or a waveform.
            sampling: how tokens are chosen and where the text ends, e.g. ``max_new_tokens=64, temperature=0.7,
                seed=1``; see ``SamplingParams``. The default is greedy.

        Raises:
            InputError: a bad prompt, image or parameter; the message names the fix.
        """
        params = _params("generate", sampling)
        return self.stream_params(prompt, params, images=images, system=system, audio=audio).exhaust()

    def stream(
        self,
        prompt: str | Sequence[Message],
        *,
        images: Sequence[Any] = (),
        system: str | None = None,
        audio: Any = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Stream:
        """As ``generate``, a round at a time."""
        params = _params("stream", sampling)
        return self.stream_params(prompt, params, images=images, system=system, audio=audio)

    def stream_params(
        self,
        prompt: str | Sequence[Message],
        params: SamplingParams,
        *,
        images: Sequence[Any] = (),
        system: str | None = None,
        audio: Any = None,
    ) -> Stream:
        """As ``stream``, with the parameters in one object."""
        return self.stream_inputs(encode(self.target, prompt, images=images, system=system, audio=audio), params)

    def generate_ids(self, **inputs: Any) -> Tensor:
        """Drop-in for ``model.generate(**inputs, do_sample=False)``, or for sampling with ``temperature=…``.

        The cap is ``max_new_tokens`` here too, 256 unless it is given, whatever the target's generation config says.

        Args:
            inputs: what the target's processor returned, ``input_ids`` (1, T), ``pixel_values``, …, and sampling
                parameters as in ``generate``. ``do_sample`` may say again whether there is a temperature.

        Returns:
            (1, T + new) prompt and new tokens.

        Raises:
            InputError: a batch, padding, video, or an argument that is not supported.
        """
        sampling = {name: inputs.pop(name) for name in SamplingOptions.__annotations__ if name in inputs}
        is_drawn = bool(sampling.get("temperature"))
        if bool(inputs.pop("do_sample", is_drawn)) != is_drawn:
            raise InputError("do_sample and temperature contradict each other; temperature alone decides, 0 is greedy")
        wrapped = self.target.wrap(inputs)
        generation = self.stream_inputs(wrapped, SamplingParams(**sampling)).exhaust()
        ids: Tensor = inputs.get("input_ids", wrapped.tensors["input_ids"])
        return torch.cat([ids, torch.tensor([generation.token_ids], dtype=torch.long).to(ids)], dim=1)

    def stream_inputs(self, inputs: Inputs, params: SamplingParams) -> Stream:
        """Decode an encoded prompt, a round at a time."""
        if params.temperature and params.seed is None:
            params = replace(params, seed=secrets.randbits(32))
        grammar = grammar_mask(self.target, params, len(inputs.token_ids))
        drafter = self.drafter if grammar is None else Pruned(self.drafter, grammar)
        run = Run(
            self.target,
            drafter,
            partial(self.accept_rule, inputs, params),
            inputs,
            params,
            self.say_once,
            self.prefixes,
        )
        return Stream(run.steps(), run.generation)

    def accept_rule(
        self, inputs: Inputs, params: SamplingParams, watch: Callable[[Decision], None] | None = None
    ) -> AcceptRule:
        """Greedy or sampled, with the processors that the parameters and the target's generation config ask for.

        Args:
            inputs: the prompt.
            params: with a seed where the temperature is not 0.
            watch: sees every choice.
        """
        cap = own_cap(self.target.model)
        if cap is not None:
            self.say_once(f"the target's generation config has {cap}; max_new_tokens of the call takes its place")
        processor = processors(self.target, inputs, params)
        if processor is not None:
            self._say_what_the_config_does(inputs, params)
        eos_ids = () if params.ignore_eos else self.target.eos_ids
        rule: Rule = Greedy(processor, watch, eos_ids=eos_ids)
        if params.temperature:
            assert params.seed is not None, "stream_inputs draws one"
            rule = Sampled(params.seed, processor, watch, eos_ids=eos_ids, temperature=params.temperature)
        return Gated(rule, params.gate) if params.gate else rule

    def _say_what_the_config_does(self, inputs: Inputs, params: SamplingParams) -> None:
        """Name the processors that nobody asked for in this call."""
        others = SamplingParams(
            max_new_tokens=params.max_new_tokens,
            repetition_penalty=None if params.repetition_penalty is None else 1.0,
            min_new_tokens=None if params.min_new_tokens is None else 0,
        )
        own = processors(self.target, inputs, others)
        if own is not None:
            names = ", ".join(type(p).__name__ for p in own)  # type: ignore[attr-defined]
            self.say_once(f"the target's generation config applies to every token: {names}")

    def say_once(self, message: str) -> None:
        """Warn, unless this decoder has said so before."""
        if message not in self._said:
            self._said.add(message)
            warnings.warn(message, OneglanceWarning, stacklevel=2)


def _params(function: str, sampling: SamplingOptions) -> SamplingParams:
    """Sampling parameters from keyword arguments.

    Raises:
        InputError: a value that cannot be.
        TypeError: an unknown name, as Python says it, and the one most like it.
    """
    for name in sampling.keys() - SamplingOptions.__annotations__.keys():
        known = (*SamplingOptions.__annotations__, "images", "system", "audio")
        near = get_close_matches(name, known, n=1)
        advice = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{advice}")
    return SamplingParams(**sampling)  # type: ignore[arg-type]


def load(
    target: str = "builtin:reader",
    head: str | None = None,
    *,
    drafter: str = "block",
    tree: str = "best_first",
    budget: AnyBudget = DEFAULT_BUDGET,
    branch_k: int | None = None,
    dtype: str = "auto",
    device: str | None = None,
    device_map: str | None = None,
    attention: str = "sdpa",
    fixed_shape: bool = False,
    runner: str = "auto",
) -> Decoder:
    """Open a target and its drafter.

    Args:
        target: ``builtin:reader``, a folder, or a hub id.
        head: draft head, or the weights of another drafter; default ``builtin:reader`` for the built-in target.
        drafter: a name in ``drafters.DRAFTERS``: ``block``, ``none``, or a baseline, settings after it, as in
            ``ngram:max_ngram=4``.
        tree: ``best_first``, ``chain`` or ``fixed``.
        budget: nodes of the candidate tree, root excluded; ``auto`` for as many as pay on this machine, which is
            measured once (docs/width.md).
        branch_k: ranks looked at per offset; default all that a tree of the budget can hold, or the best 64 where a
            rescorer compares each with each.
        dtype: ``auto``, ``float32``, ``bfloat16``, ``float16``, ``float64``.
        device: ``cpu``, ``cuda``, ``mps``.
        device_map: for accelerate, e.g. ``auto``.
        attention: ``sdpa`` or ``eager``.
        fixed_shape: run every packed pass, plain decoding's too, in the one shape that the budget needs.
        runner: how packed passes are executed: ``auto``, ``eager``, ``compile`` or ``graphs`` (docs/runner.md).

    Raises:
        InputError: something does not exist, does not fit, or is not supported; the message names the fix.
    """
    target, head = os.fspath(target), None if head is None else os.fspath(head)
    locate(target)
    head = head_for(target, head, drafter, lambda name, value=None: f"{name}={'…' if value is None else repr(value)}")
    find(target)
    check_name(runner)
    chosen = policy(tree)
    if budget == "auto":
        check_auto(chosen, fixed_shape=fixed_shape)
    bind = prepare(drafter, head)
    opened = open_target(
        target,
        dtype=dtype,
        device=device,
        device_map=device_map,
        attention=attention,
        fixed_for_budget=budget if fixed_shape and budget != "auto" else None,
    )
    opened = with_runner(opened, runner)
    return Decoder(opened, at_budget(bind, opened, budget=budget, keeps=True, policy=chosen, branch_k=branch_k))
