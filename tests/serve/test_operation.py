"""The queue, its limits, who leaves, what is counted, what is logged, and the page."""

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from oneglance.core import MAX_BUDGET, InputError
from oneglance.decoder import Decoder
from oneglance.serve import app as app_module
from oneglance.serve.logs import JsonFormatter
from oneglance.serve.reading import read_chat
from oneglance.serve.schema import ChatRequest
from oneglance.serve.settings import ServeSettings, read_settings
from oneglance.serve.worker import FairQueue, Job

from .conftest import Latch, Running, running, until

PAGE = Path(app_module.__file__).parent / "page"
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.fixture
def held(latch: Latch) -> Iterator[Running]:
    """A server whose decoding waits for the latch; one request may queue."""
    with running(lambda: latch.decoder, max_queue=1) as server:
        yield server
        latch.open.set()


def post(server: Running, **body: Any) -> httpx.Response:
    """A request on a connection of its own, which is closed with it."""
    return httpx.post(f"{server.url}/v1/chat/completions", json={**BODY, **body}, timeout=60)


def test_full_queue_turns_away_and_then_serves(held: Running, latch: Latch) -> None:
    with ThreadPoolExecutor(4) as pool:
        inside = [pool.submit(post, held)]
        until(lambda: latch.num_rounds == 1)
        inside.append(pool.submit(post, held))
        until(lambda: held.metric("num_requests_waiting") == 1)
        full = post(held)
        assert full.status_code == 429
        assert int(full.headers["Retry-After"]) >= 1
        assert full.json()["error"]["code"] == "queue_full"
        assert held.metric("requests_turned_away_total") == 1
        assert held.metric("num_requests_running") == 1
        latch.open.set()
        assert {request.result().status_code for request in inside} == {200}
    assert post(held).status_code == 200
    until(lambda: held.metric("num_requests_running") == held.metric("num_requests_waiting") == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_ends_its_answer(held: Running, latch: Latch, stream: bool) -> None:
    leaver = httpx.Client(base_url=held.url, timeout=0.5)
    request = leaver.build_request("POST", "/v1/chat/completions", json={**BODY, "max_tokens": 500, "stream": stream})
    with pytest.raises(httpx.ReadTimeout):  # prefill's token has come; the first round waits
        leaver.send(request)
    leaver.close()
    until(lambda: not held.service.worker._inside)
    latch.open.set()
    until(lambda: held.metric("request_success_total", finished_reason="abort") == 1)
    assert held.metric("generation_tokens_total") < 500
    assert post(held).status_code == 200


def test_client_that_leaves_the_queue_is_never_decoded(held: Running, latch: Latch) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, held)
        until(lambda: latch.num_rounds == 1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{held.url}/v1/chat/completions", json=BODY, timeout=0.3)
        until(lambda: held.metric("num_requests_waiting") == 0)
        assert not held.service.worker._queue._lanes  # nor are its images kept until then
        assert held.metric("request_success_total", finished_reason="abort") == 1
        latch.open.set()
        assert first.result().status_code == 200
    assert held.metric("generation_tokens_total") == 4


def test_answer_that_nobody_reads_takes_no_place(tiny_server: Running) -> None:
    worker = tiny_server.service.worker
    question = read_chat(ChatRequest.model_validate(BODY), tiny_server.service.settings)

    async def unread() -> None:
        worker.submit(worker.admit("slow"), question)
        await asyncio.to_thread(until, lambda: not worker._inside)

    asyncio.run(unread())


def test_failed_answer_is_logged_with_its_request(tiny_server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []
    handler = logging.Handler()  # formats while the request lasts, as the server does
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(json.loads(JsonFormatter().format(record))))
    monkeypatch.setattr(logging.getLogger("oneglance.serve"), "handlers", [handler])
    monkeypatch.setattr(Decoder, "stream_inputs", lambda *_: 1 / 0)
    answer = tiny_server.http.post("/v1/chat/completions", json=BODY, headers={"X-Request-ID": "abc-2"})
    assert answer.status_code == 500
    assert "log says why" in answer.json()["error"]["message"]
    assert tiny_server.metric("request_success_total", finished_reason="error") == 1
    [failed] = [line for line in lines if line["event"] == "decoding failed"]
    assert failed["request_id"] == "abc-2"
    assert "ZeroDivisionError" in failed["traceback"]


def test_time_limit(latch: Latch) -> None:
    with running(lambda: latch.decoder, timeout_s=0.4) as server:
        assert server.chat().status_code == 504
        with server.http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert "queue" in lines[0] or "took longer than 0.4 s" in "".join(lines)
        latch.open.set()
        until(lambda: server.metric("request_success_total", finished_reason="timeout") >= 1)


def test_time_limit_begins_at_the_arrival(tiny: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that come slowly take their time from it."""
    let_go = threading.Event()
    monkeypatch.setattr(app_module, "read_chat", lambda *_: let_go.wait(30))
    with running(lambda: tiny, timeout_s=0.3) as server:
        assert server.chat().status_code == 504
        assert not server.service.worker._inside
        let_go.set()


def test_loading_and_shutting_down() -> None:
    gate = threading.Event()
    latch = Latch()

    def load() -> Decoder:
        assert gate.wait(30)
        return latch.decoder

    with running(load, wait=False) as server:
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/ready").status_code == 503
        early = server.chat()
        assert early.status_code == 503
        assert "still loading" in early.json()["error"]["message"]
        assert early.headers["Retry-After"]
        gate.set()
        until(lambda: server.http.get("/ready").status_code == 200)
        with ThreadPoolExecutor(2) as pool:
            runs = pool.submit(post, server)
            until(lambda: latch.num_rounds == 1)
            waits = pool.submit(post, server)
            until(lambda: server.metric("num_requests_waiting") == 1)
            time.sleep(0.1)
            server.service.worker.drain()
            assert waits.result().status_code == 503
            assert post(server).status_code == 503
            latch.open.set()
            assert runs.result().status_code == 200  # what ran was finished


def test_clients_take_turns() -> None:
    queue = FairQueue()
    loop: Any = None
    for client in "aaabbc":
        queue.put(Job(client, loop))
    order = "".join(job.client for job in (queue.get() for _ in range(4)) if job)
    assert order == "abca"
    assert [job.client for job in queue.close()] == ["b", "a"]
    assert queue.get() is None


def test_metrics_are_the_sums_of_the_answers(reader: Decoder) -> None:
    with running(lambda: reader) as server:
        answers = [
            server.chat(text, max_tokens=cap, speculation=speculation).json()
            for text, cap, speculation in (("hello", 9, True), ("a b c", 12, True), ("more", 7, False))
        ]
        drafted = [answer["metrics"]["speculative_decoding"] for answer in answers]
        for metric, key in {
            "spec_decode_num_drafts_total": "num_spec_steps",
            "spec_decode_num_draft_tokens_total": "num_draft_tokens",
            "spec_decode_num_accepted_tokens_total": "num_accepted_draft_tokens",
            "rounds_total": "num_rounds",
            "draft_passes_total": "num_draft_passes",
            "gated_total": "num_gated",
        }.items():
            assert server.metric(metric) == sum(figures[key] for figures in drafted), metric
        for position in range(3):
            own = sum(sum(f["num_accepted_per_position"][position : position + 1]) for f in drafted)
            assert server.metric("spec_decode_num_accepted_tokens_per_pos_total", position=str(position)) == own
        for metric, key in (("generation_tokens_total", "completion_tokens"), ("prompt_tokens_total", "prompt_tokens")):
            assert server.metric(metric) == sum(answer["usage"][key] for answer in answers)
        text = server.http.get("/metrics").text
        assert 'oneglance:time_to_first_token_seconds_count{model_name="builtin:reader"} 3.0' in text
        assert server.metric("accepted_length_count") == sum(figures["num_spec_steps"] for figures in drafted)


def test_logs_are_json_with_request_ids_and_no_text(tiny_server: Running, caplog: pytest.LogCaptureFixture) -> None:
    secret = "my private letter"
    with caplog.at_level(logging.INFO, logger="oneglance.serve"):
        body = {**BODY, "messages": [{"role": "user", "content": secret}]}
        answer = tiny_server.http.post("/v1/chat/completions", json=body, headers={"X-Request-ID": "abc-1"})
        assert answer.headers["X-Request-ID"] == "abc-1"
        forged = tiny_server.http.get("/v1/models", headers={"X-Request-ID": 'x" evil'})
        assert re.fullmatch(r"[0-9a-f]{32}", forged.headers["X-Request-ID"])
        until(lambda: sum(record.getMessage() == "request" for record in caplog.records) == 2)
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    [done] = [line for line in lines if line["event"] == "answer"]
    assert done["tokens"] == 4
    assert "text" not in done
    assert secret not in json.dumps(lines)
    request = next(line for line in lines if line["event"] == "request")
    assert (request["status"], request["path"]) == (200, "/v1/chat/completions")


def test_page_needs_nothing_from_elsewhere(tiny_server: Running) -> None:
    answer = tiny_server.http.get("/")
    assert answer.status_code == 200
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    for file in PAGE.iterdir():
        served = tiny_server.http.get(f"/{file.name}")
        assert served.content == file.read_bytes()
        found = re.findall(r"https?://[^\s\"'`)]+", file.read_text())
        assert set(found) <= {"http://www.w3.org/2000/svg"}, file.name
        assert "innerHTML" not in file.read_text()
    assert tiny_server.http.get("/examples/demo_page.png").headers["content-type"] == "image/png"
    assert tiny_server.http.get("/examples/%2e%2e%2fheads.yaml").status_code == 404
    assert tiny_server.http.get("/../app.py").status_code == 404


def test_page_names_elements_that_exist() -> None:
    ids = set(re.findall(r'id="([\w-]+)"', (PAGE / "index.html").read_text()))
    script = (PAGE / "app.js").read_text()
    assert set(re.findall(r'\$\("([\w-]+)"\)', script)) <= ids
    assert {f"lane-{name}" for name in ("plain", "drafted")} <= ids


def test_openapi_names_the_parameters(tiny_server: Running) -> None:
    document = tiny_server.http.get("/openapi.json").json()
    properties = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "speculation", "budget", "tools", "response_format", "logprobs"} <= set(properties)


def test_settings_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("port: 9000\nmax_queue: 3\ncors_origins: [https://a.example]\n")
    settings = read_settings(file, {"port": 9001})
    assert (settings.port, settings.max_queue, settings.cors_origins) == (9001, 3, ("https://a.example",))
    assert settings.is_loopback
    for text, message in (
        ("prot: 1", "unknown setting 'prot'"),
        ("port: many", "setting port"),
        ("budget: 0", "setting budget"),
        (f"budget: {MAX_BUDGET + 1}", "setting budget"),
        (f"max_budget: {MAX_BUDGET + 1}", "setting max_budget"),
        ("branch_k: 0", "setting branch_k"),
        ("- 1", "must hold settings"),
        ("a: [", "cannot read the settings"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            read_settings(file, {})
    assert "s3cret" not in repr(ServeSettings(api_key="s3cret"))
