"""Whisper: speech by cross-attention, a decoder with learned absolute positions.

A prompt is what ``generate`` begins with: earlier text if there is any, then the tokens that say language and task, as
the generation config has them. The audio is one window of 30 seconds; longer recordings are for the caller to cut.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from oneglance.audio import AudioSource, load_audio
from oneglance.core import InputError, TargetError
from oneglance.targets import hf
from oneglance.targets.base import Target
from oneglance.targets.contents import Content, CrossRow, fingerprint
from oneglance.targets.kv import RoomyLayer
from oneglance.targets.state import Inputs, TargetState


class Whisper(Target):
    """Behind the rows of the decoder's layers, the cache holds as many layers of the audio's: written at prefill, never
    cropped."""

    model_types: ClassVar[tuple[str, ...]] = ("whisper",)
    takes_audio: ClassVar[bool] = True
    has_image_rows: ClassVar[bool] = False
    has_static_pass: ClassVar[bool] = False  # cross-attention inside every layer
    auto_class: ClassVar[str] = "AutoModelForSpeechSeq2Seq"

    @property
    def text_model(self) -> nn.Module:
        decoder = self.model.model.decoder
        assert isinstance(decoder, nn.Module)
        return decoder

    @property
    def final_norm(self) -> nn.Module:
        norm = self.text_model.layer_norm
        assert isinstance(norm, nn.Module)
        return norm

    @property
    def inner_size(self) -> int:
        return int(self.model.config.decoder_ffn_dim)

    @property
    def context_length(self) -> int:
        return int(self.model.config.max_target_positions)

    @property
    def fixed_layers(self) -> tuple[int, ...]:
        return tuple(range(self.num_layers, 2 * self.num_layers))

    @property
    def fixed_rows(self) -> int:
        return int(self.model.config.max_source_positions)

    @property
    def input_names(self) -> tuple[str, ...]:
        return ("input_features",)

    # Encoding ---------------------------------------------------------------------------------------------------

    def encode_audio(self, audio: AudioSource | None, text: str = "") -> Inputs:
        """One recording.

        Args:
            audio: see ``oneglance.audio``.
            text: what was said before, as ``prompt_ids`` of ``generate``.

        Raises:
            InputError: no sound, more than one window of it, or a text that holds special tokens.
        """
        if audio is None:
            raise InputError(f"{self.name} transcribes, and there is no audio; give audio=…, or --audio FILE")
        extractor = self.processor.feature_extractor
        waveform = load_audio(audio, rate_hz=extractor.sampling_rate)
        if len(waveform) > extractor.n_samples:
            raise InputError(
                f"the audio has {len(waveform) / extractor.sampling_rate:.1f} s and {self.name} hears "
                f"{extractor.chunk_length} s at a time; cut it into shorter pieces"
            )
        processed = extractor(waveform, sampling_rate=extractor.sampling_rate, return_tensors="pt")
        features = processed["input_features"]
        return self.wrap({"input_ids": self._first_ids(features, text), "input_features": features})

    def wrap(self, tensors: Mapping[str, Any]) -> Inputs:
        """As for every target; ``input_ids`` are those of the decoder, which may be called ``decoder_input_ids`` or be
        left out."""
        given = {key: value for key, value in tensors.items() if value is not None}
        features = given.get("input_features")
        if features is None:
            raise InputError(f"{self.name} hears and does not read: input_features is missing; give audio")
        config = self.model.config
        wanted = (1, config.num_mel_bins, 2 * config.max_source_positions)
        if not isinstance(features, Tensor) or not features.is_floating_point() or tuple(features.shape) != wanted:
            found = (
                f"{tuple(features.shape)} {features.dtype}" if isinstance(features, Tensor) else type(features).__name__
            )
            raise InputError(f"input_features must be {wanted} floating point, got {found}; process the audio again")
        if "decoder_input_ids" in given:
            given["input_ids"] = given.pop("decoder_input_ids")
        if "input_ids" not in given:
            given["input_ids"] = self._first_ids(features, "")
        return super().wrap(given)

    @torch.inference_mode()
    def _first_ids(self, features: Tensor, text: str) -> Tensor:
        """(1, T) what the decoder begins with. Where nothing names the language, the model is run to detect it."""
        config = copy.deepcopy(self.model.generation_config)
        config.return_timestamps = getattr(config, "return_timestamps", None)
        try:
            ids: Tensor = self.model._retrieve_init_tokens(
                self._heard(features),
                batch_size=1,
                generation_config=config,
                config=self.model.config,
                num_segment_frames=features.shape[-1],
                kwargs={},
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TargetError(f"the generation config of {self.name} is not one of Whisper: {error}") from error
        if not text:
            return ids
        try:
            before = self.processor.get_prompt_ids(text, return_tensors="np")
        except ValueError as error:
            raise InputError(f"the target's processor refuses the prompt: {error}") from error
        return torch.cat([torch.from_numpy(before)[None].to(ids), ids], dim=1)

    def contents(self, inputs: Inputs) -> list[Content]:
        features = inputs.tensors.get("input_features")
        if features is None:
            return super().contents(inputs)
        name = fingerprint(features)
        return [CrossRow(token, name, None) for token in inputs.token_ids]

    # Passes -----------------------------------------------------------------------------------------------------

    def empty_cache(self) -> Cache:
        own = [RoomyLayer(self.context_length) for _ in self.self_attention_layers]
        return Cache(layers=[*own, *(DynamicLayer() for _ in self.fixed_layers)])

    def passed(self, cache: Cache) -> Cache:
        """The two caches of an encoder-decoder model: views of the same layers."""
        own, heard = cache.layers[: self.num_layers], cache.layers[self.num_layers :]
        return EncoderDecoderCache(Cache(layers=own), Cache(layers=heard))

    def run_prefill(self, inputs: Inputs, cache: Cache) -> tuple[Tensor, int, dict[str, Tensor]]:
        ids, past = inputs.tensors["input_ids"], hf.cached_length(cache, 0)
        arguments = self._cross(cache)
        if not arguments and "input_features" in inputs.tensors:
            encoded = self.model.model.encoder(self._heard(inputs.tensors["input_features"]))
            arguments = {"encoder_hidden_states": encoded.last_hidden_state}
        positions = torch.arange(past, ids.shape[1], device=ids.device)[None]
        output = self.text_model(
            input_ids=ids[:, past:],
            position_ids=positions,
            **arguments,
            **{self._cache_keyword: self.passed(cache)},
            use_cache=True,
        )
        return output.last_hidden_state, 0, {}

    def packed_arguments(self, state: TargetState, depths: Tensor) -> dict[str, Tensor]:
        return {"position_ids": (depths + state.length)[None], **self._cross(state.cache)}

    def _cross(self, cache: Cache) -> dict[str, Tensor]:
        """What makes the decoder attend to the audio in the cache: it asks for states, and reads none of them."""
        if not hf.cached_length(cache, self.num_layers):
            return {}
        return {"encoder_hidden_states": torch.empty(1, 0, self.hidden_size, dtype=self.dtype, device=self.device)}

    def _heard(self, features: Tensor) -> Tensor:
        return features.to(self.device, self.dtype)

    # transformers' own way --------------------------------------------------------------------------------------

    def model_arguments(self, inputs: Inputs) -> dict[str, Any]:
        return {
            "input_features": self._heard(inputs.tensors["input_features"]),
            "decoder_input_ids": inputs.tensors["input_ids"],
        }

    def step_arguments(self, inputs: Inputs, output: Any, token: int) -> dict[str, Any]:
        ids = inputs.tensors["input_ids"]
        return {
            "encoder_outputs": (output.encoder_last_hidden_state,),
            "decoder_input_ids": ids.new_tensor([[token]]),
        }

    def plain_cache(self) -> Cache:
        return self.passed(Cache(layers=[DynamicLayer() for _ in range(2 * self.num_layers)]))

    def own_processors(self, prompt: Tensor) -> list[Any]:
        """Timestamps by their rules, where the generation config asks for them. Suppressed tokens are transformers'
        own matter.

        Raises:
            TargetError: silence is to be left out, which is no choice of a token.
        """
        config = self.model.generation_config
        if getattr(config, "no_speech_threshold", None) is not None:
            raise TargetError(
                f"the target's generation config sets no_speech_threshold={config.no_speech_threshold}, which is not "
                "supported; remove it from generation_config.json"
            )
        if not getattr(config, "return_timestamps", None):
            return []
        return [WhisperTimeStampLogitsProcessor(config, begin_index=prompt.shape[1])]

    def generate(self, inputs: Inputs, config: GenerationConfig, **options: Any) -> Any:
        """The loop inside Whisper's ``generate``, without the cutting into windows around it: one window is all there
        is, and the end-of-sequence token stays."""
        processors = LogitsProcessorList(self.own_processors(inputs.tensors["input_ids"]))
        return GenerationMixin.generate(
            self.model, **self.model_arguments(inputs), generation_config=config, logits_processor=processors, **options
        )
