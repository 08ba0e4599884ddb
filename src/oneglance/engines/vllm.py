"""vLLM: the command that serves a target with a block head as a chain, and the plugin that mends its drafts.

Three slips, none of which changes text:

- The first-generation runner (the one on CPUs, and wherever Triton is missing) hands a DFlash drafter the target's
  three M-RoPE rows, and the drafter reads the first of them: all tokens of an image have one temporal position, so they
  share one slot of the draft cache. A head takes plain token indices, which the runner has beside them.
- On CPUs the context's keys of all draft layers are scaled by the first layer's norm weights: the kernel there knows
  one row of weights only.
- Every safetensors file in a head's folder is read as the head, a rescorer too, at which the server stops.

The plugin touches nothing where there is nothing to mend.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from oneglance.core import InputError
from oneglance.engines import Launch, installed
from oneglance.engines.hooks import Hook, problems

logger = logging.getLogger("vllm.plugins.oneglance")

RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
DRAFTER = Hook("vllm.v1.spec_decode.dflash:DFlashProposer")
POSITIONS = Hook(f"{RUNNER}._get_positions", ("self", "num_tokens"))
FIRST_PASS = Hook(
    f"{DRAFTER.place}.set_inputs_first_pass",
    (
        "self",
        "target_token_ids",
        "next_token_ids",
        "target_positions",
        "target_hidden_states",
        "token_indices_to_sample",
        "cad",
        "num_rejected_tokens_gpu",
    ),
)
MODELS = "vllm.model_executor.models.qwen3_dflash"
MODEL = Hook(f"{MODELS}:DFlashQwen3ForCausalLM")
LOAD = Hook(f"{MODEL.place}.load_weights", ("self", "weights"))
NORM = Hook(f"{MODELS}:DFlashQwen3Model._normalize_context_k", ("self", "all_k"))
PLATFORM = Hook("vllm.platforms:current_platform")
POSITIONS_CONSEQUENCE = "text stays exact; after images drafts are worse"
NORM_CONSEQUENCE = "text stays exact; drafts are worse"
METHODS = {"block": "dflash", "eagle3": "eagle3"}
CHOICE = "VLLM_PLUGINS chooses which plugins vLLM loads"

MARK = "mended_by_oneglance"

Positions = Callable[[Any, Any], Any]
Load = Callable[[Any, Iterable[tuple[str, Any]]], Any]
Norm = Callable[[Any, Any], Any]


def command(launch: Launch) -> list[str]:
    """The command line of an OpenAI server that drafts a chain.

    Raises:
        InputError: a tree is asked for.
    """
    if launch.budget is not None:
        raise InputError("vLLM verifies chains only: leave --budget out, or serve the tree with SGLang")
    settings = {"method": METHODS[launch.drafter], "model": launch.head, "num_speculative_tokens": launch.depth}
    words = [*_entry(launch.target), "--speculative-config", json.dumps(settings)]
    if launch.tensor_parallel > 1:
        words += ["--tensor-parallel-size", str(launch.tensor_parallel)]
    if launch.data_parallel > 1:
        words += ["--data-parallel-size", str(launch.data_parallel)]
    return [*words, *launch.extra]


def _entry(target: str) -> list[str]:
    """``vllm serve`` wants a distribution of that name; builds under another name start as a module."""
    if installed("vllm") and not _is_distributed_as_vllm():
        return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", target]
    return ["vllm", "serve", target]


def _is_distributed_as_vllm() -> bool:
    try:
        importlib.metadata.distribution("vllm")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def register() -> None:
    """The plugin (``vllm.general_plugins``); vLLM calls it in each of its processes.

    Silent where there is nothing to mend: another runner, another platform, a vLLM without this drafter. Where the
    drafter exists and what surrounds it has moved, it changes nothing there and says so.
    """
    for mend in MENDS:
        mend.make()


@dataclass(frozen=True, slots=True)
class Mend:
    """One method of vLLM's, and what is put in its place.

    Attributes:
        of: exists wherever there is something to mend.
        method: whose place is taken.
        wrap: makes the new method from the old one.
        consequence: of leaving it as it is.
        beside: more that the new method relies on.
        is_needed: on this machine.
    """

    of: Hook
    method: Hook
    wrap: Callable[[Any], Any]
    consequence: str
    beside: tuple[Hook, ...] = ()
    is_needed: Callable[[], bool] = lambda: True

    @property
    def hooks(self) -> tuple[Hook, ...]:
        return (self.of, self.method, *self.beside)

    def make(self) -> None:
        try:
            self.of.find()
        except ModuleNotFoundError:
            return
        except (ImportError, AttributeError) as error:
            say(f"{self.of.place} cannot be read ({error})", self.consequence)
            return
        if not self.is_needed():
            return
        found = problems(self.hooks)
        if found:
            say(f"its hooks have moved: {'; '.join(found)}", self.consequence)
            return
        owner, _, name = self.method.place.rpartition(".")
        original = self.method.find()
        if not hasattr(original, MARK):  # vLLM may call plugins more than once
            mended = self.wrap(original)
            setattr(mended, MARK, True)
            setattr(Hook(owner).find(), name, mended)


def say(problem: str, consequence: str) -> None:
    logger.error("oneglance leaves vLLM as it is: %s; %s. %s", problem, consequence, CHOICE)


def on_cpu() -> bool:
    try:
        return bool(PLATFORM.find().is_cpu())
    except (ImportError, AttributeError):
        return False


def without_rescorer(original: Load) -> Load:
    """``DFlashQwen3ForCausalLM.load_weights`` of the head's own tensors."""

    @functools.wraps(original)
    def load_weights(model: Any, weights: Iterable[tuple[str, Any]]) -> Any:
        from oneglance.drafters.rescorer import PARTS

        return original(model, ((name, tensor) for name, tensor in weights if name.split(".")[0] not in PARTS))

    return load_weights


