"""Tool calls in generated text: ``<tool_call>{"name": …, "arguments": …}</tool_call>``, the form of the Qwen family.

The parser takes text as it comes and gives deltas, so that a stream and a whole answer are read by the same code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from oneglance.files import parse_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"
HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*')
Place = Literal["text", "head", "arguments", "tail"]


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; its arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


Delta = Content | CallStart | Arguments


class PlainText:
    """No tools: everything is content."""

    def feed(self, text: str) -> Iterator[Delta]:
        """What a piece of text adds."""
        if text:
            yield Content(text)

    def close(self) -> Iterator[Delta]:
        """What the end adds."""
        yield from ()


class NamedCall:
    """A forced call: everything is its arguments.

    Args:
        name: of the function.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_begun = False

    def feed(self, text: str) -> Iterator[Delta]:
        """What a piece of text adds."""
        if not self._has_begun:
            self._has_begun = True
            yield CallStart(0, self._name)
        if text:
            yield Arguments(0, text)

    def close(self) -> Iterator[Delta]:
        """What the end adds."""
        yield from ()


class TaggedCalls:
    """Text with calls in tags. What turns out not to be a call is content, tags included.

    Args:
        is_bare: the text is one call from the start, without tags.
    """

    def __init__(self, *, is_bare: bool = False) -> None:
        self._is_bare = is_bare
        self._place: Place = "head" if is_bare else "text"
        self._held = ""
        self._index = -1
        self._scanner = ValueScanner()

    def feed(self, text: str) -> Iterator[Delta]:
        """What a piece of text adds."""
        self._held += text
        steps = {"text": self._text, "head": self._head, "arguments": self._arguments, "tail": self._tail}
        while True:
            before = (self._place, len(self._held))
            yield from steps[self._place]()
            if before == (self._place, len(self._held)):
                return

    def close(self) -> Iterator[Delta]:
        """What the end adds: a call that never began is content; text between calls that is only space is none."""
        if self._place == "head":
            yield from self._other_order(self._held) or self._as_content(self._held)
        elif self._place == "text" and (self._index < 0 or self._held.strip()) and self._held:
            yield Content(self._held)
        self._held = ""

    def _text(self) -> Iterator[Delta]:
        at = self._held.find(OPEN)
        if at >= 0:
            before, self._held, self._place = self._held[:at], self._held[at + len(OPEN) :], "head"
            if before and (self._index < 0 or before.strip()):
                yield Content(before)
            return
        keep = next((n for n in range(len(OPEN) - 1, 0, -1) if self._held.endswith(OPEN[:n])), 0)
        ready = self._held[: len(self._held) - keep]
        if ready and (self._index < 0 or ready.strip()):
            self._held = self._held[len(ready) :]
            yield Content(ready)

    def _head(self) -> Iterator[Delta]:
        if found := HEAD.match(self._held):
            rest = self._held[found.end() :]
            if not rest:
                return  # more space may follow
            self._held, self._place, self._scanner = rest, "arguments", ValueScanner()
            self._index += 1
            yield CallStart(self._index, found[1])
        elif CLOSE in self._held and not self._is_bare:
            body, self._held = self._held.split(CLOSE, 1)
            self._place = "text"
            yield from self._other_order(body) or [*self._as_content(body), Content(CLOSE)]

    def _arguments(self) -> Iterator[Delta]:
        size = self._scanner.scan(self._held)
        text, self._held = self._held[:size], self._held[size:]
        if self._scanner.is_done:
            self._place = "tail"
        if text:
            yield Arguments(self._index, text)

    def _tail(self) -> Iterator[Delta]:
        if self._is_bare:
            self._held = ""
        elif CLOSE in self._held:
            self._held = self._held.split(CLOSE, 1)[1]
            self._place = "text"
        yield from ()

    def _other_order(self, body: str) -> list[Delta]:
        """A call whose keys come in another order than is streamed."""
        try:
            call = parse_json(body)
            name, arguments = call["name"], call.get("arguments", call.get("parameters", {}))
        except (ValueError, TypeError, KeyError, AttributeError):
            return []
        if not isinstance(name, str):
            return []
        self._index += 1
        return [CallStart(self._index, name), Arguments(self._index, json.dumps(arguments, ensure_ascii=False))]

    def _as_content(self, body: str) -> list[Delta]:
        text = body if self._is_bare else OPEN + body
        return [Content(text)] if text else []


class ValueScanner:
    """Finds the end of one JSON value whose text comes in pieces.

    Attributes:
        is_done: the value is whole.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._depth = 0
        self._is_string = self._is_escaped = False

    def scan(self, text: str) -> int:
        """How many characters of ``text`` still belong to the value."""
        for index, char in enumerate(text):
            if self._is_string:
                self._in_string(char)
            elif char == '"':
                self._is_string = True
                continue
            elif char in "{[":
                self._depth += 1
                continue
            elif char in "}]":
                if not self._depth:  # a bare number or word ended before this
                    self.is_done = True
                    return index
                self._depth -= 1
            else:
                continue
            if not self._depth and not self._is_string:
                self.is_done = True
                return index + 1
        return len(text)

    def _in_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._is_string = False
