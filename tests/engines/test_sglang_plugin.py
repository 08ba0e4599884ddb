"""The SGLang plugin on doubles of its models: their names, their signatures, and their two ways to fail."""

import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from oneglance.engines import sglang, sglang_tree
from oneglance.engines.hooks import Hook

KEPT = [1, 9, 17, 25, 33]
QWEN3, QWEN25 = (place.split(":") for place in sglang.MODELS)


class Stack:
    """A decoder without a setter, as dense Qwen3 has it."""

    layers_to_capture: ClassVar[list[int]] = []


class StackThatKnows(Stack):
    """As the mixture-of-experts decoder has it."""

    def set_dflash_layers_to_capture(self, layers: list[int]) -> None:
        self.layers_to_capture = ["own", *layers]  # type: ignore[list-item]


def classes() -> tuple[type, type]:
    class Both:
        def __init__(self, stack: Stack | None = None, is_last_rank: bool = True) -> None:
            self.model = stack or Stack()
            self.pp_group = SimpleNamespace(is_last_rank=is_last_rank)
            self.capture_aux_hidden_states = False

        def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
            if not self.pp_group.is_last_rank:
                return
            self.capture_aux_hidden_states = True
            self.model.layers_to_capture = [i + 1 for i in layer_ids or ()]

    class Qwen3VLForConditionalGeneration(Both):
        def set_dflash_layers_to_capture(self, layer_ids: list[int]) -> None:
            if not self.pp_group.is_last_rank:
                return
            self.capture_aux_hidden_states = True
            self.model.set_dflash_layers_to_capture([i + 1 for i in layer_ids])  # type: ignore[attr-defined]

    class Qwen25VL(Both):
        pass

    return Qwen3VLForConditionalGeneration, Qwen25VL


def install(monkeypatch: pytest.MonkeyPatch, made: tuple[type, type]) -> tuple[Any, Any]:
    for parent in ("sglang", "sglang.srt", "sglang.srt.models"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    for (place, name), cls in zip((QWEN3, QWEN25), made, strict=True):
        module = ModuleType(place)
        setattr(module, name, cls)
        monkeypatch.setitem(sys.modules, place, module)
    return made


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    return install(monkeypatch, classes())


def test_both_models_capture_the_layers_that_the_head_reads(models: Any, caplog: pytest.LogCaptureFixture) -> None:
    qwen3, qwen25 = models
    with pytest.raises(AttributeError):
        qwen3().set_dflash_layers_to_capture(KEPT)
    assert not hasattr(qwen25, "set_dflash_layers_to_capture")
    sglang.mend_setters()
    sglang.mend_setters()
    for cls in models:
        model = cls()
        model.set_dflash_layers_to_capture(KEPT)
        assert model.model.layers_to_capture == [2, 10, 18, 26, 34]
        assert model.capture_aux_hidden_states
        with pytest.raises(ValueError, match="explicit layer_ids"):
            model.set_dflash_layers_to_capture(None)
    assert not caplog.records


def test_what_works_upstream_stays_upstream(models: Any) -> None:
    sglang.mend_setters()
    model = models[0](StackThatKnows())
    model.set_dflash_layers_to_capture([1, 3])
    assert model.model.layers_to_capture == ["own", 2, 4]


def test_another_failure_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = classes()

    def broken(self: Any, layer_ids: Any) -> None:
        raise AttributeError("something else")

    made[0].set_dflash_layers_to_capture = broken  # type: ignore[attr-defined]
    install(monkeypatch, made)
    sglang.mend_setters()
    with pytest.raises(AttributeError, match="something else"):
        made[0]().set_dflash_layers_to_capture(KEPT)


def test_other_ranks_capture_nothing(models: Any) -> None:
    sglang.mend_setters()
    for cls in models:
        model = cls(is_last_rank=False)
        model.set_dflash_layers_to_capture(KEPT)
        assert model.model.layers_to_capture == []


def test_layers_counted_in_another_way_stop_the_server(models: Any) -> None:
    def off_by_one(self: Any, layer_ids: list[int]) -> None:
        self.model.layers_to_capture = list(layer_ids)

    models[1].set_eagle3_layers_to_capture = off_by_one
    sglang.mend_setters()
    with pytest.raises(RuntimeError, match="counts layers in another way"):
        models[1]().set_dflash_layers_to_capture(KEPT)


def test_all_moved_hooks_are_listed_and_nothing_is_touched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = classes()
    made[0].set_eagle3_layers_to_capture = lambda self, ids, extra: None  # type: ignore[attr-defined]
    install(monkeypatch, made)
    monkeypatch.delitem(sys.modules, QWEN25[0])
    before = dict(vars(made[0]))
    sglang.mend_setters()
    assert dict(vars(made[0])) == before
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "takes (self, ids, extra), expected (self, layer_ids)" in caplog.text
    assert f"{sglang.MODELS[1]}.{sglang.EAGLE3_SETTER} is gone" in caplog.text


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the tree's installation was called with, were it not for this double."""
    done: list[str] = []
    monkeypatch.setattr(sglang_tree, "install", lambda: done.append("GLANCE"))
    monkeypatch.setattr(
        sglang_tree, "HOOKS", (Hook("json:dumps"), Hook("json:JSONDecoder.decode", ("self", "s", "_w")))
    )
    return done


def test_the_tree_is_installed_where_version_and_hooks_are_known(
    installs: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sglang_tree, "version_problem", lambda: None)
    sglang.add_tree()
    assert installs == ["GLANCE"]
    assert not caplog.records


def test_the_tree_is_refused_with_all_that_moved(
    installs: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sglang_tree, "version_problem", lambda: None)
    monkeypatch.setattr(sglang_tree, "HOOKS", (Hook("json:gone"), Hook("json:loads", ("s",)), Hook("json:dumps")))
    sglang.add_tree()
    assert not installs
    assert "json:gone is gone" in caplog.text
    assert "json:loads takes (s, cls," in caplog.text
    assert "chains go on to work" in caplog.text


def test_the_tree_is_refused_for_another_version(installs: list[str], caplog: pytest.LogCaptureFixture) -> None:
    assert sglang_tree.version_problem("0.5.23") is None
    assert sglang_tree.version_problem("0.5.23.post1") is None
    for other in ("0.5.22", "0.5.230", "0.6.0"):
        assert other in str(sglang_tree.version_problem(other))


def test_a_module_that_fails_at_import_is_a_problem_and_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_at_import.py").write_text("{}['cuda']")
    monkeypatch.syspath_prepend(tmp_path)
    assert "cannot be read (KeyError" in str(Hook("broken_at_import:Thing").problem())
