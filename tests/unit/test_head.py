"""The block head against a straightforward second implementation built from transformers' Qwen3 blocks."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from oneglance.core import HeadError
from oneglance.drafters.head import BlockHead, HeadConfig, kept_layers, num_parameters

QWEN3_VL_8B = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 5,
    "num_target_layers": 36,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}
SMALL = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 3,
    "num_target_layers": 6,
    "vocab_size": 50,
    "max_position_embeddings": 512,
    "rope_theta": 5e5,
    "dflash_config": {"mask_token_id": 49, "target_layer_ids": [1, 4]},
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def config_of(**overrides: Any) -> HeadConfig:
    return HeadConfig.from_checkpoint({**SMALL, **overrides})


def random_head(config: HeadConfig, seed: int = 0) -> BlockHead:
    """Random weights, norms included: a norm that is left out must show."""
    torch.manual_seed(seed)
    head = BlockHead(config).eval().requires_grad_(False)
    for name, parameter in head.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
    return head


# A second implementation -----------------------------------------------------------------------------------------


class Golden(nn.Module):
    """The whole context in every pass, no cache; from the published description, with Qwen3's own blocks."""

    def __init__(self, raw: dict[str, Any]) -> None:
        super().__init__()
        draft = raw["dflash_config"]
        rope = raw.get("rope_parameters") or {"rope_type": "default", "rope_theta": raw["rope_theta"]}
        keys = "hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim max_position_embeddings"
        self.config = transformers.Qwen3Config(**{key: raw[key] for key in keys.split()}, rope_parameters=rope)
        hidden, dim = raw["hidden_size"], raw["head_dim"]
        heads, kv_heads = raw["num_attention_heads"], raw["num_key_value_heads"]
        self.fc = nn.Linear(len(draft["target_layer_ids"]) * hidden, hidden, bias=False)
        self.hidden_norm, self.norm = Qwen3RMSNorm(hidden), Qwen3RMSNorm(hidden)
        self.rotary = Qwen3RotaryEmbedding(self.config)
        self.layers = nn.ModuleList()
        for _ in range(raw["num_hidden_layers"]):
            layer = nn.Module()
            layer.self_attn = nn.Module()
            layer.self_attn.q_proj = nn.Linear(hidden, heads * dim, bias=False)
            layer.self_attn.k_proj = nn.Linear(hidden, kv_heads * dim, bias=False)
            layer.self_attn.v_proj = nn.Linear(hidden, kv_heads * dim, bias=False)
            layer.self_attn.o_proj = nn.Linear(heads * dim, hidden, bias=False)
            layer.self_attn.q_norm, layer.self_attn.k_norm = Qwen3RMSNorm(dim), Qwen3RMSNorm(dim)
            layer.mlp = Qwen3MLP(self.config)
            layer.input_layernorm, layer.post_attention_layernorm = Qwen3RMSNorm(hidden), Qwen3RMSNorm(hidden)
            self.layers.append(layer)

    def forward(self, block: Tensor, features: Tensor, windows: Sequence[int | None]) -> Tensor:
        """block (Q, H) after features (C, F) → (Q, H)."""
        num_context, size = len(features), len(block)
        context = self.hidden_norm(self.fc(features))
        positions = torch.arange(num_context + size)[None]
        cos, sin = self.rotary(block[None], positions)
        x = block
        for layer, window in zip(self.layers, windows, strict=True):
            attention, dim = layer.self_attn, self.config.head_dim
            normed = layer.input_layernorm(x)
            both = torch.cat([context, normed])
            q = attention.q_norm(attention.q_proj(normed).view(size, -1, dim)).transpose(0, 1)
            k = attention.k_norm(attention.k_proj(both).view(num_context + size, -1, dim)).transpose(0, 1)
            v = attention.v_proj(both).view(num_context + size, -1, dim).transpose(0, 1)
            q, _ = apply_rotary_pos_emb(q[None], q[None], cos[:, -size:], sin[:, -size:])
            k, _ = apply_rotary_pos_emb(k[None], k[None], cos, sin)
            groups = q.shape[1] // k.shape[1]
            k, v = k[0].repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
            scores = q[0] @ k.transpose(1, 2) * dim**-0.5
            for row, column in itertools.product(range(size), range(num_context + size)):
                ahead = num_context + row - column
                if window is not None and not 0 <= ahead < window:
                    scores[:, row, column] = -torch.inf
            mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(size, -1)
            x = x + attention.o_proj(mixed)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)


