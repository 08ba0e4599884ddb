"""Answers from OpenAI-compatible servers that fail, vanish and refuse: nothing lost, nothing doubled."""

import base64
import io
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from oneglance.core import InputError
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import tiny_target
from oneglance.train.collect import Collection
from oneglance.train.prompts import Prompt
from oneglance.train.servers import Server, ServerAnswerer
from oneglance.train.traces import read_traces

PROMPTS = [Prompt(f"p{i}", "text", f"Question number {i}") for i in range(12)]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3_vl")


class Double:
    """An OpenAI-compatible server under a script.

    Args:
        target: tokenises.
        busy: first so many requests get HTTP 503.
        dies_after: from this request on, connections are dropped.
        knows_ids: gives token ids; otherwise rejects the field.
        refuses: texts that it answers with HTTP 400.
        extra_prompt_tokens: added to its prompt length.
    """

    def __init__(self, target: Target, **script: Any) -> None:
        self.target, self.lock, self.seen = target, threading.Lock(), 0
        self.answered: Counter[str] = Counter()
        self.pictures: list[Image.Image] = []
        self.script = {"busy": 0, "dies_after": 1 << 30, "knows_ids": True, "refuses": (), "extra_prompt_tokens": 0}
        self.script |= script

    def reply(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self.seen += 1
            if self.seen > self.script["dies_after"]:
                raise ConnectionAbortedError
            if self.seen <= self.script["busy"]:
                return 503, {}
        if "return_token_ids" in body and not self.script["knows_ids"]:
            return 400, {"error": "unknown field"}
        content = body["messages"][-1]["content"]
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        text = "".join(part.get("text", "") for part in parts)
        pictures = [_picture(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"]
        if text in self.script["refuses"]:
            return 400, {"error": "no"}
        with self.lock:
            self.answered[text] += 1
            self.pictures += pictures
        assert (body["temperature"], body["model"]) == (0, "tiny")
        return 200, self._answer(text, pictures)

    def _answer(self, text: str, pictures: list[Image.Image]) -> dict[str, Any]:
        answer = f"{text}: yes"
        choice: dict[str, Any] = {"message": {"content": answer}, "finish_reason": "stop"}
        if self.script["knows_ids"]:
            choice["token_ids"] = [*self.target.tokenizer(answer)["input_ids"], self.target.eos_ids[0]]
        length = len(encode(self.target, text, images=pictures).token_ids) + self.script["extra_prompt_tokens"]
        return {"choices": [choice], "usage": {"prompt_tokens": length}}


def _picture(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))


@contextmanager
def serving(double: Double) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "tiny"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                self._send(*double.reply(body))
            except ConnectionAbortedError:
                self.close_connection = True

        def _send(self, code: int, value: dict[str, Any]) -> None:
            data = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run(target: Target, urls: list[str], out: Path, prompts: list[Prompt] = PROMPTS, **options: Any) -> Any:
    servers = [Server(url, retries=2, pause_s=0.01, timeout_s=20) for url in urls]
    answerer = ServerAnswerer(target, servers, max_new_tokens=32, concurrency=3, **options)
    return list(Collection(out, prompts, target, 48, 32, {}).run(answerer))[-1]


def test_a_dead_servers_work_goes_to_the_others(target: Target, tmp_path: Path) -> None:
    mortal, other = Double(target, dies_after=3), Double(target, busy=4)
    with serving(mortal) as a, serving(other) as b:
        assert run(target, [a, b + "/v1"], tmp_path).done == len(PROMPTS)
    rows = read_traces(tmp_path).rows
    assert sorted(row.id for row in rows) == sorted(prompt.id for prompt in PROMPTS)
    assert all(count == 1 for count in (mortal.answered + other.answered).values())
    for row in rows:
        text = f"{row.prompt}: yes"
        assert list(row.answer_ids) == [*target.tokenizer(text)["input_ids"], target.eos_ids[0]]
    manifest = read_traces(tmp_path).manifest
    assert manifest["settings"]["answers"]["answer_ids"] == {"from_server": len(PROMPTS), "retokenised": 0}


def test_when_all_are_dead_what_was_collected_stays(target: Target, tmp_path: Path) -> None:
    with (
        serving(Double(target, dies_after=5)) as url,
        pytest.raises(InputError, match="no server answers any more"),
    ):
        run(target, [url], tmp_path)
    kept = len(read_traces(tmp_path).rows)
    assert 1 <= kept <= 5
    with serving(Double(target)) as url:
        assert run(target, [url], tmp_path).done == len(PROMPTS)
    ids = [row.id for row in read_traces(tmp_path).rows]
    assert len(ids) == len(set(ids)) == len(PROMPTS)


def test_text_only_servers_are_retokenised_and_that_is_said(target: Target, tmp_path: Path) -> None:
    with serving(Double(target, knows_ids=False, refuses=("Question number 3",))) as url:
        progress = run(target, [url], tmp_path)
    assert progress.skipped == {"refused": 1}
    row = read_traces(tmp_path).rows[0]
    assert target.tokenizer.decode(row.answer_ids[:-1]) == f"{row.prompt}: yes"
    answers = read_traces(tmp_path).manifest["settings"]["answers"]
    assert answers["answer_ids"]["retokenised"] == len(PROMPTS) - 1
    assert "can split a text otherwise" in answers["note"]


def test_images_are_sent_at_the_size_of_training(target: Target, tmp_path: Path) -> None:
    Image.new("RGB", (96, 64), (9, 99, 200)).save(tmp_path / "page.png")
    double = Double(target)
    with serving(double) as url:
        run(target, [url], tmp_path / "out", [Prompt("a", "doc", "Read", (str(tmp_path / "page.png"),))])
    assert [picture.size for picture in double.pictures] == [(48, 32)]


def test_another_chat_template_is_noticed(target: Target, tmp_path: Path) -> None:
    with serving(Double(target, extra_prompt_tokens=4)) as url:
        with pytest.raises(InputError, match="another chat template, image size or model"):
            run(target, [url], tmp_path)
        assert run(target, [url], tmp_path, check_prompts=False).done == len(PROMPTS)


def test_a_url_needs_its_scheme() -> None:
    with pytest.raises(InputError, match="takes http://host:port"):
        Server("localhost:8000")
