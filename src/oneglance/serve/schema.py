"""The request bodies that are understood. What is not listed here is refused by name, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from oneglance.drafters.settings import Budget

Token = Annotated[int, Field(ge=0)]


class Strict(BaseModel):
    """No unknown keys, no conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Fault(BaseModel):
    """What is wrong, in OpenAI's shape."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failure(BaseModel):
    """The body of every answer that is none."""

    error: Fault


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ImageUrl(Strict):
    url: Annotated[str, Field(min_length=1)]
    detail: Literal["auto"] | None = None


class ImagePart(Strict):
    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class CalledFunction(Strict):
    name: str
    arguments: str


class ToolCall(Strict):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class SystemMessage(Strict):
    role: Literal["system", "developer"]
    content: str | list[TextPart]


class UserMessage(Strict):
    role: Literal["user"]
    content: str | list[Part]


class AssistantMessage(Strict):
    role: Literal["assistant"]
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: None = None


class ToolMessage(Strict):
    role: Literal["tool"]
    content: str | list[TextPart]
    tool_call_id: str
    name: str | None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class Function(Strict):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: FunctionName


class TextFormat(Strict):
    type: Literal["text", "json_object"]


class JsonSchema(Strict):
    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class StreamOptions(Strict):
    include_usage: bool | None = None


class Sampling(Strict):
    """What both endpoints take. ``speculation``, ``budget`` and ``rounds`` are ours (``extra_body``).

    Attributes:
        user: an opaque name; it changes nothing here.
        speculation: false decodes plainly.
        budget: nodes of the candidate tree.
        rounds: also describe each round, its tree and its tokens.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    min_tokens: Token | None = None
    ignore_eos: bool | None = None
    regex: str | None = None
    n: Literal[1] | None = None
    user: str | None = None
    speculation: bool | None = None
    budget: Budget | None = None
    rounds: bool | None = None


class ChatRequest(Sampling):
    """The body of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: Annotated[TextFormat | JsonSchemaFormat, Field(discriminator="type")] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None


class CompletionRequest(Sampling):
    """The body of ``/v1/completions``: a raw prompt, without a chat template."""

    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[Token], Field(min_length=1)]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
