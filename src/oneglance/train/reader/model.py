"""The target's configuration and a batched forward pass for pages of one shape."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl import modeling_qwen3_vl as hf

from oneglance.train.reader.data import CELL, LENGTHS, NUM_CHARS, NUM_COLUMNS, PATCH, Batch
from oneglance.train.reader.recipe import Phase, Shape
from oneglance.train.reader.tokens import Encoder

GRID_SIDE: Final = 16
"""Side of the learned position grid: exact for square pages, resampled for tall ones."""


def config(shape: Shape, encoder: Encoder) -> Qwen3VLConfig:
    """The target's configuration."""
    end, pad = encoder.end_id, encoder.id("<|endoftext|>")
    return Qwen3VLConfig(
        text_config={
            "vocab_size": shape.vocab_size,
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.mlp_size,
            "num_hidden_layers": shape.num_layers,
            "num_attention_heads": shape.num_heads,
            "num_key_value_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": True,
            "initializer_range": shape.init_std,
            "bos_token_id": None,
            "eos_token_id": end,
            "pad_token_id": pad,
        },
        vision_config={
            "depth": shape.vision_depth,
            "hidden_size": shape.vision_hidden_size,
            "intermediate_size": shape.vision_mlp_size,
            "num_heads": shape.vision_heads,
            "patch_size": PATCH,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": shape.hidden_size,
            "num_position_embeddings": GRID_SIDE**2,
            "deepstack_visual_indexes": list(shape.deepstack_layers),
            "initializer_range": shape.init_std,
        },
        image_token_id=encoder.image_id,
        video_token_id=encoder.id("<|video_pad|>"),
        vision_start_token_id=encoder.id("<|vision_start|>"),
        vision_end_token_id=encoder.id("<|vision_end|>"),
        tie_word_embeddings=True,
    )


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention (B, heads, rows, head_dim) by plain products: on a CPU in bf16 its backward
    pass is four to eight times as fast as the fused kernel's."""
    scores: Tensor = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    return torch.matmul(scores.softmax(-1), v)


