"""The client on a server under a script, in vLLM's dialect, and its reading of counters."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from helpers import picture
from oneglance.core import InputError
from oneglance.engines.client import Client, Counters, read_counters


class Script:
    """What a server does.

    Attributes:
        pieces: (text, token ids) a chunk.
        knows_ids: gives ids; else refuses the field.
        breaks: leaves in the middle.
        error: of every chat request.
        has_metrics: publishes them.
        bodies: what it was asked.
    """

    pieces = (("He", [1]), ("llo ", [2, 3]), ("", []), ("you", [4]))

    def __init__(self, **changes: Any) -> None:
        self.knows_ids = self.has_metrics = True
        self.breaks = False
        self.error = 0
        self.bodies: list[dict[str, Any]] = []
        registry = CollectorRegistry()
        self.registry = registry
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")
        self.counters = {
            name: Counter(f"vllm:spec_decode_{name}", "text", ["model_name", "engine", "position"], registry=registry)
            for name in names
        }
        vars(self).update(changes)

    def count(self) -> None:
        """Two engines of one server: three rounds that accept 2, 1 and 0 of 5."""
        for engine, accepted in (("0", 2), ("0", 1), ("1", 0)):
            self.counters["num_drafts"].labels("m", engine, "").inc()
            self.counters["num_draft_tokens"].labels("m", engine, "").inc(5)
            self.counters["num_accepted_tokens"].labels("m", engine, "").inc(accepted)
            for position in range(5):
                self.counters["num_accepted_tokens_per_pos"].labels("m", engine, str(position)).inc(position < accepted)

    def events(self, with_ids: bool) -> Iterator[dict[str, Any]]:
        yield {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
        for text, ids in self.pieces:
            yield {"choices": [{"delta": {"content": text}, **({"token_ids": ids} if with_ids else {})}]}
        yield {"choices": [{"delta": {}, "finish_reason": "length"}]}
        yield {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}


@contextmanager
def serving(script: Script) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics" and script.has_metrics:
                self.answer(200, generate_latest(script.registry))
            elif self.path == "/v1/models":
                self.answer(200, json.dumps({"data": [{"id": "m"}]}).encode())
            else:
                self.answer(404, b"{}")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            script.bodies.append(body)
            if script.error:
                return self.answer(script.error, b'{"error": "too long"}')
            if "return_token_ids" in body and not script.knows_ids:
                return self.answer(400, b'{"error": "unknown field"}')
            script.count()
            lines = [f"data: {json.dumps(event)}\n\n" for event in script.events("return_token_ids" in body)]
            lines = lines[:2] if script.breaks else [*lines, "data: [DONE]\n\n"]
            return self.answer(200, "".join(lines).encode())

        def answer(self, code: int, content: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("knows_ids", [True, False])
def test_an_answer_is_whole_and_timed(knows_ids: bool) -> None:
    script = Script(knows_ids=knows_ids)
    with serving(script) as url:
        client = Client(url)
        for _ in range(2):
            answer = client.ask("Read.", images=[picture(0)], system="Be brief.", max_new_tokens=4, seed=3)
    assert answer.text == "Hello you"
    assert answer.token_ids == ((1, 2, 3, 4) if knows_ids else None)
    assert (answer.num_tokens, answer.finish_reason) == (4, "length")
    assert 0 < answer.first_ms <= answer.total_ms
    assert answer.ms_per_token == pytest.approx((answer.total_ms - answer.first_ms) / 3)
    body = script.bodies[-1]
    assert (body["model"], body["temperature"], body["max_tokens"], body["seed"]) == ("m", 0, 4, 3)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert [part["type"] for part in body["messages"][1]["content"]] == ["image_url", "text"]
    assert len(script.bodies) == (2 if knows_ids else 3), "a field that is refused once is not sent again"


def test_counters_are_summed_over_engines_and_count_what_lies_between() -> None:
    script = Script()
    with serving(script) as url:
        client = Client(url)
        client.ask("Read.", max_new_tokens=4)
        before = client.counters()
        client.ask("Read.", max_new_tokens=4)
        after = client.counters()
    assert before == Counters(drafts=3, proposed=15, accepted=3, per_position=(2, 1, 0, 0, 0))
    assert after is not None
    assert after - before == before
    assert (after - before).mean_acceptance_length == 2.0
    assert (after - before).accepted_per_draft == 1.0


def test_a_server_without_drafting_has_no_counters() -> None:
    assert read_counters("# TYPE vllm:num_requests gauge\nvllm:num_requests{} 1.0\n") is None
    with serving(Script(has_metrics=False)) as url:
        assert Client(url).counters() is None


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ({"error": 413}, "HTTP 413 .*too long"),
        ({"breaks": True}, "ended before its finish reason"),
    ],
)
def test_what_is_no_answer_is_an_error(script: dict[str, Any], said: str) -> None:
    with serving(Script(**script)) as url, pytest.raises(InputError, match=said):
        Client(url).ask("Read.", max_new_tokens=4)


def test_nobody_there() -> None:
    with serving(Script()) as url:
        pass
    with pytest.raises(InputError, match="check --url"):
        Client(url).ask("Read.", max_new_tokens=4)
    with pytest.raises(InputError, match="check --url"):
        Client(url).counters()
