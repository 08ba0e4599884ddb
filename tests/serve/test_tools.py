"""Tool calls in text: however the text is cut into pieces, the same content and calls come out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneglance.serve.tools import Arguments, CallStart, Content, TaggedCalls

ARGUMENTS = '{"city": "K\\u00f6ln \\"}] ", "days": [1, {"a": "}"}]}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
TIME = '<tool_call>{"name":"time","arguments":{}}</tool_call>'


def read(pieces: list[str], *, is_bare: bool = False) -> tuple[str, list[tuple[str, str]]]:
    parser = TaggedCalls(is_bare=is_bare)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    deltas += parser.close()
    text, calls = "", []
    for delta in deltas:
        if isinstance(delta, Content):
            text += delta.text
        elif isinstance(delta, CallStart):
            assert delta.index == len(calls)
            calls.append((delta.name, ""))
        else:
            assert isinstance(delta, Arguments)
            name, so_far = calls[delta.index]
            calls[delta.index] = (name, so_far + delta.text)
    return text, calls


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("plain", "plain", []),
        (CALL, "", [("weather", ARGUMENTS)]),
        (f"Let me see.\n{CALL}\n{TIME}\n", "Let me see.\n", [("weather", ARGUMENTS), ("time", "{}")]),
        (f"{CALL} done", " done", [("weather", ARGUMENTS)]),
        (CALL.removesuffix("\n</tool_call>"), "", [("weather", ARGUMENTS)]),
        ("a < b <tool", "a < b <tool", []),
        ("<tool_call>nonsense</tool_call> x", "<tool_call>nonsense</tool_call> x", []),
        ("<tool_call>cut", "<tool_call>cut", []),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", '{"a": 1}')]),
        ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
        ('<tool_call>{"name": "f", "arguments": 12}</tool_call>', "", [("f", "12")]),
    ],
)
def test_whole_and_by_character(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert read([text]) == (content, calls)
    assert read(list(text)) == (content, calls)


@given(
    st.lists(st.sampled_from([CALL, TIME, "text ", "<tool_call>", "</tool_call>", "{", '"', "\n"]), max_size=6),
    st.data(),
)
def test_any_cut_reads_alike(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(pieces) == read([text])


def test_arguments_stream_before_the_call_ends() -> None:
    parser = TaggedCalls()
    first = list(parser.feed('<tool_call>{"name": "f", "arguments": {"a": "long'))
    assert first == [CallStart(0, "f"), Arguments(0, '{"a": "long')]


def test_bare_call() -> None:
    assert read(list(f'{{"name": "weather", "arguments": {ARGUMENTS}}}'), is_bare=True) == (
        "",
        [("weather", ARGUMENTS)],
    )
    assert json.loads(ARGUMENTS)
