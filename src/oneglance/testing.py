"""Test doubles that ship with the package: tiny targets of the real HF classes, and drafters that follow a script.

``tiny_target("qwen3_vl")`` has random weights and a byte-level tokenizer; it answers nonsense, but every tensor goes
through the same code as in a released checkpoint. Packages that add a target family or a drafter can reuse these.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from oneglance.core import DraftError, TokenTree
from oneglance.drafters.head import BlockHead, HeadConfig
from oneglance.targets import family
from oneglance.targets.base import Target
from oneglance.targets.state import TargetState
from oneglance.tiny import BUILDERS, QWEN_TEMPLATE, QWEN_TOKENS, byte_tokenizer

__all__ = [
    "CHAT_FAMILIES",
    "FAMILIES",
    "QWEN_TEMPLATE",
    "QWEN_TOKENS",
    "VISION_FAMILIES",
    "ScriptedDrafter",
    "byte_tokenizer",
    "failing_drafter",
    "lucky_drafter",
    "random_tree",
    "save_target",
    "tiny_head",
    "tiny_head_config",
    "tiny_target",
]

FAMILIES = tuple(BUILDERS)
CHAT_FAMILIES = tuple(name for name in FAMILIES if not family(name).takes_audio)  # take messages
VISION_FAMILIES = tuple(name for name in FAMILIES if family(name).takes_images)


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
    config, processor = BUILDERS[model_type](text)
    config._attn_implementation = "sdpa"
    cls = family(model_type)
    model = getattr(transformers, cls.auto_class).from_config(config, dtype=dtype)
    for name, parameter in model.named_parameters():
        if "gate" in name and parameter.ndim == 1:
            parameter.data.fill_(1.0)  # mllama's gates start shut: vision would not act at all
    model.generation_config.eos_token_id = [config.get_text_config().eos_token_id]
    return cls(model, processor, name=f"tiny:{model_type}")


def save_target(target: Target, folder: Path) -> None:
    """An HF folder that ``open_target`` opens."""
    target.model.save_pretrained(folder)
    target.processor.save_pretrained(folder)


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
