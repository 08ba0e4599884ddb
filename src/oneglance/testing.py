"""Test doubles that ship with the package: tiny targets of the real HF classes, and drafters that follow a script.

``tiny_target("qwen3_vl")`` has random weights and a byte-level tokenizer; it answers nonsense, but every tensor goes
through the same code as in a released checkpoint. Packages that add a target family or a drafter can reuse these:
``check_drafter("mine")`` holds a drafter to what every drafter owes the loop, as our own tests do.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from oneglance.accept import Greedy
from oneglance.core import (
    EMPTY_TREE,
    Drafter,
    DraftError,
    Generation,
    Observer,
    OneglanceWarning,
    Round,
    SamplingParams,
    TokenTree,
)
from oneglance.decoder import Decoder
from oneglance.drafters import prepare
from oneglance.drafters.head import BlockHead, HeadConfig
from oneglance.guard import check_tree
from oneglance.reference import reference
from oneglance.targets import family
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.state import Inputs, TargetState
from oneglance.tiny import BUILDERS, QWEN_TEMPLATE, QWEN_TOKENS, byte_tokenizer

__all__ = [
    "CHAT_FAMILIES",
    "FAMILIES",
    "QWEN_TEMPLATE",
    "QWEN_TOKENS",
    "VISION_FAMILIES",
    "ScriptedDrafter",
    "byte_tokenizer",
    "check_drafter",
    "check_reuse",
    "check_rounds",
    "check_text",
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


# What every drafter owes the loop ----------------------------------------------------------------------------------

NUM_TOKENS = 20
REPEATING: dict[str, Any] = {"logit_bias": {65: 100.0}}  # so that whatever looks back has something to propose
DRAWN: dict[str, Any] = {"temperature": 1.2, "seed": 5}


def check_drafter(
    drafter: str | Callable[..., Drafter],
    target: Target | None = None,
    *,
    head: str | None = None,
    budgets: Sequence[int] = (1, 31),
) -> None:
    """Hold a drafter to what every drafter owes the loop: valid trees, the target's own text, and no trace left.

    Args:
        drafter: its name, with settings, or what binds it: called with the target and ``budget``.
        target: what it drafts for; a tiny one with random weights, which takes images, if none is given.
        head: weights, of a drafter with a name.
        budgets: nodes of a tree, at most; each is tried.

    Raises:
        AssertionError: it breaks its word; the message says how.
        InputError: there is no such drafter, or it cannot be bound.
    """
    target = target or tiny_target()
    bind = prepare(drafter, head) if isinstance(drafter, str) else drafter
    inputs, other = _prompt(target, "one two one two one"), _prompt(target, "something else")
    greedy = SamplingParams(max_new_tokens=NUM_TOKENS)
    cases = [(inputs, params) for params in (greedy, replace(greedy, **REPEATING), replace(greedy, **DRAWN))]
    cases.append((other, greedy))
    own = [reference(target, x, max_new_tokens=NUM_TOKENS, params=params).token_ids for x, params in cases]
    for budget in budgets:
        bound = bind(target, budget=budget)
        check_rounds(bound, target, inputs, budget=budget)
        for (given, params), tokens in zip(cases, own, strict=True):
            check_text(bound, target, given, tokens, params, budget=budget)
        check_reuse(bound, target, (inputs, own[0]), (other, own[-1]), budget=budget)


def check_text(
    drafter: Drafter,
    target: Target,
    inputs: Inputs,
    own: Sequence[int],
    params: SamplingParams,
    *,
    budget: int,
) -> Generation:
    """The text is ``own``, the target's own tokens, and every draft on the way is one that was asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OneglanceWarning)  # what it would say is asserted
        made = Decoder(target, Held(drafter, target, budget)).stream_inputs(inputs, params).exhaust()
    assert made.fell_back is None, f"drafting ended: {made.fell_back}"
    assert made.token_ids == list(own), f"the text is {made.token_ids}, and the target's own {list(own)}"
    return made


