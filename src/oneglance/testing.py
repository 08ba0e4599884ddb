"""Test doubles that ship with the package: tiny targets of the real HF classes, and drafters that follow a script.

``tiny_target("qwen3_vl")`` has random weights and a byte-level tokenizer; it answers nonsense, but every tensor goes
through the same code as in a released checkpoint. Packages that add a target family or a drafter can reuse these.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from oneglance.core import DraftError, TokenTree
from oneglance.drafters.head import BlockHead, HeadConfig
from oneglance.targets import family, hf
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState

FAMILIES = ("qwen3_vl", "qwen2_5_vl", "mllama", "qwen3", "llama")
VISION_FAMILIES = ("qwen3_vl", "qwen2_5_vl", "mllama")
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


def tiny_target(
    model_type: str = "qwen3_vl", *, seed: int = 0, dtype: torch.dtype = torch.float32, **text: Any
) -> Target:
    """A target of the real class with random weights.

    Args:
        model_type: one of ``FAMILIES``.
        seed: of the weights.
        dtype: of the weights.
        text: overrides of the text config.
    """
    torch.manual_seed(seed)
    config, processor = _BUILDERS[model_type](text)
    config._attn_implementation = "sdpa"
    cls = family(model_type)
    model = getattr(transformers, cls.auto_class).from_config(config, dtype=dtype)
    for name, parameter in model.named_parameters():
        if "gate" in name and parameter.ndim == 1:
            parameter.data.fill_(1.0)  # mllama's gates start shut: vision would not act at all
    model.generation_config.eos_token_id = [config.get_text_config().eos_token_id]
    return cls(model, processor, name=f"tiny:{model_type}")


def tiny_head_config(target: Target, *, num_layers: int = 2, kept: Sequence[int] | None = None) -> dict[str, Any]:
    """``config.json`` of a small head that fits ``target``, in z-lab's layout."""
    kept = (
        list(kept) if kept is not None else [i for i in target.self_attention_layers if i < target.num_layers - 1][:2]
    )
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 16,
        "num_target_layers": target.num_layers,
        "num_hidden_layers": num_layers,
        "hidden_size": target.hidden_size,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": target.context_length,
        "vocab_size": target.vocab_size,
        "dflash_config": {
            "mask_token_id": target.tokenizer.convert_tokens_to_ids("<|mask|>"),
            "target_layer_ids": kept,
        },
    }


def tiny_head(target: Target, *, seed: int = 0, **options: Any) -> BlockHead:
    """A small random head on the target's device, in its dtype."""
    torch.manual_seed(seed)
    head = BlockHead(HeadConfig.from_checkpoint(tiny_head_config(target, **options)))
    return head.to(device=target.device, dtype=target.dtype).eval().requires_grad_(False)


@dataclass
class ScriptedDrafter:
    """A drafter that proposes whatever ``script`` says.

    Attributes:
        script: (tokens so far, root included; max_depth) → tree.
        target_layer_ids: kept layers to collect.
        calls: number of drafts so far.
    """

    script: Callable[[Sequence[int], int], TokenTree]
    target_layer_ids: tuple[int, ...] = ()
    name: str | None = "scripted"
    calls: int = field(default=0, init=False)

    def start(self, state: TargetState) -> None:
        return None

    def draft(self, root: int, state: TargetState, draft_state: None, *, max_depth: int) -> TokenTree:
        self.calls += 1
        state.fresh.clear()
        return self.script(state.token_ids, max_depth)

    def num_passes(self, tree: TokenTree) -> int:
        return 1 if len(tree) else 0


def random_tree(
    rng: random.Random, vocab_size: int, *, budget: int, max_depth: int, along: Sequence[int] = ()
) -> TokenTree:
    """A random prefix-closed tree with unique siblings.

    Args:
        rng: its randomness.
        vocab_size: ids are drawn below it.
        budget: nodes, at most.
        max_depth: levels, at most.
        along: a token sequence to weave in, so that part of the tree is accepted; its nodes get random places among
            the others.
    """
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = [0]
    taken: set[tuple[int, int]] = set()
    tip, woven = 0, 0
    while len(tokens) < budget:
        shallow = [i for i, depth in enumerate(depths) if depth < max_depth]
        if len(taken) == vocab_size * len(shallow):
            break  # every place is taken
        if woven < min(len(along), max_depth) and rng.random() < 0.4:
            parent, token = tip, along[woven]
        else:
            parent, token = rng.choice(shallow), rng.randrange(vocab_size)
        if (parent, token) in taken:
            continue
        taken.add((parent, token))
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        if parent == tip and woven < len(along) and token == along[woven]:
            tip, woven = len(tokens), woven + 1
    return TokenTree(tuple(tokens), tuple(parents), tuple(depths[1:]))


def lucky_drafter(
    reference: Sequence[int], prompt_length: int, *, seed: int, budget: int, vocab_size: int
) -> ScriptedDrafter:
    """Random trees with a random share of the target's own continuation woven in.

    Args:
        reference: the target's own new tokens.
        prompt_length: tokens before them.
        seed: of the trees.
        budget: nodes, at most.
        vocab_size: ids are drawn below it.
    """
    rng = random.Random(seed)

    def script(so_far: Sequence[int], max_depth: int) -> TokenTree:
        ahead = reference[len(so_far) - prompt_length :]
        return random_tree(
            rng, vocab_size, budget=budget, max_depth=min(max_depth, 15), along=ahead[: rng.randrange(16)]
        )

    return ScriptedDrafter(script)


def failing_drafter(after: int, error: Exception | None = None, **options: Any) -> ScriptedDrafter:
    """Proposes single random tokens and raises at draft number ``after`` (0-based)."""
    rng = random.Random(after)
    drafts = iter(range(1 << 62))

    def script(so_far: Sequence[int], max_depth: int) -> TokenTree:
        if next(drafts) == after:
            raise error or DraftError("scripted failure")
        return random_tree(rng, 200, budget=3, max_depth=max_depth)

    return ScriptedDrafter(script, **options)


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


def _llama(overrides: dict[str, Any]) -> tuple[Any, Any]:
    return transformers.LlamaConfig(**_text(overrides)), byte_tokenizer(QWEN_TOKENS, QWEN_TEMPLATE)


_BUILDERS: dict[str, Callable[[dict[str, Any]], tuple[Any, Any]]] = {
    "qwen3_vl": _qwen3_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "mllama": _mllama,
    "qwen3": _qwen3,
    "llama": _llama,
}
