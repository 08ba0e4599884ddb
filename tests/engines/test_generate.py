"""``custom_generate=Glance(…)`` in the unmodified ``generate`` of tiny models of every family."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from helpers import forget, hf_generate, prompt
from oneglance.core import InputError, TargetError
from oneglance.drafters.checkpoint import save_checkpoint
from oneglance.engines.generate import Glance
from oneglance.targets.base import Target
from oneglance.testing import CHAT_FAMILIES, VISION_FAMILIES, tiny_head, tiny_head_config, tiny_target

NEW = 14


@pytest.fixture(scope="module", params=CHAT_FAMILIES)
def target(request: pytest.FixtureRequest) -> Target:
    return tiny_target(request.param)


@pytest.fixture(scope="module")
def text() -> Target:
    return tiny_target("qwen3")


def saved_head(target: Target, folder: Path) -> str:
    save_checkpoint(tiny_head(target), folder, tiny_head_config(target))
    return str(folder)


@pytest.fixture
def glance(text: Target, tmp_path: Path) -> Glance:
    return Glance(saved_head(text, tmp_path), budget=7)


def new_tokens(target: Target, inputs: Any, glance: Any, **options: Any) -> list[int]:
    forget(target)
    mask = torch.ones_like(inputs.tensors["input_ids"])
    out = target.model.generate(**inputs.tensors, attention_mask=mask, custom_generate=glance, **options)
    assert out.dtype == torch.int64
    assert out[0, : len(inputs.token_ids)].tolist() == inputs.token_ids
    return out[0, len(inputs.token_ids) :].tolist()


@contextmanager
def vision_passes(target: Target) -> Iterator[list[int]]:
    """An entry for each run of the vision encoder."""
    inner = target.model.model
    encoder = getattr(inner, "visual", None) or getattr(inner, "vision_model", None)
    seen: list[int] = []
    if encoder is None:
        yield seen
        return
    handle = encoder.register_forward_hook(lambda *_: seen.append(1))
    yield seen
    handle.remove()


def test_text_is_that_of_generate(target: Target, tmp_path: Path) -> None:
    glance = Glance(saved_head(target, tmp_path), budget=15)
    family = target.name.removeprefix("tiny:")
    for seed, count in enumerate((0, 2) if family in VISION_FAMILIES else (0,)):
        inputs = prompt(target, count, seed=seed)
        expected = hf_generate(target, inputs, NEW)
        with vision_passes(target) as passes:
            assert new_tokens(target, inputs, glance, do_sample=False, max_new_tokens=NEW) == expected
        assert len(passes) == bool(count), "pictures are encoded once, whoever does it"
        assert sum(len(done.token_ids) for done in glance.rounds) == len(expected) - 1
        assert any(len(done.tree) for done in glance.rounds), "the head drafted nothing: this shows nothing"


def test_accepted_paths_are_cut_where_generate_stops(text: Target) -> None:
    """N-grams copy the prompt's own continuation, so that many tokens of a round are accepted and then cut."""
    inputs = prompt(text, text="hello there")
    answer = hf_generate(text, inputs, 40)
    known = text.wrap({"input_ids": torch.tensor([[*inputs.token_ids, *answer, *inputs.token_ids]])})
    glance = Glance(None, drafter="ngram")
    accepted: list[int] = []
    for options in (
        {"max_new_tokens": 17},
        {"max_new_tokens": 40, "eos_token_id": answer[11]},
        {"max_new_tokens": 40, "repetition_penalty": 1.3},
        {"max_new_tokens": 40, "min_new_tokens": 20, "eos_token_id": answer[3]},
    ):
        expected = hf_generate(
            text, known, options["max_new_tokens"], **{k: v for k, v in options.items() if k != "max_new_tokens"}
        )
        assert new_tokens(text, known, glance, do_sample=False, **options) == expected, options
        accepted.append(sum(done.verdict.num_accepted for done in glance.rounds))
    assert any(accepted), "nothing was accepted: nothing could be cut"


class After(StoppingCriteria):
    """Stops once a token has come; counts how often it was asked, and with how many tokens."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.lengths: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.lengths.append(input_ids.shape[1])
        return input_ids[:, -1] == self.token


def test_the_callers_own_criteria_are_asked_after_every_token(text: Target, glance: Glance) -> None:
    inputs = prompt(text)
    ours, theirs = After(hf_generate(text, inputs, NEW)[9]), After(0)
    theirs.token = ours.token
    expected = hf_generate(text, inputs, NEW, stopping_criteria=StoppingCriteriaList([theirs]))
    found = new_tokens(
        text, inputs, glance, do_sample=False, max_new_tokens=NEW, stopping_criteria=StoppingCriteriaList([ours])
    )
    assert found == expected
    assert ours.lengths == theirs.lengths


def test_sampling_repeats_and_does_not_depend_on_the_tree(text: Target, glance: Glance) -> None:
    inputs = prompt(text)
    options = {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "max_new_tokens": NEW}
    drawn = []
    for made in (glance, glance, Glance(None, drafter="none"), Glance(None, drafter="ngram")):
        torch.manual_seed(5)
        drawn.append(new_tokens(text, inputs, made, **options))
    assert drawn[0] == drawn[1] == drawn[2] == drawn[3]
    torch.manual_seed(6)
    assert new_tokens(text, inputs, glance, **options) != drawn[0]


def test_the_model_stays_its_owners(text: Target, glance: Glance) -> None:
    for parameter in text.model.parameters():
        parameter.requires_grad_(True)
    new_tokens(text, prompt(text), glance, do_sample=False, max_new_tokens=3)
    assert all(parameter.requires_grad for parameter in text.model.parameters())


def test_one_object_serves_several_models(glance: Glance, text: Target) -> None:
    other = tiny_target("qwen3", seed=3)
    for target in (text, other, text):
        inputs = prompt(target)
        expected = hf_generate(target, inputs, 9)
        assert new_tokens(target, inputs, glance, do_sample=False, max_new_tokens=9) == expected


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 2}, "num_beams"),
        ({"do_sample": True, "num_return_sequences": 2}, "num_return_sequences"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate"),
        ({"position_ids": torch.arange(7, 12)[None]}, "position_ids"),
    ],
)
def test_what_a_tree_cannot_do_is_refused(text: Target, glance: Glance, options: dict[str, Any], named: str) -> None:
    ids = torch.tensor([[72, 105, 72, 105, 72]])
    with pytest.raises(InputError, match=named):
        text.model.generate(
            ids, attention_mask=torch.ones_like(ids), custom_generate=glance, max_new_tokens=3, **options
        )


def test_padding_training_mode_and_unknown_models_are_refused(text: Target, glance: Glance) -> None:
    ids = torch.tensor([[256, 105, 72, 105, 72]])
    with pytest.raises(InputError, match="padded"):
        text.model.generate(
            ids, attention_mask=torch.tensor([[0, 1, 1, 1, 1]]), custom_generate=glance, max_new_tokens=3
        )
    model = tiny_target("qwen3").model.train()
    with pytest.raises(InputError, match="eval"):
        model.generate(ids, attention_mask=torch.ones_like(ids), custom_generate=glance, max_new_tokens=3)
    model.eval().config.model_type = "unheard_of"
    with pytest.raises(TargetError, match="unheard_of"):
        model.generate(ids, attention_mask=torch.ones_like(ids), custom_generate=glance, max_new_tokens=3)
