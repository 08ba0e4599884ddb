"""What a target must be able to do is checked when it is opened, and said by name when it cannot."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from helpers import decode_ids, hf_generate, prompt
from oneglance.core import OneglanceWarning, TargetError
from oneglance.decoder import Decoder
from oneglance.drafters.plain import NoDrafter
from oneglance.targets import family, hf, open_target
from oneglance.targets.base import Target
from oneglance.targets.causal_lm import CausalLM
from oneglance.targets.probe import check_row_independence, row_dependence
from oneglance.testing import QWEN_TEMPLATE, QWEN_TOKENS, byte_tokenizer, save_target, tiny_target

TINY = {
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}


def opened(config: transformers.PreTrainedConfig) -> CausalLM:
    model = transformers.AutoModelForCausalLM.from_config(config)
    return CausalLM(model, byte_tokenizer(QWEN_TOKENS, QWEN_TEMPLATE), name="tiny")


def test_sliding_window_is_refused_with_its_first_layer() -> None:
    config = transformers.Qwen3Config(**TINY, use_sliding_window=True, sliding_window=8, max_window_layers=2)
    with pytest.raises(TargetError, match=r"layer 2 keeps a DynamicSlidingWindowLayer.*full attention"):
        opened(config)


def test_linear_attention_is_refused_with_its_first_layer() -> None:
    config = transformers.Qwen3NextConfig(
        **TINY,
        layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention"],
        linear_num_value_heads=2,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    with pytest.raises(TargetError, match=r"layer 1 keeps a LinearAttention\w+, which cannot be rolled back"):
        opened(config)


@pytest.mark.parametrize("backend", ["flash_attention_2", "flash_attention_3", "flex_attention"])
def test_attention_without_an_arbitrary_mask_is_refused(backend: str) -> None:
    target = tiny_target("qwen3")
    target.model.config._attn_implementation_internal = backend
    with pytest.raises(TargetError, match=f"{backend}.*sdpa"):
        CausalLM(target.model, target.processor, name="tiny")
    with pytest.raises(TargetError, match=f"{backend}.*sdpa or eager"):
        open_target("nowhere", attention=backend)


def test_unknown_model_type_names_the_known_ones() -> None:
    with pytest.raises(TargetError, match=r"'gpt2' is not supported; supported: .*llama.*qwen3_vl"):
        family("gpt2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"device": "tpu9"}, "device 'tpu9' is not available"),
        ({"device": "cpu", "device_map": "auto"}, "not both"),
        ({}, "cannot load target"),
        ({"name": "builtin:nobody"}, "there is no 'builtin:nobody'"),
    ],
)
def test_bad_options_are_one_line(options: dict[str, str], message: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "config.json").write_text("{}")
    name = options.pop("name", str(tmp_path))
    with pytest.raises(TargetError, match=message) as error:
        open_target(name, **options)
    assert "\n" not in str(error.value)


# Weights --------------------------------------------------------------------------------------------------------


def truncated(weights: Path) -> None:
    weights.write_bytes(weights.read_bytes()[:-1000])


def pointer(weights: Path) -> None:
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2097\n")


def without_a_norm(weights: Path) -> None:
    save_file({k: v for k, v in load_file(weights).items() if "layers.3.mlp" not in k}, weights, {"format": "pt"})


def with_another_shape(weights: Path) -> None:
    save_file({**load_file(weights), "model.norm.weight": torch.ones(7)}, weights, {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "truncated or a git-LFS pointer .*download it again"),
        (pointer, "git lfs pull"),
        (without_a_norm, r"lacks 3 tensors that its config asks for: model\.layers\.3\.mlp\.down_proj\.weight, "),
        (with_another_shape, r"another shape of 1 tensors .*: model\.norm\.weight \(\[7\], not \[32\]\)"),
    ],
)
def test_a_damaged_target_is_never_filled_up_with_random_weights(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    target = tiny_target("qwen3")
    save_target(target, tmp_path)
    assert open_target(str(tmp_path), probe=False).num_layers == 5
    damage(tmp_path / "model.safetensors")
    with pytest.raises(TargetError, match=message) as error:
        open_target(str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_target_too_large_for_its_device_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target("qwen3")
    save_target(target, tmp_path)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore")

    monkeypatch.setattr(transformers.PreTrainedModel, "to", full)
    with pytest.raises(TargetError, match="out of memory; use a smaller dtype, --device-map auto"):
        open_target(str(tmp_path), device="cpu")


# Row independence -----------------------------------------------------------------------------------------------


def test_sound_targets_have_independent_rows(target: Target) -> None:
    assert row_dependence(target) == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_row_independence(target) == 0.0


class MixesRows(nn.Module):
    """A linear layer whose output depends on all rows of the pass, as with a shared activation scale."""

    def __init__(self, inner: nn.Module, strength: float) -> None:
        super().__init__()
        self.inner, self.strength = inner, strength

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.strength * x.abs().amax()


class DynamicInt8(nn.Module):
    """A linear layer on activations rounded to 8 bits, with one scale for all rows of the pass."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax() / 127
        return self.inner((x / scale).round() * scale)


