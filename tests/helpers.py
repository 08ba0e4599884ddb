"""Inputs and oracles that the tests share.

Every oracle goes through the unmodified transformers model: its ``generate``, or its forward pass over a whole
sequence, without a cache, a packed row or a mask of ours.
"""

import importlib.util
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache

from oneglance.core import BlockMarginals, SamplingParams, TokenTree
from oneglance.decoder import Decoder, Stream
from oneglance.drafters.rescorer import PreviousTokenBias, RescorerConfig
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.state import Inputs, TargetState
from oneglance.testing import ScriptedDrafter
from oneglance.tree import best_first

NUM_OFFSETS = 15


def script(path: str) -> ModuleType:
    """A program outside the package as a module, by its path from the root of the repository."""
    file = Path(__file__).parent.parent / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def picture(seed: int, width: int = 32, height: int = 32) -> Image.Image:
    """A picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def pictures(count: int, seed: int = 0) -> list[Image.Image]:
    """Pictures of differing sizes."""
    return [picture(seed + i, width=32 + 16 * (i % 3), height=32) for i in range(count)]


def prompt(target: Target, num_images: int = 0, *, text: str = "hello there", seed: int = 0) -> Inputs:
    """An encoded prompt with that many pictures; for a speech target, text that came before a recording of noise."""
    if target.takes_audio:
        return encode(target, text, audio=noise(seed))
    return encode(target, text, images=pictures(num_images, seed))


def random_rescorer(target: Target, seed: int = 2) -> PreviousTokenBias:
    """A rescorer that fits ``target``, of random weights, which move scores a lot."""
    torch.manual_seed(seed)
    made = PreviousTokenBias(RescorerConfig(rank=4, vocab_size=target.vocab_size, hidden_size=target.hidden_size))
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=1.0)
    return made.eval().requires_grad_(False)


def noise(seed: int, num_samples: int = 9000) -> np.ndarray:
    """A recording at 16 kHz."""
    return np.random.default_rng(seed).normal(scale=0.3, size=num_samples).astype(np.float32)


def hf_arguments(target: Target, inputs: Inputs) -> dict[str, Any]:
    """What ``generate`` takes; without a mask it would take a padding token for padding."""
    if "input_features" in inputs.tensors:
        return {
            "input_features": inputs.tensors["input_features"],
            "decoder_input_ids": inputs.tensors["input_ids"],
        }
    return {**inputs.tensors, "attention_mask": torch.ones_like(inputs.tensors["input_ids"])}


def hf_generated(target: Target, inputs: Inputs, **options: Any) -> Any:
    """``generate`` of the unmodified model; of Whisper, the one under its cutting into windows, which hides the end."""
    forget(target)
    generate = transformers.GenerationMixin.generate if target.takes_audio else type(target.model).generate
    return generate(target.model, **hf_arguments(target, inputs), do_sample=False, **options)


def forget(target: Target) -> None:
    """Clear what multimodal Qwen models keep from the call before, so that an oracle starts afresh."""
    inner = target.model.model
    if hasattr(inner, "rope_deltas"):
        inner.rope_deltas = None


@torch.inference_mode()
def hf_generate(target: Target, inputs: Inputs, num_tokens: int, **options: Any) -> list[int]:
    """New tokens of ``generate(do_sample=False)``."""
    out = hf_generated(target, inputs, max_new_tokens=num_tokens, **options)
    new: list[int] = out[0, len(inputs.token_ids) :].tolist()
    return new


@torch.inference_mode()
def hf_cache(target: Target, inputs: Inputs, num_tokens: int) -> Any:
    """The cache that plain decoding leaves after ``num_tokens`` new tokens; the last one is not in it."""
    out = hf_generated(target, inputs, max_new_tokens=num_tokens, return_dict_in_generate=True)
    assert out.sequences.shape[1] == len(inputs.token_ids) + num_tokens, "the oracle met an end of sequence"
    cache = out["cache" if "cache" in out else "past_key_values"]
    if isinstance(cache, EncoderDecoderCache):
        return Cache(layers=[*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers])
    return cache


@torch.inference_mode()
def hf_forward(target: Target, inputs: Inputs, extra: Sequence[int], **options: Any) -> Any:
    """The model's own forward over prompt and ``extra`` tokens: unpacked, uncached, all positions its own."""
    forget(target)
    size = len(extra)
    tensors = dict(inputs.tensors)
    new = torch.tensor([list(extra)], dtype=torch.long)
    tensors["input_ids"] = torch.cat([tensors["input_ids"], new], dim=1)
    if "mm_token_type_ids" in tensors:
        kinds = tensors["mm_token_type_ids"]
        tensors["mm_token_type_ids"] = torch.cat([kinds, kinds.new_zeros(1, size)], dim=1)
    if "cross_attention_mask" in tensors:
        mask = tensors["cross_attention_mask"]
        tensors["cross_attention_mask"] = torch.cat([mask, mask[:, -1:].expand(-1, size, -1, -1)], dim=1)
    out = target.model(**hf_arguments(target, Inputs(tensors)), use_cache=False, **options)
    if "decoder_hidden_states" in out:
        out["hidden_states"] = out["decoder_hidden_states"]
    return out


def hf_rows(target: Target, inputs: Inputs, extra: Sequence[int]) -> Tensor:
    """(len(extra) + 1, V) logits after the prompt and after each of the ``extra`` tokens."""
    logits: Tensor = hf_forward(target, inputs, extra).logits[0, len(inputs.token_ids) - 1 :]
    return logits


