"""Many clients at one server: every answer equals its solo answer, memory stays flat, the queue stays bounded.

    make serve-soak SECONDS=300

Clients send drawn pages, stream or not, draft or not, and one in five leaves in the middle. Exits with 1 if an answer
differs, the server fails, or its memory grows by more than a fifth between the first and the last third.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import httpx

import oneglance
from oneglance.tasks.synthetic import draw

MAX_TOKENS = 24
GRACE_S = 10.0
QUEUE = 32  # fewer than the clients, so that some are turned away
CODE = "from oneglance.cli import main; raise SystemExit(main())"


def questions() -> list[tuple[list[dict[str, Any]], str]]:
    """Messages and the answers that the decoder gives alone."""
    decoder = oneglance.load(dtype="float32")
    found = []
    for task in ("chartqa", "scienceqa", "docvqa"):
        for seed in range(3):
            page = draw(task, seed, split="eval")
            data = io.BytesIO()
            page.image.save(data, "PNG")
            url = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
            parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": page.prompt}]
            alone = decoder.generate(page.prompt, images=[data.getvalue()], max_new_tokens=MAX_TOKENS)
            found.append(([{"role": "user", "content": parts}], alone.text))
    return found


async def client(url: str, asked: list[Any], rng: random.Random, end: float, seen: Counter[str]) -> None:
    """Ask until the end."""
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        while time.monotonic() < end:
            messages, expected = rng.choice(asked)
            body = {"messages": messages, "max_tokens": MAX_TOKENS, "speculation": rng.random() < 0.7}
            try:
                seen[await one(http, body, expected, leaves=rng.random() < 0.2, stream=rng.random() < 0.5)] += 1
            except httpx.HTTPError as error:
                seen[f"failed: {type(error).__name__}"] += 1


async def one(http: httpx.AsyncClient, body: dict[str, Any], expected: str, *, leaves: bool, stream: bool) -> str:
    """Ask once; what became of it."""
    if leaves:
        async with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
            async for _ in answer.aiter_lines():
                return "left"
    answer = await http.post("/v1/chat/completions", json={**body, "stream": stream})
    if answer.status_code == 429:
        await asyncio.sleep(float(answer.headers["Retry-After"]))
        return "turned away"
    if answer.status_code != 200:
        return f"failed: {answer.status_code}"
    text = streamed(answer.text) if stream else answer.json()["choices"][0]["message"]["content"]
    return "right" if text == expected else "wrong"


def streamed(body: str) -> str:
    """The text of a stream."""
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    return "".join(c["delta"].get("content", "") for event in events for c in event["choices"])


async def watch(url: str, pid: int, end: float, memory: list[int], waiting: list[float]) -> None:
    """The server's memory in KiB and its queue, once a second."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        while time.monotonic() < end:
            with open(f"/proc/{pid}/status") as file:
                memory += [int(line.split()[1]) for line in file if line.startswith("VmRSS")]
            text = (await http.get("/metrics")).text
            lines = [line for line in text.splitlines() if line.startswith("oneglance:num_requests_waiting{")]
            waiting += [float(line.split()[-1]) for line in lines]
            await asyncio.sleep(1)


async def load(url: str, pid: int, *, clients: int, seconds: float) -> dict[str, Any]:
    """The whole load; what was seen."""
    asked = questions()
    seen: Counter[str] = Counter()
    memory: list[int] = []
    waiting: list[float] = []
    end = time.monotonic() + seconds
    watcher = asyncio.create_task(watch(url, pid, end, memory, waiting))
    tasks = [asyncio.create_task(client(url, asked, random.Random(i), end, seen)) for i in range(clients)]
    await watcher
    _, late_ones = await asyncio.wait(tasks, timeout=GRACE_S)
    for task in late_ones:  # they leave, as others did
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    third = max(len(memory) // 3, 1)
    early, late = statistics.median(memory[third : 2 * third] or memory), statistics.median(memory[-third:])
    failed = {name: count for name, count in seen.items() if name.startswith(("failed", "wrong"))}
    is_good = not failed and seen["right"] > 0 and late < 1.2 * early and max(waiting) <= QUEUE + 1
    return {
        "good": is_good,
        "seen": dict(seen),
        "memory_mib": [round(early / 1024), round(late / 1024)],
        "max_waiting": max(waiting),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=64)
    given = parser.parse_args()
    words = ["serve", "--port", "0", "--dtype", "float32", "--max-queue", str(QUEUE), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ,
    )
    assert process.stdout
    try:
        url = json.loads("".join(process.stdout.readline() for _ in range(5)))["address"]
        while httpx.get(f"{url}/ready", timeout=120).status_code != 200:  # slow while torch is imported
            time.sleep(0.2)
        result = asyncio.run(load(url, process.pid, clients=given.clients, seconds=given.seconds))
        process.send_signal(signal.SIGTERM)
        result["exit_code"] = process.wait(60)
    finally:
        process.kill()
        process.wait()
    print(json.dumps(result, indent=2))
    return 0 if result["good"] and result["exit_code"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