def mixing(wrap) -> Target:  # type: ignore[no-untyped-def]
    target = tiny_target("qwen3")
    for layer in target.layers:
        layer.mlp.down_proj = wrap(layer.mlp.down_proj)
    return target


def test_strong_mixing_of_rows_is_refused() -> None:
    with pytest.raises(TargetError, match=r"change by up to \d.*tree verification needs independent rows"):
        check_row_independence(mixing(lambda inner: MixesRows(inner, 0.5)))


def test_weak_mixing_of_rows_is_said_with_its_figure() -> None:
    target = mixing(lambda inner: MixesRows(inner, 1e-4))
    with pytest.warns(OneglanceWarning, match=r"change by up to (\d\.\d+|\d(\.\d)?e-\d+)"):
        dependence = check_row_independence(target)
    assert 1e-4 < dependence < 1e-1


def test_dynamic_activation_quantisation_is_noticed() -> None:
    assert row_dependence(mixing(DynamicInt8)) > 1e-4


def test_not_a_number_is_refused() -> None:
    with pytest.raises(TargetError, match="independent rows"):
        check_row_independence(mixing(lambda inner: MixesRows(inner, float("nan"))))


def test_weight_quantised_rows_stay_independent() -> None:
    """Rounded weights are another model, but its rows do not know each other."""
    target = tiny_target("qwen3")
    for parameter in target.model.parameters():
        scale = parameter.abs().amax() / 127
        parameter.data = (parameter / scale).round() * scale
    assert row_dependence(target) == 0.0


def test_open_target_runs_the_probe(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    target = tiny_target("qwen3")
    save_target(target, tmp_path)
    forward = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: forward(self, x) * (1 + x.abs().amax()))
    with pytest.raises(TargetError, match="independent rows"):
        open_target(str(tmp_path))
    assert open_target(str(tmp_path), probe=False).num_layers == 5


# What is read off a model ---------------------------------------------------------------------------------------


def test_cache_keyword_is_one_the_model_takes(sdpa_target: Target) -> None:
    state = sdpa_target.prefill(prompt(sdpa_target))
    assert hf.cached_length(state.cache, 0) == state.length


@pytest.mark.parametrize(
    ("generation", "text", "expected"),
    [([3, 5], 7, (3, 5)), (3, 7, (3,)), ((3, 5), 7, (3, 5)), (None, 7, ())],
)
def test_eos_ids_are_those_of_the_generation_config(generation: object, text: int, expected: tuple[int, ...]) -> None:
    target = tiny_target("qwen3")
    target.text_config.eos_token_id = text
    target.model.generation_config.eos_token_id = generation
    assert target.eos_ids == expected


def test_without_eos_in_the_generation_config_generate_runs_on() -> None:
    """So must we, whatever the model config says."""
    target = tiny_target("qwen3")
    inputs = prompt(target)
    reference = hf_generate(target, inputs, 8)
    target.text_config.eos_token_id = reference[3]
    target.model.generation_config.eos_token_id = None
    assert hf_generate(target, inputs, 8) == reference
    assert decode_ids(Decoder(target, NoDrafter()), inputs, 8).generation.token_ids == reference
