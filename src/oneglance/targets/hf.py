"""Everything this package knows about transformers versions (5.18 to 5.24), in one place.

Facts kept here: the name of the cache argument, which cache layers can be rolled back, how to roll one back, where
kept-layer features are read, and which module attributes carry state from one generation to the next.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import transformers
from torch import nn
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from oneglance.core import SamplingParams, TargetError
from oneglance.targets.kv import RoomyLayer


def cache_keyword(module: nn.Module) -> str:
    """Name of the cache argument of ``module.forward``: ``cache`` since 5.24, ``past_key_values`` before."""
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"


def new_cache(config: Any) -> DynamicCache:
    """An empty cache for a model config.

    Raises:
        TargetError: a layer's cache cannot be rolled back.
    """
    cache = DynamicCache(config=config)
    for index, layer in enumerate(cache.layers):
        if type(layer) is not DynamicLayer:
            raise TargetError(
                f"layer {index} keeps a {type(layer).__name__}, which cannot be rolled back after a rejected tree; "
                "use a target whose layers all use full attention"
            )
    return cache


def roomy_cache(config: Any, layers: Sequence[int], limit: int) -> DynamicCache:
    """An empty cache in which some layers are written in place; the others (cross-attention) are transformers' own.

    Args:
        config: of the model.
        layers: those with one row a token.
        limit: rows of the longest sequence.

    Raises:
        TargetError: a layer's cache cannot be rolled back.
    """
    cache = new_cache(config)
    for index in layers:
        cache.layers[index] = RoomyLayer(limit)
    return cache


def cached_length(cache: Cache, layer: int) -> int:
    """Rows that one layer of the cache holds."""
    return int(cache.layers[layer].get_seq_length())


def cached_rows(cache: Cache, layers: Sequence[int], length: int | None = None) -> list[torch.Tensor]:
    """Keys and values of layers, in turn, (1, KV, length, D) each: views, which the next pass may overwrite."""
    return [rows[:, :, :length] for i in layers for rows in (cache.layers[i].keys, cache.layers[i].values)]


def filled(cache: Cache, layers: Sequence[int], rows: Sequence[torch.Tensor]) -> Cache:
    """An empty cache, with rows put into some layers, in the order of ``cached_rows``."""
    for index, keys, values in zip(layers, rows[::2], rows[1::2], strict=True):
        cache.update(keys, values, index)
    return cache


def keep_rows(cache: Cache, layers: Sequence[int], start: int, path: Sequence[int], num_rows: int) -> None:
    """Keep the accepted rows of a packed pass and drop the others, layer by layer and in place.

    Args:
        cache: holds ``start`` committed rows and ``num_rows`` packed ones.
        layers: self-attention layers; others (cross-attention) are never touched.
        start: committed rows before the pass.
        path: increasing packed indices to keep.
        num_rows: N+1.
    """
    kept = len(path)
    settled = next((place for place, index in enumerate(path) if place != index), kept)  # these lie where they belong
    moved = torch.as_tensor(path[settled:], dtype=torch.long) + start
    for index in layers:
        layer = cache.layers[index]
        assert isinstance(layer, DynamicLayer)
        if settled < kept:
            moved = moved.to(layer.keys.device)
            for part in (layer.keys, layer.values):
                part[:, :, start + settled : start + kept] = part.index_select(2, moved)
        layer.crop(-(num_rows - kept))


def check_attention(model: PreTrainedModel) -> None:
    """Refuse attention backends that cannot take an ancestor mask.

    Raises:
        TargetError: neither sdpa nor eager.
    """
    backend = getattr(model.config.get_text_config(), "_attn_implementation", "sdpa")
    if backend not in ("sdpa", "eager"):
        raise TargetError(
            f"attention backend {backend!r} takes no arbitrary mask, which tree verification needs; "
            "load the target with attn_implementation='sdpa'"
        )


@contextmanager
def attending(config: Any, name: str, attend: Callable[..., tuple[torch.Tensor, None]]) -> Iterator[None]:
    """Attention by another function in every layer of a text config.

    Args:
        config: of the text stack, whose layers look the backend up in it at each pass.
        name: the function's, among transformers' backends.
        attend: transformers' attention function.
    """
    transformers.AttentionInterface.register(name, attend)
    before, config._attn_implementation_internal = config._attn_implementation_internal, name
    try:
        yield
    finally:
        config._attn_implementation_internal = before


FLOAT64_ATTENTION = "oneglance_float64"


def attention_in_float64(config: Any) -> AbstractContextManager[None]:
    """Attention scores, softmax and sum in float64 in every layer, rounded once, to the model's dtype."""
    return attending(config, FLOAT64_ATTENTION, _float64_attention)


