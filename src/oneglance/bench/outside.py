"""Systems that are not ours: transformers' own ``generate``, and any OpenAI-compatible server.

Their time is taken end to end, from outside; what they spend inside is theirs. So their rows stand beside ours and are
never divided by them. A system that fails is a row that says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from oneglance.bench.cases import Case
from oneglance.core import InputError
from oneglance.engines.client import Client
from oneglance.targets import hf
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs

LOOKUP_TOKENS = 10  # what transformers' documentation uses


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer from outside.

    Attributes:
        token_ids: new tokens; of a server that gives none, those of its text.
        first_ms, total_ms: to the first token and to the end.
        drafts, accepted: rounds and accepted draft tokens by the system's own count; 0 where it has none.
    """

    token_ids: tuple[int, ...]
    first_ms: float
    total_ms: float
    drafts: int = 0
    accepted: int = 0


class Outside(Protocol):
    """A system that answers one prompt at a time."""

    def ask(self, case: Case, inputs: Inputs, *, max_new_tokens: int) -> Answered:
        """Greedy answer.

        Raises:
            Exception: whatever the system raises; it is reported, not handled.
        """


@dataclass
class Streamer:
    """transformers' streamer protocol: when the first new token came."""

    started: float = field(default_factory=time.perf_counter)
    first_ms: float | None = None
    has_prompt: bool = False

    def put(self, _: torch.Tensor) -> None:
        if self.has_prompt and self.first_ms is None:
            self.first_ms = (time.perf_counter() - self.started) * 1e3
        self.has_prompt = True

    def end(self) -> None:
        """Nothing is left over."""


class Generate:
    """``model.generate``, greedy, on the target's own model.

    Args:
        target: opened.
        arguments: more arguments of ``generate``.
    """

    def __init__(self, target: Target, **arguments: Any) -> None:
        self._target = target
        self._arguments = arguments

    @torch.inference_mode()
    def ask(self, case: Case, inputs: Inputs, *, max_new_tokens: int) -> Answered:
        model = self._target.model
        config = hf.greedy_config(model, max_new_tokens=max_new_tokens)
        ids = inputs.tensors["input_ids"]
        hf.forget_positions(model)
        streamer = Streamer()
        out = self._target.generate(inputs, config, streamer=streamer, **self._arguments)
        new = tuple(out[0, ids.shape[1] :].tolist())
        total = (time.perf_counter() - streamer.started) * 1e3
        hf.forget_positions(model)
        return Answered(new, total if streamer.first_ms is None else streamer.first_ms, total)


class Served:
    """A server, and what it counts of its own drafting.

    Args:
        target: whose tokenizer reads the text of a server that gives no ids.
        url: of the server.
    """

    def __init__(self, target: Target, url: str) -> None:
        self._tokenizer = target.tokenizer
        self._client = Client(url)

    def ask(self, case: Case, inputs: Inputs, *, max_new_tokens: int) -> Answered:
        before = self._client.counters()
        answer = self._client.ask(case.text, images=case.images(), system=case.system, max_new_tokens=max_new_tokens)
        after = self._client.counters()
        ids = answer.token_ids or tuple(self._tokenizer.encode(answer.text, add_special_tokens=False))
        counted = after - before if before is not None and after is not None else None
        drafts, accepted = (counted.drafts, counted.accepted) if counted is not None else (0, 0)
        return Answered(ids, answer.first_ms, answer.total_ms, drafts, accepted)


def _assisted(target: Target, name: str) -> Outside:
    return Generate(target, assistant_model=hf.assistant("AutoModelForCausalLM", name, target.model))


def _dflash(target: Target, name: str) -> Outside:
    return Generate(target, assistant_model=hf.assistant("AutoModel", name, target.model), speculation_type="dflash")


PLAIN: dict[str, Callable[[Target], Outside]] = {
    "transformers": Generate,
    "transformers-lookup": lambda target: Generate(target, prompt_lookup_num_tokens=LOOKUP_TOKENS),
}
OF_WHAT: dict[str, Callable[[Target, str], Outside]] = {
    "transformers-assisted": _assisted,  # @MODEL, a smaller one of the same tokenizer
    "transformers-dflash": _dflash,  # @FOLDER, from 'oneglance export --format transformers'
    "server": Served,  # @URL
}


def split(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Systems of ours, and those from outside."""
    named = list(names)
    outside = [name for name in named if name.partition("@")[0] in PLAIN or name.partition("@")[0] in OF_WHAT]
    return [name for name in named if name not in outside], outside


def open_outside(names: Iterable[str], target: Target) -> Mapping[str, Outside]:
    """The systems of these names.

    Raises:
        InputError: a name lacks what it is of, or has what it cannot take; the system cannot be opened.
    """
    return {name: _open(name, target) for name in names}


def _open(written: str, target: Target) -> Outside:
    name, _, what = written.partition("@")
    if name in PLAIN:
        if what:
            raise InputError(f"system {name!r} takes nothing after it; drop @{what}")
        return PLAIN[name](target)
    if not what:
        raise InputError(f"system {name!r} needs to know of what: {name}@{'URL' if name == 'server' else 'FOLDER'}")
    try:
        return OF_WHAT[name](target, what)
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"system {written!r} cannot be opened: {first}") from error
