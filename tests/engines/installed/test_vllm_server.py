"""The built-in model on a real vLLM, with and without its head: same text, as many accepted tokens as here."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import oneglance
from oneglance.core import InputError
from oneglance.drafters.checkpoint import BUILTIN as HEADS
from oneglance.engines import Launch, depth_of, vllm
from oneglance.engines.client import Answer, Client, Counters
from oneglance.engines.hooks import problems
from oneglance.targets import BUILTIN as TARGETS
from oneglance.tasks import TASKS, Example, draw

PROMPTS = 50
NEW = 64
START_S = 600
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


@dataclass(frozen=True)
class Arm:
    """How a server drafts: tokens a round (None for the whole block), and the workers that share the model."""

    depth: int | None = None
    workers: int = 1

    @property
    def launch(self) -> Launch:
        target, head = TARGETS["builtin:reader"], HEADS["builtin:reader"]
        extra = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--port", str(free_port()))
        return Launch(str(target), str(head), depth_of(str(head), self.depth), self.workers, extra=extra)


WHOLE = [Arm(), Arm(workers=2)]
SHORT = [Arm(depth) for depth in (1, 3, 7)]


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


@cache
def drafted(arm: Arm, folder: Path) -> tuple[list[Answer], Counters]:
    """Answers with the head, and what the server counted meanwhile."""
    log = folder / f"{arm.depth}-{arm.workers}.log"
    with serving(vllm.command(arm.launch), log) as client:
        before = client.counters()
        found = answers(client)
        after = client.counters()
    assert "oneglance leaves vLLM as it is" not in log.read_text()
    assert before is not None
    assert after is not None
    counted = after - before
    print(f"{arm}: {len(found)} prompts, {counted}, {counted.accepted_per_draft:.3f} accepted a draft")
    return found, counted


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def plain(folder: Path) -> list[Answer]:
    words = vllm.command(Arm().launch)
    at = words.index("--speculative-config")
    with serving(words[:at] + words[at + 2 :], folder / "plain.log") as client:
        return answers(client)


@pytest.fixture(scope="session")
def ours() -> list[oneglance.Generation]:
    """Without the rescorer, which vLLM cannot use."""
    depth = depth_of("builtin:reader", None)
    decoder = oneglance.load(dtype="float32", drafter="block:rescorer=none", tree="chain", budget=depth)
    return [decoder.generate(one.prompt, images=[one.image], max_new_tokens=NEW) for one in examples()]


def test_the_plugins_hooks_are_there() -> None:
    assert problems(vllm.HOOKS) == []


def test_plain_text_is_ours(plain: Any, ours: Any) -> None:
    assert [list(answer.token_ids) for answer in plain] == [generation.token_ids for generation in ours]
    assert [answer.text for answer in plain] == [generation.text for generation in ours]


@pytest.mark.parametrize("arm", [*WHOLE, *SHORT], ids=str)
def test_text_is_that_of_plain_vllm(arm: Arm, folder: Path, plain: Any) -> None:
    found, counted = drafted(arm, folder)
    assert [answer.text for answer in found] == [answer.text for answer in plain]
    assert counted.accepted > 0


@pytest.mark.parametrize("arm", WHOLE, ids=str)
def test_as_many_tokens_are_accepted_as_here(arm: Arm, folder: Path, ours: Any) -> None:
    """Shows the feature point, the draft slots and the norms of the context: with one wrong, text stays and this falls.

    A server counts accepted tokens before it cuts an answer, so ours are those of the verdicts. A shorter block is
    another pass there and the same one here, so that only whole blocks compare.
    """
    counted = drafted(arm, folder)[1]
    rounds = [done for generation in ours for done in generation.rounds if len(done.tree)]
    accepted = sum(done.verdict.num_accepted for done in rounds)
    print(f"here: {len(rounds)} drafts, {accepted} accepted, {accepted / len(rounds):.3f} a draft")
    assert counted.drafts == pytest.approx(len(rounds), rel=0.05)
    assert counted.accepted_per_draft == pytest.approx(accepted / len(rounds), rel=0.05)
