"""From a request body to what is decoded: the prompt with its images, the sampling parameters, the tools.

A string from a client never names a local file: only http(s) URLs, data URIs and base64 are read.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oneglance.core import FetchError, ImageError, InputError, LargeImageError, PrivateUrlError, SamplingParams
from oneglance.fetch import too_long
from oneglance.files import parse_json
from oneglance.images import MAX_BYTES, load_image
from oneglance.serve import schema
from oneglance.serve.settings import ServeSettings
from oneglance.serve.tools import CLOSE, NamedCall, PlainText, TaggedCalls

if TYPE_CHECKING:
    from PIL.Image import Image

    from oneglance.targets.base import Target
    from oneglance.targets.state import Inputs

MAX_DEPTH = 100
BY_DATA_URI = "send the image as a data URI"
FIXES: Mapping[type, str] = {  # what a client can do where an error has advice for who calls this package only
    ImageError: "send it as PNG or JPEG",
    LargeImageError: "send a smaller one",
    FetchError: BY_DATA_URI,
    PrivateUrlError: f"{BY_DATA_URI} (who runs the server may allow such URLs with --fetch-private-urls)",
}
Parser = PlainText | NamedCall | TaggedCalls


@dataclass(frozen=True, slots=True)
class Question:
    """What one request asks for.

    Attributes:
        encode: the prompt, for a target.
        params: how tokens are chosen and where the text ends.
        speculation: whether to draft.
        budget: nodes of the tree; None for the server's.
        parser: a fresh reader of the answer's text.
    """

    encode: Callable[[Target], Inputs]
    params: SamplingParams
    speculation: bool
    budget: int | None
    parser: Callable[[], Parser] = PlainText


def read_chat(body: schema.ChatRequest, settings: ServeSettings) -> Question:
    """A chat request. Loads its images, so it may take a while.

    Raises:
        InputError: something in it cannot be; the message names it.
    """
    check_text(body.model_dump())
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InputError("give max_tokens or max_completion_tokens, not both")
    if body.top_logprobs is not None and not body.logprobs:
        raise InputError("top_logprobs needs logprobs: true")
    messages = _messages(body.messages, settings)
    tools, format_schema, parser = _tools(body)
    if format_schema is not None and body.response_format is not None:
        raise InputError("response_format does not go with a forced tool_choice; drop one")
    stop: tuple[str, ...] = ()
    if tools and body.parallel_tool_calls is False:
        stop = (CLOSE,)
    params = _sampling(
        body,
        settings,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        json_schema=format_schema if format_schema is not None else _format_schema(body.response_format),
        stop=stop,
    )

    def inputs(target: Target) -> Inputs:
        from oneglance.targets.chat import encode

        return encode(target, messages, tools=tools)

    return Question(
        inputs,
        params,
        body.speculation is not False,
        _budget(body, settings),
        parser,
    )


def read_completion(body: schema.CompletionRequest, settings: ServeSettings) -> Question:
    """A completion request: the raw prompt, as text or token ids.

    Raises:
        InputError: something in it cannot be; the message names it.
    """
    check_text(body.model_dump())
    params = _sampling(body, settings, max_tokens=body.max_tokens or 16, logprobs=body.logprobs, json_schema=None)
    prompt = body.prompt

    def inputs(target: Target) -> Inputs:
        import torch

        if isinstance(prompt, str):
            encoded = target.tokenizer(prompt, return_tensors="pt")
            return target.wrap({"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]})
        if max(prompt) >= target.embedding.num_embeddings:
            raise InputError(f"prompt holds ids outside the vocabulary of {target.embedding.num_embeddings}")
        ids = torch.tensor([prompt])
        return target.wrap({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    return Question(inputs, params, body.speculation is not False, _budget(body, settings))


def check_text(value: Any, depth: int = 0) -> None:
    """Refuse half surrogate pairs, which JSON can hold and no encoding can, and nesting that exhausts a stack.

    Raises:
        InputError: there is one.
    """
    if depth > MAX_DEPTH:
        raise InputError(f"the request is nested more than {MAX_DEPTH} levels deep; make it flatter")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InputError("the request holds half a surrogate pair; send valid Unicode text") from error
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            check_text(key, depth + 1)
            check_text(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            check_text(inner, depth + 1)


def _budget(body: schema.Sampling, settings: ServeSettings) -> int | None:
    if body.budget is None:
        return None
    if body.speculation is False:
        raise InputError("budget does not go with speculation: false; drop one")
    if body.budget > settings.max_budget:
        raise InputError(f"budget must be at most {settings.max_budget} here, got {body.budget}")
    return body.budget


def _sampling(
    body: schema.Sampling,
    settings: ServeSettings,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    json_schema: Mapping[str, Any] | None,
    stop: tuple[str, ...] = (),
) -> SamplingParams:
    if body.stream_options is not None and not body.stream:
        raise InputError("stream_options needs stream: true")
    own = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if body.rounds:
        logprobs = max(logprobs or 0, 2)  # the second one gives the gap
    named: dict[str, Any] = {
        "top_k": body.top_k,
        "top_p": body.top_p,
        "min_p": body.min_p,
        "temperature": body.temperature,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "ignore_eos": body.ignore_eos,
    }
    return SamplingParams(
        max_new_tokens=max_tokens or settings.max_tokens,
        stop=(*own, *stop),
        repetition_penalty=body.repetition_penalty,
        logit_bias=_logit_bias(body.logit_bias),
        bad_words=tuple(body.bad_words) if body.bad_words else None,
        min_new_tokens=body.min_tokens,
        seed=body.seed,
        json_schema=json_schema,
        regex=body.regex,
        logprobs=logprobs,
        gate=settings.gate,
        **{name: value for name, value in named.items() if value is not None},
    )


def _logit_bias(given: Mapping[str, float] | None) -> dict[int, float] | None:
    try:
        return {int(token): bias for token, bias in given.items()} if given else None
    except ValueError as error:
        raise InputError("the keys of logit_bias must be token ids") from error


def _format_schema(given: schema.TextFormat | schema.JsonSchemaFormat | None) -> Mapping[str, Any] | None:
    if isinstance(given, schema.JsonSchemaFormat):
        return given.json_schema.schema_
    return {"type": "object"} if given is not None and given.type == "json_object" else None


# Tools ----------------------------------------------------------------------------------------------------------------


def _tools(body: schema.ChatRequest) -> tuple[list[dict[str, Any]], Mapping[str, Any] | None, Callable[[], Parser]]:
    """What the template shows, the schema that a forced call must match, and how the text is read."""
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "none") or body.parallel_tool_calls is not None:
            raise InputError("tool_choice and parallel_tool_calls need tools")
        return [], None, PlainText
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools]
    functions = {tool.function.name: tool.function.parameters or {"type": "object"} for tool in body.tools}
    if len(functions) < len(tools):
        raise InputError("two tools have the same name")
    if choice == "none":
        return [], None, PlainText
    if isinstance(choice, schema.NamedTool):
        name = choice.function.name
        if name not in functions:
            raise InputError(f"tool_choice names {name!r}, which is not among the tools")
        return tools, functions[name], lambda: NamedCall(name)
    if choice == "required":
        calls = [_call_schema(name, parameters) for name, parameters in functions.items()]
        return tools, {"anyOf": calls}, lambda: TaggedCalls(is_bare=True)
    return tools, None, TaggedCalls


def _call_schema(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


# Messages -------------------------------------------------------------------------------------------------------------


def _messages(messages: Sequence[schema.Message], settings: ServeSettings) -> list[dict[str, Any]]:
    count = sum(isinstance(part, schema.ImagePart) for message in messages for part in _parts(message))
    if count > settings.max_images:
        raise InputError(f"the request has {count} images, more than {settings.max_images}; send fewer")
    return [_message(message, f"messages.{place}", settings) for place, message in enumerate(messages)]


def _parts(message: schema.Message) -> Sequence[schema.Part]:
    return message.content if isinstance(message.content, list) else ()


def _message(message: schema.Message, name: str, settings: ServeSettings) -> dict[str, Any]:
    parts = [_part(part, f"{name}.content.{place}", settings) for place, part in enumerate(_parts(message))]
    plain: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": parts or message.content or "",
    }
    if isinstance(message, schema.AssistantMessage) and message.tool_calls:
        plain["tool_calls"] = [_past_call(call) for call in message.tool_calls]
    if isinstance(message, schema.ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
        plain |= {"name": message.name} if message.name else {}
    return plain


def _past_call(call: schema.ToolCall) -> dict[str, Any]:
    try:
        arguments = parse_json(call.function.arguments or "{}")
    except ValueError as error:
        raise InputError(f"the arguments of tool call {call.id!r} are no JSON") from error
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _part(part: schema.Part, name: str, settings: ServeSettings) -> dict[str, Any]:
    if isinstance(part, schema.TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "image", "image": _image(part.image_url.url, f"{name}.image_url", settings)}


def _image(url: str, name: str, settings: ServeSettings) -> Image:
    """The image behind a field of the request."""
    try:
        return load_image(_source(url, settings), allow_private_urls=settings.fetch_private_urls)
    except ImageError as error:
        fix = next(FIXES[kind] for kind in type(error).__mro__ if kind in FIXES)
        raise InputError(f"{name}: {error.what}" + (f"; {fix}" if error.fix else "")) from error


def _source(url: str, settings: ServeSettings) -> str | bytes:
    """What ``load_image`` may be given on a stranger's word: never anything that it could take for a path."""
    url = url.strip()
    scheme = url[:8].lower()
    if scheme.startswith("data:"):
        return url
    if scheme.startswith(("http://", "https://")):
        if not settings.fetch_urls:
            raise ImageError(f"this server fetches no URLs; {BY_DATA_URI}")
        return url
    packed = "".join(url.split()).replace("-", "+").replace("_", "/").rstrip("=")
    if len(packed) > MAX_BYTES * 4 // 3 + 4:
        raise too_long("the image", MAX_BYTES)
    try:
        return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(
            "it must be an http(s) URL, a data URI or base64; a path on this machine is not read"
        ) from error
