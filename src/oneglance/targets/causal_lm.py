"""Text-only causal language models (qwen3, llama and their kin)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from oneglance.targets import hf
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs, TargetState


class CausalLM(Target):
    """A decoder whose positions are the token index."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen3", "llama", "qwen2")

    @property
    def text_model(self) -> nn.Module:
        model = self.model.model
        assert isinstance(model, nn.Module)
        return model

    def run_prefill(self, inputs: Inputs, cache: Cache) -> tuple[Tensor, int, dict[str, Tensor]]:
        ids, past = inputs.tensors["input_ids"], hf.cached_length(cache, 0)
        positions = torch.arange(past, ids.shape[1], device=ids.device)[None]
        output = self.text_model(
            input_ids=ids[:, past:], position_ids=positions, **{self._cache_keyword: cache}, use_cache=True
        )
        return output.last_hidden_state, 0, {}

    def packed_arguments(self, state: TargetState, depths: Tensor) -> dict[str, Tensor]:
        return {"position_ids": (depths + state.length)[None]}
