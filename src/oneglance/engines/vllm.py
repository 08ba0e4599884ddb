"""vLLM: the command that serves a target with a block head as a chain, and the plugin that mends its image prompts.

vLLM's first-generation runner (the one on CPUs, and wherever Triton is missing) hands a DFlash drafter the target's
three M-RoPE rows, and the drafter reads the first of them: all tokens of an image have one temporal position, so they
share one slot of the draft cache. Text stays exact, drafts after images get worse. A head takes plain token indices,
which the runner has beside them; the plugin hands those over. It touches nothing where positions are one row already.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

from oneglance.engines import Launch, installed
from oneglance.engines.hooks import Hook, problems

logger = logging.getLogger("vllm.plugins.oneglance")

RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
DRAFTER = Hook("vllm.v1.spec_decode.dflash:DFlashProposer")
POSITIONS = Hook(f"{RUNNER}._get_positions", ("self", "num_tokens"))
HOOKS = (
    DRAFTER,
    POSITIONS,
    Hook(
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
    ),
)
CONSEQUENCE = "text stays exact; after images drafts are worse. VLLM_PLUGINS chooses which plugins vLLM loads"

MARK = "mended_by_oneglance"

Positions = Callable[[Any, Any], Any]


def command(launch: Launch) -> list[str]:
    """The command line of an OpenAI server that drafts a chain (method dflash)."""
    settings = {"method": "dflash", "model": launch.head, "num_speculative_tokens": launch.depth}
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

    Silent where there is nothing to mend: another runner, another vLLM without this drafter. Where the drafter exists
    and what surrounds it has moved, it changes nothing and says so.
    """
    try:
        drafter = DRAFTER.find()
    except ModuleNotFoundError:
        return  # no first-generation DFlash here
    except (ImportError, AttributeError) as error:
        logger.error("oneglance leaves vLLM as it is: %s cannot be read (%s); %s", DRAFTER.place, error, CONSEQUENCE)
        return
    found = problems(HOOKS)
    if found:
        logger.error("oneglance leaves vLLM as it is, its hooks have moved: %s; %s", "; ".join(found), CONSEQUENCE)
        return
    runner = Hook(RUNNER).find()
    if not hasattr(runner._get_positions, MARK):  # vLLM may call plugins more than once
        runner._get_positions = with_token_indices(runner._get_positions, drafter)


def with_token_indices(original: Positions, drafter: type) -> Positions:
    """``GPUModelRunner._get_positions``, which gives a DFlash drafter one row of token indices.

    Args:
        original: the runner's method; it serves the drafter alone.
        drafter: the class whose instances want token indices.
    """
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
        logger.error("oneglance leaves vLLM's draft positions as they are: %s; %s", problem, CONSEQUENCE)
        return given

    setattr(positions, MARK, True)
    return positions


def _counts_up(rows: Any, num_requests: int) -> bool:
    """Whether positions grow by one inside each request: a buffer that the runner no longer fills does not."""
    steps = rows[1:] - rows[:-1]
    return int((steps != 1).sum()) < max(num_requests, 1)
