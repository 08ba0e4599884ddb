"""What every target owes the loop, as functions: the tests call them, and the seeded bugs must make them fail."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import (
    PlannedDrafter,
    cache_rows,
    counting,
    decode_ids,
    decoyed_tree,
    hf_cache,
    hf_forward,
    hf_generate,
    hf_rows,
    path_to,
    prompt,
    rng_for,
    start,
    vision_encoder,
    walk,
)
from oneglance.core import EMPTY_TREE, Drafter, OneglanceWarning, TokenTree
from oneglance.decoder import Decoder
from oneglance.targets.base import Target
from oneglance.targets.state import EMBEDDING, Inputs, TargetState
from oneglance.testing import random_tree
from oneglance.tree import chain

LOGIT_TOLERANCE = 1e-4
CACHE_TOLERANCE = 1e-5  # of the largest entry: keys of the last layers are sums of many terms


def close(actual: Tensor, expected: Tensor, tolerance: float, message: str) -> None:
    """Assert equal shapes, and values equal within ``tolerance``, absolute and relative."""
    assert actual.shape == expected.shape, f"{message}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance, msg=lambda text: f"{message}: {text}")


def lucky_rounds(
    target: Target, inputs: Inputs, reference: Sequence[int], layer_ids: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[TargetState, int]]:
    """Rounds that accept ``sizes`` drafted tokens each, behind decoys. Yields state and root after every commit."""
    state, root = start(target, inputs, layer_ids)
    assert root == reference[0]
    for size in sizes:
        done = len(state.token_ids) - len(inputs.token_ids)
        tree = decoyed_tree(reference[done : done + size], vocab_size=target.vocab_size)
        path, tokens = walk(tree, target.verify(state, root, tree).argmax(-1).tolist())
        assert len(path) == size + 1, "the target's own tokens were not accepted"
        target.commit(state, path, tokens)
        root = tokens[-1]
        yield state, root


def check_packed_rows(target: Target, inputs: Inputs, *, seed: int = 0, budget: int = 12) -> None:
    """Every packed row of random trees equals the row of an unpacked, uncached pass; so do single steps."""
    rng = rng_for(seed, target.name)
    state, root = start(target, inputs)
    close(state.last_row, hf_rows(target, inputs, [])[-1], LOGIT_TOLERANCE, "last prompt row")
    for index in range(3):
        committed = state.token_ids[len(inputs.token_ids) :]
        tree = random_tree(rng, target.vocab_size, budget=budget, max_depth=5) if index < 2 else EMPTY_TREE
        rows = target.verify(state, root, tree)
        assert rows.shape == (len(tree) + 1, target.vocab_size)
        leaves = set(range(len(tree) + 1)) - set(tree.parents)
        for leaf in sorted(leaves):
            path = path_to(tree, leaf)
            expected = hf_rows(target, inputs, [*committed, *(tree.token_ids[i - 1] for i in path)])
            actual = rows[[0, *path]]
            close(actual, expected[-len(actual) :], LOGIT_TOLERANCE, f"rows on the path to node {leaf}")
        # go on below a node in the middle of the tree, as if the target had chosen it
        path = path_to(tree, len(tree) // 2)
        root = rng.randrange(target.vocab_size)
        target.commit(state, [0, *path], [*(tree.token_ids[i - 1] for i in path), root])


def check_cache_after_commit(target: Target, inputs: Inputs) -> None:
    """After rounds that accept non-contiguous paths the cache is that of plain decoding, in all layers."""
    sizes = (2, 0, 3, 1)
    total = 1 + sum(sizes) + len(sizes)
    reference = hf_generate(target, inputs, total)
    *_, (state, root) = lucky_rounds(target, inputs, reference, (), sizes)
    assert state.token_ids == [*inputs.token_ids, *reference]
    assert root == reference[-1]
    assert state.length == len(state.token_ids) - 1
    # layers without rows (cross-attention of a text-only prompt) are empty on both sides
    plain = hf_cache(target, inputs, total)
    for index, (ours, theirs) in enumerate(zip(state.cache.layers, plain.layers, strict=True)):
        assert ours.get_seq_length() == theirs.get_seq_length(), f"layer {index} holds {ours.get_seq_length()} rows"
        if ours.get_seq_length():
            for what, actual, wanted in (("keys", ours.keys, theirs.keys), ("values", ours.values, theirs.values)):
                tolerance = CACHE_TOLERANCE * max(1.0, float(wanted.abs().max()))
                close(actual, wanted, tolerance, f"{what} of layer {index}")
    expected = hf_rows(target, inputs, reference)[-1]
    close(target.verify(state, root, EMPTY_TREE)[0], expected, LOGIT_TOLERANCE, "the step after the rounds")


def deepstack_add(target: Target, inputs: Inputs, layer: int) -> Tensor | None:
    """(T, H) what DeepStack adds to the prompt's rows after ``layer``, or None."""
    levels = getattr(target.model.config.vision_config, "deepstack_visual_indexes", []) if target.takes_images else []
    if layer >= len(levels) or not inputs.num_images:
        return None
    tensors = inputs.tensors
    output = target.model.model.get_image_features(tensors["pixel_values"], tensors["image_grid_thw"])
    add = torch.zeros(len(inputs.token_ids), target.hidden_size)
    is_image = tensors["input_ids"][0] == target.model.config.image_token_id
    level = output.deepstack_features[layer]
    add[is_image] = level if isinstance(level, Tensor) else torch.cat(level)  # split by image since 5.24
    assert float(add[is_image].abs().min()) > 0
    return add


