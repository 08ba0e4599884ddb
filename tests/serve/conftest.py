"""Servers in this process, on free ports of the loopback: the real application behind real sockets."""

import base64
import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from PIL import Image

import oneglance
from helpers import picture
from oneglance.core import EMPTY_TREE, TokenTree
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.serve.app import Service, create_app
from oneglance.serve.settings import ServeSettings
from oneglance.testing import QWEN_TEMPLATE, ScriptedDrafter, tiny_head, tiny_target

TOOL_TEMPLATE = "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}" + QWEN_TEMPLATE


@dataclass(frozen=True)
class Running:
    """A server that answers.

    Attributes:
        url: its address.
        service: what its routes share.
        http: a client.
    """

    url: str
    service: Service
    http: httpx.Client

    @property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def chat(self, text: str = "hello", **body: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": text}], **body})

    def metric(self, name: str, **labels: str) -> float:
        model = self.service.settings.model_name
        value = self.service.metrics.registry.get_sample_value(f"oneglance:{name}", {"model_name": model, **labels})
        return value or 0.0


@contextmanager
def running(load: Callable[[], Decoder], *, wait: bool = True, **settings: Any) -> Iterator[Running]:
    """A server for the duration of a block."""
    app = create_app(ServeSettings(**settings), load)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=60) as http:
            until(lambda: not wait or http.get("/ready").status_code == 200)
            yield Running(url, app.state.service, http)
    finally:
        server.should_exit = True
        thread.join()


def until(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something that another thread brings about."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def reader() -> Decoder:
    """The built-in model, whose head gets tokens accepted."""
    return oneglance.load(dtype="float32")


@pytest.fixture(scope="session")
def server(reader: Decoder) -> Iterator[Running]:
    """The built-in model, served."""
    with running(lambda: reader) as started:
        yield started


@pytest.fixture(scope="session")
def tiny() -> Decoder:
    """Random weights, a template that knows tools, and every byte a token."""
    target = tiny_target("qwen3_vl")
    target.processor.chat_template = TOOL_TEMPLATE
    return Decoder(target, BlockDrafter(tiny_head(target), target, budget=7))


@pytest.fixture(scope="session")
def tiny_server(tiny: Decoder) -> Iterator[Running]:
    """Random weights, served."""
    with running(lambda: tiny, served_model_name="tiny") as started:
        yield started


class Latch:
    """A decoder that stops before every round until it is let go."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.num_rounds = 0
        target = tiny_target("qwen3_vl")
        target.model.generation_config.eos_token_id = None
        self.decoder = Decoder(target, ScriptedDrafter(self._wait))

    def _wait(self, so_far: Any, max_depth: int) -> TokenTree:
        self.num_rounds += 1
        assert self.open.wait(30)
        return EMPTY_TREE


@pytest.fixture
def latch() -> Iterator[Latch]:
    """Let go at the end, so that every thread can end."""
    made = Latch()
    yield made
    made.open.set()


def png(image: Image.Image | None = None) -> bytes:
    """An encoded picture."""
    data = io.BytesIO()
    (image or picture(0)).save(data, "PNG")
    return data.getvalue()


def data_uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def with_image(url: Any, text: str = "Read.") -> list[dict[str, Any]]:
    """Messages of one picture and a text."""
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]
