"""Run systems on the same prompts, interleaved prompt by prompt in one process."""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from oneglance.bench.cases import Case
from oneglance.bench.outside import Answered, Outside
from oneglance.bench.record import Record
from oneglance.bench.systems import card, extra_input
from oneglance.core import Drafter, Generation, InputError, SamplingParams
from oneglance.decoder import Decoder
from oneglance.reference import Reference, reference
from oneglance.targets.base import Target
from oneglance.targets.device import synchronise
from oneglance.targets.state import Inputs
from oneglance.tasks.grading import Grade

NO_GRADE = Grade(0, 0)
Bind = Callable[..., Drafter]  # of a target, and of options such as budget=


@dataclass
class Clock:
    """Time spent in something that is called from inside a stage."""

    ms: float = 0.0
    num_calls: int = 0

    def take(self) -> float:
        """Milliseconds since the last call of this."""
        ms, self.ms, self.num_calls = self.ms, 0.0, 0
        return ms

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose time is added up here."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = function(*args, **kwargs)
            self.ms += (time.perf_counter() - started) * 1e3
            self.num_calls += 1
            return result

        return timed


@dataclass
class Arm:
    """One system, bound to the target.

    Attributes:
        decoder: target and drafter.
        build: time of the tree policy; None for drafters whose tree cannot be told from their pass.
    """

    decoder: Decoder
    build: Clock | None = None

    @classmethod
    def of(cls, target: Target, bind: Bind) -> Arm:
        drafter: Any = bind(target)
        if not callable(getattr(drafter, "policy", None)):
            return cls(Decoder(target, drafter))
        clock = Clock()
        drafter.policy = clock.wrap(drafter.policy)
        return cls(Decoder(target, drafter), clock)


@dataclass
class Bench:
    """Systems on prompts.

    The order of systems rotates from prompt to prompt; the first ``warmup`` prompts of each task are decoded once more
    beforehand, untimed. The reference pass that identity and entropy come from is never timed.

    Args:
        target: the frozen model.
        systems: name → drafter for a target.
        params: cap and how tokens are chosen, with a seed where they are drawn.
        warmup: prompts a task decoded untimed first.
        replicates: how often each prompt is decoded by each system.
        scale: of the images, in resolution.
        outside: systems that are not ours, by name; they take their turn, and a failure is recorded.
        shaped: the same target in passes of a fixed shape: systems other than ``plain`` run on it, and their identity
            is with single rows in passes of that shape.
    """

    target: Target
    systems: Mapping[str, Bind]
    params: SamplingParams = field(default_factory=SamplingParams)
    warmup: int = 2
    replicates: int = 1
    scale: float = 1.0
    outside: Mapping[str, Outside] = field(default_factory=dict)
    shaped: Target | None = None

    def run(self, cases: Sequence[Case], *, done: Sequence[tuple[str, str]] = ()) -> Iterator[list[Record]]:
        """Decode each case by each system.

        Args:
            cases: prompts.
            done: task and id of those that an earlier run finished.

        Yields:
            The records of one prompt, one a system and replicate.

        Raises:
            InputError: a system wants more input than a prompt has.
        """
        self._check_extra(cases)
        with no_old_objects():
            yield from self._run(cases, set(done))

    def _run(self, cases: Sequence[Case], finished: set[tuple[str, str]]) -> Iterator[list[Record]]:
        arms = {name: Arm.of(self._target_of(name), bind) for name, bind in self.systems.items()}
        names = [*arms, *self.outside]
        warmed: dict[str, int] = {}
        for index, case in enumerate(cases):
            if (case.task, case.id) in finished:
                continue
            inputs = case.encode(self.target, scale=self.scale)
            truths = self._references(inputs)
            arms |= self._given(case)
            if warmed.setdefault(case.task, 0) < self.warmup:
                warmed[case.task] += 1
                for arm in arms.values():
                    self._decode(arm, inputs)
                for system in self.outside:
                    self._ask(system, case, inputs, truths[system], 0)
            records: list[Record] = []
            for replicate in range(self.replicates):
                turn = (index + replicate) % len(names)
                made = {
                    n: self._record(n, case, arms[n], inputs, truths[n], replicate)
                    if n in arms
                    else self._ask(n, case, inputs, truths[n], replicate)
                    for n in names[turn:] + names[:turn]
                }
                records += [made[name] for name in names]
            yield records

    def _check_extra(self, cases: Sequence[Case]) -> None:
        wanting = [name for name in self.systems if extra_input(name) is not None]
        without = [case.id for case in cases if case.ocr is None]
        if wanting and without:
            raise InputError(
                f"system {wanting[0]!r} is given the text of each page, and prompt {without[0]!r} has none: "
                'name tasks of the built-in suite, or prompts with "ocr"'
            )

    def _given(self, case: Case) -> dict[str, Arm]:
        """Arms of the systems that are given more, bound anew for each prompt."""
        wanting = [name for name in self.systems if extra_input(name) is not None]
        if not wanting or case.ocr is None:
            return {}
        ids = self.target.tokenizer.encode(case.ocr(), add_special_tokens=False)
        return {n: Arm.of(self._target_of(n), functools.partial(self.systems[n], extra=ids)) for n in wanting}

    def _target_of(self, system: str) -> Target:
        return self.target if self.shaped is None or system == "plain" else self.shaped

    def _references(self, inputs: Inputs) -> dict[str, Reference]:
        """What each system's output is to equal."""
        cap = self.params.max_new_tokens
        plain = reference(self.target, inputs, max_new_tokens=cap, params=self.params)
        shaped = plain
        if self.shaped is not None:
            shaped = reference(self.shaped, inputs, max_new_tokens=cap, params=self.params)
        own = {name: plain if self._target_of(name) is self.target else shaped for name in self.systems}
        return {**own, **dict.fromkeys(self.outside, plain)}

    def _decode(self, arm: Arm, inputs: Inputs) -> tuple[Generation, float | None]:
        """The generation, and what the vision encoder took."""
        with no_collections(), vision_clock(arm.decoder.target) as clock:
            done = arm.decoder.stream_inputs(inputs, self.params).exhaust()
        return done, clock.ms if clock.num_calls else None

    def _ask(self, system: str, case: Case, inputs: Inputs, truth: Reference, replicate: int) -> Record:
        """An answer from outside, or why there is none."""
        answer, failure = Answered((), 0.0, 0.0), None
        try:
            with no_collections():
                answer = self.outside[system].ask(case, inputs, max_new_tokens=self.params.max_new_tokens)
        except Exception as error:  # whatever somebody else's system raises is its result
            failure = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        grade = NO_GRADE
        if failure is None and case.grade is not None:
            grade = case.grade(self.target.tokenizer.decode(answer.token_ids, skip_special_tokens=True))
        return Record(
            system=system,
            task=case.task,
            prompt=case.id,
            token_ids=answer.token_ids,
            kept=(),
            decode_ms=answer.total_ms - answer.first_ms,
            prefill_ms=answer.first_ms,
            identical=failure is None and _agree(answer.token_ids, truth.token_ids, self.target.eos_ids),
            entropy_nats=_entropy(truth),
            metric=case.metric,
            replicate=replicate,
            context=len(inputs.token_ids),
            is_outside=True,
            drafts=answer.drafts,
            drafted=answer.accepted,
            failure=failure,
            **_graded(grade),
        )

    def _record(self, system: str, case: Case, arm: Arm, inputs: Inputs, truth: Reference, replicate: int) -> Record:
        if arm.build is not None:
            arm.build.take()
        done, vision_ms = self._decode(arm, inputs)
        build = None if arm.build is None else arm.build.take()
        rounds = done.rounds
        draft, verify, commit = (
            sum(getattr(r, f"t_{stage}_ms") for r in rounds) for stage in ("draft", "verify", "commit")
        )
        grade = NO_GRADE if case.grade is None else case.grade(done.text)
        return Record(
            system=system,
            task=case.task,
            prompt=case.id,
            token_ids=tuple(done.token_ids),
            kept=tuple(len(r.token_ids) for r in rounds),
            decode_ms=done.decode_ms,
            prefill_ms=done.prefill_ms,
            identical=done.token_ids == truth.token_ids,
            entropy_nats=_entropy(truth),
            **_graded(grade),
            metric=case.metric,
            replicate=replicate,
            accepted=tuple(r.num_accepted for r in rounds),
            round_ms=tuple(r.t_draft_ms + r.t_verify_ms + r.t_host_ms for r in rounds),
            passes=tuple(r.num_draft_passes for r in rounds),
            nodes=tuple(len(r.tree) for r in rounds),
            draft_ms=draft - (build or 0.0),
            build_ms=build,
            verify_ms=verify,
            commit_ms=commit,
            host_ms=max(0.0, done.decode_ms - draft - verify - commit),
            first_draft_ms=rounds[0].t_draft_ms if rounds else 0.0,
            vision_ms=vision_ms,
            context=len(inputs.token_ids),
            extra_input=extra_input(system),
            **asdict(card(arm.decoder.drafter)),
        )


