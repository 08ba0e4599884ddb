"""Our client against our server: what it counts from outside is what the answers say inside."""

import os
import subprocess
import sys
from pathlib import Path

from oneglance.engines.client import Client

from .conftest import Running


def test_counters_between_two_readings_are_those_of_the_answers(tiny_server: Running) -> None:
    client = Client(tiny_server.url)
    client.ask("hello", max_new_tokens=2)
    before = client.counters()
    bodies = [tiny_server.chat("hello", max_tokens=9).json() for _ in range(2)]
    answer = client.ask("hello", max_new_tokens=9)
    after = client.counters()
    assert before is not None
    assert after is not None
    assert answer.text == bodies[0]["choices"][0]["message"]["content"]
    assert answer.num_tokens == bodies[0]["usage"]["completion_tokens"] == 9
    own = bodies[0]["metrics"]["speculative_decoding"]
    found = after - before
    assert found.drafts == 3 * own["num_spec_steps"] > 0
    assert found.proposed == 3 * own["num_draft_tokens"]
    assert found.accepted == 3 * own["num_accepted_draft_tokens"]
    assert found.mean_acceptance_length == own["mean_acceptance_length"]


def test_the_example_runs(server: Running) -> None:
    root = Path(__file__).parents[2]
    words = ["examples/openai_client.py", "src/oneglance/assets/demo_page.png", "Transcribe the document."]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=root,
        env={**os.environ, "OPENAI_BASE_URL": f"{server.url}/v1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Lima Bakery\n")
    assert "10 rounds, 9.30 tokens a round" in done.stderr