def _float64_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: query (1, heads, M, D), key and value (1, kv heads, C, D), additive mask."""
    return _mix(_float64_weights(query, key, attention_mask, scaling), value, query.dtype), None


WATCHED_ATTENTION = "oneglance_watched"


def watched_attention(config: Any, see: Callable[[int, torch.Tensor], None]) -> AbstractContextManager[None]:
    """Attention in float64 whose weights are seen; sdpa and its kin keep them to themselves.

    Args:
        config: of the text stack.
        see: layer index and its weights (heads, M, C), once a layer and pass.
    """

    def attend(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        weights = _float64_weights(query, key, attention_mask, scaling)
        see(int(module.layer_idx), weights[0].flatten(0, 1))  # type: ignore[arg-type]
        return _mix(weights, value, query.dtype), None

    return attending(config, WATCHED_ATTENTION, attend)


def _float64_weights(
    query: torch.Tensor, key: torch.Tensor, attention_mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    """(1, kv heads, group, M, C) attention weights."""
    wide = query.double().view(1, key.shape[1], -1, *query.shape[2:])  # (1, kv heads, group, M, D)
    scores = wide @ key.double()[:, :, None].transpose(-1, -2) * (scaling or query.shape[-1] ** -0.5)
    if attention_mask is not None:
        scores += attention_mask.double()[:, :, None]
    return scores.softmax(dim=-1)


def _mix(weights: torch.Tensor, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(1, M, heads, D) values under those weights, rounded once."""
    out = weights @ value.double()[:, :, None]
    return out.flatten(1, 2).transpose(1, 2).to(dtype).contiguous()


def load_processor(folder: str, model_type: str) -> Any:
    """The target's own processor; without its video part where torchvision or that part's file is missing.

    Images need neither.

    Raises:
        OSError: the folder holds no processor files.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the notice that images are processed by PIL instead of torchvision
        try:
            return transformers.AutoProcessor.from_pretrained(folder, trust_remote_code=False)
        except (ImportError, OSError):
            return image_only(getattr(transformers, PROCESSOR_MAPPING_NAMES[model_type])).from_pretrained(folder)


def image_only(processor: Any) -> Any:
    """A processor class without its video part, which needs torchvision even where no video is ever processed."""
    names = [name for name in processor.get_attributes() if name != "video_processor"]
    return type(processor.__name__, (processor,), {"get_attributes": classmethod(lambda _: names)})


def assistant(auto_class: str, name: str, model: PreTrainedModel) -> PreTrainedModel:
    """A model that drafts inside transformers' own ``generate``, beside ``model``.

    Raises:
        OSError, ValueError: there is none of that name.
    """
    found = getattr(transformers, auto_class).from_pretrained(name, dtype=model.dtype, trust_remote_code=False)
    drafting: PreTrainedModel = found.to(model.device).eval()
    return drafting


def forget_positions(model: PreTrainedModel) -> None:
    """Clear the rope deltas that multimodal Qwen models keep on the module between calls."""
    inner = getattr(model, "model", model)
    if hasattr(inner, "rope_deltas"):
        inner.rope_deltas = None


def takes_for_padding(model: PreTrainedModel, input_ids: torch.Tensor) -> bool:
    """Whether ``generate`` without an attention mask would take some of the prompt for padding."""
    pad = model.generation_config.pad_token_id if model.generation_config is not None else None
    return pad is not None and pad not in eos_ids(model) and bool((input_ids == pad).any())


def eos_ids(model: PreTrainedModel) -> tuple[int, ...]:
    """End-of-sequence ids of the model's generation config: where it has none, ``generate`` runs on, and so do we."""
    eos = model.generation_config.eos_token_id if model.generation_config is not None else None
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list | tuple) else (eos,)


