"""From messages to token ids: the target's own template and processor decide, images keep their order."""

from typing import Any

import pytest
import torch

from helpers import decode_ids, hf_generate, picture, pictures, prompt
from oneglance.core import ImageError, InputError
from oneglance.decoder import Decoder
from oneglance.drafters.plain import NoDrafter
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import tiny_target

A, B = picture(1), picture(2, 48, 32)
Message = dict[str, Any]


def text_of(target: Target, *arguments: Any, **options: Any) -> str:
    """What the prompt spells, special tokens included."""
    return str(target.tokenizer.decode(encode(target, *arguments, **options).token_ids))


def by_the_processor(target: Target, messages: list[Message], images: list[Any]) -> dict[str, torch.Tensor]:
    """The oracle: the processor's own way from chat to tensors."""
    text = target.processor.apply_chat_template(messages, add_generation_prompt=True)
    given = {"images": images} if images else {}
    return dict(target.processor(text=[text], **given, return_tensors="pt", add_special_tokens=False))


def test_a_plain_prompt_is_one_user_message(qwen3: Target) -> None:
    expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(qwen3, "hi") == expected
    assert text_of(qwen3, [{"role": "user", "content": "hi"}]) == expected
    assert text_of(qwen3, [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]) == expected


def test_a_system_prompt_comes_first(qwen3: Target) -> None:
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(qwen3, "hi", system="Be brief.") == expected
    assert text_of(qwen3, [{"role": "user", "content": "hi"}], system="Be brief.") == expected


def test_several_turns(qwen3: Target) -> None:
    turns = [("user", "a"), ("assistant", "b"), ("user", "c")]
    messages = [{"role": role, "content": content} for role, content in turns]
    text = text_of(qwen3, messages, system="s")
    assert [text.index(part) for part in ("system\ns", "user\na", "assistant\nb", "user\nc", "assistant\n")]
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_bos_is_written_once(mllama: Target) -> None:
    """The template writes it; the tokenizer must not add another."""
    ids = encode(mllama, "hi").token_ids
    bos = mllama.tokenizer.convert_tokens_to_ids("<|begin_of_text|>")
    assert (ids[0], ids.count(bos)) == (bos, 1)


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "image", "image": A}, {"type": "text", "text": "what?"}],
        [{"type": "text", "text": "what?"}, {"type": "image", "image": A}],
        [{"type": "text", "text": "x"}, {"type": "image", "image": A}, {"type": "text", "text": "y"}],
        [{"type": "image", "image": A}, {"type": "text", "text": "or"}, {"type": "image", "image": B}],
        [{"type": "image", "image": A}, {"type": "image", "image": A}],
        [{"type": "image", "image": A}],
    ],
)
def test_image_parts_are_encoded_as_the_processor_does(vision_target: Target, content: list[Message]) -> None:
    messages = [{"role": "user", "content": content}]
    images = [part["image"] for part in content if part["type"] == "image"]
    bare = [{"role": "user", "content": [{k: v for k, v in part.items() if k != "image"} for part in content]}]
    expected = by_the_processor(vision_target, bare, images)
    inputs = encode(vision_target, messages)
    assert inputs.num_images == len(images)
    for key, value in inputs.tensors.items():
        assert torch.equal(value, expected[key]), key
    drafted = decode_ids(Decoder(vision_target, NoDrafter()), inputs, 5).generation
    assert drafted.token_ids == hf_generate(vision_target, inputs, 5)


def test_images_of_a_plain_prompt_go_before_its_text(vision_target: Target) -> None:
    parts = [{"type": "image", "image": A}, {"type": "image", "image": B}, {"type": "text", "text": "compare"}]
    expected = encode(vision_target, [{"role": "user", "content": parts}])
    inputs = encode(vision_target, "compare", images=[A, B])
    assert inputs.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(value, expected.tensors[key]) for key, value in inputs.tensors.items())
    swapped = encode(vision_target, "compare", images=[B, A])
    assert any(
        value.shape != inputs.tensors[key].shape or not torch.equal(value, inputs.tensors[key])
        for key, value in swapped.tensors.items()
    )


def test_images_of_several_turns_keep_their_order(qwen3_vl: Target) -> None:
    first = [{"type": "image", "image": A}, {"type": "text", "text": "this?"}]
    second = [{"type": "text", "text": "and this?"}, {"type": "image", "image": B}]
    messages = [
        {"role": "user", "content": first},
        {"role": "assistant", "content": "a page"},
        {"role": "user", "content": second},
    ]
    inputs = encode(qwen3_vl, messages)
    grids = [encode(qwen3_vl, "x", images=[image]).tensors["image_grid_thw"][0] for image in (A, B)]
    assert torch.equal(inputs.tensors["image_grid_thw"], torch.stack(grids))


def test_an_image_alone_is_a_prompt(vision_target: Target) -> None:
    inputs = encode(vision_target, "", images=[A])
    assert inputs.num_images == 1
    assert decode_ids(Decoder(vision_target, NoDrafter()), inputs, 4).generation.num_tokens == 4