def check_features(target: Target, inputs: Inputs, layer_ids: Sequence[int]) -> None:
    """Features of committed rows are those of an unpacked pass: ``hidden_states[i+1]``, plus the DeepStack add."""
    sizes = (2, 0, 3)
    reference = hf_generate(target, inputs, 1 + sum(sizes) + len(sizes))
    prefilled = target.prefill(inputs, layer_ids)
    assert prefilled.take_features().shape == (len(inputs.token_ids), len(layer_ids) * target.hidden_size)
    *_, (state, _) = lucky_rounds(target, inputs, reference, layer_ids, sizes)
    features = state.take_features()
    assert not state.fresh
    hidden = hf_forward(target, inputs, reference[:-1], output_hidden_states=True).hidden_states
    assert len(features) == len(inputs.token_ids) + len(reference) - 1
    # a text-only prompt skips mllama's cross-attention layers, and then they have no entry
    ran = range(target.num_layers) if inputs.num_images else target.self_attention_layers
    assert len(hidden) == len(ran) + 1
    for layer, part in zip(layer_ids, features.split(target.hidden_size, dim=-1), strict=True):
        expected = hidden[0 if layer == EMBEDDING else ran.index(layer) + 1][0].clone()
        add = None if layer == EMBEDDING else deepstack_add(target, inputs, layer)
        if add is not None:
            assert not torch.allclose(part[: len(add)], expected[: len(add)], atol=1e-2)
            expected[: len(add)] += add
        close(part, expected, LOGIT_TOLERANCE, f"features of layer {layer}")


def check_image_changes_features(target: Target, layer_ids: Sequence[int]) -> None:
    """Another picture gives other features, at the image and after it."""
    one, other = (target.prefill(prompt(target, 1, seed=seed), layer_ids).take_features() for seed in (1, 2))
    assert float((one[-1] - other[-1]).abs().max()) > 1e-3


def check_vision_runs_once(target: Target, drafter: Drafter, inputs: Inputs) -> None:
    """The vision encoder runs exactly once per image and generation."""
    with counting(vision_encoder(target)) as calls:
        decode_ids(Decoder(target, drafter), inputs, 6)
    assert len(calls) == min(inputs.num_images, 1), f"the vision encoder ran {len(calls)} times"