WARPERS = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")


# what makes ``generate`` search or stop otherwise than token by token, and the value that does not
OTHER_SEARCHES: dict[str, Any] = {
    "num_beams": 1,
    "stop_strings": None,
    "penalty_alpha": None,
    "dola_layers": None,
    "guidance_scale": 1,
}


def check_search(config: GenerationConfig) -> None:
    """Refuse a generation config whose greedy text is not the argmax of each row.

    Raises:
        TargetError: beams, stop strings, and the like.
    """
    for name, neutral in OTHER_SEARCHES.items():
        value = getattr(config, name, None)
        if value is not None and value != neutral:
            raise TargetError(
                f"the target's generation config sets {name}={value!r}, which is not supported; "
                f"remove it from generation_config.json{' and give stop=…' if name == 'stop_strings' else ''}"
            )


def own_cap(model: PreTrainedModel) -> str | None:
    """What the model's generation config says of the length of a text, which our own cap replaces."""
    for name in ("max_new_tokens", "max_length"):
        value = getattr(model.generation_config, name, None)
        if value is not None:
            return f"{name}={value}"
    return None


def greedy_config(model: PreTrainedModel, *, max_new_tokens: int) -> GenerationConfig:
    """The model's own generation config, greedy and with our cap.

    Raises:
        TargetError: its greedy text is not the argmax of each row.
    """
    config = copy.deepcopy(model.generation_config) if model.generation_config is not None else GenerationConfig()
    config.do_sample = False
    for name in WARPERS:
        setattr(config, name, None)
    check_search(config)
    config.max_new_tokens = max_new_tokens
    config.max_length = None
    return config


def processing_config(
    model: PreTrainedModel, params: SamplingParams, bad_words_ids: Sequence[Sequence[int]] | None
) -> GenerationConfig:
    """The generation config that ``params`` stand for: the model's own, overridden by what they name.

    Args:
        model: gives the config.
        params: temperature and filters are theirs alone.
        bad_words_ids: their ``bad_words`` as token ids, or None.
    """
    config = greedy_config(model, max_new_tokens=params.max_new_tokens)
    given = {
        "repetition_penalty": params.repetition_penalty,
        "min_new_tokens": params.min_new_tokens,
        "bad_words_ids": [list(word) for word in bad_words_ids] if bad_words_ids else None,
        "sequence_bias": [[[token], float(bias)] for token, bias in (params.logit_bias or {}).items()] or None,
    }
    if params.temperature:
        given |= {
            "do_sample": True,
            "temperature": params.temperature,
            "top_k": params.top_k or None,
            "top_p": params.top_p,
            "min_p": params.min_p or None,
        }
    for name, value in given.items():
        if value is not None:
            setattr(config, name, value)
    return config


def processors(
    model: PreTrainedModel, config: GenerationConfig, prompt: torch.Tensor, *, extra: Sequence[Any] = ()
) -> LogitsProcessorList:
    """The logits processors that ``generate`` applies under a generation config, in its order.

    Args:
        model: knows how transformers builds them.
        config: from ``greedy_config`` or ``processing_config``.
        prompt: (1, T) token ids.
        extra: more, which come after transformers' own and before temperature and filters.
    """
    config = copy.deepcopy(config)
    config.max_length = prompt.shape[1] + config.max_new_tokens
    device = str(prompt.device)
    model._prepare_special_tokens(config, device=device)
    built: LogitsProcessorList = model._get_logits_processor(
        config,
        input_ids_seq_length=prompt.shape[1],
        encoder_input_ids=prompt,
        logits_processor=LogitsProcessorList(extra),
        device=device,
    )
    return built
