"""SGLang: the command that serves a target with a block head, and the plugin that it needs for that.

The plugin does two things. It sends a question of stock SGLang's to the right place: SGLang asks a target for the
layers that a DFLASH head reads, and in every version read so far (0.5.11 to 0.5.23) dense Qwen3-VL answers with an
AttributeError and Qwen2.5-VL not at all, although both can do it for EAGLE-3 under the same layer ids. And it registers
the algorithm ``GLANCE``, a tree where stock DFLASH has a chain (``sglang_tree``).
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from oneglance.engines import Launch, sglang_tree
from oneglance.engines.hooks import Hook, problems

logger = logging.getLogger("sglang.srt.plugins.oneglance")

SETTER = "set_dflash_layers_to_capture"
EAGLE3_SETTER = "set_eagle3_layers_to_capture"
MODELS = (
    "sglang.srt.models.qwen3_vl:Qwen3VLForConditionalGeneration",
    "sglang.srt.models.qwen2_5_vl:Qwen2_5_VLForConditionalGeneration",
)
HOOKS = tuple(Hook(f"{model}.{EAGLE3_SETTER}", ("self", "layer_ids")) for model in MODELS)
ALGORITHMS = {
    ("block", False): "DFLASH",
    ("block", True): sglang_tree.NAME,
    ("eagle3", False): "EAGLE3",
    ("eagle3", True): "EAGLE3",
}
MARK = "mended_by_oneglance"

Setter = Callable[[Any, Sequence[int]], None]


def command(launch: Launch) -> list[str]:
    """The command line of a server that drafts a chain (DFLASH) or, with a budget, a tree (GLANCE); EAGLE3 does both.

    Its draft tokens count the root.
    """
    words = [sys.executable, "-m", "sglang.launch_server", "--model-path", launch.target]
    is_tree = launch.budget is not None
    rows = (launch.depth if launch.budget is None else launch.budget) + 1
    words += ["--speculative-algorithm", ALGORITHMS[launch.drafter, is_tree]]
    words += ["--speculative-draft-model-path", launch.head, "--speculative-num-draft-tokens", str(rows)]
    if launch.drafter == "eagle3":
        words += ["--speculative-num-steps", str(launch.depth), "--speculative-eagle-topk", "4" if is_tree else "1"]
    elif is_tree:
        words += ["--page-size", "1", "--disable-overlap-schedule"]
        if "--attention-backend" not in launch.extra:
            words += ["--attention-backend", sglang_tree.BACKENDS[0]]
    if launch.tensor_parallel > 1:
        words += ["--tp-size", str(launch.tensor_parallel)]
    if launch.data_parallel > 1:
        words += ["--dp-size", str(launch.data_parallel)]
    return [*words, *launch.extra]


def register() -> None:
    """The plugin (``sglang.srt.plugins``); SGLang calls it in each of its processes.

    Where a hook has moved, nothing is touched and all that moved is listed; SGLang itself only logs what a plugin
    raises. The two parts stand apart: a server of the one starts where only the other is refused.
    """
    mend_setters()
    add_tree()


def mend_setters() -> None:
    """Let both models answer for a DFLASH head."""
    found = problems(HOOKS)
    if found:
        logger.error(
            "oneglance leaves SGLang as it is, its hooks have moved: %s; DFLASH may not start on Qwen vision models",
            "; ".join(found),
        )
        return
    for place in MODELS:
        model = Hook(place).find()
        own = getattr(model, SETTER, None)
        if not hasattr(own, MARK):  # SGLang may call plugins more than once
            setattr(model, SETTER, capturing(own))


def add_tree() -> None:
    """Register ``GLANCE``, or say all that stands against it."""
    version = sglang_tree.version_problem()
    found = [version] if version else problems(sglang_tree.HOOKS)
    if found:
        logger.error("oneglance does not add %s: %s; chains go on to work", sglang_tree.NAME, "; ".join(found))
    else:
        sglang_tree.install()


def capturing(own: Setter | None) -> Setter:
    """A model's setter: its own where that works, else EAGLE-3's, which counts layers alike.

    Args:
        own: SGLang's, or None where the model has none.
    """

    def set_layers(model: Any, layer_ids: Sequence[int]) -> None:
        if own is not None:
            try:
                own(model, layer_ids)
                return
            except AttributeError as error:
                if SETTER not in str(error):
                    raise
        if layer_ids is None:
            raise ValueError("DFLASH requires explicit layer_ids for aux hidden capture.")
        getattr(model, EAGLE3_SETTER)(list(layer_ids))
        captured = getattr(getattr(model, "model", None), "layers_to_capture", None)
        if model.pp_group.is_last_rank and list(captured or ()) != [i + 1 for i in layer_ids]:
            raise RuntimeError(
                f"oneglance: {type(model).__name__} captures before layers {captured}, and the head reads the outputs "
                f"of {list(layer_ids)}; this SGLang counts layers in another way, use one of 0.5.14 to 0.5.23"
            )

    mended = set_layers if own is None else functools.wraps(own)(set_layers)
    setattr(mended, MARK, True)
    return mended
