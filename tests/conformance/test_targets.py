"""Every target family against the same list: the unmodified transformers model is the oracle."""

import pytest
import torch

from conformance import checks
from helpers import changes_of, hf_generate, hf_rows, picture, prompt, seen_by, start
from oneglance import targets
from oneglance.core import EMPTY_TREE, HeadError, TokenTree
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.state import EMBEDDING, Inputs
from oneglance.testing import FAMILIES, tiny_head, tiny_target

Case = tuple[Target, Inputs]
LLAMA_VISION_CROSS = [3, 8, 13, 18, 23, 28, 33, 38]  # of Llama-3.2-11B-Vision's 40 layers


def test_every_family_is_under_test() -> None:
    missing = targets.FAMILIES.keys() - FAMILIES
    assert not missing, f"add a tiny config to BUILDERS in src/oneglance/tiny.py for {', '.join(sorted(missing))}"


def kept(target: Target) -> tuple[int, ...]:
    """Kept layers that cover the first DeepStack levels, out of order, without the last layer."""
    ids = [i for i in target.self_attention_layers if i < target.num_layers - 1]
    return (*ids[1:3], ids[0])


def test_packed_rows_equal_an_unpacked_uncached_pass(case: Case) -> None:
    checks.check_packed_rows(*case)


def test_cache_after_commit_is_that_of_plain_decoding(case: Case) -> None:
    checks.check_cache_after_commit(*case)


def test_features_are_those_of_plain_decoding(case: Case) -> None:
    target, inputs = case
    checks.check_features(target, inputs, (*kept(target), EMBEDDING))


@pytest.mark.parametrize("num_images", [0, 1, 2])
def test_packed_rows_stand_where_sequential_decoding_puts_them(vision_target: Target, num_images: int) -> None:
    """Index plus depth, plus the rope delta of this very prompt, on all axes."""
    inputs = prompt(vision_target, num_images)
    with seen_by(vision_target.text_model, "position_ids") as theirs:
        reference = hf_generate(vision_target, inputs, 6)
    steps = [p for p in theirs if p.shape[-1] == 1]
    assert len(steps) == 5
    sequential = [set(step[-3:].flatten().tolist()) for step in steps]  # generate puts the token index before the axes
    with seen_by(vision_target.text_model, "position_ids") as ours:
        *_, (state, root) = checks.lucky_rounds(vision_target, inputs, reference, (), (1, 0))
        tree = TokenTree((1, 2, 3), (0, 0, 2), (1, 1, 2))
        vision_target.verify(state, root, tree)
    # three tokens are committed; the root is the fourth new token, its children the fifth
    packed = ours[-1][-3:].reshape(-1, 4)
    for node, depth in enumerate((0, 1, 1, 2)):
        if 3 + depth < len(sequential):
            assert set(packed[:, node].tolist()) == sequential[3 + depth]
    assert set(packed[:, 3].tolist()) == {max(sequential[3]) + 2}
    if vision_target.model.config.model_type != "mllama" and num_images:
        assert max(sequential[0]) < len(inputs.token_ids), "the images take fewer positions than rows"


def test_deepstack_adds_at_its_levels_and_nowhere_else(qwen3_vl: Target) -> None:
    inputs = prompt(qwen3_vl, 2)
    adds = [checks.deepstack_add(qwen3_vl, inputs, layer) for layer in range(qwen3_vl.num_layers)]
    assert [add is not None for add in adds] == [True, True, False, False, False]
    checks.check_features(qwen3_vl, inputs, (0, 1, 2, 3))


def test_the_last_layer_can_be_kept(sdpa_target: Target) -> None:
    """Its feature is the residual stream before the final norm, so the norm of it gives the logits."""
    inputs = prompt(sdpa_target)
    state = sdpa_target.prefill(inputs, [sdpa_target.num_layers - 1])
    normed = sdpa_target.final_norm(state.take_features())
    torch.testing.assert_close(sdpa_target.lm_head(normed)[-1], hf_rows(sdpa_target, inputs, [])[-1], atol=1e-4, rtol=0)


def test_another_image_gives_other_features(vision_target: Target) -> None:
    checks.check_image_changes_features(vision_target, kept(vision_target))


@pytest.mark.parametrize("num_images", [0, 1, 2, 8])
def test_vision_encoder_runs_once_per_generation(vision_target: Target, num_images: int) -> None:
    drafter = BlockDrafter(tiny_head(vision_target), vision_target)
    checks.check_vision_runs_once(vision_target, drafter, prompt(vision_target, num_images))


