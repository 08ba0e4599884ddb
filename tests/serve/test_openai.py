"""The real ``openai`` client: what it gets is what the decoder gives, streamed or not, drafted or not."""

import json
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from oneglance.decoder import Decoder

from .conftest import Running, data_uri, with_image

PAGE = Path(sys.modules["oneglance"].__file__ or "").parent / "assets" / "demo_chart.png"
ASK = "List the chart values."
UNICODE = "naïve e\u0301 漢字かな 👩‍👩‍👧‍👦🇯🇵 \u1f600 ok"
SCHEMA = {
    "type": "object",
    "properties": {"total": {"enum": [7, 12]}, "currency": {"enum": ["EUR", "USD"]}},
    "required": ["total", "currency"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Köln", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def ask(server: Running, **options: Any) -> Any:
    model = server.service.settings.model_name
    options = {"messages": [{"role": "user", "content": "hello"}], **options}
    return server.openai.chat.completions.create(model=model, **options)


def gathered(stream: Any) -> tuple[str, dict[int, dict[str, str]], Any]:
    """Text, tool calls and the last chunk with a choice of a stream."""
    text, calls, last = "", {}, None
    for chunk in stream:
        if not chunk.choices:
            continue
        last = chunk
        delta = chunk.choices[0].delta
        text += delta.content or ""
        for call in delta.tool_calls or ():
            own = calls.setdefault(call.index, {"name": "", "arguments": ""})
            own["name"] += call.function.name or ""
            own["arguments"] += call.function.arguments or ""
    return text, calls, last


def test_answer_is_the_decoders_own(server: Running, reader: Decoder) -> None:
    alone = reader.generate(ASK, images=[PAGE])
    messages = with_image(data_uri(PAGE.read_bytes()), ASK)
    answer = ask(server, messages=messages)
    assert answer.choices[0].message.content == alone.text
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == alone.num_tokens
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + alone.num_tokens
    drafted = answer.model_extra["metrics"]["speculative_decoding"]
    assert drafted["num_rounds"] == len(alone.rounds) < alone.num_tokens
    assert drafted["tau"] == alone.tau
    assert drafted["fell_back"] is None
    stream = ask(server, messages=messages, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == alone.text
    again = chunks[-1].usage
    assert again is not None
    assert (again.prompt_tokens, again.completion_tokens) == (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
    )
    assert again.prompt_tokens_details is not None  # the same prompt once more: all but its last row
    assert again.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1
    assert chunks[-2].model_extra["metrics"]["speculative_decoding"] == drafted
    bare = {"messages": with_image(data_uri(PAGE.read_bytes()).partition(",")[2], ASK)}
    assert ask(server, **bare).choices[0].message.content == alone.text


def test_speculation_and_budget_change_no_token(server: Running) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "seed": 7}
    answers = [
        ask(server, **options, extra_body=extra)
        for extra in ({}, {"speculation": False}, {"budget": 1}, {"budget": 31})
    ]
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    drafted = [answer.model_extra["metrics"]["speculative_decoding"] for answer in answers]
    assert drafted[1]["num_draft_passes"] == drafted[1]["num_draft_tokens"] == 0
    assert drafted[2]["num_draft_tokens"] <= drafted[2]["num_rounds"]
    assert drafted[3]["num_draft_tokens"] > drafted[2]["num_draft_tokens"]
    assert answers[0].model_extra["metrics"]["seed"] == 7


def test_conversation(server: Running, reader: Decoder) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [{"type": "text", "text": "and?"}]},
    ]
    answer = ask(server, messages=messages, max_completion_tokens=8)
    assert answer.choices[0].message.content == reader.generate(messages, max_new_tokens=8).text
    same = ask(server, messages=[{**messages[0], "role": "developer"}, *messages[1:]], max_completion_tokens=8)
    assert same.choices[0].message.content == answer.choices[0].message.content


@pytest.mark.parametrize("stop", [None, "漢", "👧", ["かな 👩", "zzz"]])
def test_deltas_concatenate_for_any_script(tiny_server: Running, stop: Any) -> None:
    """Every byte is a token here, so that every character comes in parts."""
    options: dict[str, Any] = {"extra_body": {"regex": UNICODE}, "max_tokens": 200, "stop": stop}
    expected = UNICODE
    for text in [stop] if isinstance(stop, str) else stop or []:
        expected = expected.partition(text)[0]
    assert ask(tiny_server, **options).choices[0].message.content == expected
    text, _, last = gathered(ask(tiny_server, **options, stream=True))
    assert text == expected
    assert last.choices[0].finish_reason == "stop"


def test_random_bytes_concatenate_too(tiny_server: Running) -> None:
    for seed in range(2):
        options: dict[str, Any] = {"max_tokens": 20, "temperature": 1.3, "seed": seed, "extra_body": {"top_k": 200}}
        whole = ask(tiny_server, **options).choices[0].message.content
        assert gathered(ask(tiny_server, **options, stream=True))[0] == whole
        assert whole