def test_image_urls_of_chat_clients(qwen3_vl: Target) -> None:
    import base64
    import io

    buffer = io.BytesIO()
    A.save(buffer, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    expected = encode(qwen3_vl, "x", images=[A])
    for value in (url, {"url": url}):
        parts = [{"type": "image_url", "image_url": value}, {"type": "text", "text": "x"}]
        inputs = encode(qwen3_vl, [{"role": "user", "content": parts}])
        assert all(torch.equal(tensor, expected.tensors[key]) for key, tensor in inputs.tensors.items())


def test_without_a_chat_template_a_prompt_is_its_text() -> None:
    target = tiny_target("qwen3")
    target.processor.chat_template = None
    assert text_of(target, "once upon") == "once upon"
    assert text_of(target, [{"role": "user", "content": [{"type": "text", "text": "once"}]}]) == "once"
    with pytest.raises(InputError, match="no chat template: give one plain prompt"):
        encode(target, "x", system="y")


def test_a_padding_token_typed_into_a_prompt_is_text(sdpa_target: Target) -> None:
    target = sdpa_target
    pad = target.tokenizer.convert_ids_to_tokens(target.model.generation_config.pad_token_id)
    if target.takes_audio:
        with pytest.raises(InputError, match=r"refuses the prompt: .*disallowed special token"):
            prompt(target, text=f"what is {pad}?")
        return
    inputs = encode(target, f"what is {pad}?")
    expected = hf_generate(target, inputs, 5)
    assert decode_ids(Decoder(target, NoDrafter()), inputs, 5).generation.token_ids == expected


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_a_prompt_may_hold_any_known_role(qwen3: Target, role: str) -> None:
    assert f"<|im_start|>{role}\nx<|im_end|>" in text_of(qwen3, [{"role": role, "content": "x"}])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("",), {}, "the prompt is empty"),
        (([],), {}, "there are no messages"),
        (
            ([{"role": "wizard", "content": "x"}],),
            {},
            "role must be one of system, user, assistant, tool, got 'wizard'",
        ),
        (([{"content": "x"}],), {}, "role must be one of"),
        (([{"role": "user"}],), {}, "content must be a string or a list of parts, got NoneType"),
        (([{"role": "user", "content": 3}],), {}, "got int"),
        (([{"role": "user", "content": [{"type": "video"}]}],), {}, "part type 'video' is not supported"),
        (([{"role": "user", "content": [{"type": "text"}]}],), {}, "a text part has no text"),
        (([{"role": "user", "content": [{"type": "text", "text": 3}]}],), {}, "a text part has no text"),
        (([{"role": "user", "content": [{"type": "image_url"}]}],), {}, "an image_url part names no image"),
        (([{"role": "user", "content": ["x"]}],), {}, "a message part must be an object with a type, got str"),
        (([{"role": "user", "content": [{"type": "image"}]}],), {}, "an image part names no image"),
        ((["hello"],), {}, "a message must be an object with role and content, got str"),
        (([{"role": "user", "content": "x"}],), {"images": [A]}, "put images into the message contents"),
        (("x",), {"images": A}, r"images takes a list of image sources; write \[image\]"),
        (("x",), {"images": "page.png"}, r"write \[image\]"),
        (("x",), {"images": ["/no/such.png"]}, "such.png"),
    ],
)
def test_what_cannot_be_encoded_is_named(
    qwen3_vl: Target, arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        encode(qwen3_vl, *arguments, **options)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_vl", "mllama"])
def test_messages_that_the_template_refuses_are_an_input_error(family: str) -> None:
    """As Llama-3.2-Vision does with a system prompt beside an image."""
    target = tiny_target(family)
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no system prompt,\\nplease') }}{% endif %}"
    for template in (refusal, "{{ messages[0].content + 3 }}"):
        target.processor.chat_template = template
        with pytest.raises(InputError, match=r"chat template refuses the messages .*; change") as error:
            encode(target, "hi", system="s")
        assert "\n" not in str(error.value)


def test_parts_of_an_image_come_together(vision_target: Target) -> None:
    """Without its pixels the model would read the embedding of the placeholder."""
    whole = encode(vision_target, "x", images=[A]).tensors
    for name in vision_target.image_names:
        with pytest.raises(InputError, match=f"come together, and '{name}' is missing"):
            Decoder(vision_target, NoDrafter()).generate_ids(**{k: v for k, v in whole.items() if k != name})


def test_an_unreadable_image_is_an_image_error(qwen3_vl: Target) -> None:
    with pytest.raises(ImageError):
        encode(qwen3_vl, "x", images=[b"not an image"])


def test_a_text_only_target_refuses_images_by_name(qwen3: Target) -> None:
    with pytest.raises(InputError, match="tiny:qwen3 is a text-only target and takes no images"):
        encode(qwen3, "x", images=[A])
    parts = [{"type": "image", "image": A}]
    with pytest.raises(InputError, match="text-only target"):
        encode(qwen3, [{"role": "user", "content": parts}])


def test_placeholder_text_in_a_prompt_is_no_image(vision_target: Target) -> None:
    """A user who types the placeholder must not shift the images of the prompt."""
    is_mllama = vision_target.model.config.model_type == "mllama"
    for placeholder in ["<|image|>"] if is_mllama else ["<|image_pad|>", "<|video_pad|>"]:
        for options in ({}, {"images": [A]}, {"system": f"no {placeholder}"}):
            with pytest.raises(InputError, match=r"the prompt spells <.*>, with which the target marks") as error:
                encode(vision_target, f"what is {placeholder}?", **options)
            assert "\n" not in str(error.value)


def test_generate_takes_prompts_as_they_are(vision_target: Target) -> None:
    decoder = Decoder(vision_target, NoDrafter())
    inputs = prompt(vision_target, 2, text="what?")
    expected = hf_generate(vision_target, inputs, 6)
    generation = decoder.generate("what?", images=pictures(2), max_new_tokens=6)
    assert generation.token_ids == expected
    with decoder.stream("what?", images=pictures(2), max_new_tokens=6) as stream:
        assert [piece.token_id for step in stream for piece in step.pieces] == expected
