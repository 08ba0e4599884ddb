"""One OpenAI-compatible server, asked and timed from outside, with what it counts about its own drafting."""

from __future__ import annotations

import http.client
import re
import time
import urllib.error
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oneglance.core import InputError
from oneglance.files import parse_json
from oneglance.train.servers import CHAT, Refused, Server, ServerDown, as_messages, given_ids, reason

METRICS = "/metrics"
# vLLM's names, and ours, which are the same under another prefix; Prometheus clients append _total
COUNTER = re.compile(r"^(?:vllm|oneglance):spec_decode_num_(\w+?)(?:_total)?(?:\{(.*)\})?\s+(\S+)$", re.MULTILINE)
POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, as it arrived.

    Attributes:
        text: whole.
        token_ids: as the server gave them, else None.
        num_tokens: as the server counts them.
        finish_reason: as the server names it.
        first_ms, total_ms: from sending the request to its first text and to its end: queue, network and prefill are
            in both.
    """

    text: str
    token_ids: tuple[int, ...] | None
    num_tokens: int
    finish_reason: str | None
    first_ms: float
    total_ms: float

    @property
    def ms_per_token(self) -> float | None:
        """From the first text to the end, over the tokens after the first; too small where a server sends several
        tokens in its first piece."""
        return (self.total_ms - self.first_ms) / (self.num_tokens - 1) if self.num_tokens > 1 else None


@dataclass(frozen=True, slots=True)
class Counters:
    """What a server has counted since it started, over all of its requests; differences count what lies between.

    Attributes:
        drafts: rounds with a draft.
        proposed, accepted: draft tokens.
        per_position: rounds in which the token at each offset 1, 2, … was accepted.
    """

    drafts: int
    proposed: int
    accepted: int
    per_position: tuple[int, ...] = ()

    def __sub__(self, earlier: Counters) -> Counters:
        before = [*earlier.per_position, *[0] * (len(self.per_position) - len(earlier.per_position))]
        return Counters(
            self.drafts - earlier.drafts,
            self.proposed - earlier.proposed,
            self.accepted - earlier.accepted,
            tuple(now - then for now, then in zip(self.per_position, before, strict=True)),
        )

    @property
    def accepted_per_draft(self) -> float | None:
        return self.accepted / self.drafts if self.drafts else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """With the bonus token, over rounds with a draft (vLLM's definition)."""
        return 1 + self.accepted / self.drafts if self.drafts else None


class Client:
    """A server, asked one prompt at a time.

    A request that fails is not repeated, since its time would count twice.

    Args:
        url: ``http://host:port``, with or without ``/v1``.
        model: as the server names it; asked for where it is None.
        timeout_s: of a request.
    """

    def __init__(self, url: str, *, model: str | None = None, timeout_s: float = 600.0) -> None:
        self.server = Server(url, model, retries=0, timeout_s=timeout_s)
        self.gives_ids = True

    def ask(
        self,
        prompt: str,
        *,
        images: Sequence[Any] = (),
        system: str | None = None,
        max_new_tokens: int,
        **sampling: Any,
    ) -> Answer:
        """Stream one answer, greedy unless ``sampling`` says otherwise.

        Args:
            prompt: a user prompt.
            images: PIL images before it.
            system: system prompt.
            max_new_tokens: cap.
            sampling: more fields of the request.

        Raises:
            InputError: the server does not answer, refuses, or ends in the middle.
        """
        body = {
            "messages": as_messages(prompt, images=images, system=system),
            "temperature": 0,
            "max_tokens": max_new_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling,
        }
        try:
            body = {"model": self.server.model_name(), **body}
            try:
                return self._stream({**body, "return_token_ids": True} if self.gives_ids else body)
            except urllib.error.HTTPError as error:
                if not (self.gives_ids and error.code in (400, 422)):  # some reject fields that they do not know
                    raise
                answer = self._stream(body)
                self.gives_ids = False
                return answer
        except urllib.error.HTTPError as error:
            raise InputError(f"{self.server.url} refuses: HTTP {error.code} {reason(error)}") from error
        except (OSError, http.client.HTTPException, Refused, ServerDown, ValueError, LookupError, TypeError) as error:
            raise InputError(f"{self.server.url} gives no answer ({error}); check --url") from error

    def counters(self) -> Counters | None:
        """The server's own counts, or None where it publishes none.

        Raises:
            InputError: it does not answer.
        """
        try:
            with self.server.open(METRICS) as reply:
                return read_counters(reply.read().decode())
        except urllib.error.HTTPError:
            return None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise InputError(f"{self.server.url} gives no metrics ({error}); check --url") from error

    def _stream(self, body: dict[str, Any]) -> Answer:
        started = time.perf_counter()
        texts: list[str] = []
        ids: list[int] | None = []
        first = finish = usage = None
        with self.server.open(CHAT, body) as reply:
            for chunk in _events(reply):
                usage = chunk.get("usage") or usage
                for choice in chunk.get("choices", ()):
                    text = choice.get("delta", {}).get("content") or ""
                    if text and first is None:
                        first = time.perf_counter()
                    texts.append(text)
                    new = given_ids(choice)
                    ids = None if ids is None or (text and new is None) else [*ids, *(new or ())]
                    finish = choice.get("finish_reason") or finish
        ended = time.perf_counter()
        if finish is None or usage is None:
            raise ValueError("the stream ended before its finish reason and usage")
        return Answer(
            text="".join(texts),
            token_ids=tuple(ids) if ids else None,
            num_tokens=int(usage["completion_tokens"]),
            finish_reason=finish,
            first_ms=((first or ended) - started) * 1e3,
            total_ms=(ended - started) * 1e3,
        )


def _events(reply: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream."""
    for line in reply:
        data = line.decode().strip()
        if not data.startswith("data:"):
            continue
        data = data.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        parsed = parse_json(data)
        if parsed.get("error"):
            raise ValueError(str(parsed["error"]))
        yield parsed


def read_counters(text: str) -> Counters | None:
    """Counts in Prometheus' text format, summed over engines and models; None where there are none."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for name, labels, value in COUNTER.findall(text):
        if name == "accepted_tokens_per_pos":
            found = POSITION.search(labels)
            if found:
                positions[int(found[1])] = positions.get(int(found[1]), 0.0) + float(value)
        else:
            sums[name] = sums.get(name, 0.0) + float(value)
    if "drafts" not in sums:
        return None
    return Counters(
        drafts=int(sums["drafts"]),
        proposed=int(sums.get("draft_tokens", 0)),
        accepted=int(sums.get("accepted_tokens", 0)),
        per_position=tuple(int(positions.get(i, 0)) for i in range(max(positions, default=-1) + 1)),
    )
