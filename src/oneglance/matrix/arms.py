"""Arms: ways of decoding with the settings that their arithmetic depends on, and which pairs of them are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from oneglance.audit import BindDrafter, Traced
from oneglance.calibrate import settings_of
from oneglance.core import Generation, SamplingParams
from oneglance.drafters.plain import NoDrafter
from oneglance.reference import Reference, hf_generate, reference
from oneglance.targets.base import Target
from oneglance.targets.passes import FreeShape
from oneglance.targets.state import Inputs

Kind = Literal["control", "drafter", "precision"]
Answer = tuple[Reference, Generation | None]
Decode = Callable[[Inputs, SamplingParams], Answer]
PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Arm:
    """A way of decoding.

    Attributes:
        name: without the precision.
        bind: target → decode; bound again where a divergence is judged in float64.
        is_shaped: runs in the target's own packed passes, not by the model's forward.
        attention: backend, the target's own if None.
        threads: of the CPU.
        gate: δ of the tie-aware gate, 0 is off.
    """

    name: str
    bind: Callable[[Target], Decode]
    is_shaped: bool = False
    attention: str | None = None
    threads: int = 1
    gate: float = 0.0

    def settings(self, target: Target) -> dict[str, Any]:
        """What this arm's rounding depends on."""
        own, passes = settings_of(target), target.passes if self.is_shaped else FreeShape()
        return {
            **own,
            "attention": self.attention or own["attention"],
            "threads": getattr(passes, "threads", self.threads),  # a fixed shape holds its own
            "tensor_parallel": getattr(target.model, "tp_size", None) or 1,
            "passes": passes.name,
        }

    def on(self, target: Target) -> Decode:
        """Bind to a target, under this arm's settings."""
        decode = self.bind(target)

        def run(inputs: Inputs, params: SamplingParams) -> Answer:
            with arithmetic(target, attention=self.attention, threads=self.threads):
                return decode(inputs, replace(params, gate=self.gate))

        return run


@dataclass(frozen=True, slots=True)
class Pair:
    """One row of the matrix.

    Attributes:
        name: what against what.
        kind: control, drafter or precision.
        expected, got: arms.
        differing: settings in which the arms differ on purpose, as the name says.
    """

    name: str
    kind: Kind
    expected: str
    got: str
    differing: tuple[str, ...] = ()


@contextmanager
def arithmetic(target: Target, *, attention: str | None = None, threads: int = 1) -> Iterator[None]:
    """Run under another attention backend and number of threads, and put both back."""
    before, count = settings_of(target)["attention"], torch.get_num_threads()
    switches = attention not in (None, before)
    if switches:
        target.model.set_attn_implementation(attention)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(count)
        if switches:
            target.model.set_attn_implementation(before)


def arms_for(target: Target, drafters: Mapping[str, BindDrafter], gates: Mapping[str, float]) -> list[Arm]:
    """Every arm, plain decoding first.

    Args:
        target: on a CPU a second thread is an arm too; where passes have a fixed shape, so is ordinary decoding.
        drafters: name → drafter for a target.
        gates: name of a drafter → δ: an arm more, as is plain decoding with the gate.
    """
    is_free = not target.passes.is_fixed
    arms = [Arm(name, _plainly, is_shaped=not is_free) for name in (PLAIN, "plain again")]
    if is_free:
        other = "sdpa" if settings_of(target)["attention"] == "eager" else "eager"
        arms += [Arm("generate", _generate), Arm(other, _plainly, attention=other)]
        if target.device.type == "cpu":
            arms.append(Arm("two threads", _plainly, threads=2))
    else:
        arms.append(Arm("ordinary", _ordinarily))
    arms.append(Arm("loop", loop(_nothing), is_shaped=True))
    arms += [Arm(name, loop(bind), is_shaped=True) for name, bind in drafters.items()]
    for name, delta in gates.items():
        arms.append(Arm(f"{name} + gate", loop(drafters[name]), is_shaped=True, gate=delta))
    if gates:
        arms.append(Arm("plain + gate", loop(_nothing), is_shaped=True, gate=max(gates.values())))
    return arms


CONTROLS = (
    Pair("plain, the same path twice", "control", PLAIN, "plain again"),
    Pair("plain against HF generate", "control", PLAIN, "generate"),
    Pair("HF generate against our loop", "control", "generate", "loop"),
    Pair("plain against our loop", "control", PLAIN, "loop"),
    Pair("sdpa against eager", "control", PLAIN, "eager", ("attention",)),
    Pair("eager against sdpa", "control", PLAIN, "sdpa", ("attention",)),
    Pair("1 thread against 2", "control", PLAIN, "two threads", ("threads",)),
    Pair("fixed shape against ordinary plain", "control", PLAIN, "ordinary", ("passes", "threads")),
    Pair("plain + gate (AR + gate)", "control", PLAIN, "plain + gate"),
)


def pairs_for(arms: Sequence[Arm]) -> list[Pair]:
    """The controls that these arms allow, then each drafter against plain decoding."""
    names = [arm.name for arm in arms]
    controls = [pair for pair in CONTROLS if pair.expected in names and pair.got in names]
    known = {name for pair in CONTROLS for name in (pair.expected, pair.got)}
    return controls + [Pair(name, "drafter", PLAIN, name) for name in names if name not in known]


def loop(bind: BindDrafter) -> Callable[[Target], Decode]:
    """Our loop with a drafter."""

    def bound(target: Target) -> Decode:
        return Traced(target, bind(target)).trace

    return bound


def _nothing(target: Target) -> NoDrafter:
    return NoDrafter()


def _plainly(target: Target) -> Decode:
    return lambda inputs, params: (
        reference(target, inputs, max_new_tokens=params.max_new_tokens, params=params),
        None,
    )


def _ordinarily(target: Target) -> Decode:
    return _plainly(target.with_passes(FreeShape()))


def _generate(target: Target) -> Decode:
    return lambda inputs, params: (hf_generate(target, inputs, max_new_tokens=params.max_new_tokens), None)
