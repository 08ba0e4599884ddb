"""The built-in model on a real vLLM, with and without its head: same text, as many accepted tokens as here."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import oneglance
from oneglance.acceptance import Acceptance
from oneglance.core import InputError
from oneglance.drafters.checkpoint import BUILTIN as HEADS
from oneglance.engines import Launch, depth_of, vllm
from oneglance.engines.client import Answer, Client, Counters
from oneglance.engines.hooks import problems
from oneglance.targets import BUILTIN as TARGETS
from oneglance.tasks import TASKS, Example, draw

PROMPTS = 50
NEW = 64
START_S = 300
CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


@cache
def examples() -> tuple[Example, ...]:
    """Suite pages as drawn: nothing resizes them, since resamplers differ."""
    names = list(TASKS)
    return tuple(draw(names[i % len(names)], i // len(names), split="eval") for i in range(PROMPTS))


def launch(tensor_parallel: int = 1) -> Launch:
    target, head = TARGETS["builtin:reader"], HEADS["builtin:reader"]
    extra = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--port", str(free_port()))
    return Launch(str(target), str(head), depth_of(str(head), None), tensor_parallel, extra=extra)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(words: list[str], log: Path) -> Iterator[Client]:
    port = words[words.index("--port") + 1]
    with log.open("w") as out:
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **CPU})
    client = Client(f"http://127.0.0.1:{port}")
    try:
        until_ready(client, process, log)
        yield client
    finally:
        process.terminate()
        process.wait(60)


def until_ready(client: Client, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            client.counters()
            return
        except InputError:
            time.sleep(1)
    raise AssertionError(log.read_text()[-4000:])


def answers(client: Client) -> list[Answer]:
    return [client.ask(one.prompt, images=[one.image], max_new_tokens=NEW) for one in examples()]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    words = vllm.command(launch())
    at = words.index("--speculative-config")
    with serving(words[:at] + words[at + 2 :], tmp_path_factory.mktemp("plain") / "log") as client:
        return answers(client)


@pytest.fixture(scope="module", params=[1, 2])
def drafted(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Answer], Counters | None]:
    log = tmp_path_factory.mktemp("drafted") / "log"
    with serving(vllm.command(launch(request.param)), log) as client:
        before = client.counters()
        found = answers(client)
        after = client.counters()
    assert "its hooks have moved" not in log.read_text()
    return found, after - before if after is not None and before is not None else after


@pytest.fixture(scope="module")
def ours() -> tuple[list[oneglance.Generation], Acceptance]:
    decoder = oneglance.load(dtype="float32", tree="chain", budget=depth_of("builtin:reader", None))
    found = [decoder.generate(one.prompt, images=[one.image], max_new_tokens=NEW) for one in examples()]
    return found, Acceptance.total(map(Acceptance.of, found))


def test_the_plugins_hooks_are_there() -> None:
    assert problems(vllm.HOOKS) == []


def test_text_is_ours_and_that_of_plain_vllm(plain: Any, drafted: Any, ours: Any) -> None:
    texts = [answer.text for answer in drafted[0]]
    assert texts == [answer.text for answer in plain]
    assert texts == [generation.text for generation in ours[0]]


def test_as_many_tokens_are_accepted_as_here(drafted: Any, ours: Any) -> None:
    """Shows the feature point and the draft slots of images: with either wrong, text stays and this falls."""
    counted, here = drafted[1], ours[1]
    assert counted is not None
    assert counted.drafts > 0
    assert counted.accepted_per_draft == pytest.approx(here.num_accepted / here.num_drafted, rel=0.05)
