"""Answers from OpenAI-compatible servers (vLLM, SGLang, ours), several at once.

Each server has its own worker threads. A request that fails is tried again with growing pauses; a server that stays
down gives its work back to the others. A prompt leaves the pool exactly once, with its answer.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from oneglance.core import InputError
from oneglance.files import parse_json
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.train.collect import Asked, Skip

BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
CHAT = "/v1/chat/completions"
KEY_VARIABLE = "OPENAI_API_KEY"
RETOKENISED_NOTE = (
    "the server gave text only: ids are the target tokenizer's, which can split a text otherwise than the model did"
)


class ServerDown(Exception):
    """A server that did not answer after all retries."""


@dataclass
class Server:
    """One server.

    Args:
        url: with or without ``/v1``.
        model: as the server names it; asked for where it is None.
        retries: further tries of a request.
        pause_s: before the first retry; doubled each time.
        timeout_s: of a request.
        is_down, gives_ids: what was learned about it.
        stopping: ends pauses early.
    """

    url: str
    model: str | None = None
    retries: int = 4
    pause_s: float = 1.0
    timeout_s: float = 600.0
    is_down: bool = False
    gives_ids: bool = True
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise InputError(f"--url takes http://host:port, got {self.url!r}")
        self.url = self.url.rstrip("/").removesuffix("/v1")

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """The reply to a chat completion.

        Raises:
            Refused: the server will never answer this prompt.
            ServerDown: it answers nothing any more.
        """
        body = {"model": self.model_name(), **body}
        if self.gives_ids:
            try:
                return self._request(CHAT, {**body, "return_token_ids": True})
            except Refused:  # some servers reject fields that they do not know
                reply = self._request(CHAT, body)
                self.gives_ids = False
                return reply
        return self._request(CHAT, body)

    def model_name(self) -> str:
        """As the server names what it serves; asked for once.

        Raises:
            Refused, ServerDown: it does not say.
        """
        if self.model is None:
            self.model = str(self._request("/v1/models", None)["data"][0]["id"])
        return self.model

    def open(self, path: str, body: dict[str, Any] | None = None) -> http.client.HTTPResponse:
        """One request, tried once: GET without a body, else POST of its JSON.

        Raises:
            urllib.error.HTTPError, OSError: no success.
        """
        headers = {"Content-Type": "application/json"}
        if os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {os.environ[KEY_VARIABLE]}"
        data = None if body is None else json.dumps(body).encode()
        reply = urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=self.timeout_s)
        assert isinstance(reply, http.client.HTTPResponse)
        return reply

    def _request(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        problem = ""
        for attempt in range(self.retries + 1):
            if attempt and self.stopping.wait(self.pause_s * 2 ** (attempt - 1)):
                break
            try:
                return self._once(path, body)
            except urllib.error.HTTPError as error:
                if error.code not in BUSY:
                    raise Refused(error.code, reason(error)) from error
                problem = f"HTTP {error.code}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = str(getattr(error, "reason", error)) or type(error).__name__
        raise ServerDown(problem)

    def _once(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        with self.open(path, body) as reply:
            parsed = parse_json(reply.read())
        if not isinstance(parsed, dict):
            raise ValueError("the reply is not a JSON object")
        return parsed


class Refused(Exception):
    """A request that the server understood and will not answer."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"HTTP {code}: {reason}")
        self.code = code


