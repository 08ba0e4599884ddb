"""The loop and what wraps it: counts, caps, context limits, cancellation, failing drafters, the drop-in call."""

import json
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from conformance import checks
from conformance.conftest import tiny
from helpers import PlannedDrafter, changes_of, counting, decode_ids, hf_generate, pictures, prompt, seen_by
from oneglance.core import DraftError, InputError, OneglanceWarning, SamplingParams, TokenTree
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.head import BlockHead, HeadConfig
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target
from oneglance.targets.device import synchronise
from oneglance.targets.state import Inputs
from oneglance.testing import FAMILIES, ScriptedDrafter, failing_drafter, tiny_head, tiny_head_config, tiny_target
from oneglance.tree import chain


@pytest.fixture(scope="module")
def inputs(qwen3_vl: Target) -> Inputs:
    return prompt(qwen3_vl, 1)


@pytest.fixture(scope="module")
def reference(qwen3_vl: Target, inputs: Inputs) -> list[int]:
    return hf_generate(qwen3_vl, inputs, 40)


def planned(target: Target, inputs: Inputs, reference: Sequence[int], **options: Any) -> PlannedDrafter:
    return PlannedDrafter(reference, len(inputs.token_ids), target.vocab_size, policy=chain, **options)


# Counts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 3, 15])
def test_tokens_are_one_plus_what_the_rounds_kept(
    qwen3_vl: Target, inputs: Inputs, reference: list[int], budget: int
) -> None:
    drafter = planned(qwen3_vl, inputs, reference, budget=budget)
    generation = decode_ids(Decoder(qwen3_vl, drafter), inputs, 40).generation
    assert generation.token_ids == reference
    rounds = generation.rounds
    assert [r.index for r in rounds] == list(range(len(rounds)))
    assert [t for r in rounds for t in r.token_ids] == reference[1:]
    assert [r.root for r in rounds] == [reference[0], *(r.token_ids[-1] for r in rounds[:-1])]
    # 39 tokens come from full rounds of budget + 1, and the rest
    full, rest = divmod(39, budget + 1)
    assert [len(r.token_ids) for r in rounds] == [budget + 1] * full + [rest] * (rest > 0)
    assert generation.tau == pytest.approx(39 / len(rounds))
    assert [r.cut for r in rounds] == [None] * (len(rounds) - 1) + ["cap"]
    assert sum(generation.acceptance_histogram) == sum(1 for r in rounds if len(r.tree))
    assert generation.num_draft_passes == sum(1 for r in rounds if len(r.tree))


def test_chains_of_every_depth(qwen3_vl: Target, inputs: Inputs, reference: list[int]) -> None:
    for depth in range(1, 16):
        drafter = planned(qwen3_vl, inputs, reference, budget=depth)
        accepted = checks.check_identity(qwen3_vl, drafter, inputs, reference[:20])
        assert accepted[0] == depth


def test_tau_counts_kept_tokens_only(qwen3_vl: Target, inputs: Inputs, reference: list[int]) -> None:
    """A block of 16 that a stop string cuts after its third token is three tokens, not sixteen."""
    stop = qwen3_vl.tokenizer.decode(reference[3:4])
    assert stop not in qwen3_vl.tokenizer.decode(reference[:3])
    drafter = planned(qwen3_vl, inputs, reference)
    generation = decode_ids(Decoder(qwen3_vl, drafter), inputs, 40, stop=[stop]).generation
    assert generation.token_ids == reference[:4]
    assert (generation.tau, len(generation.rounds)) == (3.0, 1)
    assert generation.rounds[0].verdict.num_accepted == 15
    assert generation.acceptance_histogram == [0, 0, 0, 1]
    assert (generation.rounds[0].cut, generation.finish_reason) == ("stop", "stop")


def test_result_as_json(qwen3_vl: Target, inputs: Inputs, reference: list[int]) -> None:
    generation = decode_ids(Decoder(qwen3_vl, NoDrafter()), inputs, 5).generation
    result = json.loads(json.dumps(generation.as_dict()))
    fields = "text token_ids finish_reason num_tokens num_rounds tau acceptance_histogram num_draft_passes prefill_ms"
    assert {*fields.split(), "ms_per_token", "target", "head"} <= result.keys()
    assert result["token_ids"] == reference[:5]
    assert (result["num_rounds"], result["tau"], result["num_tokens"], result["head"]) == (4, 1.0, 5, None)
    assert result["prefill_ms"] > 0
    assert result["ms_per_token"] > 0