def test_logprobs(tiny_server: Running, tiny: Decoder) -> None:
    options: dict[str, Any] = {"max_tokens": 9, "logprobs": True, "top_logprobs": 3}
    answer = ask(tiny_server, **options)
    entries = answer.choices[0].logprobs.content
    alone = tiny.generate("hello", max_new_tokens=9, logprobs=3)
    assert alone.logprobs is not None
    assert [entry.logprob for entry in entries] == pytest.approx([entry.log_p for entry in alone.logprobs])
    assert all(len(entry.top_logprobs) == 3 for entry in entries)
    streamed = [
        entry
        for chunk in ask(tiny_server, **options, stream=True)
        if chunk.choices and chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert streamed == entries


@pytest.fixture
def no_space(tiny: Decoder) -> dict[str, int]:
    """A bias against space, with which random weights would fill JSON to the cap."""
    return {str(token): -100 for token in tiny.target.tokenizer(" \t\n\r")["input_ids"]}


def test_json_schema(tiny_server: Running, no_space: dict[str, int]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "bill", "schema": SCHEMA}}
    answer = ask(tiny_server, response_format=form, max_tokens=99, logit_bias=no_space)
    value = json.loads(answer.choices[0].message.content)
    assert value["total"] in (7, 12)
    assert value["currency"] in ("EUR", "USD")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_forced_tool_calls(tiny_server: Running, choice: Any, no_space: dict[str, int]) -> None:
    other = {"type": "function", "function": {"name": "time"}}
    tools = [WEATHER] if choice == "required" else [other, WEATHER]
    options: dict[str, Any] = {"tools": tools, "tool_choice": choice, "max_tokens": 99, "logit_bias": no_space}
    answer = ask(tiny_server, **options)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Köln", "Oslo")
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None
    text, calls, last = gathered(ask(tiny_server, **options, stream=True))
    assert calls == {0: {"name": "weather", "arguments": call.function.arguments}}
    assert text == ""
    assert last.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("alone", [True, False])
def test_tool_calls_of_its_own_accord(tiny_server: Running, alone: bool) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    regex = "Well, " + (call + call).replace("{", "\\{").replace("}", "\\}").replace(".", "\\.")
    options: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 250, "extra_body": {"regex": regex}}
    if alone:
        options["parallel_tool_calls"] = False
    answer = ask(tiny_server, **options)
    calls = answer.choices[0].message.tool_calls
    expected = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert [own.function.model_dump() for own in calls] == [expected] * (1 if alone else 2)
    assert answer.choices[0].message.content == "Well, "
    text, streamed, last = gathered(ask(tiny_server, **options, stream=True))
    assert text == "Well, "
    assert list(streamed.values()) == [expected] * len(calls)
    assert last.choices[0].finish_reason == answer.choices[0].finish_reason == "tool_calls"


def test_called_tools_in_the_conversation(tiny_server: Running) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    assert ask(tiny_server, messages=messages, tools=[WEATHER], max_tokens=3).usage.completion_tokens <= 3
    call["function"]["arguments"] = "{"  # type: ignore[index]
    with pytest.raises(openai.BadRequestError, match="no JSON"):
        ask(tiny_server, messages=messages, tools=[WEATHER])


def test_template_without_tools_refuses_them(server: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="takes no tools"):
        ask(server, tools=[WEATHER])


def test_completions(tiny_server: Running, tiny: Decoder) -> None:
    client = tiny_server.openai
    answer = client.completions.create(model="tiny", prompt="abc", max_tokens=6, logprobs=2)
    ids = client.completions.create(model="tiny", prompt=list(tiny.target.tokenizer("abc")["input_ids"]), max_tokens=6)
    assert answer.choices[0].text == ids.choices[0].text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert len(logprobs.tokens) == 6
    stream = client.completions.create(model="tiny", prompt="abc", max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text


def test_models(server: Running) -> None:
    [model] = server.openai.models.list().data
    assert model.id == "builtin:reader"
    assert server.openai.models.retrieve("builtin:reader").id == model.id
    with pytest.raises(openai.NotFoundError, match="use 'builtin:reader'"):
        server.openai.models.retrieve("gpt")


def test_rounds_spell_out_the_answer(server: Running) -> None:
    answer = server.chat(max_tokens=10, rounds=True, budget=5).json()
    first, *rounds = answer["rounds"]
    assert first["index"] is None
    assert [done["index"] for done in rounds] == list(range(len(rounds)))
    tokens = [token for done in answer["rounds"] for token in done["tokens"]]
    assert "".join(token["text"] for token in tokens) == answer["choices"][0]["message"]["content"]
    assert all(0 < token["p"] <= 1 and token["entropy_nats"] >= 0 and token["gap_nats"] >= 0 for token in tokens)
    for done in rounds:
        tree = done["tree"]
        assert len(tree["texts"]) == len(tree["parents"]) == len(tree["scores"]) <= 5
        assert sum(token["kind"] == "accepted" for token in done["tokens"]) <= len(tree["path"]) - 1
