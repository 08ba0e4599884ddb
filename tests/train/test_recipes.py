"""The recipes: each loads, has the paper's numbers, and names what is ours."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from oneglance.core import InputError
from oneglance.drafters.head import kept_layers
from oneglance.train.recipe import HeadRecipe, load_recipe
from oneglance.train.traces import Trace, append_traces, read_mixed

FOLDER = Path(__file__).parents[2] / "recipes"
CARD = {  # appendix D, of the primary run: its OCR retrain changes what is said, and Qwen3-VL-4B follows it
    "seed": 0,
    "save_dtype": "bfloat16",
    "image_long_side": 768,
    "optimiser.betas": (0.9, 0.95),
    "optimiser.weight_decay": 0.0,
    "optimiser.clip": 1.0,
    "head.block_size": 16,
    "reveal.enabled": True,
}
COVERAGE = {"objective.name": "coverage", "objective.params": {"decay": 0.8}}
SCRATCH = {"init": None, "head.num_layers": 5}
PAPER: dict[str, dict[str, Any]] = {
    "qwen3-vl-8b": {**CARD, **COVERAGE, "init": "z-lab/Qwen3-8B-DFlash-b16", "optimiser.epochs": 1.0},
    "qwen3-vl-8b-ocr": {
        **CARD,
        "init": "runs/qwen3-vl-8b/head",
        "optimiser.epochs": 0.4,
        "objective.name": "survival",
    },
    "qwen3-vl-4b": {**CARD, **COVERAGE, "optimiser.epochs": 1.0},
    "qwen2.5-vl-7b": {**SCRATCH, "optimiser.epochs": 7.0, "global batch": 48},
    "llama-3.2-11b-vision": {"init": "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"},
    "matched": {**SCRATCH, "head.block_size": 16, "optimiser.epochs": 3.0, "global batch": 24},
    "allava": {**SCRATCH, "head.block_size": 16},
}
FREE = {"name", "target", "data.train", "data.heldout", "ours", "schema_version", "kind"}


def value(recipe: HeadRecipe, name: str) -> Any:
    if name == "global batch":
        return recipe.optimiser.batch_size * recipe.optimiser.accumulate
    found: Any = recipe
    for part in name.split("."):
        assert part in type(found).model_fields, f"there is no {name}"
        found = getattr(found, part)
    return found


def test_there_is_a_recipe_for_each_run_of_the_paper() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} >= PAPER.keys()


@pytest.mark.parametrize("name", sorted(PAPER))
def test_a_recipe_loads_under_its_own_name(name: str) -> None:
    assert load_recipe(FOLDER / f"{name}.yaml").name == name


@pytest.mark.parametrize("name", sorted(PAPER))
def test_what_the_paper_gives_is_as_given_and_the_rest_is_named_ours(name: str) -> None:
    recipe, given = load_recipe(FOLDER / f"{name}.yaml"), PAPER[name]
    assert {key: value(recipe, key) for key in given} == given
    for key in recipe.ours:
        value(recipe, key)
    raw = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    written = {
        f"{key}.{inner}" if isinstance(section, dict) else key
        for key, section in raw.items()
        for inner in (section if isinstance(section, dict) else [None])
    }
    batch = {"optimiser.batch_size", "optimiser.accumulate"} if "global batch" in given else set()
    assert set(recipe.ours) == written - FREE - set(given) - batch


def test_kept_layers_follow_the_rule() -> None:
    assert load_recipe(FOLDER / "qwen2.5-vl-7b.yaml").head.target_layer_ids == kept_layers(28, 5)
    assert load_recipe(FOLDER / "matched.yaml").head.target_layer_ids == kept_layers(36, 5)
    self_attention = [layer for layer in range(40) if (layer - 3) % 5]  # every fifth from 3 on is cross-attention
    moved = tuple(self_attention[layer] for layer in kept_layers(32, 5))
    assert load_recipe(FOLDER / "llama-3.2-11b-vision.yaml").head.target_layer_ids == moved


def test_several_folders_are_mixed(tmp_path: Path) -> None:
    for name, ids in (("a", "xy"), ("b", "z"), ("c", "x")):
        list(append_traces(tmp_path / name, [Trace(i, "t", i, (), (1, 2)) for i in ids]))
    assert [row.id for row in read_mixed([tmp_path / "a", tmp_path / "b"])] == ["x", "y", "z"]
    with pytest.raises(InputError, match=r"sample x is in .*a and in .*c"):
        read_mixed([tmp_path / "a", tmp_path / "c"])


@pytest.mark.parametrize("kind", ["eagle2", "eagle3", "medusa", "vispec"])
def test_baselines_of_the_embedded_target_learn_what_its_head_learns(kind: str) -> None:
    """Same traces, batch, steps, learning rate and precision; only the head and its objective differ."""
    ours, theirs = (load_recipe(FOLDER / f"reader-{name}.yaml") for name in ("head", kind))
    differing = {key for key in type(ours).model_fields if getattr(ours, key) != getattr(theirs, key)}
    stages = {"init", "ours"} if kind == "vispec" else set()  # its first stage is EAGLE-2's recipe
    assert differing == {"name", "kind", "head", "objective", "reveal"} | stages
    assert theirs.kind == kind
