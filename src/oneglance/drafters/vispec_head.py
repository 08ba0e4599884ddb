"""The ViSpec head: EAGLE-2's, and an adaptor that compresses each image to as many rows as it has queries, less one.

The last query's output is no row: it is a global vector of the image, which every later row of text is told.
Checkpoints are laid out as ViSpec publishes them (EAGLE's keys, ``imadpt.…``, ``img_fc.…``).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from oneglance.core import HeadError
from oneglance.drafters.checkpoint import Checkpoint, check_tensors
from oneglance.drafters.eagle2_head import Eagle2Config, Eagle2Head, read_layer

NUM_QUERIES = 2  # of the heads that ViSpec publishes


class VispecConfig(Eagle2Config):
    """Geometry of a ViSpec head.

    Attributes:
        num_queries: learned queries an image; rows that stand for it, and one.
    """

    num_queries: int = Field(default=NUM_QUERIES, ge=2)


class ImageAdaptor(nn.Module):
    """Learned queries over the embeddings of one image, each head with keys of its own, without positions."""

    def __init__(self, config: VispecConfig) -> None:
        super().__init__()
        self.shape = (config.num_attention_heads, config.head_dim)
        width = config.num_attention_heads * config.head_dim
        self.q = nn.Parameter(torch.randn(config.num_queries, *self.shape) * config.head_dim**-0.5)
        self.k_proj = nn.Linear(config.hidden_size, width, bias=config.has_qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, width, bias=config.has_qkv_bias)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, embedded: Tensor) -> Tensor:
        """(I, H) → (queries, H)."""
        keys, values = (proj(embedded).unflatten(-1, self.shape).transpose(0, 1) for proj in (self.k_proj, self.v_proj))
        queries = self.q.transpose(0, 1).to(keys.dtype)
        attended = F.scaled_dot_product_attention(queries[None], keys[None], values[None])[0]
        out: Tensor = self.o_proj(attended.transpose(0, 1).flatten(1))
        return out


class Rows(NamedTuple):
    """Rows of a sequence for the head's layer, images compressed.

    Attributes:
        inputs: (R, H).
        places: (R,) ascending: where each stands among the T rows of the sequence.
        image: (H,) global vector of the last image, for whatever follows; zeros without one.
    """

    inputs: Tensor
    places: Tensor
    image: Tensor


class VispecHead(Eagle2Head):
    """The draft head; its state dict has ViSpec's key set."""

    config: VispecConfig

    def __init__(self, config: VispecConfig) -> None:
        super().__init__(config)
        self.imadpt = ImageAdaptor(config)
        self.img_fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=config.has_bias)
        with torch.no_grad():  # at first no row learns anything of the image
            self.img_fc.weight.zero_()
            self.img_fc.weight[:, : config.hidden_size].fill_diagonal_(1.0)
            if self.img_fc.bias is not None:
                self.img_fc.bias.zero_()

    def told(self, hidden: Tensor, image: Tensor) -> Tensor:
        """(…, H) features or outputs, told the global vector of an image (…, H)."""
        out: Tensor = self.img_fc(torch.cat([hidden, image.expand_as(hidden)], dim=-1))
        return out

    def compress(self, embedded: Tensor, hidden: Tensor, is_image: Tensor) -> Rows:
        """The rows of one sequence from its beginning.

        Args:
            embedded: (T, H) of the token after each row, an image's own where that is a row of an image.
            hidden: (T, H) features.
            is_image: (T,) True where the token after the row is one of an image. Rows on end are one image.
        """
        ends = is_image & ~F.pad(is_image[1:], (0, 1))
        starts = is_image & ~F.pad(is_image[:-1], (1, 0))
        vectors, stand_ins, places = [hidden.new_zeros(hidden.shape[-1])], [], [(~is_image).nonzero()[:, 0]]
        for start, last in zip(starts.nonzero()[:, 0].tolist(), ends.nonzero()[:, 0].tolist(), strict=True):
            adapted = self.imadpt(embedded[start : last + 1])
            count = min(len(adapted) - 1, last + 1 - start)
            stand_ins.append(adapted[len(adapted) - 1 - count : -1])
            vectors.append(adapted[-1])
            places.append(torch.arange(last + 1 - count, last + 1, device=is_image.device))
        text = places[0]
        image = torch.stack([vector.to(vectors[-1].dtype) for vector in vectors])[ends.cumsum(0)[text]]
        fused = self.fuse(embedded[text], self.told(hidden[text], image))
        inputs, joined = torch.cat([fused, *(rows.to(fused.dtype) for rows in stand_ins)]), torch.cat(places)
        order = joined.argsort()
        return Rows(inputs[order], joined[order], vectors[-1])


def load_vispec(name: str) -> Checkpoint[VispecConfig, VispecHead]:
    """Open and check a ViSpec head without touching its target.

    Args:
        name: a folder, or a hub id.

    Raises:
        HeadError: as for block heads, or it is another kind of head.
    """
    raw, tensors = read_layer(name, "ViSpec")
    queries = tensors.get("imadpt.q")
    if queries is None or queries.ndim != 3:
        raise HeadError(f"{name} holds no ViSpec head: imadpt.q is missing; an EAGLE-2 head is for drafter eagle2")
    config = VispecConfig.from_checkpoint({**raw, "num_queries": len(queries)}, tensors)
    check_tensors(VispecHead, config, tensors)
    return Checkpoint(name, config, raw, tensors, VispecHead)
