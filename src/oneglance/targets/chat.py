"""From messages and images to an encoded prompt, by the target's own chat template and processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from PIL import Image

from oneglance.core import InputError
from oneglance.images import load_image
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs

Message = Mapping[str, Any]
ROLES = ("system", "user", "assistant", "tool")


def encode(
    target: Target,
    prompt: str | Sequence[Message],
    *,
    images: Sequence[Any] = (),
    system: str | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    audio: Any = None,
) -> Inputs:
    """Encode a prompt for a target.

    Args:
        target: decides the template and how many rows an image makes.
        prompt: a user prompt, or chat messages ``{"role", "content"}`` whose content is a string or a list of
            ``{"type": "text", "text"}`` and ``{"type": "image", "image"}`` parts.
        images: image sources (see ``oneglance.images``) that go before the text of a plain prompt.
        system: system prompt.
        tools: what the target may call, as the chat template takes them (OpenAI's ``tools``).
        audio: a recording (see ``oneglance.audio``), for a speech target; the prompt is then what was said before, and
            may be empty.

    Raises:
        InputError: empty or malformed messages, images or audio for a target that takes none, none for one that needs
            it, or tools for a template without them.
        ImageError: an image cannot be read.
    """
    if target.takes_audio:
        if not isinstance(prompt, str) or images or system is not None or tools:
            raise InputError(f"{target.name} transcribes: give audio and a plain prompt, no messages, images or tools")
        return target.encode_audio(audio, prompt)
    if audio is not None:
        raise InputError(f"{target.name} takes no audio; drop the audio or choose a speech model")
    messages, pictures = normalise(prompt, images=images, system=system)
    if pictures and not target.takes_images:
        raise InputError(f"{target.name} is a text-only target and takes no images; drop the image or choose a VLM")
    if not target.takes_images:
        messages = [{**m, "content": _joined_text(m["content"])} for m in messages]
        encoded = target.tokenizer(_render(target, messages, tools), **_TEXT)
        return target.wrap({k: v for k, v in encoded.items() if k in ("input_ids", "attention_mask")})
    _check_placeholders(target, messages, tools)
    arguments: dict[str, Any] = {"images": pictures} if pictures else {}
    try:
        encoded = target.processor(text=[_render(target, messages, tools)], **arguments, **_TEXT)
    except ValueError as error:  # an image of an impossible shape, …
        raise InputError(f"the target's processor refuses the prompt: {str(error).strip().splitlines()[0]}") from error
    return target.wrap({k: v for k, v in encoded.items() if k in ("input_ids", "attention_mask", *target.input_names)})


def normalise(
    prompt: str | Sequence[Message], *, images: Sequence[Any] = (), system: str | None = None
) -> tuple[list[dict[str, Any]], list[Image.Image]]:
    """Messages whose contents are lists of parts, and their images in order of appearance."""
    if isinstance(images, str | bytes | Image.Image) or not isinstance(images, Sequence):
        raise InputError("images takes a list of image sources; write [image]")
    if isinstance(prompt, str):
        if not prompt and not images:
            raise InputError("the prompt is empty; give a text, an image, or both")
        parts: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
        parts += [{"type": "text", "text": prompt}] if prompt else []
        prompt = [{"role": "user", "content": parts}]
    elif images:
        raise InputError("with chat messages, put images into the message contents, not into images=")
    if system is not None:
        prompt = [{"role": "system", "content": system}, *prompt]
    if not prompt:
        raise InputError("there are no messages; give at least one user message")
    pictures: list[Image.Image] = []
    return [_message(m, pictures) for m in prompt], pictures


def _check_placeholders(target: Target, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
    """Refuse texts that spell what stands for an image: the processor would count it, or shift the images by it."""
    typed = f"{messages} {tools}"
    for kind in ("image", "video"):
        token = getattr(target.processor, f"{kind}_token", None)
        if token and token in typed:
            raise InputError(f"the prompt spells {token}, with which the target marks where {kind}s go; take it out")


_TEXT = {"return_tensors": "pt", "add_special_tokens": False}


def _message(message: Message, pictures: list[Image.Image]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InputError(f"a message must be an object with role and content, got {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise InputError(f"message role must be one of {', '.join(ROLES)}, got {role!r}")
    if isinstance(content, str):
        return {**message, "content": [{"type": "text", "text": content}]}
    if not isinstance(content, Sequence):
        raise InputError(f"message content must be a string or a list of parts, got {type(content).__name__}")
    return {**message, "content": [_part(part, pictures) for part in content]}


def _part(part: Mapping[str, Any], pictures: list[Image.Image]) -> dict[str, Any]:
    if not isinstance(part, Mapping):
        raise InputError(f"a message part must be an object with a type, got {type(part).__name__}")
    kind = part.get("type")
    if kind == "text":
        if not isinstance(part.get("text"), str):
            raise InputError("a text part has no text; write {'type': 'text', 'text': …}")
        return {"type": "text", "text": part["text"]}
    if kind not in ("image", "image_url"):
        raise InputError(f"message part type {kind!r} is not supported; use text or image")
    source = part.get(kind)
    if kind == "image_url" and isinstance(source, Mapping):
        source = source.get("url")
    if source is None:
        raise InputError(f"an {kind} part names no image; write {{'type': 'image', 'image': …}}")
    pictures.append(load_image(source))
    return {"type": "image"}


def _render(target: Target, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    renderer = target.chat_renderer
    if tools and "tools" not in str(getattr(renderer, "chat_template", None)):
        raise InputError(f"the chat template of {target.name} takes no tools; drop them or choose another target")
    if getattr(renderer, "chat_template", None) is None:
        if len(messages) > 1:
            raise InputError(f"{target.name} has no chat template: give one plain prompt, without a system prompt")
        return _joined_text(messages[0]["content"])
    arguments: dict[str, Any] = {"tools": list(tools)} if tools else {}
    try:
        text: str = renderer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **arguments)
    except (TemplateError, TypeError, ValueError) as error:  # roles that must alternate, no system prompt, …
        said = str(error).strip() or type(error).__name__
        raise InputError(
            f"the target's chat template refuses the messages ({said.splitlines()[0]}); change their roles or order"
        ) from error
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise InputError("the prompt holds half a surrogate pair; give valid Unicode text")
    return text


def _joined_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