class ServerAnswerer:
    """Answers of a pool of servers.

    Args:
        target: the same model's config and processor (weights are not needed): tokens, template, image size.
        servers: all serve this target.
        max_new_tokens: cap of an answer.
        concurrency: requests in flight, per server.
        check_prompts: compare the server's prompt length with ours, which shows another template or image size.
    """

    def __init__(
        self,
        target: Target,
        servers: Sequence[Server],
        *,
        max_new_tokens: int,
        concurrency: int = 8,
        check_prompts: bool = True,
    ) -> None:
        self.target, self.servers = target, list(servers)
        self.max_new_tokens, self.concurrency, self.check_prompts = max_new_tokens, concurrency, check_prompts
        self.counts = {"from_server": 0, "retokenised": 0}

    def manifest(self) -> dict[str, Any]:
        note = {"note": RETOKENISED_NOTE} if self.counts["retokenised"] else {}
        return {"kind": "servers", "urls": [s.url for s in self.servers], "answer_ids": dict(self.counts), **note}

    def answers(self, asked: Iterable[Asked]) -> Iterator[tuple[Asked, list[int] | Skip]]:
        work: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        results: queue.SimpleQueue[_Result] = queue.SimpleQueue()
        workers = [
            threading.Thread(target=self._work, args=(server, work, results), daemon=True)
            for server in self.servers
            for _ in range(self.concurrency)
        ]
        for server in self.servers:
            server.stopping.clear()
        for worker in workers:
            worker.start()
        try:
            yield from self._collect(iter(asked), work, results, len(workers))
        finally:
            for server in self.servers:
                server.stopping.set()
            for _ in workers:
                work.put(None)

    def _collect(
        self,
        asked: Iterator[Asked],
        work: queue.SimpleQueue[Asked | None],
        results: queue.SimpleQueue[_Result],
        num_workers: int,
    ) -> Iterator[tuple[Asked, list[int] | Skip]]:
        in_flight, alive = 0, num_workers
        while True:
            while in_flight < 2 * num_workers and (one := next(asked, None)) is not None:
                work.put(one)
                in_flight += 1
            if not in_flight:
                return
            result = results.get()
            if result.asked is None:
                alive -= 1
                if not alive:
                    raise InputError(f"no server answers any more ({result.problem}); run again to go on from here")
                continue
            in_flight -= 1
            yield result.asked, self._read(result)

    def _work(self, server: Server, work: queue.SimpleQueue[Asked | None], results: queue.SimpleQueue[_Result]) -> None:
        problem = "it is down"
        while not server.is_down:
            asked = work.get()
            if asked is None:
                return
            try:
                results.put(_Result(asked, reply=server.ask(self._body(asked))))
            except Refused as error:
                results.put(_Result(asked, problem=str(error), code=error.code))
            except Exception as error:  # whatever it is, the prompt goes back to the others
                server.is_down, problem = True, f"{server.url}: {error}"
                work.put(asked)
        results.put(_Result(None, problem=problem))

    def _body(self, asked: Asked) -> dict[str, Any]:
        messages = as_messages(asked.prompt.text, images=asked.pictures, system=asked.prompt.system)
        return {"messages": messages, "temperature": 0, "max_tokens": self.max_new_tokens}

    def _read(self, result: _Result) -> list[int] | Skip:
        asked = result.asked
        assert asked is not None
        if result.reply is None:
            if result.code in (401, 403, 404):
                raise InputError(f"the server refuses every request ({result.problem}); check --url and {KEY_VARIABLE}")
            return Skip(asked.prompt.id, "refused", result.problem)
        try:
            choice = result.reply["choices"][0]
            text = choice["message"].get("content") or ""
        except (KeyError, IndexError, TypeError, AttributeError):
            return Skip(asked.prompt.id, "refused", "the reply has no choices[0].message")
        self._check_prompt(asked, result.reply)
        return self._ids(choice, text)

    def _ids(self, choice: dict[str, Any], text: str) -> list[int]:
        ids = given_ids(choice)
        if ids is None:
            self.counts["retokenised"] += 1
            ids = list(self.target.tokenizer(text, add_special_tokens=False)["input_ids"])
        else:
            self.counts["from_server"] += 1
        is_complete = choice.get("finish_reason") == "stop"
        if is_complete and self.target.eos_ids and (not ids or ids[-1] not in self.target.eos_ids):
            ids.append(self.target.eos_ids[0])
        return ids

    def _check_prompt(self, asked: Asked, reply: dict[str, Any]) -> None:
        theirs = (reply.get("usage") or {}).get("prompt_tokens")
        if not self.check_prompts or theirs is None:
            return
        prompt = asked.prompt
        ours = len(encode(self.target, prompt.text, images=asked.pictures, system=prompt.system).token_ids)
        if ours != theirs:
            raise InputError(
                f"prompt {prompt.id} has {theirs} tokens at the server and {ours} here: another chat template, image "
                "size or model; align them, or pass --no-check-prompts"
            )


@dataclass(frozen=True, slots=True)
class _Result:
    """What a worker reports: a reply, a refusal, or (without a prompt) its own end."""

    asked: Asked | None
    reply: dict[str, Any] | None = None
    problem: str = ""
    code: int = 0


def as_messages(text: str, *, images: Sequence[Any] = (), system: str | None = None) -> list[dict[str, Any]]:
    """A prompt as chat messages, its PIL images inline and before the text."""
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": _data_uri(image)}} for image in images]
    if text:
        parts.append({"type": "text", "text": text})
    first = [{"role": "system", "content": system}] if system is not None else []
    return [*first, {"role": "user", "content": parts if images else text}]


def given_ids(choice: dict[str, Any]) -> list[int] | None:
    """Token ids as vLLM gives them: in ``token_ids``, or as ``token_id:N`` in the log-probabilities."""
    if choice.get("token_ids"):
        return [int(i) for i in choice["token_ids"]]
    content = (choice.get("logprobs") or {}).get("content") or []
    tokens = [str(entry.get("token", "")) for entry in content]
    if tokens and all(token.startswith("token_id:") for token in tokens):
        return [int(token.removeprefix("token_id:")) for token in tokens]
    return None


def _data_uri(picture: Any) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def reason(error: urllib.error.HTTPError) -> str:
    """What the server says against the request."""
    with error:
        return error.read(500).decode(errors="replace").strip() or str(error.reason)
