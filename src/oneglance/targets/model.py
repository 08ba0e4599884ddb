"""A frozen HF model: where its parts are, and how transformers itself would run it.

What a family says here differs by ``model_type``; what all families share, the verbs, is ``Target`` in ``base``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache

from oneglance.targets import hf
from oneglance.targets.state import Inputs


class HFModel:
    """Parts of an unmodified HF model.

    Attributes:
        model: in eval mode.
        processor: its processor (VLM, speech) or tokenizer (text-only).
    """

    model_types: ClassVar[tuple[str, ...]] = ()
    takes_images: ClassVar[bool] = False
    takes_audio: ClassVar[bool] = False
    has_image_rows: ClassVar[bool] = True  # an image enters as rows of the sequence
    takes_encoded: ClassVar[bool] = False
    has_static_pass: ClassVar[bool] = True  # its layers pass on one stream and take nothing else (``static``)
    auto_class: ClassVar[str] = "AutoModelForCausalLM"

    model: PreTrainedModel
    processor: Any

    @property
    def text_config(self) -> Any:
        return self.model.config.get_text_config()

    @property
    def text_model(self) -> nn.Module:
        """The decoder stack: ``embed_tokens``, ``layers``, ``norm``."""
        raise NotImplementedError

    @property
    def final_norm(self) -> nn.Module:
        """What the last layer's stream goes through before the lm_head."""
        norm = self.text_model.norm
        assert isinstance(norm, nn.Module)
        return norm

    @property
    def packed_module(self) -> nn.Module:
        """The module that packed passes call."""
        return self.text_model

    @property
    def layers(self) -> nn.ModuleList:
        layers = self.text_model.layers
        assert isinstance(layers, nn.ModuleList)
        return layers

    @property
    def tokenizer(self) -> Any:
        return getattr(self.processor, "tokenizer", self.processor)

    @property
    def hidden_size(self) -> int:
        return int(self.text_config.hidden_size)

    @property
    def inner_size(self) -> int:
        """Width of a layer's MLP."""
        return int(self.text_config.intermediate_size)

    @property
    def vocab_size(self) -> int:
        """Rows of the lm_head."""
        return int(self.text_config.vocab_size)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def context_length(self) -> int:
        """Positions that the model was built for."""
        return int(self.text_config.max_position_embeddings)

    @property
    def embedding(self) -> nn.Embedding:
        embedding = self.model.get_input_embeddings()
        assert isinstance(embedding, nn.Embedding)
        return embedding

    @property
    def lm_head(self) -> nn.Module:
        """Any module from (…, H) to (…, V): a linear layer, or what a quantiser put in its place."""
        head = self.model.get_output_embeddings()
        assert isinstance(head, nn.Module)
        return head

    @property
    def lm_head_device(self) -> torch.device:
        return next(chain(self.lm_head.parameters(), self.lm_head.buffers())).device

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return hf.eos_ids(self.model)

    @property
    def placeholder_ids(self) -> tuple[int, ...]:
        """Ids whose rows in a prompt stand for images."""
        names = ("image_token_id", "video_token_id", "image_token_index", "audio_token_id")
        ids = {getattr(self.model.config, name, None) for name in names}
        return tuple(sorted(i for i in ids if isinstance(i, int) and i >= 0))

    @property
    def banned_ids(self) -> tuple[int, ...]:
        """Placeholder ids that must never be proposed; some families give them no lm_head row to begin with."""
        return tuple(i for i in self.placeholder_ids if i < self.vocab_size)

    @property
    def self_attention_layers(self) -> tuple[int, ...]:
        """Layers whose cache holds one row a token."""
        return tuple(range(self.num_layers))

    @property
    def fixed_layers(self) -> tuple[int, ...]:
        """Layers of the cache that hold an image or a recording, the same rows whatever the text."""
        return tuple(i for i in range(self.num_layers) if i not in self.self_attention_layers)

    @property
    def fixed_rows(self) -> int:
        """Rows of such a layer for each image or recording."""
        return 0

    def feature_points(self, layer_ids: Sequence[int]) -> list[tuple[nn.Module, str]]:
        """Where the feature of each kept layer is read: the residual stream that enters the next layer, after any
        DeepStack add (``FEATURE_POINT``). What enters the first layer is that of layer ``EMBEDDING``."""
        following = [*self.layers, self.final_norm]
        return [(following[i + 1], "input") for i in layer_ids]

    # transformers' own way --------------------------------------------------------------------------------------

    def model_arguments(self, inputs: Inputs) -> dict[str, Any]:
        """What the whole model's forward takes for a prompt."""
        return dict(inputs.tensors)

    def step_arguments(self, inputs: Inputs, output: Any, token: int) -> dict[str, Any]:
        """What it takes for one token more, after ``output``."""
        return {"input_ids": inputs.tensors["input_ids"].new_tensor([[token]])}

    def plain_cache(self) -> Cache:
        """An empty cache that is transformers' own."""
        return hf.new_cache(self.model.config)

    def own_processors(self, prompt: Tensor) -> list[Any]:
        """Logits processors that ``generate`` has for this family besides those of every model.

        Args:
            prompt: (1, T) token ids.
        """
        return []

    def generate(self, inputs: Inputs, config: GenerationConfig, **options: Any) -> Any:
        """transformers' own ``generate``; without a mask, a padding token of the prompt would count as padding."""
        mask = torch.ones_like(inputs.tensors["input_ids"])
        return self.model.generate(**inputs.tensors, attention_mask=mask, generation_config=config, **options)
