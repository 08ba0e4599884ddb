"""Configs and processors of the tiny targets in ``testing``: the real HF classes, a byte-level tokenizer each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from oneglance.targets import hf

QWEN_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|mask|>",
)
LLAMA_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|mask|>", "<|image|>")
WHISPER_TOKENS = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|mask|>",
    "<|notimestamps|>",
)
QWEN_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_TEMPLATE = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}{% if c.type == 'image' %}<|image|>"
    "{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n{% endif %}"
)
NUM_BYTES = 256
VOCAB_SIZE = 272  # bytes, special tokens and a few padded rows
INITIALIZER_RANGE = 0.3  # wide enough that greedy text is not one repeated token


def byte_tokenizer(special: Sequence[str], template: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges: ids 0..255 are bytes, then the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    fast.add_special_tokens({"additional_special_tokens": list(special)})
    fast.chat_template = template
    return fast


def _text(overrides: dict[str, Any]) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 1024,
        "initializer_range": INITIALIZER_RANGE,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "pad_token_id": NUM_BYTES,
        "eos_token_id": NUM_BYTES + 2,
        **overrides,
    }


def _qwen_ids() -> dict[str, int]:
    ids = {token: NUM_BYTES + i for i, token in enumerate(QWEN_TOKENS)}
    return {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }


def _qwen_processor(cls: Any, patch_size: int) -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    cell = 2 * patch_size
    images = Qwen2VLImageProcessorPil(
        patch_size=patch_size,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": cell * cell, "longest_edge": 16 * cell * cell},
    )
    tokenizer = byte_tokenizer(QWEN_TOKENS, QWEN_TEMPLATE)
    return hf.image_only(cls)(images, tokenizer, chat_template=QWEN_TEMPLATE)


def _qwen3_vl(overrides: dict[str, Any]) -> tuple[Any, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    config = transformers.Qwen3VLConfig(
        text_config=_text({"rope_parameters": rope, **overrides}),
        vision_config={
            "depth": 3,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_heads": 2,
            "patch_size": 8,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 32,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
            "initializer_range": INITIALIZER_RANGE,
        },
        tie_word_embeddings=False,
        **_qwen_ids(),
    )
    return config, _qwen_processor(transformers.Qwen3VLProcessor, 8)


def _qwen2_5_vl(overrides: dict[str, Any]) -> tuple[Any, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    config = transformers.Qwen2_5_VLConfig(
        text_config=_text({"rope_parameters": rope, **overrides}),
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_heads": 2,
            "patch_size": 8,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 32,
            "out_hidden_size": 32,
            "fullatt_block_indexes": [1],
            "initializer_range": INITIALIZER_RANGE,
        },
        tie_word_embeddings=False,
        **_qwen_ids(),
    )
    return config, _qwen_processor(transformers.Qwen2_5_VLProcessor, 8)


def _mllama(overrides: dict[str, Any]) -> tuple[Any, Any]:
    from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil

    text = _text({"num_hidden_layers": 6, "cross_attention_layers": [1, 3], **overrides})
    text.pop("head_dim")
    eos, mask = NUM_BYTES + 3, NUM_BYTES + 4
    text.update(
        bos_token_id=NUM_BYTES,
        eos_token_id=eos,
        pad_token_id=mask,
        rope_parameters={"rope_theta": 1e4, "rope_type": "default"},
    )
    text["vocab_size"] = NUM_BYTES + LLAMA_TOKENS.index("<|image|>")  # as released: the placeholder has no lm_head row
    config = transformers.MllamaConfig(
        text_config=text,
        vision_config={
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_global_layers": 1,
            "attention_heads": 2,
            "intermediate_size": 24,
            "vision_output_dim": 32,
            "image_size": 32,
            "patch_size": 8,
            "intermediate_layers_indices": [0],
            "initializer_range": INITIALIZER_RANGE,
        },
        image_token_index=NUM_BYTES + LLAMA_TOKENS.index("<|image|>"),
    )
    tokenizer = byte_tokenizer(LLAMA_TOKENS, LLAMA_TEMPLATE)
    tokenizer.bos_token = "<|begin_of_text|>"
    images = MllamaImageProcessorPil(size={"height": 32, "width": 32}, max_image_tiles=4)
    return config, transformers.MllamaProcessor(images, tokenizer, chat_template=LLAMA_TEMPLATE)


def _qwen3(overrides: dict[str, Any]) -> tuple[Any, Any]:
    return transformers.Qwen3Config(**_text(overrides)), byte_tokenizer(QWEN_TOKENS, QWEN_TEMPLATE)


def _qwen2(overrides: dict[str, Any]) -> tuple[Any, Any]:
    return transformers.Qwen2Config(**_text(overrides)), byte_tokenizer(QWEN_TOKENS, QWEN_TEMPLATE)


def _llama(overrides: dict[str, Any]) -> tuple[Any, Any]:
    return transformers.LlamaConfig(**_text(overrides)), byte_tokenizer(QWEN_TOKENS, QWEN_TEMPLATE)


def _whisper(overrides: dict[str, Any]) -> tuple[Any, Any]:
    """Hears one second; its timestamps follow the last special token, as released."""
    ids = {token: NUM_BYTES + i for i, token in enumerate(WHISPER_TOKENS)}
    eos = ids["<|endoftext|>"]
    sizes = {name: overrides.pop(name) for name in ("vocab_size", "num_hidden_layers") if name in overrides}
    layers = sizes.get("num_hidden_layers", 5)
    config = transformers.WhisperConfig(
        vocab_size=sizes.get("vocab_size", VOCAB_SIZE),
        d_model=32,
        encoder_layers=2,
        decoder_layers=layers,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_mel_bins=8,
        max_source_positions=50,
        max_target_positions=448,
        init_std=INITIALIZER_RANGE,
        tie_word_embeddings=False,
        pad_token_id=eos,
        bos_token_id=eos,
        eos_token_id=eos,
        decoder_start_token_id=ids["<|startoftranscript|>"],
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **overrides,
    )
    listening = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = transformers.WhisperTokenizer(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": list(WHISPER_TOKENS)})
    return config, transformers.WhisperProcessor(listening, tokenizer)


# family → what makes its tiny config and processor; the conformance tests run over every family here
BUILDERS: dict[str, Callable[[dict[str, Any]], tuple[Any, Any]]] = {
    "qwen3_vl": _qwen3_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "mllama": _mllama,
    "qwen3": _qwen3,
    "qwen2": _qwen2,
    "llama": _llama,
    "whisper": _whisper,
}