def with_each_layers_weights(original: Norm) -> Norm:
    """``DFlashQwen3Model._normalize_context_k`` where each layer's keys are scaled by that layer's weights.

    The method takes and gives (layers, rows, heads, width).
    """
    said: list[str] = []

    @functools.wraps(original)
    def normalise(model: Any, all_k: Any) -> Any:
        try:
            weights, epsilon = model._k_norm_weights, model._rms_norm_eps
        except AttributeError as error:
            if not said:
                said.append(str(error))
                say(str(error), NORM_CONSEQUENCE)
            return original(model, all_k)
        from torch.nn.functional import rms_norm

        normed = rms_norm(all_k.float(), all_k.shape[-1:], eps=epsilon)
        return (normed * weights[:, None, None].float()).to(all_k.dtype)

    return normalise


def with_token_indices(original: Positions) -> Positions:
    """``GPUModelRunner._get_positions``, which serves the drafter alone: for a DFlash one, one row of token indices."""
    drafter: type = DRAFTER.find()
    verdict: list[bool] = []  # whether the first mended rows looked right, once a process

    @functools.wraps(original)
    def positions(runner: Any, num_tokens: Any) -> Any:
        given = original(runner, num_tokens)
        if given.ndim == 1 or verdict == [False]:
            return given
        problem = None
        try:
            if not isinstance(runner.drafter, drafter):
                return given
            buffer = getattr(runner.positions, "gpu", runner.positions)
            rows = buffer[:num_tokens] if isinstance(num_tokens, int) else buffer[num_tokens]
            if not verdict:
                verdict.append(_counts_up(rows, runner.input_batch.num_reqs))
            if verdict == [True]:
                return rows
            problem = "its token indices do not count up"
        except AttributeError as error:
            verdict[:] = [False]
            problem = str(error)
        say(problem, POSITIONS_CONSEQUENCE)
        return given

    return positions


def _counts_up(rows: Any, num_requests: int) -> bool:
    """Whether positions grow by one inside each request: a buffer that the runner no longer fills does not."""
    steps = rows[1:] - rows[:-1]
    return int((steps != 1).sum()) < max(num_requests, 1)


MENDS = (
    Mend(DRAFTER, POSITIONS, with_token_indices, POSITIONS_CONSEQUENCE, beside=(FIRST_PASS,)),
    Mend(MODEL, NORM, with_each_layers_weights, NORM_CONSEQUENCE, is_needed=on_cpu),
    Mend(MODEL, LOAD, without_rescorer, "a head with a rescorer beside it has to go through 'oneglance export'"),
)
HOOKS = tuple(dict.fromkeys(hook for mend in MENDS for hook in mend.hooks))
