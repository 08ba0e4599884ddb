"""Llama-3.2-Vision (mllama): vision by cross-attention, no image rows in the token stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from oneglance.core import HeadError, InputError
from oneglance.targets import hf
from oneglance.targets.base import Target
from oneglance.targets.contents import Content, CrossRow, fingerprint, raw
from oneglance.targets.state import EMBEDDING, Inputs, TargetState


class Mllama(Target):
    """Cross-attention caches hold image rows: they are written at prefill and never cropped."""

    model_types: ClassVar[tuple[str, ...]] = ("mllama",)
    takes_images: ClassVar[bool] = True
    has_static_pass: ClassVar[bool] = False  # cross-attention layers come in between
    has_image_rows: ClassVar[bool] = False  # the placeholder is a token of the text
    auto_class: ClassVar[str] = "AutoModelForImageTextToText"

    @property
    def text_model(self) -> nn.Module:
        model = self.model.model.language_model
        assert isinstance(model, nn.Module)
        return model

    @property
    def packed_module(self) -> nn.Module:
        """The multimodal wrapper, which turns the cross-attention mask into an additive one."""
        model = self.model.model
        assert isinstance(model, nn.Module)
        return model

    @property
    def cross_attention_layers(self) -> tuple[int, ...]:
        return tuple(self.text_config.cross_attention_layers)

    @property
    def self_attention_layers(self) -> tuple[int, ...]:
        cross = set(self.cross_attention_layers)
        return tuple(i for i in range(self.num_layers) if i not in cross)

    @property
    def fixed_rows(self) -> int:
        """Every image is padded to the processor's number of tiles; each has its patches and a class row."""
        vision = self.model.config.vision_config
        patches = int(vision.image_size // vision.patch_size) ** 2 + 1
        return int(self.processor.image_processor.max_image_tiles) * patches

    @property
    def image_names(self) -> tuple[str, ...]:
        return ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")

    @property
    def input_names(self) -> tuple[str, ...]:
        return (*self.image_names, "cross_attention_mask")

    def count_images(self, tensors: Mapping[str, Tensor]) -> int:
        pixels = tensors.get("pixel_values")
        if pixels is None:
            return 0
        if pixels.ndim != 6 or pixels.shape[0] != 1 or not pixels.is_floating_point():
            raise InputError(
                "pixel_values must be (1, images, tiles, channels, height, width) floating point, got "
                f"{tuple(pixels.shape)} {pixels.dtype}; process the images again"
            )
        return int(pixels.shape[1])

    def feature_points(self, layer_ids: Sequence[int]) -> list[tuple[nn.Module, str]]:
        """The output of each kept layer: a cross-attention layer that follows is skipped for text-only prompts, so a
        hook on its input would never fire."""
        crossed = sorted(set(layer_ids) & set(self.cross_attention_layers))
        if crossed:
            raise HeadError(
                f"kept layer {crossed[0]} is a cross-attention layer of this target, which text-only prompts skip; "
                "keep self-attention layers only"
            )
        embedding = self.text_model.get_submodule("embed_tokens")
        return [(embedding if i == EMBEDDING else self.layers[i], "output") for i in layer_ids]

    def contents(self, inputs: Inputs) -> list[Content]:
        images = [inputs.tensors[name] for name in self.image_names if name in inputs.tensors]
        if not images:
            return super().contents(inputs)
        name, mask = fingerprint(*images), inputs.tensors.get("cross_attention_mask")
        seen = [None] * len(inputs.token_ids) if mask is None else [raw(row) for row in mask[0]]
        return [CrossRow(token, name, row) for token, row in zip(inputs.token_ids, seen, strict=True)]

    def extend(self, inputs: Inputs, token_ids: Sequence[int]) -> Inputs:
        longer = super().extend(inputs, token_ids)
        mask = longer.tensors.get("cross_attention_mask")
        if mask is not None:
            rows = mask[:, -1:].expand(-1, len(token_ids), -1, -1)
            longer.tensors["cross_attention_mask"] = torch.cat([mask, rows], dim=1)
        return longer

    def run_prefill(self, inputs: Inputs, cache: Cache) -> tuple[Tensor, int, dict[str, Tensor]]:
        arguments, past = dict(inputs.tensors), hf.cached_length(cache, self.self_attention_layers[0])
        mask = arguments.get("cross_attention_mask")
        if past:  # the cross-attention layers hold the images
            arguments = {"input_ids": arguments["input_ids"][:, past:]}
            if mask is not None:
                arguments["cross_attention_mask"] = mask[:, past:]
        output = self.packed_module(**arguments, **{self._cache_keyword: cache}, use_cache=True)
        extras = {} if mask is None else {"cross_attention_mask": mask[:, -1:]}
        return output.last_hidden_state, 0, extras

    def step_arguments(self, inputs: Inputs, output: Any, token: int) -> dict[str, Any]:
        arguments = super().step_arguments(inputs, output, token)
        mask = inputs.tensors.get("cross_attention_mask")
        return arguments if mask is None else {**arguments, "cross_attention_mask": mask[:, -1:]}

    def packed_arguments(self, state: TargetState, depths: Tensor) -> dict[str, Tensor]:
        arguments = {"position_ids": (depths + state.length)[None]}
        mask = state.extras.get("cross_attention_mask")
        if mask is not None:
            # exactly N+1 rows, each the last committed row's: a longer mask would be sliced by the cache length
            arguments["cross_attention_mask"] = mask.expand(-1, len(depths), -1, -1)
        return arguments
