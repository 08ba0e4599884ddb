"""``oneglance chat``: turns, images, commands, all piped in."""

from pathlib import Path

import oneglance
from oneglance.commands.chat import HELP

from .conftest import PAGE, Run

WORDS = ("chat", "--max-new-tokens", "5", "--dtype", "float32", "--threads", "1")


def test_turns_build_on_each_other(run: Run) -> None:
    result = run(*WORDS, "--json", stdin=f"/image {PAGE}\nRead.\nAnd?\n/clear\nhello\n/quit\nnever\n".encode())
    assert result.code == 0, result.err
    turns = result.json["turns"]
    assert [turn["user"] for turn in turns] == ["Read.", "And?", "hello"]
    decoder = oneglance.load(dtype="float32")
    first = [{"role": "user", "content": [{"type": "image", "image": Path(PAGE)}, {"type": "text", "text": "Read."}]}]
    answer = decoder.generate(first, max_new_tokens=5)
    assert turns[0]["answer"]["text"] == answer.text
    second = [*first, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "And?"}]
    assert turns[1]["answer"]["token_ids"] == decoder.generate(second, max_new_tokens=5).token_ids
    assert turns[2]["answer"]["token_ids"] == decoder.generate("hello", max_new_tokens=5).token_ids


def test_answers_stream_to_stdout(run: Run) -> None:
    result = run(*WORDS, stdin=b"hello\n\n")
    assert result.code == 0
    assert result.out.endswith("\n")
    assert "5 tokens, cut at the length limit" in result.err or "complete" in result.err


def test_commands_are_listed_by_one(run: Run) -> None:
    result = run(*WORDS, stdin=b"/help\n")
    assert (result.code, result.out, result.err) == (0, "", f"{HELP}\n")
    assert {word for word in HELP.split() if word.startswith("/")} == {"/image", "/clear", "/help", "/quit"}


def test_bad_lines(run: Run) -> None:
    assert "'missing.png'" in run(*WORDS, stdin=b"/image missing.png\n").error
    assert "/image takes the path" in run(*WORDS, stdin=b"/image\n").error
    assert "there is no /dance" in run(*WORDS, stdin=b"/dance\n").error
