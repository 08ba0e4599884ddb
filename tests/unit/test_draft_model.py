"""``scripts/draft_model.py``: the smaller model is one that transformers loads, of whatever family."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

import helpers
from oneglance.targets import open_target
from oneglance.testing import save_target, tiny_target


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return helpers.script("scripts/draft_model.py")


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "qwen3", "llama"])
def test_kept_layers_are_the_targets_own(script: ModuleType, family: str, tmp_path: Path) -> None:
    target = tiny_target(family)
    script.shortened(target, 2).save_pretrained(tmp_path)
    target.processor.save_pretrained(tmp_path)
    small, own = open_target(str(tmp_path), dtype="float32"), target.model.get_decoder().layers
    assert small.num_layers == 2
    for kept, place in zip(small.model.get_decoder().layers, (0, target.num_layers - 1), strict=True):
        assert (kept.mlp.down_proj.weight == own[place].mlp.down_proj.weight).all()
    assert target.num_layers == len(own) > 2, "the target is as before"


def test_cross_attention_is_refused_before_training(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tiny_target("mllama")
    save_target(target, tmp_path)
    words = ["draft_model.py", str(tmp_path), "--layers", "2", "--traces", "none", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        script.main()
    assert stop.value.code == 2
    assert "cross-attention layers" in capsys.readouterr().err
