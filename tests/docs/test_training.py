"""docs/training.md: its ``sh`` blocks run, in order, on the built-in target; its recipe loads; its figures add up."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import oneglance
from helpers import picture
from oneglance.cli import COMMANDS, main
from oneglance.drafters.checkpoint import save_checkpoint
from oneglance.drafters.head import HeadConfig, num_parameters
from oneglance.files import spliced
from oneglance.testing import tiny_head, tiny_head_config
from oneglance.train.keys import PLACE, table
from oneglance.train.recipe import HeadRecipe, load_recipe

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_long_way_runs_as_it_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, code in BLOCKS:
        if language == "yaml":
            Path("recipe.yaml").write_text(code)
            assert load_recipe("recipe.yaml").name == "small"
        for line in code.splitlines() if language == "sh" else []:
            program, *words = shlex.split(line)
            assert program == "oneglance"
            assert words[0] in COMMANDS
            assert main(words) == 0, (line, capsys.readouterr().err)
    assert (tmp_path / "exported" / "model.safetensors").is_file()
    assert "τ unknown" in capsys.readouterr().out


def test_a_target_with_random_weights_is_proved_exact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first two Python blocks: the second makes the target, the first compares."""
    compare, make, _ = (code for language, code in BLOCKS if language == "python")
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {}
    exec(make, made)
    save_checkpoint(tiny_head(made["tiny"]), tmp_path / "head", tiny_head_config(made["tiny"]))
    content = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    messages = [{"role": "user", "content": content}]
    names: dict[str, Any] = {"oneglance": oneglance, "torch": torch, "page": picture(1), "messages": messages}
    as_named = '"Qwen/Qwen3-VL-8B-Instruct", "runs/mine/run/head"'
    assert as_named in compare
    exec(compare.replace(as_named, '"tiny", "head"').replace("256", "24"), names)
    assert names["ours"].shape[1] > names["inputs"]["input_ids"].shape[1]


def test_a_text_target_with_random_weights_is_proved_exact(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last Python block and the command below it, on two of its prompts."""
    monkeypatch.chdir(tmp_path)
    exec([code for language, code in BLOCKS if language == "python"][-1], {})
    (line,) = [code for _, code in BLOCKS if code.startswith("oneglance audit --target tiny-text")]
    file = next(word for word in shlex.split(line) if word.endswith(".jsonl"))
    (tmp_path / "few.jsonl").write_text("".join((ROOT / file).read_text().splitlines(keepends=True)[:2]))
    assert main([*shlex.split(line.replace(file, "few.jsonl"))[1:], "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["identical"], report["total"], report["hf_generate"]["identical"]) == (2, 2, 2)


def test_all_keys_of_a_recipe_are_in_the_table() -> None:
    fix = "run: python -m oneglance.train.keys docs/training.md"
    assert spliced(TEXT, PLACE, table(HeadRecipe)) == TEXT, fix
    undescribed = [line for line in table(HeadRecipe).splitlines() if line.endswith("|  |")]
    assert not undescribed, "a key without a docstring"


def test_every_recipe_has_a_line() -> None:
    named = set(re.findall(r"`recipes/([\w.-]+)\.yaml`", TEXT))
    recipes = {path.stem for path in (ROOT / "recipes").glob("*.yaml")}
    assert {name for name in recipes if not name.startswith("reader")} <= named <= recipes
    for name in named:
        load_recipe(ROOT / "recipes" / f"{name}.yaml")


def test_the_figures_of_the_primary_head() -> None:
    geometry = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 5, "num_attention_heads": 32}
    geometry |= {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960}
    raw = {**geometry, "num_target_layers": 36, "dflash_config": {"mask_token_id": 151669}}
    raw["dflash_config"]["target_layer_ids"] = [1, 9, 17, 25, 33]
    parameters = num_parameters(HeadConfig.from_checkpoint(raw))
    assert parameters == 1_048_626_432
    figures = {
        "29 MB": 700 * 5 * 4096 * 2 / 1e6,
        "460 GB": 16000 * 700 * 5 * 4096 * 2 / 1e9,
        "30 MB": 16000 * (250 * 6 + 400) / 1e6,
        "19 GB": 18 * parameters / 1e9,
        "56 MB": 16 * 249 * (700 + 16 * 249) * 3 / 1e6,
        "3.5 GB": 128 * 15 * 151936 * 12 / 1e9,
        "12.6 GB": 12 * parameters / 1e9,
        "2.1 GB": 2 * parameters / 1e9,
    }
    for shown, exact in figures.items():
        assert shown in TEXT
        digits = len(shown.split()[0].split(".")[1]) if "." in shown else 0
        assert float(shown.split()[0]) == pytest.approx(exact, abs=0.51 * 10**-digits, rel=0.01), shown