# Caps and limits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [0, 1, 2, 15, 16, 17, 18])
def test_caps(qwen3_vl: Target, inputs: Inputs, reference: list[int], cap: int) -> None:
    head = tiny_head(qwen3_vl)
    for drafter in (BlockDrafter(head, qwen3_vl), planned(qwen3_vl, inputs, reference), NoDrafter()):
        with counting(head) as drafts, counting(qwen3_vl.lm_head) as passes:
            generation = decode_ids(Decoder(qwen3_vl, drafter), inputs, cap).generation
        assert generation.token_ids == reference[:cap]
        assert generation.finish_reason == "length"
        if cap < 3:
            assert not drafts, "the last token needs no draft"
            assert len(passes) == cap
        if isinstance(drafter, PlannedDrafter):
            assert all(len(r.tree) <= cap - 2 for r in generation.rounds), "deeper than what can be kept"


def test_nothing_is_run_for_a_cap_of_zero(qwen3_vl: Target, inputs: Inputs) -> None:
    with counting(qwen3_vl.text_model) as calls:
        generation = decode_ids(Decoder(qwen3_vl, NoDrafter()), inputs, 0).generation
    assert not calls
    assert (generation.text, generation.num_tokens, generation.tau) == ("", 0, None)
    assert generation.ms_per_token is None


@pytest.mark.parametrize("family", ["qwen3", "qwen3_vl", "mllama"])
def test_text_ends_at_the_targets_context(family: str) -> None:
    target = tiny_target(family, max_position_embeddings=72)
    target.model.generation_config.eos_token_id = None
    inputs = prompt(target, int(target.takes_images))
    room = 72 - len(inputs.token_ids)
    assert 15 < room < 45
    reference = hf_generate(target, inputs, room)
    for drafter in (planned(target, inputs, reference), BlockDrafter(tiny_head(target), target), NoDrafter()):
        with seen_by(target.text_model, "position_ids") as positions:
            generation = decode_ids(Decoder(target, drafter), inputs, 500).generation
        assert generation.token_ids == reference
        assert generation.finish_reason == "length"
        assert generation.rounds[-1].cut == "context"
        assert max(int(p.max()) for p in positions) < 72


@pytest.mark.parametrize("cap", [1, 20])
def test_a_prompt_longer_than_the_context_is_an_error(cap: int) -> None:
    target = tiny_target("qwen3_vl", max_position_embeddings=40)
    for inputs in (prompt(target, 2), prompt(target, text="x" * 40)):
        with pytest.raises(InputError, match=r"prompt has \d+ tokens and the target's context is 40"):
            decode_ids(Decoder(target, NoDrafter()), inputs, cap)


def short_head(target: Target, context: int) -> BlockHead:
    torch.manual_seed(0)
    config = {**tiny_head_config(target), "max_position_embeddings": context}
    return BlockHead(HeadConfig.from_checkpoint(config)).eval()


def test_past_the_heads_context_decoding_is_plain(qwen3_vl: Target, inputs: Inputs, reference: list[int]) -> None:
    length = len(inputs.token_ids)
    head = short_head(qwen3_vl, length + 20)
    decoder = Decoder(qwen3_vl, BlockDrafter(head, qwen3_vl))
    seen: list[int] = []
    head.register_forward_pre_hook(lambda _, args: seen.append(int(args[2].max())))
    with pytest.warns(OneglanceWarning, match=f"the head's context of {length + 20} positions is full") as caught:
        generation = decode_ids(decoder, inputs, 40).generation
    assert len(caught) == 1
    assert generation.token_ids == reference
    assert 15 < len(seen) < 25, "it drafts as long as it can"
    assert max(seen) == length + 19, "its last blocks are shorter"
    assert generation.fell_back is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode_ids(decoder, inputs, 40).generation.token_ids == reference, "said once a decoder"


def test_a_prompt_longer_than_the_heads_context_is_decoded_plainly(
    qwen3_vl: Target, inputs: Inputs, reference: list[int]
) -> None:
    head = short_head(qwen3_vl, 8)
    decoder = Decoder(qwen3_vl, BlockDrafter(head, qwen3_vl))
    with pytest.warns(OneglanceWarning, match="context of 8 positions"), counting(head) as drafts:
        assert decode_ids(decoder, inputs, 9).generation.token_ids == reference[:9]
    assert not drafts


# Streaming and cancellation --------------------------------------------------------------------------------------


