"""Arms of a comparison: their command lines, and servers as processes."""

import sys
from pathlib import Path

import pytest

from oneglance.core import InputError
from oneglance.drafters.checkpoint import BUILTIN
from oneglance.engines.arms import answers, serving, sglang_arms
from oneglance.tasks import draw

HEAD = str(BUILTIN["builtin:reader"])
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.say(json.dumps({"data": [{"id": "it"}]}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (body["temperature"], body["max_tokens"]) == (0, 7)
        choice = {"delta": {"content": "yes"}, "finish_reason": "stop"}
        self.say("data: " + json.dumps({"choices": [choice], "usage": {"completion_tokens": 3}}) + "\\n\\n")

    def say(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def test_both_drafters_verify_as_many_rows_and_share_their_flags() -> None:
    flags = ("--dtype", "float32")
    plain, second, tree = sglang_arms("a/b", HEAD, budget=31, eagle3="c/d", flags=flags)
    assert (plain.name, second.name, tree.name) == ("plain", "eagle3", "tree")
    assert plain.words[1:] == ("-m", "sglang.launch_server", "--model-path", "a/b", *flags)
    for arm, algorithm in ((second, "EAGLE3"), (tree, "GLANCE")):
        words = arm.words
        assert words[words.index("--speculative-algorithm") + 1] == algorithm
        assert words[words.index("--speculative-num-draft-tokens") + 1] == "32"
        assert words[:5] == plain.words[:5]
        assert set(flags) <= set(words)
    assert [arm.name for arm in sglang_arms("a/b", HEAD, budget=31)] == ["plain", "chain", "tree"]


def test_a_server_runs_for_a_block_and_is_asked(tmp_path: Path) -> None:
    pages = [draw("textvqa", index, split="eval") for index in range(2)]
    with serving([sys.executable, "-c", SERVER], tmp_path / "logs" / "it.log") as client:
        rows = answers(client, pages, 7)
    assert [(row["text"], row["num_tokens"]) for row in rows] == [("yes", 3)] * 2
    with pytest.raises(InputError, match="gives no answer"):
        client.ask("still there?", max_new_tokens=7)


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with pytest.raises(InputError, match=r"ended with code 1[\s\S]*no such model"), serving(words, tmp_path / "log"):
        pass
