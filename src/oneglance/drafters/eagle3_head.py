"""The EAGLE-3 head: one decoder layer that reads fused features and the next token, and feeds on its own output.

The first pass reads ``fuse(features)``, later ones the layer's own output, both normed apart from the embedding.
Checkpoints are laid out as by SpecForge and AQ-MedAI (``midlayer.…``, ``fc``, ``norm``, ``lm_head``, ``d2t``, ``t2d``).
"""

from __future__ import annotations

from typing import Any, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from oneglance.core import HeadError
from oneglance.drafters.checkpoint import Checkpoint, check_tensors, read_config, read_tensors, refuse_block
from oneglance.drafters.eagle_head import CausalAttention, EagleConfig, renamed
from oneglance.drafters.head import MLP, KeysValues, Rope, checked, layer_keys
from oneglance.drafters.layouts import block_of, of_eagle3

NUM_FEATURES = 3
PREFIXES = (("model.", ""), ("layers.0.", "midlayer."))  # as other exporters spell the same keys


class Eagle3Config(EagleConfig):
    """Geometry of an EAGLE-3 head.

    Attributes:
        draft_vocab_size: rows of the head's own lm_head; below ``vocab_size`` a table maps them to the target's ids.
        wants_mrope: the checkpoint asks for M-RoPE positions. It gets token indices.
    """

    draft_vocab_size: int = Field(gt=0)
    wants_mrope: bool = False

    @property
    def feature_size(self) -> int:
        return NUM_FEATURES * self.hidden_size

    @property
    def maps_vocabulary(self) -> bool:
        return self.draft_vocab_size != self.vocab_size

    @classmethod
    def from_checkpoint(cls, raw: dict[str, Any], *, has_embedding: bool = False) -> Eagle3Config:
        """Read a ``config.json`` of SpecForge, AQ-MedAI or EAGLE.

        Raises:
            HeadError: a key is missing, malformed, or asks for something this head does not compute.
        """
        raw = of_eagle3(raw)
        rope = {**block_of(raw, "rope_scaling"), **block_of(raw, "rope_parameters")}
        wants_mrope = bool(rope.get("mrope_section"))
        plain = {**raw, "rope_theta": raw.get("rope_theta") or rope.get("rope_theta") or 1e6}
        if wants_mrope:
            plain |= {"rope_scaling": None, "rope_parameters": None}
        flat = layer_keys(plain)
        flat.setdefault("draft_vocab_size", flat.get("vocab_size"))
        flat.setdefault("num_key_value_heads", flat.get("num_attention_heads"))
        ids = raw["target_layer_ids"]
        if ids and len(ids) != NUM_FEATURES:
            raise HeadError(
                f"an EAGLE-3 head reads {NUM_FEATURES} layers, its config names {len(ids)}; name {NUM_FEATURES}"
            )
        flat |= {"has_embedding": has_embedding, "wants_mrope": wants_mrope}
        return checked(cls, flat)

    def for_target(self, num_layers: int) -> Self:
        """With the target's layers where the checkpoint does not name them.

        Raises:
            HeadError: the rule for kept layers needs a deeper target.
        """
        ids = self.target_layer_ids or aux_layers(num_layers)
        if len(set(ids)) < len(ids):
            raise HeadError(
                f"EAGLE-3's rule for kept layers gives {list(ids)} of {num_layers}; name three different ones: "
                "head.target_layer_ids of a recipe, --layers of train-matched, or a checkpoint's "
                "eagle_config.eagle_aux_hidden_state_layer_ids"
            )
        return self.model_copy(
            update={"target_layer_ids": ids, "num_target_layers": self.num_target_layers or num_layers}
        )