def test_steps_carry_all_tokens_and_all_text(qwen3_vl: Target, inputs: Inputs, reference: list[int]) -> None:
    stream = Decoder(qwen3_vl, planned(qwen3_vl, inputs, reference)).stream_inputs(inputs, SamplingParams(40))
    steps = list(stream)
    assert steps[0].round is None
    assert all(step.round is not None for step in steps[1:])
    assert [piece.token_id for step in steps for piece in step.pieces] == reference
    assert "".join(step.text for step in steps) == stream.generation.text
    assert stream.generation.text == qwen3_vl.tokenizer.decode(reference, skip_special_tokens=True)


@pytest.mark.parametrize("num_steps", [1, 2, 9])
def test_text_that_was_held_back_comes_with_a_cancelled_generation(
    qwen3_vl: Target, inputs: Inputs, reference: list[int], num_steps: int
) -> None:
    """Ids and text say the same: what might have become a stop string has not."""
    spelled = qwen3_vl.tokenizer.decode(reference, skip_special_tokens=True)
    stop = tuple(f"{character} and no more" for character in set(spelled))
    decoder = Decoder(qwen3_vl, NoDrafter())
    stream = decoder.stream_inputs(inputs, SamplingParams(40, stop=stop))
    shown = "".join(next(stream).text for _ in range(num_steps))
    stream.close()
    generation = stream.generation
    assert generation.token_ids == reference[:num_steps]
    assert generation.text == qwen3_vl.tokenizer.decode(reference[:num_steps], skip_special_tokens=True) != shown
    assert generation.finish_reason == "cancelled"


