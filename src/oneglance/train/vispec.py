"""Train a ViSpec head, its second stage: the adaptor is new, the layer comes from an EAGLE-2 head (the first stage)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from oneglance.core import Drafter, InputError
from oneglance.drafters.checkpoint import Checkpoint, read_config
from oneglance.drafters.eagle2_head import Eagle2Head, load_eagle2
from oneglance.drafters.head import KeysValues
from oneglance.drafters.vispec import VispecDrafter, sees_image_rows
from oneglance.drafters.vispec_head import NUM_QUERIES, VispecConfig, VispecHead, load_vispec
from oneglance.targets.base import Target
from oneglance.train.eagle2 import Eagle2Kind, FirstPass, PackedEagle2
from oneglance.train.recipe import HeadRecipe


class PackedVispec(PackedEagle2):
    """The head's decoding forward over whole sequences. Rows of images keep their places, and nobody looks at those
    that decoding leaves out."""

    head: VispecHead

    def first_pass(self, hidden: Tensor, following: Tensor, is_image: Tensor) -> FirstPass:
        inputs, visible, images = self._compressed(following, hidden, is_image)
        rows = torch.arange(hidden.shape[1], device=hidden.device)
        itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)  # a row that sees nothing has no softmax
        mask = (rows <= rows[:, None]) & visible[:, None] | itself
        output, past = self.head.run(inputs, None, rows, mask[:, None])

        def step(
            embedded: Tensor, hidden: Tensor, past: KeysValues, position_ids: Tensor, mask: Tensor
        ) -> tuple[Tensor, KeysValues]:
            out: tuple[Tensor, KeysValues] = self.head(
                embedded, self.head.told(hidden, images[:, None]), past, position_ids, mask
            )
            return out

        return FirstPass(output, past, step, visible)

    def _compressed(self, following: Tensor, hidden: Tensor, is_image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(b, T, H) inputs of the layer, (b, T) rows that it sees, (b, H) the last image's vector."""
        inputs, visible, images = [], torch.zeros_like(is_image), []
        for index, sample in enumerate(zip(following, hidden, is_image, strict=True)):
            rows, places, image = self.head.compress(*sample)
            inputs.append(rows.new_zeros(len(is_image[index]), rows.shape[-1]).index_copy(0, places, rows))
            visible[index, places] = True
            images.append(image.to(rows.dtype))
        unused = 0 * self.head.imadpt(following[0, :1]).sum()  # of a batch of text: every parameter has a gradient
        return torch.stack(inputs) + unused, visible, torch.stack(images)


class VispecKind(Eagle2Kind):
    """ViSpec: ``init`` is an EAGLE-2 head, or none; its adaptor and global vector start as nothing."""

    architecture = "ViSpecModel"

    def new(self, recipe: HeadRecipe, target: Target) -> Eagle2Head:
        if not sees_image_rows(target):
            raise InputError(f"kind vispec compresses image rows, and {target.name} has none; train kind eagle2")
        queries = recipe.head.num_queries or NUM_QUERIES
        config = VispecConfig(**self.shape(recipe, target), num_queries=queries)
        return VispecHead(config.for_target(target.num_layers))

    def pack(self, head: Any) -> nn.Module:
        return PackedVispec(head)

    def load(self, name: str) -> Checkpoint[Any, Any]:
        return load_vispec(name)

    def start(self, name: str) -> Checkpoint[Any, Any]:
        _, raw = read_config(name)
        is_own = self.architecture in (raw.get("architectures") or ())
        return load_vispec(name) if is_own else load_eagle2(name)

    def layout(self, recipe: HeadRecipe, target: Target, config: Any) -> dict[str, Any]:
        return {**super().layout(recipe, target, config), "num_queries": config.num_queries}

    def drafter(self, head: Any, target: Target, *, budget: int) -> Drafter:
        return VispecDrafter(head, target, budget=budget)
