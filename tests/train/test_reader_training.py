"""The reader's training: labels, alignment, the batched forward pass, the recipe and the shared memory."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from transformers import Qwen3VLForConditionalGeneration

from oneglance.tasks.pages.page import SHEET, SQUARE, Page
from oneglance.tasks.synthetic import SEEDS, VERSIONS, sheet
from oneglance.train.reader import tokens
from oneglance.train.reader.align import token_points
from oneglance.train.reader.data import NUM_COLUMNS, Batch, Source, char_labels, patchify
from oneglance.train.reader.model import Trainee, config
from oneglance.train.reader.recipe import Phase, Recipe, Shape, load
from oneglance.train.reader.shared import Shared
from oneglance.train.reader.tokens import Encoder
from oneglance.train.reader.trainer import learning_rate, phase_at

SMALL = Shape(num_layers=7, hidden_size=64, mlp_size=64, num_heads=2, num_kv_heads=1, vision_hidden_size=64)
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(tokens.build(SMALL.vocab_size, num_per_task=20))


def batch(encoder: Encoder, name: str, index: int = 0) -> tuple[Phase, Batch]:
    phase = Phase(minutes=1, mixture={name: 1.0})
    recipe = Recipe(out=Path("unused"), phases=(phase,), square_batch=2, sheet_batch=2)
    return phase, Source(recipe, encoder).batch(phase, 5, index)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("reader-target*.yaml")), ids=lambda path: path.stem)
def test_the_recipes_in_the_repo_are_valid(path: Path) -> None:
    recipe = load(path)
    assert recipe.phases[0].vision_only
    assert {name for phase in recipe.phases for name in phase.mixture} <= {"drill", "drill_tall", *VERSIONS}
    assert recipe.init is None or (RECIPES.parent / recipe.init / "config.json").is_file()


def test_a_recipe_with_an_unknown_key_is_rejected() -> None:
    with pytest.raises(ValidationError, match="minuets"):
        Phase.model_validate({"minuets": 3, "mixture": {}})


def test_the_phases_follow_the_clock() -> None:
    phases = (Phase(minutes=1, mixture={}, lr=(1.0, 0.5)), Phase(minutes=2, mixture={"docvqa": 1}))
    recipe = Recipe(out=Path("unused"), phases=phases)
    assert phase_at(recipe, 30) == (phases[0], 0.5)
    assert phase_at(recipe, 120) == (phases[1], 0.5)
    assert phase_at(recipe, 180) is None
    assert learning_rate(recipe, phases[0], 1.0, 10**6) == pytest.approx(0.5)


def test_a_batch_is_decided_by_its_key(encoder: Encoder) -> None:
    first, second, other = (batch(encoder, "docvqa", index)[1] for index in (0, 0, 1))
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(first.patches, second.patches)
    assert not torch.equal(first.patches, other.patches)


def test_char_labels_spell_the_line() -> None:
    page = Page(SQUARE, (255, 255, 255))
    page.text((40, 80), "Wide Open 42", face="mono", size=17, fill=(0, 0, 0))
    row = char_labels(page).reshape(8, -1)[2]
    spelled = "".join(chr(code + 32) for code, before in zip(row, [0, *row], strict=False) if code and code != before)
    assert spelled == "WideOpen42"
    assert not char_labels(page).reshape(8, -1)[[0, 1, 3, 4, 5, 6, 7]].any()


def test_an_answer_points_at_its_words(encoder: Encoder) -> None:
    drawn = sheet("docvqa", SEEDS["train"][3], split="train")
    encoding = encoder.answer(drawn.answer)
    points = token_points(drawn, encoding)
    shown = [point for token, point in zip(encoding.tokens, points, strict=True) if token.strip("ĠĊ")]
    assert None not in shown
    heights = [point[1] for point in shown if point]
    assert all(later - earlier > -6 for earlier, later in itertools.pairwise(heights))


def test_labels_are_the_answer_and_its_end(encoder: Encoder) -> None:
    _, made = batch(encoder, "chartqa")
    asked = made.labels[0] >= 0
    assert torch.equal(made.labels[0][asked], made.ids[0][asked.roll(1)])
    assert made.labels[0][asked][-1] == encoder.end_id
    assert made.chars.shape[-1] == NUM_COLUMNS


@pytest.mark.parametrize(("name", "size"), [("caption", SQUARE), ("docvqa", SHEET)])
def test_the_batched_pass_is_the_targets_own(encoder: Encoder, name: str, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    target = Qwen3VLForConditionalGeneration(config(SMALL, encoder)).eval()
    trainee = Trainee(target)
    _, made = batch(encoder, name)
    assert made.size == size
    frames = made.patches.view(2, -1, 3, 1, 256).expand(-1, -1, -1, 2, -1).reshape(-1, 1536)
    with torch.inference_mode():
        loss, count, _, _ = trainee.answer_loss(*trainee.vision(made), made)
        logits = target(
            input_ids=made.ids,
            pixel_values=frames,
            image_grid_thw=torch.tensor([[1, size[1] // 16, size[0] // 16]] * 2),
            mm_token_type_ids=(made.ids == encoder.image_id).int(),
        ).logits
    asked = made.labels >= 0
    wanted = nn.functional.cross_entropy(logits[asked], made.labels[asked], reduction="sum")
    assert count == int(asked.sum())
    torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=1e-3)


def test_patches_are_the_processors(encoder: Encoder) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from oneglance.train.reader.export import PREPROCESSOR

    settings = {k: v for k, v in PREPROCESSOR.items() if not k.endswith(("_type", "_class"))}
    image = sheet("docvqa", SEEDS["eval"][0], split="eval").page.image
    made = Qwen2VLImageProcessorPil(**settings)(images=[image], return_tensors="pt")
    assert made["image_grid_thw"].tolist() == [[1, 30, 16]]
    frames = made["pixel_values"].view(-1, 3, 2, 256)
    torch.testing.assert_close(frames[:, :, 0].flatten(1), torch.from_numpy(patchify(image)), rtol=0, atol=1e-5)


def test_the_helper_gets_parameters_and_gives_gradients(tmp_path: Path) -> None:
    lead, help_ = ([nn.Parameter(torch.full((3,), value))] for value in (1.0, 0.0))
    leader = Shared(tmp_path / "shared", lead, 2, is_leader=True)
    helper = Shared(tmp_path / "shared", help_, 2, is_leader=False)
    assert helper.fetch() is None
    leader.publish(1, 0)
    assert helper.fetch() == 1
    assert torch.equal(help_[0].data, lead[0].data)
    assert leader.take(1) is None
    assert helper.leave(torch.ones(3), torch.tensor([4.0, 5.0]), 1)
    assert not helper.leave(torch.ones(3), torch.tensor([4.0, 5.0]), 1)
    found = leader.take(2)
    assert found is not None
    assert found[1].tolist() == [4.0, 5.0]
    assert helper.leave(torch.ones(3), torch.zeros(2), 1)
    assert leader.take(9) is None
    leader.finish()
    assert helper.is_finished
