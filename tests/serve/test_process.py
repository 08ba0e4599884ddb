"""``oneglance serve`` as a process: bad input, the address it says, SIGTERM under load."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from oneglance.cli import main
from oneglance.serve.server import serve
from oneglance.serve.settings import ServeSettings

from .conftest import until

SRC = str(Path(sys.modules["oneglance"].__file__ or "").parent.parent)
CODE = "from oneglance.cli import main; raise SystemExit(main())"
COMMAND = [sys.executable, "-c", CODE, "serve", "--port", "0", "--dtype", "float32", "--threads", "1", "--json"]


@pytest.fixture(autouse=True)
def logging_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server writes its logs to the stderr that it found; here each test has another."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    yield
    logging.captureWarnings(False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "nowhere.yaml"], "cannot read the settings in nowhere.yaml"),
        (["--target", "./nowhere"], "there is no target at './nowhere'"),
        (["--target", "owner/model"], "needs a draft head"),
        (["--budget", "0"], "setting budget"),
        (["--host", "256.1.1.1"], "cannot listen on 256.1.1.1"),
        (["--port", "0", "--target", "builtin:nobody"], "there is no 'builtin:nobody'"),
    ],
)
def test_bad_input(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--json", *words]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last


def test_it_listens_before_torch_is_there() -> None:
    """Loading takes long; ``/health`` answers meanwhile."""
    code = "import sys, oneglance.serve.server; raise SystemExit({'torch', 'transformers'} & set(sys.modules) != set())"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SRC}).returncode == 0


def ask(address: str, **body: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hello"}], "ignore_eos": True, **body}
    return httpx.post(f"{address}/v1/chat/completions", json=body, timeout=120)


@contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves the built-in model, and its address."""
    environment = {**os.environ, "PYTHONPATH": SRC}
    process = subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    assert process.stdout
    try:
        said = "".join(process.stdout.readline() for _ in range(5))
        address = str(httpx.URL(said.partition('"address": "')[2].partition('"')[0]))
        until(lambda: httpx.get(f"{address}/ready", timeout=60).status_code == 200, 120)
        yield process, address
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGTERM")
def test_sigterm_under_load_finishes_what_runs() -> None:
    with served() as (process, address):
        assert process.stderr
        with ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(ask, address, max_tokens=60) for _ in range(6)]
            full = 'num_requests_waiting{model_name="builtin:reader"} 5.0'
            until(lambda: full in httpx.get(f"{address}/metrics").text)
            process.send_signal(signal.SIGTERM)
            codes = sorted(request.result().status_code for request in asked)
        assert codes == [200, 503, 503, 503, 503, 503]
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()


def rows(folder: Path) -> dict[str, list[int]]:
    """Traces by their prompt's id, each of which stands there once."""
    path = folder / "traces.jsonl"
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0] if path.exists() else ""  # a line may be half written
    read = [json.loads(line) for line in whole.splitlines()]
    found = {row["id"]: row["answer_ids"] for row in read}
    assert len(found) == len(read), "a prompt was answered twice"
    return found


@pytest.mark.slow
def test_one_of_two_servers_is_killed_while_it_collects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is lost and nothing is doubled, and the answers are those of one process without a server."""
    prompts = ["--tasks", "textvqa", "--limit", "24", "--max-new-tokens", "24"]
    words = ["collect", *prompts, "--threads", "1", "--json"]
    with served() as (mortal, first), served() as (_, second), ThreadPoolExecutor(1) as pool:
        urls = ["--url", first, "--url", second, "--concurrency", "2"]
        running = pool.submit(main, [*words, "--out", str(tmp_path / "served"), *urls])
        until(lambda: len(rows(tmp_path / "served")) >= 3 or running.done(), 120)
        assert not running.done(), "it was killed too late to matter"
        mortal.kill()
        assert running.result() == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["done"], report["total"], report["skipped"]) == (24, 24, {})
    assert main([*words, "--out", str(tmp_path / "alone"), "--dtype", "float32"]) == 0
    assert rows(tmp_path / "served") == rows(tmp_path / "alone")


def test_who_reads_the_address_may_connect() -> None:
    def connects(address: str) -> None:
        seen.append(address)
        url = httpx.URL(address)
        socket.create_connection((url.host, url.port or 0), timeout=5).close()
        raise RuntimeError("enough")

    seen: list[str] = []
    with pytest.raises(RuntimeError, match="enough"):
        serve(ServeSettings(port=0), lambda: pytest.fail("nothing is loaded"), connects)
    assert len(seen) == 1