class Text:
    """The decoder layers over B rows of one padded length, without a cache."""

    def __init__(self, decoder: hf.Qwen3VLTextModel) -> None:
        self.decoder = decoder

    def __call__(
        self,
        x: Tensor,
        positions: Tensor,
        is_image: Tensor,
        deep: list[Tensor],
        *,
        skip: int = 0,
        guides: dict[int, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Final states (B, T - skip, hidden) of embeddings `x` at M-RoPE `positions` (3, 1, T).

        The last layer leaves out the first `skip` rows, which nobody asks for. `guides` names, for
        a layer, the row that each row's first head should look at, -1 for none; the second result
        is the mean cross-entropy of those looks.
        """
        guides, losses = guides or {}, [x.sum() * 0]
        length, last = x.shape[1], len(self.decoder.layers) - 1
        rope = self.decoder.rotary_emb(x, positions)
        if torch.is_autocast_enabled("cpu"):
            rope = tuple(t.to(torch.bfloat16) for t in rope)
        mask = torch.full((length, length), float("-inf")).triu(1)
        for level, layer in enumerate(self.decoder.layers):
            start, normed = skip if level == last else 0, layer.input_layernorm(x)
            if level in guides:
                losses.append(self._look(layer.self_attn, normed, rope, mask, guides[level]))
            x = x[:, start:] + self._attention(layer.self_attn, normed, rope, mask, start)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if level < len(deep):
                x = x + torch.zeros_like(x).masked_scatter(is_image[..., None], deep[level].to(x.dtype))
        final: Tensor = self.decoder.norm(x)
        return final, torch.stack(losses).sum() / max(len(guides), 1)

    def _look(
        self,
        attention: hf.Qwen3VLTextAttention,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        mask: Tensor,
        wanted: Tensor,
    ) -> Tensor:
        """Cross-entropy of the first head's attention at the rows that know where to look."""
        width = attention.head_dim
        q = attention.q_norm(F.linear(x, attention.q_proj.weight[:width]))[:, None]
        k = attention.k_norm(F.linear(x, attention.k_proj.weight[:width]))[:, None]
        q, k = hf.apply_rotary_pos_emb(q, k, *rope)
        scores = (q[:, 0] * width**-0.5) @ k[:, 0].transpose(-1, -2)  # (B, T, T)
        is_asked = wanted >= 0
        rows = scores.float() + mask
        return F.cross_entropy(rows[is_asked], wanted[is_asked]) if is_asked.any() else rows[:, -1].sum() * 0

    def _attention(
        self, attention: hf.Qwen3VLTextAttention, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor, start: int
    ) -> Tensor:
        """Attention of the rows from `start` on to all rows before them."""
        batch, length, _ = x.shape
        shape = (batch, length, -1, attention.head_dim)
        q = attention.q_norm(attention.q_proj(x).view(shape)).transpose(1, 2)
        k = attention.k_norm(attention.k_proj(x).view(shape)).transpose(1, 2)
        v = attention.v_proj(x).view(shape).transpose(1, 2)
        q, k = hf.apply_rotary_pos_emb(q, k, *rope)
        groups = attention.num_key_value_groups
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
        out = attend(q[:, :, start:], k, v, mask[start:])
        mixed: Tensor = attention.o_proj(out.transpose(1, 2).reshape(batch, length - start, -1))
        return mixed


class Vision:
    """The vision tower over B pages of one shape at once, from single-frame patches."""

    def __init__(self, tower: hf.Qwen3VLVisionModel) -> None:
        self.tower = tower
        self._grids: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}

    def __call__(self, patches: Tensor, size: tuple[int, int]) -> tuple[Tensor, list[Tensor]]:
        """Merged features (B * C, hidden) and the DeepStack features, each (B * C, hidden)."""
        tower = self.tower
        indices, weights, positions = self._grid(size)
        kernel = tower.patch_embed.proj.weight  # (D, 3, 2, 16, 16)
        x = F.linear(patches, kernel.sum(2).flatten(1), tower.patch_embed.proj.bias)
        x = x + (tower.pos_embed(indices) * weights[:, :, None]).sum(1)
        cos, sin = (t[:, None, :] for t in tower.rotary_pos_emb(x, positions))
        deep = []
        for level, block in enumerate(tower.blocks):
            x = x + self._attention(block.attn, block.norm1(x), cos, sin)
            x = x + block.mlp(block.norm2(x))
            if level in tower.deepstack_visual_indexes:
                merger = tower.deepstack_merger_list[tower.deepstack_visual_indexes.index(level)]
                deep.append(merger(x.flatten(0, 1)))
        return tower.merger(x.flatten(0, 1)), deep

    def _attention(self, attention: hf.Qwen3VLVisionAttention, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = attention.qkv(x).view(batch, length, 3, attention.num_heads, -1)
        q, k, v = qkv.unbind(2)  # (B, P, heads, head_dim)
        q, k = (t * cos.to(t.dtype) + hf.rotate_half(t) * sin.to(t.dtype) for t in (q, k))
        out = attend(*(t.transpose(1, 2) for t in (q, k, v)))
        mixed: Tensor = attention.proj(out.transpose(1, 2).reshape(batch, length, width))
        return mixed

    def _grid(self, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Position-table indices and weights (P, 4), rotary positions (2, P)."""
        if size not in self._grids:
            grid = torch.tensor([[1, size[1] // PATCH, size[0] // PATCH]])
            indices, weights = hf.get_vision_interpolation_indices_and_weights(
                grid,
                num_grid_per_side=self.tower.num_grid_per_side,
                mode="bilinear",
                align_corners=True,
                spatial_merge_size=2,
                kwargs={},
            )
            self._grids[size] = (indices, weights, hf.get_vision_position_ids(grid, 2, kwargs={}))
        return self._grids[size]


class Trainee(nn.Module):
    """The target with the training-only heads on its merged vision cells."""

    def __init__(self, target: Qwen3VLForConditionalGeneration) -> None:
        super().__init__()
        self.target = target
        hidden = target.config.text_config.hidden_size
        self.chars = nn.Linear(hidden, NUM_COLUMNS * (NUM_CHARS + 1))
        self.objects = nn.Linear(hidden, 11 + 9)
        self.columns = nn.Embedding(NUM_COLUMNS, hidden)
        self.piece = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))
        self._vision, self._text = Vision(target.model.visual), Text(target.model.language_model)
        self._positions: dict[tuple[int, int], Tensor] = {}

    def freeze(self, phase: Phase) -> None:
        """Leave out, or take in, what the phase's losses do not reach."""
        model = self.target.model
        self.target.requires_grad_(not phase.heads_only)
        if phase.vision_only:
            for module in (*model.language_model.layers, model.language_model.norm, model.visual.deepstack_merger_list):
                module.requires_grad_(False)

    def vision(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """Features of the batch's cells."""
        return self._vision(batch.patches, batch.size)

    def char_loss(self, cells: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropy of the sub-columns' characters and of the drawn objects."""
        logits = self.chars(cells).float().view(-1, NUM_CHARS + 1)
        wanted = batch.chars.flatten()
        weight = torch.where(wanted > 0, 1.0, 0.08)
        losses = F.cross_entropy(logits, wanted, reduction="none")
        loss = (losses * weight).sum() / weight.sum()
        kinds, colours = self.objects(cells).float().split((11, 9), dim=-1)
        seen = batch.objects.flatten(0, 1)
        weight = torch.where(seen[:, 0] > 0, 1.0, 0.05)
        for logits, wanted in ((kinds, seen[:, 0]), (colours, seen[:, 1])):
            loss = loss + (F.cross_entropy(logits, wanted, reduction="none") * weight).sum() / weight.sum()
        return loss

    def piece_loss(self, cells: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropy of the word piece that begins at each marked sub-column."""
        if len(batch.piece_at) == 0:
            return cells.sum() * 0
        column = self.columns(batch.piece_at % NUM_COLUMNS)
        queries = self.piece(cells[batch.piece_at // NUM_COLUMNS] + column)
        logits = F.linear(queries, self.target.lm_head.weight).float()
        return F.cross_entropy(logits, batch.piece_ids)

    def answer_loss(self, cells: Tensor, deep: list[Tensor], batch: Batch) -> tuple[Tensor, int, int, Tensor]:
        """Summed cross-entropy of the answers' tokens, their number, how many are right; the pointers' loss."""
        text = self.target.model.language_model
        is_image = batch.ids == self.target.config.image_token_id
        embeds = text.embed_tokens(batch.ids)
        embeds = embeds.masked_scatter(is_image[..., None], cells.to(embeds.dtype))
        skip = num_cells(batch.size)
        hidden, pointing = self._text(
            embeds, self._position_ids(batch), is_image, deep, skip=skip, guides=self._guides(batch)
        )
        labels = batch.labels[:, skip:]
        asked = labels >= 0
        logits = self.target.lm_head(hidden[asked]).float()
        wanted = labels[asked]
        right = int((logits.argmax(-1) == wanted).sum())
        return F.cross_entropy(logits, wanted, reduction="sum"), len(wanted), right, pointing

    def _guides(self, batch: Batch) -> dict[int, Tensor]:
        """Early, look at the cell of the token just read; later, at that of the token to come."""
        first = int((batch.ids[0] == self.target.config.image_token_id).nonzero()[0])
        coming = torch.where(batch.pointers >= 0, batch.pointers + first, -1)
        current = torch.roll(coming, 1, dims=1)
        current[:, 0] = -1
        return {2: current, 3: coming, 5: coming}

    def _position_ids(self, batch: Batch) -> Tensor:
        """M-RoPE positions (3, 1, T): the image comes first, so all rows share them."""
        if batch.size not in self._positions:
            ids = torch.zeros(1, LENGTHS[batch.size], dtype=torch.long)
            ids[:, : batch.ids.shape[1]] = batch.ids[:1]
            grid = torch.tensor([[1, batch.size[1] // PATCH, batch.size[0] // PATCH]])
            kinds = (ids == self.target.config.image_token_id).int()
            self._positions[batch.size] = self.target.model.get_rope_index(ids, kinds, grid)[0]
        return self._positions[batch.size][:, :, : batch.ids.shape[1]]


def num_cells(size: tuple[int, int]) -> int:
    """Merged vision cells of a page."""
    return size[0] * size[1] // CELL**2