def path_to(tree: TokenTree, node: int) -> list[int]:
    """Packed indices from the root to ``node``, the root left out."""
    path: list[int] = []
    while node:
        path.insert(0, node)
        node = tree.parents[node - 1]
    return path


def walk(tree: TokenTree, choices: Sequence[int]) -> tuple[list[int], list[int]]:
    """The accepted path and its tokens, by looking through all nodes at each step."""
    path, tokens = [0], []
    while True:
        token = choices[path[-1]]
        tokens.append(token)
        nodes = [
            i
            for i, (parent, own) in enumerate(zip(tree.parents, tree.token_ids, strict=True), start=1)
            if parent == path[-1] and own == token
        ]
        if not nodes:
            return path, tokens
        path.append(nodes[0])


def decoyed_tree(along: Sequence[int], *, vocab_size: int, decoys: int = 1) -> TokenTree:
    """``along`` as the last child at each depth, behind ``decoys`` others: an accepted path is never contiguous."""
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    tip = 0
    for depth, token in enumerate(along, start=1):
        others = [(token + 1 + i) % vocab_size for i in range(decoys)]
        tokens += [*others, token]
        parents += [tip] * (decoys + 1)
        depths += [depth] * (decoys + 1)
        tip = len(tokens)
    return TokenTree(tuple(tokens), tuple(parents), tuple(depths))


class PlannedDrafter(ScriptedDrafter):
    """Marginals whose best ranks are known, through the real tree policies.

    Args:
        reference: the target's own new tokens.
        prompt_length: tokens before them.
        vocab_size: ids are drawn below it.
        policy: marginals and budget → tree.
        budget: nodes, root excluded.
        ranks: rank of the target's own token at each offset, in turn; None leaves it out, as an always-wrong head does.
    """

    def __init__(
        self,
        reference: Sequence[int],
        prompt_length: int,
        vocab_size: int,
        *,
        policy: Callable[[BlockMarginals, int], TokenTree] = best_first,
        budget: int = 15,
        ranks: Sequence[int | None] = (0,),
    ) -> None:
        def script(so_far: Sequence[int], max_depth: int) -> TokenTree:
            ahead = list(reference[len(so_far) - prompt_length :])[: min(max_depth, NUM_OFFSETS)]
            if not ahead:
                return TokenTree()
            return policy(planned_marginals(ahead, ranks, vocab_size, budget), budget)

        super().__init__(script)


def planned_marginals(ahead: Sequence[int], ranks: Sequence[int | None], vocab_size: int, size: int) -> BlockMarginals:
    """Marginals with the tokens ``ahead`` at the given ranks, other ids around them."""
    size = min(max(size, 3), vocab_size - 1)
    token_ids = np.zeros((len(ahead), size), dtype=np.int64)
    for offset, token in enumerate(ahead):
        row = [i % vocab_size for i in range(token + 1, token + 1 + size)]  # not the token: size < vocab_size
        rank = ranks[offset % len(ranks)]
        if rank is not None:
            row.insert(min(rank, size - 1), token)
        token_ids[offset] = row[:size]
    log_q = np.tile(np.log(0.5) * np.arange(1, size + 1), (len(ahead), 1))
    return BlockMarginals(token_ids, log_q)


def decode_ids(
    decoder: Decoder,
    inputs: Inputs,
    num_tokens: int,
    *,
    stop: Sequence[str] = (),
    ignore_eos: bool = False,
) -> Stream:
    """An exhausted stream over an encoded prompt."""
    params = SamplingParams(max_new_tokens=num_tokens, stop=tuple(stop), ignore_eos=ignore_eos)
    stream = decoder.stream_inputs(inputs, params)
    for _ in stream:
        pass
    return stream


def cache_rows(cache: Any, layers: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of the given layers."""
    return [(cache.layers[i].keys, cache.layers[i].values) for i in layers]


@contextmanager
def seen_by(module: nn.Module, name: str) -> Iterator[list[Tensor]]:
    """What a module's forward gets for one keyword argument, call by call; calls without it are left out."""
    seen: list[Tensor] = []

    def see(_: nn.Module, args: object, kwargs: dict[str, Tensor]) -> None:
        if kwargs.get(name) is not None:
            seen.append(kwargs[name])

    handle = module.register_forward_pre_hook(see, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def counting(module: nn.Module) -> Iterator[list[int]]:
    """How often a module's forward runs, as the length of the list."""
    calls: list[int] = []
    handle = module.register_forward_hook(lambda *_: calls.append(1))
    try:
        yield calls
    finally:
        handle.remove()


def changes_of(target: Target) -> list[object]:
    """All hooks and forwards of single modules; transformers leaves hooks where hidden states were once asked for."""
    modules = list(target.model.modules())
    own = [vars(module)["forward"] for module in modules if "forward" in vars(module)]
    return [*own, *(key for module in modules for key in (*module._forward_pre_hooks, *module._forward_hooks))]


def vision_encoder(target: Target) -> nn.Module:
    """The module that turns pixels into image states."""
    inner = target.model.model
    found = inner.visual if hasattr(inner, "visual") else inner.vision_model
    assert isinstance(found, nn.Module)
    return found


def rng_for(*parts: object) -> random.Random:
    """Randomness that depends on nothing but its label."""
    return random.Random(repr(parts))


def start(target: Target, inputs: Inputs, layer_ids: Sequence[int] = ()) -> tuple[TargetState, int]:
    """A prefilled state and its root, as the loop would begin."""
    state = target.prefill(inputs, layer_ids)
    root = int(state.last_row.argmax())
    state.token_ids.append(root)
    return state, root
