"""A frozen target: prefill once, verify packed trees, commit the accepted path.

``Target`` holds what all families share; a family (one file per HF ``model_type``) says where its text stack is, which
positions packed rows get, and what its prefill needs. Targets hold no sequence state: that is ``TargetState``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from oneglance.core import InputError, TokenTree
from oneglance.targets import hf, identity
from oneglance.targets.capture import Turn, captured_features
from oneglance.targets.contents import Content
from oneglance.targets.grouped import ancestor_mask
from oneglance.targets.model import HFModel
from oneglance.targets.passes import FreeShape, Passes
from oneglance.targets.state import Inputs, TargetState, joined
from oneglance.tree import PackedTree

FEATURE_POINT = "input_of_next_layer"


class Target(HFModel):
    """A frozen HF model that verifies packed trees.

    Args:
        model: an unmodified HF model in eval mode.
        processor: its processor (VLM) or tokenizer (text-only).
        name: what it was opened from, for reports.
        passes: how packed passes are laid out.

    Raises:
        TargetError: the model cannot be verified in packed passes.
    """

    def __init__(self, model: PreTrainedModel, processor: Any, *, name: str, passes: Passes | None = None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.processor = processor
        self.name = name
        self.passes: Passes = passes or FreeShape()
        hf.check_attention(model)
        self._lock = Turn.of(model).lock  # a pass changes modules and their rope deltas: one at a time
        self._cache_keyword = hf.cache_keyword(self.text_model)
        hf.new_cache(self.model.config)

    def with_passes(self, passes: Passes) -> Target:
        """The same model, with packed passes laid out in another way."""
        return type(self)(self.model, self.processor, name=self.name, passes=passes)

    def in_float64(self) -> Target:
        """A copy whose weights and arithmetic are float64."""
        return type(self)(copy.deepcopy(self.model).double(), self.processor, name=self.name, passes=self.passes)

    # Identity ---------------------------------------------------------------------------------------------------

    def fingerprint(self) -> dict[str, Any]:
        """What a head should have been trained with. The name is where the target lies, and is not compared."""
        return {"target": self.name, **identity.of(self.model, self.tokenizer, self.chat_renderer)}

    @property
    def chat_renderer(self) -> Any:
        """The processor or tokenizer, whichever has the chat template."""
        return self.processor if getattr(self.processor, "chat_template", None) else self.tokenizer

    # Encoding ---------------------------------------------------------------------------------------------------

    def wrap(self, tensors: Mapping[str, Any]) -> Inputs:
        """Check HF-style model inputs and take them as a prompt.

        Raises:
            InputError: more than one sequence, padding, video, or an argument this target does not take.
        """
        given = {key: value for key, value in tensors.items() if value is not None}
        videos = [key for key in given if "video" in key]
        if videos:
            raise InputError(f"video input ({videos[0]}) is not supported; pass images or text")
        unknown = sorted(given.keys() - {"input_ids", "attention_mask", *self.input_names})
        if unknown:
            raise InputError(f"unsupported input {unknown[0]!r}; this target takes {', '.join(self.input_names)}")
        lacking = sorted(set(self.image_names) - given.keys())
        if lacking and len(lacking) < len(self.image_names):
            raise InputError(f"{', '.join(self.image_names)} come together, and {lacking[0]!r} is missing; pass all")
        if "input_ids" not in given:
            raise InputError("input_ids is missing; pass what the processor returns")
        for key, value in given.items():
            if not isinstance(value, Tensor):
                raise InputError(f"{key} must be a tensor, got {type(value).__name__}")
            if not bool(torch.isfinite(value).all()):
                raise InputError(f"{key} holds NaN or infinite values; process the image again")
        ids = given["input_ids"]
        if ids.ndim != 2 or ids.shape[0] != 1:
            raise InputError(f"one sequence at a time: input_ids must be (1, T), got {tuple(ids.shape)}")
        if ids.shape[1] == 0:
            raise InputError("the prompt is empty; give at least one token")
        if ids.dtype not in (torch.int64, torch.int32):
            raise InputError(f"input_ids must be int64 token ids, got {ids.dtype}")
        mask = given.pop("attention_mask", None)
        if mask is None and hf.takes_for_padding(self.model, ids):
            raise InputError("input_ids hold the padding token; pass attention_mask to say whether it is padding")
        if mask is not None and mask.shape != ids.shape:
            raise InputError(f"attention_mask must be like input_ids, {tuple(ids.shape)}, got {tuple(mask.shape)}")
        if mask is not None and not bool(mask.bool().all()):
            raise InputError("padded input is not supported; pass the sequence without padding (batch one needs none)")
        if int(ids.min()) < 0 or int(ids.max()) >= self.embedding.num_embeddings:
            raise InputError(
                f"input_ids hold ids outside the vocabulary of {self.embedding.num_embeddings}; "
                "use this target's tokenizer"
            )
        device = "cpu" if self.device.type == "meta" else self.device  # an outline encodes all the same
        tensors = {k: v.to(device) for k, v in given.items()}
        return Inputs(tensors, self.count_images(tensors))

    def encode_audio(self, audio: Any, text: str = "") -> Inputs:
        """One recording, and what was said before it; only for targets that say ``takes_audio``."""
        raise NotImplementedError

    @property
    def image_names(self) -> tuple[str, ...]:
        """The inputs without which there is no image."""
        return ()

    @property
    def input_names(self) -> tuple[str, ...]:
        """Model inputs besides ``input_ids`` and ``attention_mask``."""
        return ()

    def count_images(self, tensors: Mapping[str, Tensor]) -> int:
        """Images in HF-style inputs."""
        return 0

    def image_rows(self, inputs: Inputs) -> Tensor:
        """(I,) places of a prompt's image rows; empty where images do not enter as rows."""
        return self.is_image(inputs.tensors["input_ids"][0]).nonzero()[:, 0]

    def is_image(self, token_ids: Tensor) -> Tensor:
        """(…,) True where a prompt's token stands for a row of an image."""
        ids = self.placeholder_ids if self.has_image_rows else ()
        return torch.isin(token_ids, torch.tensor(ids, dtype=token_ids.dtype, device=token_ids.device))

    def without_images(self, inputs: Inputs) -> Inputs:
        """The prompt's text alone: no image, no image rows."""
        ids = inputs.tensors["input_ids"]
        is_text = torch.ones(ids.shape[1], dtype=torch.bool, device=ids.device)
        is_text[self.image_rows(inputs)] = False
        return Inputs({"input_ids": ids[:, is_text]})

    def contents(self, inputs: Inputs) -> list[Content]:
        """What each row of a prompt stands for, (T,)."""
        return list(inputs.token_ids)

    def extend(self, inputs: Inputs, token_ids: Sequence[int]) -> Inputs:
        """The prompt followed by text tokens: what a teacher-forced pass over an answer takes."""
        ids = inputs.tensors["input_ids"]
        new = torch.tensor([list(token_ids)], dtype=ids.dtype, device=ids.device)
        return replace(inputs, tensors={**inputs.tensors, "input_ids": torch.cat([ids, new], dim=1)})

    # The verbs --------------------------------------------------------------------------------------------------

    def run_prefill(self, inputs: Inputs, cache: Cache) -> tuple[Tensor, int, dict[str, Tensor]]:
        """One pass over the rows of the prompt that ``cache`` does not hold yet.

        Returns:
            Their hidden states (1, T', H) after the final norm, rope_delta, extras for packed passes.
        """
        raise NotImplementedError

    def packed_arguments(self, state: TargetState, depths: Tensor) -> dict[str, Tensor]:
        """Positions and whatever else packed rows need.

        Args:
            state: the sequence.
            depths: (N+1,) distance of each row from the root.
        """
        raise NotImplementedError

    def passed(self, cache: Cache) -> Cache:
        """The cache as the model's forward takes it."""
        return cache

    def empty_cache(self) -> Cache:
        return hf.roomy_cache(self.model.config, self.self_attention_layers, self.context_length)

    @torch.inference_mode()
    def prefill(self, inputs: Inputs, layer_ids: Sequence[int] = (), cache: Cache | None = None) -> TargetState:
        """Run the prompt, vision encoder included, exactly once.

        Args:
            inputs: from ``encode`` or ``wrap``.
            layer_ids: kept layers whose features are collected, in the order in which they are concatenated.
            cache: holds the first rows of the prompt, which are not run again; the state's own from here on.

        Raises:
            InputError: the prompt does not fit into the context.
        """
        token_ids = inputs.token_ids
        if len(token_ids) >= self.context_length:
            raise InputError(
                f"the prompt has {len(token_ids)} tokens and the target's context is {self.context_length}; "
                "use a smaller image or a shorter prompt"
            )
        cache = self.empty_cache() if cache is None else cache
        with self._lock, captured_features(self.feature_points(layer_ids)) as features:
            hf.forget_positions(self.model)
            hidden, rope_delta, extras = self.run_prefill(inputs, cache)
        state = TargetState(
            cache=cache,
            length=len(token_ids),
            rope_delta=rope_delta,
            token_ids=token_ids,
            last_row=self.lm_head(hidden[:, -1:])[0, 0],
            inputs=inputs,
            layer_ids=tuple(layer_ids),
            extras=extras,
        )
        if layer_ids:
            state.fresh.append(joined(features))
        return state

    @torch.inference_mode()
    def verify(self, state: TargetState, root: int, tree: TokenTree) -> Tensor:
        """One packed, ancestor-masked pass over the root and the tree (Def. 1).

        Returns:
            (N+1, V) logits: row i is the target's distribution after packed node i. Until ``commit`` the cache holds
            the packed rows; a failure leaves it as it was.
        """
        self.rollback(state)
        packed = self.passes.lay_out(root, tree)
        num_rows = len(packed.token_ids)
        state.pending = (num_rows, [])
        try:
            with self._lock, self.passes.running(self.text_config):
                rows, features = self.passes.run(self, state, packed)
        except BaseException:
            self.rollback(state)
            raise
        state.pending = (num_rows, features)
        return rows[: len(tree) + 1]

    def forward_packed(self, state: TargetState, packed: PackedTree) -> tuple[Tensor, list[Tensor]]:
        """transformers' own forward over packed rows: (M, V) logits and a feature (1, M, H) a kept layer."""
        num_rows = len(packed.token_ids)
        arguments = self.packed_arguments(state, torch.from_numpy(packed.depths).to(self.device))
        if num_rows > 1:
            mask = torch.empty(1, 1, num_rows, state.length + num_rows, dtype=self.dtype, device=self.device)
            visible = torch.from_numpy(packed.visible).to(self.device)
            arguments["attention_mask"] = ancestor_mask(mask, state.length, visible)
        arguments["input_ids"] = torch.from_numpy(packed.token_ids)[None].to(self.device)
        with captured_features(self.feature_points(state.layer_ids)) as features:
            output = self.packed_module(**arguments, **{self._cache_keyword: self.passed(state.cache)}, use_cache=True)
            rows: Tensor = self.lm_head(output.last_hidden_state)[0]
        return rows, features

    @torch.inference_mode()
    def commit(self, state: TargetState, path: Sequence[int], token_ids: Sequence[int]) -> None:
        """Keep the accepted path's keys, values and features; drop the rest.

        Args:
            state: after ``verify``.
            path: packed indices to keep, root first.
            token_ids: the tokens that follow the root on this path, the last one being the new root; as many as
                ``path``.
        """
        assert state.pending is not None
        assert len(path) == len(token_ids)
        if not path:  # every choice was left to a single step
            self.rollback(state)
            return
        assert path[0] == 0
        num_rows, features = state.pending
        hf.keep_rows(state.cache, self.self_attention_layers, state.length, path, num_rows)
        if state.layer_ids:
            if len(path) < num_rows:
                rows = torch.as_tensor(path)
                features = [feature.index_select(1, rows.to(feature.device)) for feature in features]
            state.fresh.append(joined(features))
        state.pending = None
        state.length += len(path)
        state.token_ids.extend(token_ids)

    def rollback(self, state: TargetState) -> None:
        """Drop packed rows that were never committed."""
        if state.pending is None:
            return
        for index in self.self_attention_layers:
            extra = hf.cached_length(state.cache, index) - state.length
            if extra > 0:
                state.cache.layers[index].crop(-extra)
        state.pending = None

    def truncate(self, state: TargetState, length: int) -> None:
        """Forget what was committed from row ``length`` on. Only a model that drafts ever takes tokens back."""
        self.rollback(state)
        if length < state.length:
            for index in self.self_attention_layers:
                state.cache.layers[index].crop(length - state.length)
            state.length = length
        del state.token_ids[length:]