def run(head: BlockHead, block: Tensor, features: Tensor, masks: Sequence[Tensor | None] | None = None) -> Tensor:
    """One pass of our head over a fresh context."""
    num_context, size = len(features), len(block)
    context = head.project_context(features[None], torch.arange(num_context))
    positions = torch.arange(num_context, num_context + size)
    return head(block[None], context, positions, masks or [None] * len(head.layers))[0]


@settings(max_examples=25)
@given(
    st.integers(0, 2**16),
    st.integers(1, 40),
    st.integers(2, 16),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([(4, 2), (4, 4), (6, 1)]),
    st.sampled_from([None, LLAMA3]),
)
def test_one_pass_equals_the_second_implementation(
    seed: int,
    num_context: int,
    size: int,
    num_layers: int,
    num_kept: int,
    heads: tuple[int, int],
    rope: dict[str, Any] | None,
) -> None:
    raw = {
        **SMALL,
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "dflash_config": {"mask_token_id": 49, "target_layer_ids": list(range(num_kept))},
    }
    if rope:
        raw["rope_parameters"] = {**rope, "rope_theta": raw.pop("rope_theta")}
    config = HeadConfig.from_checkpoint(raw)
    head, golden = random_head(config, seed), Golden(raw).eval().requires_grad_(False)
    golden.load_state_dict(head.state_dict())
    block, features = torch.randn(size, 24), torch.randn(num_context, num_kept * 24)
    expected = golden(block, features, [None] * num_layers)
    torch.testing.assert_close(run(head, block, features), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 2, 5, 12, 100])