def check_identity(
    target: Target, drafter: Drafter, inputs: Inputs, reference: Sequence[int], *, num_tokens: int | None = None
) -> Sequence[int]:
    """The loop gives ``reference`` under a cap of ``num_tokens`` or of its length. Returns the accepted lengths."""
    generation = decode_ids(Decoder(target, drafter), inputs, num_tokens or len(reference)).generation
    assert generation.token_ids == list(reference)
    assert generation.num_tokens == 1 + sum(len(r.token_ids) for r in generation.rounds)
    return [r.verdict.num_accepted for r in generation.rounds]


def check_nothing_left_over(
    target: Target, drafter: Drafter, prompts: Sequence[Inputs], fresh: Sequence[Target]
) -> None:
    """One object decodes prompts in a row as fresh objects do."""
    decoder = Decoder(target, drafter)
    for inputs, other in zip(prompts, fresh, strict=True):
        expected = hf_generate(other, inputs, 10)
        assert decode_ids(decoder, inputs, 10).generation.token_ids == expected


def check_cross_attention(target: Target, inputs: Inputs, cross_layers: Sequence[int]) -> None:
    """Cross-attention caches never change after prefill; every packed row gets the mask row of the last prompt row."""
    reference = hf_generate(target, inputs, 8)
    seen: list[tuple[int, Tensor | None]] = []

    def spy(_: object, args: tuple[object, ...], kwargs: dict[str, Tensor]) -> None:
        seen.append((kwargs["input_ids"].shape[1], kwargs.get("cross_attention_mask")))

    state = target.prefill(inputs)
    before = [(k.clone(), v.clone()) for k, v in cache_rows(state.cache, cross_layers)] if inputs.num_images else []
    handle = target.packed_module.register_forward_pre_hook(spy, with_kwargs=True)
    try:
        for state, root in lucky_rounds(target, inputs, reference, (), (2, 0, 2)):
            target.verify(state, root, TokenTree((1, 2), (0, 0), (1, 1)))
            target.rollback(state)
            for (keys, values), (old_keys, old_values) in zip(
                cache_rows(state.cache, cross_layers) if inputs.num_images else [], before, strict=True
            ):
                assert torch.equal(keys, old_keys)
                assert torch.equal(values, old_values)
    finally:
        handle.remove()
    given = inputs.tensors.get("cross_attention_mask")
    for size, mask in seen[1:]:  # the first call is the prefill
        if given is None:
            assert mask is None
        else:
            assert mask is not None
            assert mask.shape[1] == size
            assert all(torch.equal(mask[:, i], given[:, -1]) for i in range(size))


def check_eos_anywhere(target: Target, inputs: Inputs, *, num_tokens: int = 12) -> None:
    """An end-of-sequence id ends the text wherever it stands: first token, inside a block, bonus; one id or a list."""
    config = target.model.generation_config
    before = config.eos_token_id
    try:
        config.eos_token_id = None
        free = hf_generate(target, inputs, num_tokens)
        drafter = PlannedDrafter(free, len(inputs.token_ids), target.vocab_size, policy=chain)
        for token in dict.fromkeys(free):
            for eos in (token, [target.vocab_size - 1, token]):
                config.eos_token_id = eos
                expected = hf_generate(target, inputs, num_tokens)
                generation = decode_ids(Decoder(target, drafter), inputs, num_tokens).generation
                assert generation.token_ids == expected == free[: free.index(token) + 1]
                assert generation.finish_reason == "stop"
    finally:
        config.eos_token_id = before


def check_generation_config(target: Target, inputs: Inputs, **generation: Any) -> None:
    """Identity under a generation config that changes logits; chains carry the plain text and the right one alike."""
    plain = hf_generate(target, inputs, 20)
    before = copy.deepcopy(target.model.generation_config)
    try:
        target.model.generation_config.update(**generation)
        reference = hf_generate(target, inputs, 20)
        assert reference != plain, "the generation config changes nothing here"
        for ahead in (reference, plain):
            drafter = PlannedDrafter(ahead, len(inputs.token_ids), target.vocab_size, policy=chain)
            with pytest.warns(OneglanceWarning, match="generation config applies"):
                accepted = check_identity(target, drafter, inputs, reference, num_tokens=20)
            if ahead is reference:
                assert max(accepted, default=0) > 3
    finally:
        target.model.generation_config = before
