"""What the rows of a sequence stand for: with equal contents up to a row, two sequences have equal keys and values."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class ImageRow(NamedTuple):
    """A row of an image that enters as rows. A prefill never begins inside an image.

    Attributes:
        image: hash of the processed image.
        place: of the row within its image.
    """

    image: bytes
    place: int


class CrossRow(NamedTuple):
    """A token that looks at images by cross-attention.

    Attributes:
        token_id: it.
        images: hash of all processed images of the prompt.
        mask: what the row sees of them, None for everything.
    """

    token_id: int
    images: bytes
    mask: bytes | None


Content = int | ImageRow | CrossRow  # an int is the token id of a text row


def following(contents: Sequence[Content], token_ids: Sequence[int]) -> list[Content]:
    """Contents of text tokens after a prompt with these ``contents``."""
    last = contents[-1]
    return [last._replace(token_id=token) if isinstance(last, CrossRow) else token for token in token_ids]


def fingerprint(*tensors: Tensor) -> bytes:
    """SHA-256 of tensors: values, shapes and types."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(raw(tensor))
    return digest.digest()


def raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor's values."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
