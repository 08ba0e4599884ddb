"""The block draft head of the DFlash family: one pass from fused features to marginals of a whole block (§4.1).

The head owns no embedding and no lm_head: both are the target's. It reads only fused features; keys and values of the
context come from them, queries from the block [root, mask x (B-1)], which is bidirectional. Slot k predicts the token
k places after the root (no shift). Training and decoding call the same ``forward``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self, TypeVar

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn

from oneglance.core import HeadError
from oneglance.drafters.layouts import block_of, of_dflash, of_speculators

KeysValues = tuple[Tensor, Tensor]


C = TypeVar("C", bound="DraftConfig")


class DraftConfig(BaseModel):
    """What every kind of draft head says of itself.

    Attributes:
        first_layer: the lowest that it may keep.
        num_target_layers: of the target that it was made for.
        target_layer_ids: kept layers whose features it reads.
        block_size: offsets that it predicts, and one.
        mask_token_id: fills hidden slots of a block; heads that see no block have no use for it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    first_layer: ClassVar[int] = 0

    hidden_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    max_position_embeddings: int = Field(gt=0)
    block_size: int = Field(default=16, ge=2)
    num_target_layers: int = Field(gt=0)
    target_layer_ids: tuple[int, ...] = Field(min_length=1)
    mask_token_id: int = Field(default=0, ge=0)

    @property
    def num_offsets(self) -> int:
        """L = B - 1."""
        return self.block_size - 1

    @property
    def feature_size(self) -> int:
        """Width of the concatenated kept-layer features."""
        return len(self.target_layer_ids) * self.hidden_size

    def for_target(self, num_layers: int) -> Self:
        """With whatever the checkpoint leaves to the target, of ``num_layers`` layers."""
        return self