def aux_layers(num_layers: int) -> tuple[int, ...]:
    """EAGLE-3's kept layers as layer outputs: an early, a middle and a late one (36 → 1 17 32)."""
    return (1, num_layers // 2 - 1, num_layers - 4)


class MidLayer(nn.Module):
    """Embedding and hidden state are normed apart; the residual is the hidden state before its norm."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.self_attn = CausalAttention(config, 2 * config.hidden_size)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, embedded: Tensor, hidden: Tensor, past: KeysValues | None, turned: tuple[Tensor, Tensor], mask: Tensor
    ) -> tuple[Tensor, KeysValues]:
        fused = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], dim=-1)
        attended, own = self.self_attn(fused, past, turned, mask)
        hidden = hidden + attended
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out, own


class Eagle3Head(nn.Module):
    """The draft head; its state dict has SpecForge's key set."""

    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size) if config.has_embedding else None
        if config.maps_vocabulary:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
            self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.rope = Rope(config)

    def set_vocabulary(self, token_ids: Tensor) -> None:
        """Draft over these ids of the target alone.

        Args:
            token_ids: (draft_vocab_size,) ascending.
        """
        self.d2t.copy_(token_ids - torch.arange(len(token_ids), device=token_ids.device))  # an offset, not an id
        self.t2d.zero_()
        self.t2d[token_ids] = True

    @property
    def token_ids(self) -> Tensor:
        """(draft_vocab_size,) the target's id of each row of the lm_head."""
        rows = torch.arange(self.config.draft_vocab_size, device=self.lm_head.weight.device)
        return rows + self.d2t if self.config.maps_vocabulary else rows

    def fuse(self, features: Tensor) -> Tensor:
        """(…, 3H) kept-layer features → (…, H)."""
        fused: Tensor = self.fc(features)
        return fused

    def forward(
        self, embedded: Tensor, hidden: Tensor, past: KeysValues | None, position_ids: Tensor, mask: Tensor
    ) -> tuple[Tensor, KeysValues]:
        """One pass.

        Args:
            embedded: (b, Q, H) embeddings of the tokens after each position.
            hidden: (b, Q, H) fused features, or this head's own output of the pass before.
            past: keys and values of earlier rows, (b, KV, P, D) each.
            position_ids: (b, Q) or (Q,).
            mask: broadcastable to (b, 1, Q, P+Q), True where a row may look.

        Returns:
            (b, Q, H) output, and the rows' own keys and values.
        """
        turned = self.rope(position_ids, embedded.dtype)
        out: tuple[Tensor, KeysValues] = self.midlayer(embedded, hidden, past, turned, mask)
        return out

    def logits(self, output: Tensor) -> Tensor:
        """(…, H) output → (…, draft_vocab_size)."""
        rows: Tensor = self.lm_head(self.norm(output))
        return rows


def load_eagle3(name: str) -> Checkpoint[Eagle3Config, Eagle3Head]:
    """Open and check an EAGLE-3 head without touching its target.

    Args:
        name: a folder, or a hub id.

    Raises:
        HeadError: as for block heads, or the vocabulary map is none.
    """
    folder, raw = read_config(name)
    refuse_block(raw, name, read="eagle3")
    tensors = {renamed(key, PREFIXES): value for key, value in read_tensors(folder).items()}
    if "midlayer.self_attn.q_proj.weight" not in tensors or "lm_head.weight" not in tensors:
        raise HeadError(f"{name} holds no EAGLE-3 head: midlayer.… or lm_head.weight is missing")
    config = Eagle3Config.from_checkpoint(raw, has_embedding="embed_tokens.weight" in tensors)
    if {"d2t", "t2d"} <= tensors.keys():
        tensors |= {"d2t": tensors["d2t"].long(), "t2d": tensors["t2d"].bool()}
        if not config.maps_vocabulary:
            _drop_identity(tensors)
    check_tensors(Eagle3Head, config, tensors)
    if config.maps_vocabulary:
        check_vocabulary(config, tensors["d2t"], tensors["t2d"])
    return Checkpoint(name, config, raw, tensors, Eagle3Head)


def _drop_identity(tensors: dict[str, Tensor]) -> None:
    """SpecForge writes a map for a whole vocabulary too, one that maps nothing; a head without a map does the same."""
    if bool(tensors.pop("d2t").any()) or not bool(tensors.pop("t2d").all()):
        raise HeadError(
            "d2t and t2d map a vocabulary of which the config drafts all; set draft_vocab_size to d2t's rows"
        )


def check_vocabulary(config: Eagle3Config, d2t: Tensor, t2d: Tensor) -> None:
    """Refuse a map from draft to target ids that contradicts itself: ``d2t`` holds offsets.

    Raises:
        HeadError: ids past the vocabulary, two rows for one id, or another set than ``t2d`` marks.
    """
    token_ids = torch.arange(config.draft_vocab_size) + d2t
    if int(token_ids.min()) < 0 or int(token_ids.max()) >= config.vocab_size:
        raise HeadError(
            f"d2t maps to ids outside the vocabulary of {config.vocab_size}; it holds offsets (target id - draft id)"
        )
    marked = torch.zeros(config.vocab_size, dtype=torch.bool)
    marked[token_ids] = True
    if not torch.equal(marked, t2d) or int(marked.sum()) != len(token_ids):
        raise HeadError("d2t and t2d contradict each other; the checkpoint is damaged, or d2t holds ids, not offsets")