def test_a_sliding_layer_sees_its_window_and_nothing_ahead(window: int) -> None:
    raw = {
        **SMALL,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": window,
    }
    config = HeadConfig.from_checkpoint(raw)
    assert [config.window(i) for i in range(3)] == [window, None, window]
    head, golden = random_head(config), Golden(raw).eval().requires_grad_(False)
    golden.load_state_dict(head.state_dict())
    block, features = torch.randn(6, 24), torch.randn(9, 48)
    rows, columns = torch.arange(9, 15)[:, None], torch.arange(15)
    mask = (columns <= rows) & (rows - columns < window)
    expected = golden(block, features, [window, None, window])
    torch.testing.assert_close(run(head, block, features, [mask, None, mask]), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("first", [None, 0, 2, 28])
@pytest.mark.parametrize("used", [True, False])
def test_sliding_layers_of_older_configs_are_those_of_qwen3(first: int | None, used: bool) -> None:
    given = {"use_sliding_window": used, "sliding_window": 4}
    given |= {} if first is None else {"max_window_layers": first}
    theirs = transformers.Qwen3Config(num_hidden_layers=3, **given).layer_types
    ours = config_of(**given)
    assert [ours.window(i) for i in range(3)] == [4 if kind == "sliding_attention" else None for kind in theirs]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
@settings(max_examples=30)
def test_context_rows_do_not_depend_on_when_they_come(sizes: list[int]) -> None:
    """Keys and values of the context are a function of feature and position: caching them is exact."""
    head = random_head(config_of())
    features = torch.randn(sum(sizes), 48)
    whole = head.project_context(features[None], torch.arange(sum(sizes)))
    pieces, start = [], 0
    for size in sizes:
        rows = slice(start, start + size)
        pieces.append(head.project_context(features[None, rows], torch.arange(start, start + size)))
        start += size
    for layer, (keys, values) in enumerate(whole):
        torch.testing.assert_close(torch.cat([p[layer][0] for p in pieces], 2), keys, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(torch.cat([p[layer][1] for p in pieces], 2), values, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("rope", [{"rope_type": "default"}, LLAMA3])
def test_positions_turn_by_the_same_angles_in_every_precision(rope: dict[str, Any], dtype: torch.dtype) -> None:
    """A frequency that is rounded with the weights would make another RoPE than the head was trained with."""
    rope = {**rope, "rope_theta": SMALL["rope_theta"]}
    positions = torch.arange(0, 500, 7)
    expected = Golden({**SMALL, "rope_parameters": rope}).rotary(torch.zeros(1), positions[None])
    head = BlockHead(config_of(rope_theta=None, rope_parameters=rope)).to(dtype)
    assert head.fc.weight.dtype == dtype
    for cast in (head, head.float(), copy.deepcopy(head).to_empty(device="cpu")):
        for ours, theirs in zip(cast.rope(positions, torch.float32), expected, strict=True):
            torch.testing.assert_close(ours, theirs[0], atol=1e-5, rtol=0)


def test_the_block_sees_all_of_itself_and_of_the_context() -> None:
    """Bidirectional: every output row depends on every slot and on every context row."""
    head = random_head(config_of())
    block, features = torch.randn(5, 24), torch.randn(4, 48)
    base = run(head, block, features)
    for slot in range(5):
        other = block.clone()
        other[slot] += 1
        assert bool(((run(head, other, features) - base).abs().amax(-1) > 1e-6).all())
    for row in range(4):
        other = features.clone()
        other[row] += 1
        assert bool(((run(head, block, other) - base).abs().amax(-1) > 1e-6).all())


def test_blocks_in_a_batch_do_not_see_each_other() -> None:
    head = random_head(config_of())
    blocks, features = torch.randn(3, 5, 24), torch.randn(3, 7, 48)
    context = head.project_context(features, torch.arange(7))
    together = head(blocks, context, torch.arange(7, 12), [None] * 3)
    for index in range(3):
        torch.testing.assert_close(together[index], run(head, blocks[index], features[index]), atol=1e-5, rtol=1e-5)


# Geometry --------------------------------------------------------------------------------------------------------


def test_key_set_is_that_of_published_heads() -> None:
    config = HeadConfig.from_checkpoint(QWEN3_VL_8B)
    with torch.device("meta"):
        shapes = {key: tuple(value.shape) for key, value in BlockHead(config).state_dict().items()}
    expected: dict[str, tuple[int, ...]] = {
        "fc.weight": (4096, 20480),
        "hidden_norm.weight": (4096,),
        "norm.weight": (4096,),
    }
    for i in range(5):
        expected |= {
            f"layers.{i}.input_layernorm.weight": (4096,),
            f"layers.{i}.post_attention_layernorm.weight": (4096,),
            f"layers.{i}.self_attn.q_proj.weight": (4096, 4096),
            f"layers.{i}.self_attn.k_proj.weight": (1024, 4096),
            f"layers.{i}.self_attn.v_proj.weight": (1024, 4096),
            f"layers.{i}.self_attn.o_proj.weight": (4096, 4096),
            f"layers.{i}.self_attn.q_norm.weight": (128,),
            f"layers.{i}.self_attn.k_norm.weight": (128,),
            f"layers.{i}.mlp.gate_proj.weight": (12288, 4096),
            f"layers.{i}.mlp.up_proj.weight": (12288, 4096),
            f"layers.{i}.mlp.down_proj.weight": (4096, 12288),
        }
    assert shapes == expected
    assert len(shapes) == 58


@pytest.mark.parametrize(
    ("name", "geometry", "billions"),
    [
        ("Qwen3-VL-4B", (2560, 9728, 32, 8, 36), 0.537),
        ("Qwen2.5-VL-7B", (3584, 18944, 28, 4, 28), 1.229),
        ("Llama-3.2-11B-Vision", (4096, 14336, 32, 8, 40), 1.174),
        ("Qwen3-VL-8B", (4096, 12288, 32, 8, 36), 1.049),
    ],
)
def test_parameters_of_the_papers_heads(name: str, geometry: tuple[int, ...], billions: float) -> None:
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_target_layers")
    config = HeadConfig.from_checkpoint({**QWEN3_VL_8B, **dict(zip(keys, geometry, strict=True))})
    assert round(num_parameters(config) / 1e9, 3) == billions


def test_parameters_of_the_8b_head_exactly() -> None:
    assert num_parameters(HeadConfig.from_checkpoint(QWEN3_VL_8B)) == 1_048_626_432


@pytest.mark.parametrize(
    ("num_layers", "count", "expected"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (28, 5, (1, 7, 13, 19, 25)),
        (32, 5, (1, 8, 15, 22, 29)),
        (24, 5, (1, 6, 11, 16, 21)),
        (36, 1, (18,)),
        (36, 2, (1, 33)),
        (6, 3, (1, 2, 3)),
    ],
)
def test_kept_layers_follow_the_published_rule(num_layers: int, count: int, expected: tuple[int, ...]) -> None:
    assert kept_layers(num_layers, count) == expected


# Configs ---------------------------------------------------------------------------------------------------------


def test_draft_keys_may_stand_at_top_level() -> None:
    flat = {key: value for key, value in SMALL.items() if key != "dflash_config"}
    assert HeadConfig.from_checkpoint({**flat, "mask_token_id": 49, "target_layer_ids": [1, 4]}) == config_of()


@pytest.mark.parametrize("rope_theta", [{}, {"rope_theta": None}])
@pytest.mark.parametrize("where", ["rope_parameters", "rope_scaling"])
def test_rope_theta_may_stand_in_the_rope_parameters(where: str, rope_theta: dict[str, None]) -> None:
    flat = {key: value for key, value in SMALL.items() if key != "rope_theta"}
    raw = {**flat, **rope_theta, where: {"rope_type": "default", "rope_theta": 5e5}}
    assert HeadConfig.from_checkpoint(raw) == config_of()


def test_head_dim_may_be_left_to_the_number_of_heads() -> None:
    raw = {key: value for key, value in SMALL.items() if key != "head_dim"}
    assert HeadConfig.from_checkpoint({**raw, "hidden_size": 32}).head_dim == 8


def test_nulls_are_absent() -> None:
    nulls = {"rope_scaling": None, "sliding_window": None, "layer_types": None, "oneglance": None}
    assert config_of(**nulls, use_sliding_window=False) == config_of()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20]}}, "M-RoPE.*remove mrope_section"),
        ({"rope_parameters": {"mrope_section": [1, 2]}}, "M-RoPE"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'.*default, llama3"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope type 'linear'"),
        ({"attention_bias": True}, "attention biases"),
        ({"hidden_act": "gelu"}, "activation 'gelu'.*silu"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        ({"layer_types": ["mamba"] * 3}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 3}, "sliding_window is missing"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 of 3 layers"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"block_size": 1}, "block_size"),
        ({"dflash_config": {"target_layer_ids": [1]}}, "mask_token_id is missing.*write the id"),
        ({"dflash_config": {"mask_token_id": 49}, "num_target_layers": None}, "num_target_layers: Field required"),
        ({"dflash_config": {"mask_token_id": -1, "target_layer_ids": [1]}}, "mask_token_id"),
        ({"dflash_config": {"mask_token_id": 49, "target_layer_ids": []}}, "target_layer_ids"),
        ({"dflash_config": [1]}, "dflash_config must be an object, got list"),
        ({"rope_scaling": {**LLAMA3, "factor": None}}, "rope_llama3"),
        ({"mlp_bias": True}, "MLP biases"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor 0\.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, r"partial_rotary_factor 0\.25"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"rope_theta": "big"}, "rope_theta"),
        ({"head_dim": None, "num_attention_heads": "six"}, "num_attention_heads"),
        ({"head_dim": None, "num_attention_heads": 0}, "num_attention_heads"),
        ({"head_dim": None, "hidden_size": [24]}, "hidden_size"),
        ({"layer_types": 3}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"use_sliding_window": True, "sliding_window": 4, "num_hidden_layers": "many"}, "num_hidden_layers"),
    ],
)
def test_what_the_head_cannot_compute_is_refused_by_name(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadError, match=message) as error:
        config_of(**overrides)
    assert "\n" not in str(error.value)