@contextmanager
def no_old_objects() -> Iterator[None]:
    """Collections pass over what is there already: to look at all that torch has loaded takes 0.2 s, each time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def no_collections() -> Iterator[None]:
    """A garbage collection inside one arm and not the other is noise: one before, none inside."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def vision_clock(target: Target) -> Iterator[Clock]:
    """Time of the vision encoder, which runs in prefill alone; a clock without calls where there is none."""
    clock, started = Clock(), [0.0]
    encoder = target.model.get_encoder(modality="image") if target.takes_images else None
    if encoder is None or encoder in (target.model, target.model.base_model):
        yield clock
        return

    def begin(module: torch.nn.Module, args: Any) -> None:
        synchronise(target.device)
        started[0] = time.perf_counter()

    def end(module: torch.nn.Module, args: Any, output: Any) -> None:
        synchronise(target.device)
        clock.ms += (time.perf_counter() - started[0]) * 1e3
        clock.num_calls += 1

    hooks = [encoder.register_forward_pre_hook(begin), encoder.register_forward_hook(end)]
    try:
        yield clock
    finally:
        for hook in hooks:
            hook.remove()


def _graded(grade: Grade) -> dict[str, Any]:
    names = ("right", "total", "char_errors", "num_chars", "wording")
    return {name: getattr(grade, name) for name in names}


def _agree(given: Sequence[int], own: Sequence[int], eos_ids: Sequence[int]) -> bool:
    """Whether ids are the same; a server's text leaves out the token that ends it."""
    end = len(own) - 1 if own and own[-1] in eos_ids and len(given) < len(own) else len(own)
    return list(given) == list(own[:end])


def _entropy(truth: Reference) -> float:
    log_p = truth.rows.log_softmax(-1)
    return float((-torch.where(torch.isfinite(log_p), log_p.exp() * log_p, 0.0).sum(-1)).mean())
