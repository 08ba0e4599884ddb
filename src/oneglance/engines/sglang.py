"""SGLang: the command that serves a target with a block head as a chain, and the plugin that it needs for Qwen VLMs.

SGLang asks a target for the layers that a DFLASH head reads. In every version read so far (0.5.11 to 0.5.23) dense
Qwen3-VL answers with an AttributeError and Qwen2.5-VL not at all, although both can do it for EAGLE-3 under the same
layer ids. The plugin sends the question there, where SGLang's own answer fails, and checks what came of it.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from oneglance.engines import Launch
from oneglance.engines.hooks import Hook, problems

logger = logging.getLogger("sglang.srt.plugins.oneglance")

SETTER = "set_dflash_layers_to_capture"
EAGLE3_SETTER = "set_eagle3_layers_to_capture"
MODELS = (
    "sglang.srt.models.qwen3_vl:Qwen3VLForConditionalGeneration",
    "sglang.srt.models.qwen2_5_vl:Qwen2_5_VLForConditionalGeneration",
)
HOOKS = tuple(Hook(f"{model}.{EAGLE3_SETTER}", ("self", "layer_ids")) for model in MODELS)
MARK = "mended_by_oneglance"

Setter = Callable[[Any, Sequence[int]], None]


def command(launch: Launch) -> list[str]:
    """The command line of a server that drafts a chain (algorithm DFLASH); its draft tokens count the root."""
    words = [sys.executable, "-m", "sglang.launch_server", "--model-path", launch.target]
    words += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", launch.head]
    words += ["--speculative-num-draft-tokens", str(launch.depth + 1)]
    if launch.tensor_parallel > 1:
        words += ["--tp-size", str(launch.tensor_parallel)]
    if launch.data_parallel > 1:
        words += ["--dp-size", str(launch.data_parallel)]
    return [*words, *launch.extra]


def register() -> None:
    """The plugin (``sglang.srt.plugins``); SGLang calls it in each of its processes.

    Where a hook has moved, nothing is touched and all that moved is listed; SGLang itself only logs what a plugin
    raises.
    """
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