def test_a_drafted_end_of_text_is_the_last_thing_that_processors_see(
    qwen3_vl: Target, inputs: Inputs, reference: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = reference[5]
    monkeypatch.setattr(qwen3_vl.model.generation_config, "eos_token_id", [end])
    seen: list[list[int]] = []

    def record(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(input_ids[0, len(inputs.token_ids) :].tolist())
        return scores

    decoder = Decoder(qwen3_vl, planned(qwen3_vl, inputs, reference))
    expected = reference[: reference.index(end) + 1]
    for ignore_eos in (False, True):
        seen.clear()
        params = SamplingParams(12, logits_processors=(record,), ignore_eos=ignore_eos)
        stream = decoder.stream_inputs(inputs, params)
        assert len(list(stream)) == 2
        assert stream.generation.token_ids == (reference[:12] if ignore_eos else expected)
        assert seen == [reference[:i] for i in range(stream.generation.num_tokens)]


def test_verify_is_timed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that works on its own is waited for; the CPU needs no wait."""
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    for name in ("cpu", "cuda:1", "mps"):
        synchronise(torch.device(name))
    assert waited == [torch.device("cuda:1"), torch.device("mps")]


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["close", "with", "forgotten"])
def test_closing_early_leaves_everything_usable(
    qwen3_vl: Target, inputs: Inputs, reference: list[int], num_steps: int, how: str
) -> None:
    before = changes_of(qwen3_vl)
    decoder = Decoder(qwen3_vl, BlockDrafter(tiny_head(qwen3_vl), qwen3_vl))
    stream = decoder.stream_inputs(inputs, SamplingParams(40))
    if how == "with":
        with stream as entered:
            for _ in range(num_steps):
                next(entered)
    else:
        for _ in range(num_steps):
            next(stream)
    if how != "forgotten":
        stream.close()
        stream.close()
        assert list(stream) == []
    kept = stream.generation
    assert kept.token_ids == reference[: kept.num_tokens]
    assert kept.num_tokens >= num_steps
    assert kept.finish_reason == "cancelled"
    other = prompt(qwen3_vl, text="and now?")
    assert decode_ids(decoder, other, 6).generation.token_ids == hf_generate(qwen3_vl, other, 6)
    assert decode_ids(decoder, inputs, 12).generation.token_ids == reference[:12]
    assert changes_of(qwen3_vl) == before


def test_two_streams_may_take_turns(qwen3_vl: Target) -> None:
    prompts = [prompt(qwen3_vl, 2, seed=9), prompt(qwen3_vl, 1, seed=4)]
    decoder = Decoder(qwen3_vl, BlockDrafter(tiny_head(qwen3_vl), qwen3_vl))
    streams = [decoder.stream_inputs(inputs, SamplingParams(8)) for inputs in prompts]
    for _ in range(8):
        for stream in streams:
            next(stream, None)
    for stream, inputs in zip(streams, prompts, strict=True):
        assert stream.generation.token_ids == hf_generate(qwen3_vl, inputs, 8)


# Failing drafters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [DraftError("scripted"), RuntimeError("CUDA out of memory"), KeyError(7)], ids=repr)
@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("family", ["qwen3_vl", "mllama", "qwen3"])
def test_a_failing_drafter_costs_speed_only(family: str, after: int, error: Exception) -> None:
    target = tiny(family, "sdpa")
    inputs = prompt(target, int(target.takes_images))
    reference = hf_generate(target, inputs, 12)
    drafter = failing_drafter(after, error, target_layer_ids=(0,))
    decoder = Decoder(target, drafter)
    with pytest.warns(OneglanceWarning, match="the rest is decoded plainly: ") as caught:
        generation = decode_ids(decoder, inputs, 12).generation
    assert sum(warning.category is OneglanceWarning for warning in caught) == 1
    assert generation.token_ids == reference
    assert drafter.calls == after + 1, "it is not asked again in this generation"
    assert generation.fell_back == (str(error) if isinstance(error, DraftError) else f"{type(error).__name__}: {error}")
    again = decode_ids(decoder, inputs, 12).generation  # the script fails once only
    assert again.token_ids == reference
    assert again.fell_back is None


def test_a_failure_inside_the_head_is_survived(qwen3_vl: Target, inputs: Inputs, reference: list[int]) -> None:
    """Half a pass, with the context already ingested: the next generation starts afresh."""
    head = tiny_head(qwen3_vl)
    decoder = Decoder(qwen3_vl, BlockDrafter(head, qwen3_vl))
    calls: list[int] = []

    def fail(*_: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("in the middle of a pass")

    handle = head.layers[1].register_forward_hook(fail)
    with pytest.warns(OneglanceWarning, match="in the middle of a pass"):
        assert decode_ids(decoder, inputs, 12).generation.token_ids == reference[:12]
    handle.remove()
    again = decode_ids(decoder, inputs, 12).generation
    assert again.token_ids == reference[:12]
    assert again.num_draft_passes == sum(1 for r in again.rounds if len(r.tree)) > 3


class FailsAtStart(ScriptedDrafter):
    def start(self, state: Any) -> None:
        raise ValueError("no start")


def test_a_drafter_that_cannot_start_is_never_asked(qwen3_vl: Target, inputs: Inputs, reference: list[int]) -> None:
    drafter = FailsAtStart(lambda so_far, max_depth: TokenTree((1,), (0,), (1,)))
    with pytest.warns(OneglanceWarning, match="no start"):
        assert decode_ids(Decoder(qwen3_vl, drafter), inputs, 6).generation.token_ids == reference[:6]
    assert drafter.calls == 0


@pytest.mark.parametrize(
    ("tokens", "parents", "depths"),
    [
        ((1, 2), (2, 0), (1, 1)),  # a child before its parent
        ((1, 2), (0, 1), (1, 1)),  # a depth that is not the parent's plus one
        ((1, 2), (0, 0), (1, 7)),
        ((1,), (0, 1), (1, 2)),  # lengths that differ
    ],
)
def test_an_impossible_tree_ends_drafting_and_changes_no_token(
    qwen3_vl: Target, inputs: Inputs, reference: list[int], tokens: Any, parents: Any, depths: Any
) -> None:
    drafter = ScriptedDrafter(lambda so_far, max_depth: TokenTree(tokens, parents, depths))
    with pytest.warns(OneglanceWarning, match="decoded plainly"):
        assert decode_ids(Decoder(qwen3_vl, drafter), inputs, 6).generation.token_ids == reference[:6]


@pytest.mark.filterwarnings("ignore:drafting ended")
def test_a_tree_deeper_than_asked_for_changes_no_token(qwen3_vl: Target, inputs: Inputs, reference: list[int]) -> None:
    drafter = planned(qwen3_vl, inputs, reference)
    script = drafter.script
    drafter.script = lambda so_far, max_depth: script(so_far, 15)
    for cap in (2, 5, 17):
        assert decode_ids(Decoder(qwen3_vl, drafter), inputs, cap).generation.token_ids == reference[:cap]


# Placeholders ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "mllama"])
def test_placeholders_are_never_proposed(family: str) -> None:
    """Even by a head that likes nothing better."""
    target = tiny_target(family)
    config = target.model.config
    image = getattr(config, "image_token_id", None) or config.image_token_index
    banned = [i for i in {image, getattr(config, "video_token_id", image)} if i < target.vocab_size]
    assert set(banned) <= set(target.banned_ids)
    head = tiny_head(target)
    state = torch.linspace(-1, 1, target.hidden_size)
    head.forward = lambda block, *_: state.expand_as(block)  # type: ignore[method-assign]
    target.lm_head.weight.data[list(target.banned_ids)] = state * 100
    prefilled = target.prefill(prompt(target, 1), head.config.target_layer_ids)
    for budget in (1, 63, target.vocab_size):
        drafter = BlockDrafter(head, target, policy=chain if budget == 1 else BlockDrafter(head, target).policy)
        drafter.budget = drafter.num_ranks = budget
        tree = drafter.draft(5, prefilled, drafter.start(prefilled), max_depth=15)
        prefilled.fresh = [torch.zeros(prefilled.length, head.config.feature_size)]
        assert len(tree)
        assert not set(tree.token_ids) & set(target.banned_ids)


# The drop-in call ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_images", [0, 2])
def test_generate_ids_is_a_drop_in(vision_target: Target, num_images: int) -> None:
    messages = [{"role": "user", "content": [*[{"type": "image"}] * num_images, {"type": "text", "text": "hi"}]}]
    text = vision_target.processor.apply_chat_template(messages, add_generation_prompt=True)
    images = {"images": pictures(num_images)} if num_images else {}
    encoded = vision_target.processor(text=[text], **images, return_tensors="pt", add_special_tokens=False)
    encoded = {key: value for key, value in encoded.items() if key != "token_type_ids"}
    expected = vision_target.model.generate(**encoded, do_sample=False, max_new_tokens=10)
    decoder = Decoder(vision_target, BlockDrafter(tiny_head(vision_target), vision_target))
    assert torch.equal(decoder.generate_ids(**encoded, max_new_tokens=10), expected)
    assert torch.equal(decoder.generate_ids(**encoded, max_new_tokens=10, do_sample=False), expected)


IDS = torch.tensor([[1, 2, 3, 4]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": IDS.repeat(2, 1)}, r"one sequence at a time: input_ids must be \(1, T\), got \(2, 4\)"),
        ({"input_ids": IDS[0]}, r"must be \(1, T\), got \(4,\)"),
        ({"input_ids": IDS[:, :0]}, "the prompt is empty"),
        ({"input_ids": IDS, "attention_mask": torch.tensor([[0, 1, 1, 1]])}, "padded input is not supported"),
        ({"input_ids": IDS, "attention_mask": torch.tensor([[1, 1, 1, 0]])}, "padded input is not supported"),
        ({"input_ids": IDS, "pixel_values_videos": torch.zeros(1)}, r"video input \(pixel_values_videos\)"),
        ({"input_ids": IDS, "video_grid_thw": torch.zeros(1)}, r"video input \(video_grid_thw\)"),
        ({"input_ids": IDS, "num_beams": 4}, "unsupported input 'num_beams'"),
        ({"input_ids": IDS, "past_key_values": object()}, "unsupported input 'past_key_values'"),
        ({"input_ids": IDS, "inputs_embeds": torch.zeros(1)}, "unsupported input 'inputs_embeds'"),
        ({}, "input_ids is missing"),
        ({"input_ids": [[1, 2]]}, "input_ids must be a tensor"),
        ({"input_ids": IDS, "attention_mask": torch.ones(1, 5)}, r"must be like input_ids, \(1, 4\), got \(1, 5\)"),
        ({"input_ids": torch.tensor([[1, 272]])}, "outside the vocabulary of 272"),
        ({"input_ids": torch.tensor([[-1, 2]])}, "outside the vocabulary of 272"),
        ({"input_ids": torch.tensor([[1, 261]])}, "image placeholders but no image was given"),
        ({"input_ids": IDS, "max_new_tokens": -1}, "max_new_tokens must be at least 0"),
        ({"input_ids": IDS, "do_sample": True}, "do_sample and temperature contradict each other"),
        ({"input_ids": IDS, "do_sample": False, "temperature": 1.0}, "temperature alone decides"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(qwen3_vl: Target, arguments: dict[str, Any], message: str) -> None:
    assert qwen3_vl.model.config.image_token_id == 261
    with pytest.raises(InputError, match=message):
        Decoder(qwen3_vl, NoDrafter()).generate_ids(**arguments)


def test_image_rows_that_do_not_fit_the_images_are_refused(qwen3_vl: Target, inputs: Inputs) -> None:
    tensors = dict(inputs.tensors)
    tensors["input_ids"] = torch.cat([tensors["input_ids"], torch.tensor([[261]])], dim=1)
    with pytest.raises(InputError, match=r"holds 5 image rows but its images make 4"):
        Decoder(qwen3_vl, NoDrafter()).generate_ids(**tensors)


@pytest.mark.parametrize("mask", [None, torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.bool)])
def test_attention_mask_may_be_absent_or_all_ones(qwen3: Target, mask: torch.Tensor | None) -> None:
    expected = qwen3.model.generate(input_ids=IDS, do_sample=False, max_new_tokens=6)
    out = Decoder(qwen3, NoDrafter()).generate_ids(input_ids=IDS, attention_mask=mask, max_new_tokens=6)
    assert torch.equal(out, expected)


# The target's generation config ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "generation",
    [
        # what it says, from what the target says without it
        lambda plain: {"repetition_penalty": 1.7},
        lambda plain: {"no_repeat_ngram_size": 2},
        lambda plain: {"suppress_tokens": plain[:3]},
        lambda plain: {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "temperature": 0.6, "do_sample": True},
        lambda plain: {"bad_words_ids": [plain[:2], plain[1:4], [plain[5]]], "begin_suppress_tokens": plain[:1]},
        lambda plain: {"sequence_bias": [[[plain[2]], -9.0], [[60], 3.0]]},
        lambda plain: {"exponential_decay_length_penalty": (4, 1.5), "forced_eos_token_id": plain[0]},
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_generation_config_applies_to_every_token(family: str, generation: Any) -> None:
    target = tiny_target(family, initializer_range=0.05)  # repeats itself, inside one block too
    inputs = prompt(target, int(target.takes_images))
    checks.check_generation_config(target, inputs, **generation(hf_generate(target, inputs, 12)))


@pytest.mark.parametrize("family", ["mllama", "qwen3"])
def test_min_new_tokens_holds_the_end_back(family: str) -> None:
    target = tiny_target(family)
    inputs = prompt(target, int(target.takes_images))
    config = target.model.generation_config
    config.eos_token_id = None
    config.eos_token_id = [hf_generate(target, inputs, 4)[3]]
    checks.check_generation_config(target, inputs, min_new_tokens=9)


@pytest.mark.parametrize("eos", [258, 256, None])
def test_a_padding_token_in_the_prompt_is_no_padding_if_the_mask_says_so(eos: int | None) -> None:
    """Without a mask, generate guesses; we ask, unless it would not guess either (padding that ends texts too)."""
    target = tiny_target("qwen3")
    target.model.generation_config.update(pad_token_id=256)
    target.model.generation_config.eos_token_id = eos
    decoder, ids = Decoder(target, NoDrafter()), torch.tensor([[1, 256, 256, 256, 9, 3, 256, 256, 256, 4]])
    mask = torch.ones_like(ids)
    expected = target.model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=6)
    assert torch.equal(decoder.generate_ids(input_ids=ids, attention_mask=mask, max_new_tokens=6), expected)
    if eos == 256:
        assert torch.equal(decoder.generate_ids(input_ids=ids, max_new_tokens=6), expected)
    else:
        assert not torch.equal(target.model.generate(ids, do_sample=False, max_new_tokens=6), expected)
        with pytest.raises(InputError, match="padding token; pass attention_mask"):
            decoder.generate_ids(input_ids=ids, max_new_tokens=6)


def test_what_the_generation_config_does_is_said_once(qwen3: Target) -> None:
    target = tiny_target("qwen3")
    target.model.generation_config.repetition_penalty = 1.2
    decoder = Decoder(target, NoDrafter())
    with pytest.warns(OneglanceWarning, match="applies to every token: RepetitionPenaltyLogitsProcessor$") as caught:
        decode_ids(decoder, prompt(target), 3)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode_ids(decoder, prompt(target), 3)
        decode_ids(Decoder(qwen3, NoDrafter()), prompt(qwen3), 3)


def test_a_cap_of_the_generation_config_is_replaced_and_said_so_once() -> None:
    target = tiny_target("qwen3")
    target.model.generation_config.max_length = 3
    decoder = Decoder(target, NoDrafter())
    with pytest.warns(OneglanceWarning, match="generation config has max_length=3; max_new_tokens") as caught:
        assert decode_ids(decoder, prompt(target), 5).generation.num_tokens == 5
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode_ids(decoder, prompt(target), 5)