class LayerConfig(DraftConfig):
    """Geometry of a head made of decoder layers."""

    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    rms_norm_eps: float = Field(default=1e-6, gt=0, allow_inf_nan=False)
    rope_theta: float = Field(default=1e6, gt=0, allow_inf_nan=False)
    rope_llama3: tuple[float, float, float, int] | None = None  # factor, low, high, original context

    @model_validator(mode="after")
    def _heads_fit_together(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is no multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even, got {self.head_dim}")
        return self


class HeadConfig(LayerConfig):
    """Geometry of a block head, as far as it decides what the head computes."""

    layer_types: tuple[Literal["full_attention", "sliding_attention"], ...] = ()
    sliding_window: int | None = None
    mask_token_id: int = Field(ge=0)
    num_target_layers: int = Field(ge=0)  # 0 where speculators' layout does not say

    @classmethod
    def from_checkpoint(cls, config: dict[str, Any]) -> HeadConfig:
        """Read a DFlash ``config.json``: z-lab's layout, which SpecForge writes too, or speculators'.

        Raises:
            HeadError: a key is missing, malformed, or asks for something this head does not compute.
        """
        block_of(config, "oneglance")
        if "speculators_model_type" in config:
            config = of_speculators(config)
        return checked(cls, layer_keys(of_dflash(config)))

    def for_target(self, num_layers: int) -> Self:
        """With the target's depth where the checkpoint does not say it."""
        return self.model_copy(update={"num_target_layers": self.num_target_layers or num_layers})

    @model_validator(mode="before")
    @classmethod
    def _kept_layers_by_the_rule(cls, flat: dict[str, Any]) -> dict[str, Any]:
        """As DFlash and SpecForge do where the config names none: as many as the head has layers."""
        depth, count = flat.get("num_target_layers"), flat.get("num_hidden_layers")
        if "target_layer_ids" in flat or not isinstance(depth, int) or not isinstance(count, int):
            return flat
        return {**flat, "target_layer_ids": kept_layers(depth, count)}

    @model_validator(mode="before")
    @classmethod
    def _layer_types_of_older_configs(cls, flat: dict[str, Any]) -> dict[str, Any]:
        """As Qwen3's config does: with ``use_sliding_window``, layers from ``max_window_layers`` on slide."""
        if flat.get("layer_types") or not flat.get("use_sliding_window") or not flat.get("sliding_window"):
            return flat
        first, count = flat.get("max_window_layers", 28), flat.get("num_hidden_layers")
        if not isinstance(first, int) or not isinstance(count, int):
            return flat
        kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(count)]
        return {**flat, "layer_types": kinds}

    @model_validator(mode="after")
    def _layers_fit_together(self) -> Self:
        if self.layer_types and len(self.layer_types) < self.num_hidden_layers:
            raise ValueError(f"layer_types names {len(self.layer_types)} of {self.num_hidden_layers} layers")
        if "sliding_attention" in self.layer_types and not self.sliding_window:
            raise ValueError("a layer is sliding_attention but sliding_window is missing")
        return self

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer, None for full attention."""
        sliding = bool(self.layer_types) and self.layer_types[layer] == "sliding_attention"
        return self.sliding_window if sliding else None


def layer_keys(config: dict[str, Any]) -> dict[str, Any]:
    """The keys of a ``config.json`` that are not null, RoPE among them, in whichever of HF's two spellings.

    Raises:
        HeadError: it asks for something that no head here computes.
    """
    flat = {key: value for key, value in config.items() if value is not None}
    rope = {**block_of(config, "rope_scaling"), **block_of(config, "rope_parameters")}
    flat.setdefault("rope_theta", rope.get("rope_theta", 1e6))
    hidden, heads = flat.get("hidden_size"), flat.get("num_attention_heads")
    if "head_dim" not in flat and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        flat["head_dim"] = hidden // heads
    _refuse_unsupported(flat, rope)
    if rope.get("rope_type", rope.get("type")) == "llama3":
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        flat["rope_llama3"] = tuple(rope.get(key) for key in keys)
    if flat.get("quantization_config"):
        raise HeadError("the head is quantised, which is not supported; use its bf16 or fp32 checkpoint")
    return flat


def checked(kind: type[C], flat: dict[str, Any]) -> C:
    """A head's config from flat keys.

    Raises:
        HeadError: one is missing or malformed.
    """
    try:
        return kind(**flat)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        where = f"{key}: " if key else ""
        raise HeadError(f"config.json of the head: {where}{first['msg'].removeprefix('Value error, ')}") from error


def _refuse_unsupported(config: dict[str, Any], rope: dict[str, Any]) -> None:
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if rope.get("mrope_section") or config.get("mrope_section"):
        raise HeadError("the head asks for M-RoPE; draft positions are 1-D token indices here: remove mrope_section")
    if kind not in ("default", "llama3"):
        raise HeadError(f"rope type {kind!r} of the head is not supported; supported: default, llama3")
    if config.get("attention_bias"):
        raise HeadError("the head has attention biases, which the DFlash layout does not; check the checkpoint")
    if config.get("mlp_bias"):
        raise HeadError("the head has MLP biases, which the DFlash layout does not; check the checkpoint")
    partial = config.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1))
    if partial is not None and partial != 1:
        raise HeadError(f"partial_rotary_factor {partial!r} of the head is not supported; RoPE turns whole heads: 1")
    if config.get("hidden_act", "silu") != "silu":
        raise HeadError(f"activation {config['hidden_act']!r} of the head is not supported; supported: silu")


def kept_layers(num_layers: int, count: int) -> tuple[int, ...]:
    """DFlash's rule for kept layers: ``count`` layers evenly from 1 to ``num_layers`` - 3 (36, 5 → 1 9 17 25 33)."""
    if count == 1:
        return (num_layers // 2,)
    last = num_layers - 3
    return tuple(round(1 + i * (last - 1) / (count - 1)) for i in range(count))


class Attention(nn.Module):
    """Block queries over context and block; one k_proj and v_proj serve both."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def keys_values(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> KeysValues:
        """(b, T, H) → keys (after norm and RoPE) and values, (b, KV, T, D) each."""
        shape = (*x.shape[:-1], -1, self.head_dim)
        keys = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        return rotate(keys, rotation), self.v_proj(x).view(shape).transpose(1, 2)

    def forward(
        self,
        x: Tensor,
        context: KeysValues,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        slots: slice | Tensor | None = None,
    ) -> Tensor:
        shape = (*x.shape[:-1], -1, self.head_dim)
        queries = rotate(self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2), rotation)
        keys, values = joined(context, self.keys_values(x, rotation), slots)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        projected: Tensor = self.o_proj(out.transpose(1, 2).reshape(*x.shape[:-1], -1))
        return projected


class MLP(nn.Module):
    """SiLU-gated, three linears."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Pre-norm for the block stream only; the context is normed once, by the head."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        x: Tensor,
        context: KeysValues,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        slots: slice | Tensor | None = None,
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, rotation, mask, slots)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Rope(nn.Module):
    """RoPE of the head's own config, never the target's. Its frequencies stay float32 whatever the head is cast to."""

    inv_freq: Tensor

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self._config = config
        self.register_buffer("inv_freq", rope_frequencies(config), persistent=False)

    def forward(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin at given positions, (…, T, D) each."""
        angles = position_ids[..., None].float() * self.inv_freq
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # rounded to bf16 a frequency is off by up to 0.4 %: another RoPE than the head was trained with
        self.inv_freq = rope_frequencies(self._config).to(self.inv_freq.device)
        return self


class BlockHead(nn.Module):
    """The draft head; its state dict has z-lab's key set (58 tensors for 5 layers)."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rope = Rope(config)

    @property
    def _layers(self) -> list[Layer]:
        return list(self.layers)  # type: ignore[arg-type]  # a ModuleList does not know what it holds

    def project_context(self, features: Tensor, position_ids: Tensor) -> list[KeysValues]:
        """Keys and values of context rows, a pair a layer. Depends on nothing else, so caching it is exact.

        Args:
            features: (b, T, F) fused features.
            position_ids: (b, T) or (T,) token indices; image rows count one each.
        """
        context = self.hidden_norm(self.fc(features))
        rotation = self.rope(position_ids, context.dtype)
        return [layer.self_attn.keys_values(context, rotation) for layer in self._layers]

    def forward(
        self,
        block: Tensor,
        context: Sequence[KeysValues],
        position_ids: Tensor,
        masks: Sequence[Tensor | None],
        slots: slice | Tensor | None = None,
    ) -> Tensor:
        """One pass.

        Args:
            block: (b, Q, H) embeddings of one or more blocks, [root, mask, …] each.
            context: from ``project_context``.
            position_ids: (b, Q) or (Q,) token indices of the slots.
            masks: per layer, broadcastable to (b, 1, Q, T+Q), True where a slot may look; None sees everything.
            slots: rows of ``context`` that are the block's own and are written in place, as a slice or (Q,) places;
                None where it has none.

        Returns:
            (b, Q, H) states for the target's lm_head.
        """
        rotation = self.rope(position_ids, block.dtype)
        for layer, keys_values, mask in zip(self.layers, context, masks, strict=True):
            block = layer(block, keys_values, rotation, mask, slots)
        out: Tensor = self.norm(block)
        return out


def joined(context: KeysValues, block: KeysValues, slots: slice | Tensor | None) -> KeysValues:
    """Keys and values of context and block: in new tensors, or in the context's own where it has slots for them."""
    if slots is None:
        return torch.cat([context[0], block[0]], 2), torch.cat([context[1], block[1]], 2)
    for rows, own in zip(context, block, strict=True):
        if isinstance(slots, Tensor):
            rows.index_copy_(2, slots, own)
        else:
            rows[:, :, slots] = own
    return context


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate-half RoPE on (b, heads, T, D)."""
    cos, sin = (part if part.ndim == 2 else part[:, None] for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def rope_frequencies(config: LayerConfig) -> Tensor:
    """(D/2,) inverse frequencies, float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if config.rope_llama3 is None:
        return frequencies
    factor, low, high, original = config.rope_llama3
    wavelengths = 2 * math.pi / frequencies
    blend = ((original / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / factor + blend * frequencies


def num_parameters(config: HeadConfig) -> int:
    """Parameters of the head; embedding and lm_head are the target's and not counted (Table 2)."""
    with torch.device("meta"):
        head = BlockHead(config)
    return sum(parameter.numel() for parameter in head.parameters())
