"""Arms of a comparison on one engine: each a server of its own, started, asked the same pages and ended, one after
another on the same card."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneglance.core import InputError
from oneglance.engines import Launch, depth_of, sglang
from oneglance.engines.client import Client
from oneglance.tasks import Example

START_S = 900.0  # weights of a large target from a cold disk, and graphs to capture


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve a target.

    Attributes:
        name: in tables.
        words: the command line, without a port.
    """

    name: str
    words: tuple[str, ...]


def sglang_arms(
    target: str, head: str, *, budget: int, eagle3: str | None = None, flags: Sequence[str] = ()
) -> tuple[Arm, ...]:
    """Plain decoding, a second drafter and the tree, all with the same flags (Table 1).

    Args:
        target: hub id or folder.
        head: a block head.
        budget: nodes that every drafter verifies a round, root excluded.
        eagle3: an EAGLE-3 head in SGLang's layout, drafted as a tree of eight passes; where it is None, the second
            drafter is the block head's own chain.
        flags: of all servers.
    """
    shared = Launch(target, head, depth_of(head, None), extra=tuple(flags))
    tree = Launch(target, head, shared.depth, extra=tuple(flags), budget=budget)
    chain = sglang.command(shared)
    plain = chain[:5] + list(flags)  # up to the target: what follows is how it drafts
    second = Arm("chain", tuple(chain))
    if eagle3 is not None:
        passes = Launch(target, eagle3, 8, extra=tuple(flags), budget=budget, drafter="eagle3")
        second = Arm("eagle3", tuple(sglang.command(passes)))
    return Arm("plain", tuple(plain)), second, Arm("tree", tuple(sglang.command(tree)))


def free_port() -> int:
    """A port of the loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    words: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None, start_s: float = START_S
) -> Iterator[Client]:
    """A server for the duration of a block, on a free port; its output goes to ``log``.

    Raises:
        InputError: it ends, or does not answer in time; the message ends with the log's last lines.
    """
    port = str(free_port())
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [*words, "--port", port],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    client = Client(f"http://127.0.0.1:{port}")
    try:
        _wait(client, process, log, start_s)
        yield client
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(client: Client, process: subprocess.Popen[bytes], log: Path, start_s: float) -> None:
    end = time.monotonic() + start_s
    while time.monotonic() < end and process.poll() is None:
        try:
            client.server.open("/v1/models").close()
            return
        except OSError:
            time.sleep(1)
    state = "does not answer" if process.poll() is None else f"ended with code {process.returncode}"
    raise InputError(f"the server {state}; the end of {log}:\n{log.read_text(encoding='utf-8')[-3000:]}")


def answers(client: Client, examples: Sequence[Example], max_new_tokens: int) -> list[dict[str, Any]]:
    """What a server gave for each page, greedy, and how long it took, after one page that is not counted."""
    client.ask(examples[0].prompt, images=[examples[0].image], max_new_tokens=max_new_tokens)
    given = []
    for one in examples:
        answer = client.ask(one.prompt, images=[one.image], max_new_tokens=max_new_tokens)
        row = {"text": answer.text, "num_tokens": answer.num_tokens, "total_ms": answer.total_ms}
        given.append({**row, "ms_per_token": answer.ms_per_token})
    return given