def check_rounds(drafter: Drafter, target: Target, inputs: Inputs, *, budget: int) -> None:
    """Rounds with a draft and without, of any depth: trees are valid, and no skipped round loses context.

    A tree is that of the same drafter begun anew at the same place, unless it learns from rounds (``core.Observer``).
    """
    held, rule = Held(drafter, target, budget), Greedy()
    state = target.prefill(inputs, drafter.target_layer_ids)
    root = rule.first(state.last_row, state.token_ids)
    state.token_ids.append(root)
    own = held.start(state)
    for index, max_depth in enumerate((15, 15, None, None, 3, 1, 0, 99, 15)):
        tree = EMPTY_TREE
        if max_depth is not None:
            tree = held.draft(root, state, own, max_depth=max_depth)
        if max_depth is not None and not isinstance(own, Observer):
            committed = state.token_ids[len(inputs.token_ids) : -1]
            anew = target.prefill(target.extend(inputs, committed), drafter.target_layer_ids)
            anew.token_ids.append(root)
            again = held.draft(root, anew, held.start(anew), max_depth=max_depth)
            assert (again.token_ids, again.parents) == (tree.token_ids, tree.parents), (
                f"round {index}: {tree.token_ids} is proposed, and {again.token_ids} by a drafter that starts there"
            )
            assert drafter.num_passes(again) == drafter.num_passes(tree)
        verdict = rule(tree, target.verify(state, root, tree), state.token_ids)
        target.commit(state, verdict.path, verdict.token_ids)
        if isinstance(own, Observer):
            passes = drafter.num_passes(tree)
            own.observe(Round(index, root, tree, verdict, verdict.token_ids, None, passes))
        root = verdict.token_ids[-1]


def check_reuse(
    drafter: Drafter,
    target: Target,
    case: tuple[Inputs, Sequence[int]],
    other: tuple[Inputs, Sequence[int]],
    *,
    budget: int,
) -> None:
    """A generation that stops early leaves nothing behind: neither another prompt nor the same one sees it.

    Args:
        case, other: prompts, and the target's own tokens after each.
    """
    params = [SamplingParams(max_new_tokens=len(own)) for _, own in (case, other)]
    with Decoder(target, drafter).stream_inputs(case[0], params[0]) as stream:
        next(stream)
        next(stream)
    check_text(drafter, target, *other, params[1], budget=budget)
    first, again = (check_text(drafter, target, *case, params[0], budget=budget) for _ in range(2))
    assert [done.tree for done in first.rounds] == [done.tree for done in again.rounds], (
        "it learns from one answer what it proposes in the next: a benchmark would measure what it has seen"
    )


class Held:
    """A drafter whose every draft is looked at; in all else it is the drafter itself.

    Args:
        drafter: it.
        target: what it drafts for.
        budget: nodes of its trees, at most.
    """

    def __init__(self, drafter: Drafter, target: Target, budget: int) -> None:
        self._drafter = drafter
        self._target = target
        self._budget = budget

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def draft(self, root: int, state: TargetState, draft_state: Any, *, max_depth: int) -> TokenTree:
        """The drafter's tree.

        Raises:
            AssertionError: it is not one that was asked for, or the target's state is another than before.
        """
        before = _standing(state)
        tree = self._drafter.draft(root, state, draft_state, max_depth=max_depth)
        assert _standing(state) == before, "draft wrote to the target's state"
        try:
            check_tree(tree, self._target, max_depth=max_depth, budget=self._budget)
        except DraftError as error:
            raise AssertionError(str(error)) from error
        banned = sorted(set(tree.token_ids) & set(self._target.banned_ids))
        assert not banned, f"it proposed {banned}, of target.banned_ids"
        passes = self._drafter.num_passes(tree)
        assert passes >= 0, f"num_passes is {passes}"
        assert max_depth or not passes, f"it made {passes} passes where max_depth is 0"
        return tree


def _standing(state: TargetState) -> tuple[object, ...]:
    """What only the target may change: tokens, and how many rows each layer holds."""
    rows = [layer.get_seq_length() for layer in state.cache.layers]
    return [*state.token_ids], state.length, rows, state.rope_delta, float(state.last_row.sum())


def _prompt(target: Target, text: str) -> Inputs:
    """A prompt, with a picture or a recording of noise where the target takes one."""
    rng = np.random.default_rng(0)
    if target.takes_audio:
        return encode(target, text, audio=rng.normal(scale=0.3, size=9000).astype(np.float32))
    picture = Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
    return encode(target, text, images=[picture] if target.takes_images else [])
