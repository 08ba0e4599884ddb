"""The EAGLE-2 head: one decoder layer that regresses the target's top feature, which the target's lm_head reads.

A row is ``fc([embedding of the next token ; feature])``. A feature is the target's last hidden state after its final
norm; the embedding of an image row is the image's own. Checkpoints are laid out as EAGLE publishes them (``fc``,
``layers.0.…`` without ``input_layernorm``).
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from oneglance.core import HeadError
from oneglance.drafters.checkpoint import Checkpoint, check_tensors, read_config, read_tensors, refuse_block
from oneglance.drafters.eagle_head import CausalAttention, EagleConfig, renamed
from oneglance.drafters.head import MLP, KeysValues, Rope, checked, layer_keys
from oneglance.targets.state import EMBEDDING

PREFIXES = (("model.", ""),)  # as engines' own exporters spell the same keys
ROPE_THETA = 1e4  # of EAGLE's layer where the config is silent

C = TypeVar("C", bound="Eagle2Config")


class Eagle2Config(EagleConfig):
    """Geometry of an EAGLE-2 head.

    Attributes:
        has_bias: of the fusing layer.
        has_qkv_bias: the attention has biases, as in heads for Qwen2.
    """

    first_layer: ClassVar[int] = EMBEDDING

    has_bias: bool = True
    has_qkv_bias: bool = False

    @classmethod
    def from_checkpoint(cls, raw: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """Read a ``config.json`` of EAGLE or ViSpec; whether there are biases of the attention is read off the tensors.

        Raises:
            HeadError: a key is missing, malformed, or asks for something this head does not compute.
        """
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        theta = raw.get("rope_theta") or (rope.get("rope_theta") if isinstance(rope, dict) else None) or ROPE_THETA
        flat = layer_keys({**raw, "rope_theta": theta})
        flat.setdefault("num_key_value_heads", flat.get("num_attention_heads"))
        flat |= {
            "has_bias": flat.get("bias", True),
            "has_qkv_bias": "layers.0.self_attn.q_proj.bias" in tensors,
            "has_embedding": "embed_tokens.weight" in tensors,
            "target_layer_ids": (),  # it reads the top, whatever the target
        }
        config = checked(cls, flat)
        return config.for_target(config.num_target_layers) if config.num_target_layers else config

    def for_target(self, num_layers: int) -> Self:
        """With the target's embedding and top layer."""
        count = self.num_target_layers or num_layers
        return self.model_copy(update={"target_layer_ids": (EMBEDDING, num_layers - 1), "num_target_layers": count})


class Eagle2Layer(nn.Module):
    """A decoder layer without a norm at its input."""

    def __init__(self, config: Eagle2Config) -> None:
        super().__init__()
        self.self_attn = CausalAttention(config, config.hidden_size, bias=config.has_qkv_bias)
        self.mlp = MLP(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, x: Tensor, past: KeysValues | None, turned: tuple[Tensor, Tensor], mask: Tensor
    ) -> tuple[Tensor, KeysValues]:
        attended, own = self.self_attn(x, past, turned, mask)
        x = x + attended
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out, own


class Eagle2Head(nn.Module):
    """The draft head; its state dict has EAGLE's key set."""

    def __init__(self, config: Eagle2Config) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=config.has_bias)
        self.layers = nn.ModuleList([Eagle2Layer(config)])
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size) if config.has_embedding else None
        self.rope = Rope(config)

    def fuse(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """(…, H) embeddings of the tokens after each position and features, or outputs in their stead → (…, H)."""
        fused: Tensor = self.fc(torch.cat([embedded, hidden], dim=-1))
        return fused

    def run(
        self, rows: Tensor, past: KeysValues | None, position_ids: Tensor, mask: Tensor
    ) -> tuple[Tensor, KeysValues]:
        """The layer over rows (b, Q, H) that are fused already; the rest as in ``forward``."""
        out: tuple[Tensor, KeysValues] = self.layers[0](rows, past, self.rope(position_ids, rows.dtype), mask)
        return out

    def forward(
        self, embedded: Tensor, hidden: Tensor, past: KeysValues | None, position_ids: Tensor, mask: Tensor
    ) -> tuple[Tensor, KeysValues]:
        """One pass.

        Args:
            embedded: (b, Q, H) embeddings of the tokens after each position.
            hidden: (b, Q, H) features of the target, or this head's own output of the pass before.
            past: keys and values of earlier rows, (b, KV, P, D) each.
            position_ids: (b, Q) or (Q,).
            mask: broadcastable to (b, 1, Q, P+Q), True where a row may look.

        Returns:
            (b, Q, H) predicted features, for the target's lm_head, and the rows' own keys and values.
        """
        return self.run(self.fuse(embedded, hidden), past, position_ids, mask)


def load_eagle2(name: str) -> Checkpoint[Eagle2Config, Eagle2Head]:
    """Open and check an EAGLE-2 head without touching its target.

    Args:
        name: a folder, or a hub id.

    Raises:
        HeadError: as for block heads, or it is another kind of head.
    """
    raw, tensors = read_layer(name, "EAGLE-2")
    if any(key.startswith("imadpt.") for key in tensors):
        raise HeadError(f"{name} holds a ViSpec head (imadpt.…); choose drafter vispec")
    config = Eagle2Config.from_checkpoint(raw, tensors)
    check_tensors(Eagle2Head, config, tensors)
    return Checkpoint(name, config, raw, tensors, Eagle2Head)


def read_layer(name: str, what: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors of a head of EAGLE's single layer.

    Raises:
        HeadError: there is no such layer, hence no head of kind ``what``.
    """
    folder, raw = read_config(name)
    refuse_block(raw, name, read="vispec" if what == "ViSpec" else "eagle2")
    tensors = {renamed(key, PREFIXES): value for key, value in read_tensors(folder).items()}
    query = tensors.get("layers.0.self_attn.q_proj.weight")
    fused = tensors.get("fc.weight")
    if query is None or fused is None or query.ndim != 2 or query.shape[1] * 2 != fused.shape[-1]:
        raise HeadError(f"{name} holds no {what} head: layers.0.… over an fc twice as wide is missing")
    return raw, tensors
