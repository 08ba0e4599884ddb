"""The plugin against a real SGLang, imported without a GPU: hooks by name and signature, and what the setters do."""

from types import SimpleNamespace
from typing import Any

import pytest

from oneglance.engines import sglang
from oneglance.engines.hooks import Hook, problems

KEPT = [1, 9, 17, 25, 33]


def test_the_plugins_hooks_are_there() -> None:
    assert problems(sglang.HOOKS) == []


@pytest.mark.parametrize("place", sglang.MODELS)
def test_models_capture_what_the_head_reads(place: str) -> None:
    """The class is real, its modules are not made: a setter only writes two attributes."""
    sglang.register()
    model: Any = object.__new__(Hook(place).find())
    stack = SimpleNamespace(layers_to_capture=[])
    vars(model).update(model=stack, pp_group=SimpleNamespace(is_last_rank=True), config=SimpleNamespace())
    model.set_dflash_layers_to_capture(KEPT)
    assert stack.layers_to_capture == [layer + 1 for layer in KEPT]
    assert model.capture_aux_hidden_states