@pytest.mark.parametrize("drafts", [True, False])
def test_one_object_decodes_prompts_in_a_row_as_fresh_objects_do(vision_target: Target, drafts: bool) -> None:
    family = vision_target.model.config.model_type
    a, text, b = prompt(vision_target, 1, seed=1), prompt(vision_target), prompt(vision_target, 2, seed=5)
    drafter = BlockDrafter(tiny_head(vision_target), vision_target) if drafts else NoDrafter()
    fresh = [tiny_target(family) for _ in range(4)]
    checks.check_nothing_left_over(vision_target, drafter, [a, text, b, a], fresh)


def test_two_sequences_can_be_decoded_in_turns(sdpa_target: Target) -> None:
    """Nothing of a sequence lives on the target: another one may be prefilled and stepped in between."""
    takes = sdpa_target.takes_images
    ours = [prompt(sdpa_target, 2 if takes else 0, seed=3), prompt(sdpa_target, 1 if takes else 0, text="what?")]
    expected = [hf_generate(sdpa_target, inputs, 7) for inputs in ours]
    states = [start(sdpa_target, inputs) for inputs in ours]
    tokens = [[root] for _, root in states]
    for _ in range(6):
        for (state, _), so_far in zip(states, tokens, strict=True):
            token = int(sdpa_target.verify(state, so_far[-1], EMPTY_TREE)[0].argmax())
            sdpa_target.commit(state, [0], [token])
            so_far.append(token)
    assert tokens == expected


def test_failed_verify_leaves_the_state_as_it_was(sdpa_target: Target) -> None:
    inputs = prompt(sdpa_target)
    reference = hf_generate(sdpa_target, inputs, 4)
    state, root = start(sdpa_target, inputs, kept(sdpa_target))
    before = changes_of(sdpa_target)

    def fail(*_: object) -> None:
        raise RuntimeError("scripted")

    for layer in (0, 2, sdpa_target.num_layers - 1):
        handle = sdpa_target.layers[layer].register_forward_hook(fail)
        try:
            with pytest.raises(RuntimeError, match="scripted"):
                sdpa_target.verify(state, root, TokenTree((1, 2), (0, 1), (1, 2)))
        finally:
            handle.remove()
    tokens = [root]
    for _ in range(3):
        tokens.append(int(sdpa_target.verify(state, tokens[-1], EMPTY_TREE)[0].argmax()))
        sdpa_target.commit(state, [0], [tokens[-1]])
    assert tokens == reference
    assert len(state.take_features()) == len(inputs.token_ids) + 3
    assert changes_of(sdpa_target) == before


def test_verify_without_commit_can_be_repeated(sdpa_target: Target) -> None:
    state, root = start(sdpa_target, prompt(sdpa_target))
    tree = TokenTree((1, 2, 3), (0, 0, 2), (1, 1, 2))
    first = sdpa_target.verify(state, root, tree)
    sdpa_target.verify(state, root, TokenTree((9,), (0,), (1,)))
    torch.testing.assert_close(sdpa_target.verify(state, root, tree), first, atol=0, rtol=0)


# mllama: vision by cross-attention ------------------------------------------------------------------------------


@pytest.mark.parametrize("num_images", [0, 1, 2, 8])
def test_mllama_leaves_the_cross_attention_cache_alone(mllama: Target, num_images: int) -> None:
    checks.check_cross_attention(mllama, prompt(mllama, num_images), (1, 3))


def test_mllama_text_before_the_image_sees_none_of_it(mllama: Target) -> None:
    """The prompt's last mask row counts after it, wherever the image stands."""
    content = [
        {"type": "text", "text": "before "},
        {"type": "image", "image": picture(4)},
        {"type": "text", "text": "?"},
    ]
    inputs = encode(mllama, [{"role": "user", "content": content}])
    mask = inputs.tensors["cross_attention_mask"]
    assert not bool(mask[:, 0].any())
    assert bool(mask[:, -1].any())
    checks.check_packed_rows(mllama, inputs)
    checks.check_cross_attention(mllama, inputs, (1, 3))


def test_mllama_refuses_to_keep_a_cross_attention_layer(mllama: Target) -> None:
    with pytest.raises(HeadError, match="kept layer 3 is a cross-attention layer"):
        mllama.prefill(prompt(mllama, 1), [0, 3])


def test_mllama_of_40_layers_keeps_llama_layers_past_the_inserted_ones() -> None:
    target = tiny_target("mllama", num_hidden_layers=40, cross_attention_layers=LLAMA_VISION_CROSS)
    ids = tuple(target.self_attention_layers[i] for i in (1, 8, 15, 22, 29))
    assert ids == (1, 10, 19, 27, 36)
    assert len(target.feature_points(ids)) == 5
    with pytest.raises(HeadError, match="kept layer 8"):
        target.feature_points((1, 8, 15, 22, 29))
