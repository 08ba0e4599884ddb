"""Qwen3-VL and Qwen2.5-VL: image rows in the text stream, M-RoPE positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from oneglance.core import InputError
from oneglance.targets import hf
from oneglance.targets.base import Target
from oneglance.targets.contents import Content, ImageRow, fingerprint
from oneglance.targets.state import Inputs, TargetState


class Qwen3VL(Target):
    """Qwen3-VL. Kept-layer features include the DeepStack add of their layer."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen3_vl",)
    takes_images: ClassVar[bool] = True
    takes_encoded: ClassVar[bool] = True
    auto_class: ClassVar[str] = "AutoModelForImageTextToText"

    @property
    def text_model(self) -> nn.Module:
        model = self.model.model.language_model
        assert isinstance(model, nn.Module)
        return model

    @property
    def image_names(self) -> tuple[str, ...]:
        return ("pixel_values", "image_grid_thw")

    @property
    def input_names(self) -> tuple[str, ...]:
        return (*self.image_names, "mm_token_type_ids")

    def count_images(self, tensors: Mapping[str, Tensor]) -> int:
        grid = tensors.get("image_grid_thw")
        if grid is None:
            return 0
        check_patches(tensors["pixel_values"], grid, self.model.config.vision_config)
        return len(grid)

    def extend(self, inputs: Inputs, token_ids: Sequence[int]) -> Inputs:
        longer = super().extend(inputs, token_ids)
        longer.tensors.pop("mm_token_type_ids", None)  # read off the ids at prefill
        return longer

    def contents(self, inputs: Inputs) -> list[Content]:
        contents = super().contents(inputs)
        if inputs.num_images:
            places = (inputs.tensors["input_ids"][0] == self.model.config.image_token_id).nonzero()[:, 0]
            self._check_image_rows(inputs, len(places))
            grids, row = inputs.tensors["image_grid_thw"], iter(places.tolist())
            patches = torch.split(inputs.tensors["pixel_values"], grids.prod(-1).tolist())
            for pixels, grid, num_rows in zip(patches, grids, self._rows_by_image(grids).tolist(), strict=True):
                name = fingerprint(pixels, grid)
                for place in range(num_rows):
                    contents[next(row)] = ImageRow(name, place)
        return contents

    def run_prefill(self, inputs: Inputs, cache: Cache) -> tuple[Tensor, int, dict[str, Tensor]]:
        ids = inputs.tensors["input_ids"]
        is_image = ids == self.model.config.image_token_id
        arguments = {key: value for key, value in inputs.tensors.items() if key != "mm_token_type_ids"}
        if inputs.encoded:
            arguments["mm_encoder_outputs"] = inputs.encoded["mm_encoder_outputs"]
            position_ids = inputs.encoded["position_ids"][-3:]  # text positions may stand before the three axes
            rope_delta = int(position_ids.max()) + 1 - ids.shape[1]
        elif inputs.num_images:
            self._check_image_rows(inputs, int(is_image.sum()))
            position_ids, delta = self.model.model.get_rope_index(
                ids, mm_token_type_ids=is_image.int(), image_grid_thw=inputs.tensors["image_grid_thw"]
            )
            rope_delta = int(delta)
        elif bool(is_image.any()):
            raise InputError("the prompt holds image placeholders but no image was given; give the image too")
        else:
            position_ids, rope_delta = torch.arange(ids.shape[1], device=ids.device).expand(3, 1, -1), 0
        past = hf.cached_length(cache, 0)
        if past:
            arguments = self._after(arguments, past, int(is_image[:, :past].sum()))
        output = self.model.model(
            **arguments, position_ids=position_ids[..., past:], **{self._cache_keyword: cache}, use_cache=True
        )
        return output.last_hidden_state, rope_delta, {}

    def packed_arguments(self, state: TargetState, depths: Tensor) -> dict[str, Tensor]:
        positions = depths + (state.length + state.rope_delta)
        return {"position_ids": positions.expand(3, 1, -1)}

    def _after(self, arguments: dict[str, Any], past: int, num_seen: int) -> dict[str, Any]:
        """The arguments of a pass over what follows ``past`` rows, ``num_seen`` of them of whole images."""
        arguments = {**arguments, "input_ids": arguments["input_ids"][:, past:]}
        if not num_seen:
            return arguments
        grids, pixels = arguments.pop("image_grid_thw"), arguments.pop("pixel_values")
        ends = self._rows_by_image(grids).cumsum(0)
        num_images = int((ends <= num_seen).sum())
        assert int(ends[num_images - 1]) == num_seen, "the cache ends inside an image"
        if num_images < len(grids):
            num_patches = int(grids[:num_images].prod(-1).sum())
            arguments |= {"image_grid_thw": grids[num_images:], "pixel_values": pixels[num_patches:]}
        return arguments

    def _rows_by_image(self, grids: Tensor) -> Tensor:
        rows: Tensor = grids.prod(-1) // self.model.config.vision_config.spatial_merge_size**2
        return rows

    def _check_image_rows(self, inputs: Inputs, num_rows: int) -> None:
        expected = int(self._rows_by_image(inputs.tensors["image_grid_thw"]).sum())
        if num_rows != expected:
            raise InputError(
                f"the prompt holds {num_rows} image rows but its images make {expected}; encode both together"
            )


def check_patches(pixels: Tensor, grid: Tensor, vision: Any) -> None:
    """Refuse what the vision encoder would fail at in its depths.

    Args:
        pixels: (P, C) patches of all images.
        grid: (I, 3) patches in time, height and width.
        vision: its config.

    Raises:
        InputError: naming the tensor, what it has and what it should have.
    """
    merge, again = vision.spatial_merge_size, "process the images again"
    if grid.ndim != 2 or grid.shape[1] != 3 or grid.is_floating_point() or grid.is_complex():
        raise InputError(
            f"image_grid_thw must be (images, 3) whole numbers, got {tuple(grid.shape)} {grid.dtype}; {again}"
        )
    if len(grid) == 0 or int(grid.min()) < 1 or bool((grid[:, 1:] % merge).any()):
        raise InputError(
            f"image_grid_thw must hold positive numbers, height and width multiples of {merge}, got {grid.tolist()}; "
            f"{again}"
        )
    if not pixels.is_floating_point():
        raise InputError(f"pixel_values must be floating point, got {pixels.dtype}; {again}")
    wanted = (int(grid.prod(-1).sum()), vision.in_channels * vision.temporal_patch_size * vision.patch_size**2)
    if tuple(pixels.shape) != wanted:
        raise InputError(f"image_grid_thw asks for pixel_values of shape {wanted}, got {tuple(pixels.shape)}; {again}")


class Qwen25VL(Qwen3VL):
    """Qwen2.5-VL: the same token stream and rope deltas, no DeepStack."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_vl",)
