"""``oneglance generate``: bad input, JSON, streaming to a pipe and to a terminal, interruption."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from oneglance.commands.terminal import StreamPrinter, summary, visible, write_json
from oneglance.core import EMPTY_TREE, Generation, Round, TokenTree, Verdict
from oneglance.decoder import Step, Stream
from oneglance.text import Piece

from .conftest import HEAD, PAGE, Run

QUESTION = "Transcribe the document."
FIELDS = {
    "text": str,
    "token_ids": list,
    "finish_reason": str,
    "num_tokens": int,
    "num_rounds": int,
    "tau": float,
    "acceptance_histogram": list,
    "num_draft_passes": int,
    "prefill_ms": float,
    "ms_per_token": float,
    "fell_back": type(None),
    "target": str,
    "head": str,
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x", "--image", "missing.png"], "there is no file 'missing.png'; check the path"),
        (["x", "--image", __file__], "is not an image in a supported format"),
        ([], "the prompt is empty; give a text, --image, or both"),
        ([""], "the prompt is empty; give a text, --image, or both"),
        (["-"], "the prompt is empty; give a text, --image, or both"),
        ([PAGE], "is the path of a page; give it after --image"),
        (["x", PAGE], "an image follows --image, a prompt stands in quotes"),
        (["x", "--target", "builtin:nobody"], "there is no 'builtin:nobody'"),
        (["x", "--target", "./nowhere", "--drafter", "none"], "there is no target at './nowhere'; give a folder"),
        (["x", "--target", "./nowhere"], "there is no target at './nowhere'; give a folder"),
        (["x", "--target", __file__], "is a file; give the folder"),
        (["x", "--target", "owner/model"], "needs a draft head: give --head, or --drafter none"),
        (["x", "--target", "owner/model"], "oneglance heads lists heads"),
        (["x", "--target", str(HEAD.parent)], "there is no model in the folder"),
        (["x", "--head", "./nowhere"], "no head at ./nowhere"),
        (["x", "--head", "owner/head"], "name its own target by --target (oneglance heads lists both)"),
        (["x", "--drafter", "psychic"], "unknown drafter 'psychic'; choose one of block, eagle2, eagle3"),
        (["x", "--tree", "oak"], "unknown tree policy 'oak'; choose one of best_first, chain, fixed"),
        (["x", "--budget", "0"], "--budget must be at least 1, got 0; for plain decoding use --drafter none"),
        (["x", "--branch-k", "0"], "--branch-k must be at least 1, got 0"),
        (["x", "--max-new-tokens", "-1"], "--max-new-tokens must be at least 0, got -1"),
        (["x", "--stop", ""], "a stop string is empty"),
        (["x", "--dtype", "float12"], "unknown dtype 'float12'; choose one of"),
        (["x", "--device", "abacus"], "device 'abacus' is not available here"),
        (["x", "--device", "cpu", "--device-map", "auto"], "either device or device_map"),
        (["x", "--attention", "flash_attention_2"], "use sdpa or eager"),
    ],
)
def test_bad_input_is_one_line_that_names_the_fix(run: Run, words: list[str], message: str) -> None:
    assert message in run("generate", *words).error


def test_prompt_that_is_no_text(run: Run) -> None:
    assert "not UTF-8 text" in run("generate", "-", stdin=b"\x89PNG\xff").error


def test_image_for_a_text_only_target(run: Run, text_target: Path) -> None:
    result = run("generate", "x", "--image", PAGE, "--target", text_target, "--drafter", "none")
    assert "is a text-only target and takes no images" in result.error


def test_head_of_another_target(run: Run, text_target: Path) -> None:
    result = run("generate", "x", "--target", text_target, "--head", HEAD)
    assert "hidden size: the head has 192, the target 32" in result.error


@pytest.mark.parametrize(
    "words", [["--budge", "3"], ["a", "b"], ["x", "--max-new-tokens", "many"], ["x", "--threads", "0"]]
)
def test_usage_errors_exit_with_2(run: Run, words: list[str]) -> None:
    result = run("generate", *words)
    assert (result.code, result.out) == (2, "")
    assert result.error.endswith("oneglance generate --help lists what there is")


def test_json_is_one_object(run: Run) -> None:
    result = run("generate", QUESTION, "--image", PAGE, "--dtype", "float32", "--threads", 1, "--json")
    assert result.code == 0
    assert result.err == ""
    answer = result.json
    assert {key: type(answer[key]) for key in FIELDS} == FIELDS
    assert answer["num_tokens"] == len(answer["token_ids"]) > 1
    assert answer["finish_reason"] == "stop"
    assert answer["num_draft_passes"] == answer["num_rounds"] == sum(answer["acceptance_histogram"])
    assert answer["target"] == answer["head"] == "builtin:reader"


def test_drafter_changes_no_token(run: Run) -> None:
    common = ["generate", QUESTION, "--image", PAGE, "--dtype", "float32", "--json"]
    plain = run(*common, "--drafter", "none").json
    assert (plain["head"], plain["num_draft_passes"], plain["tau"]) == (None, 0, 1.0)
    for words in (["--tree", "chain"], ["--tree", "fixed", "--budget", "20"], ["--budget", "7", "--branch-k", "2"]):
        assert run(*common, *words).json["token_ids"] == plain["token_ids"]
    looked_up = run(*common, "--drafter", "ngram").json
    assert (looked_up["head"], looked_up["token_ids"]) == (None, plain["token_ids"])  # a drafter without weights


def test_piped_text_is_plain_and_figures_go_to_stderr(run: Run) -> None:
    result = run("generate", "-", "--image", PAGE, "--dtype", "float32", stdin=f"{QUESTION}\n".encode())
    same = run("generate", QUESTION, "--image", PAGE, "--dtype", "float32", "--json").json
    assert result.code == 0
    assert result.out == same["text"] + "\n"
    assert "\x1b" not in result.out + result.err
    assert f"{same['num_tokens']} tokens, complete · {same['num_rounds']} rounds · τ {same['tau']:.2f}" in result.err
    assert "ms/token · prefill" in result.err


@pytest.mark.parametrize(("words", "missing"), [([QUESTION], "--image"), (["--image", PAGE], "a prompt")])
def test_the_built_in_target_says_when_it_has_nothing_to_answer(run: Run, words: list[str], missing: str) -> None:
    result = run("generate", *words, "--max-new-tokens", 1, "--threads", 1, "--json")
    note = f"note: builtin:reader answers questions about a drawn page; without {missing} its answer means nothing\n"
    assert (result.code, result.err) == (0, note)


def test_caps_and_stop_strings(run: Run) -> None:
    common = ["generate", QUESTION, "--image", PAGE, "--dtype", "float32", "--json"]
    whole = run(*common).json
    assert run(*common, "--max-new-tokens", 0).json["token_ids"] == []
    capped = run(*common, "--max-new-tokens", 3).json
    assert (capped["token_ids"], capped["finish_reason"]) == (whole["token_ids"][:3], "length")
    word = whole["text"].split()[-1]
    stopped = run(*common, "--stop", "never there", "--stop", word).json
    assert stopped["text"] == whole["text"][: whole["text"].index(word)]


def test_text_only_target_with_a_random_head(run: Run, text_target: Path, text_head: Path) -> None:
    words = ["generate", "hello", "--target", text_target, "--max-new-tokens", 20, "--json"]
    drafted = run(*words, "--head", text_head).json
    assert drafted["token_ids"] == run(*words, "--drafter", "none").json["token_ids"]
    assert drafted["head"] == str(text_head)


def test_several_images_and_a_system_prompt(run: Run, vision_target: Path) -> None:
    words = ["generate", "x", "--target", vision_target, "--drafter", "none", "--max-new-tokens", 4, "--json"]
    one = run(*words, "--image", PAGE)
    two = run(*words, "--image", PAGE, "--image", PAGE, "--system", "Be brief.")
    assert one.code == two.code == 0
    assert one.json["num_tokens"] == two.json["num_tokens"] == 4


def test_interruption_keeps_what_was_decoded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["generate", QUESTION, "--image", PAGE, "--dtype", "float32", "--budget", 3]
    whole = run(*words, "--json").json["text"]
    monkeypatch.setattr(Stream, "__next__", interrupted_after(3, Stream.__next__))
    text = run(*words)
    assert text.code == 130
    assert 0 < len(text.out.rstrip("\n")) < len(whole)
    assert whole.startswith(text.out.rstrip("\n"))
    assert "interrupted" in text.err
    monkeypatch.setattr(Stream, "__next__", interrupted_after(3, Stream.__next__))
    result = run(*words, "--json")
    assert (result.code, result.json["finish_reason"]) == (130, "cancelled")


def interrupted_after(num_steps: int, step: Any) -> Any:
    """A stream's ``__next__`` that meets Ctrl-C once ``num_steps`` steps are through."""
    calls = iter(range(num_steps))

    def next_step(stream: Stream) -> Step:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        done: Step = step(stream)
        return done

    return next_step


# What reaches a terminal ----------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def step(index: int, *texts: str, kept: int | None = None) -> Step:
    """A round whose accepted pieces and bonus have these texts; ``kept`` pieces survive the cut."""
    tree = TokenTree(tuple(range(1, len(texts))), tuple(range(len(texts) - 1)), tuple(range(1, len(texts))))
    token_ids = tuple(range(len(texts)))
    done = Round(
        index=index,
        root=0,
        tree=tree,
        verdict=Verdict(tuple(range(len(texts))), token_ids),
        token_ids=token_ids[:kept],
        cut=None if kept is None else "stop",
        num_draft_passes=1,
    )
    return Step(tuple(Piece(i, text) for i, text in enumerate(texts[:kept])), done)


def test_rounds_alternate_in_colour_and_bonus_tokens_stand_out(terminal: Terminal) -> None:
    printer = StreamPrinter(terminal)
    printer.write(Step((Piece(0, "first"),), None))
    printer.write(step(0, "ab", "cd", "!"))
    printer.write(step(1, "ef", "?"))
    printer.write(step(2, "gh", "ij", kept=1))
    reset = "\x1b[0m"
    assert terminal.getvalue() == (
        f"first\x1b[36mabcd{reset}\x1b[36m\x1b[1m\x1b[4m!{reset}\x1b[33mef{reset}\x1b[33m\x1b[1m\x1b[4m?{reset}"
        f"\x1b[36mgh{reset}"
    )


def test_plain_rounds_are_not_styled(terminal: Terminal) -> None:
    printer = StreamPrinter(terminal)
    done = Round(
        index=0, root=0, tree=EMPTY_TREE, verdict=Verdict((0,), (7,)), token_ids=(7,), cut=None, num_draft_passes=0
    )
    printer.write(Step((Piece(7, "word"),), done))
    assert terminal.getvalue() == "word"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_refused(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    StreamPrinter(terminal).write(step(0, "ab", "!"))
    assert terminal.getvalue() == "ab!"


def test_no_control_character_of_an_answer_reaches_a_terminal(terminal: Terminal) -> None:
    printer = StreamPrinter(terminal)
    hostile = "".join(map(chr, range(0x20))) + "\x7f\x9b2J\u202e"
    printer.write(step(0, hostile, hostile))
    printer.finish(2 * hostile + hostile)
    shown = terminal.getvalue().replace("\x1b[36m\x1b[1m\x1b[4m", "").replace("\x1b[36m", "").replace("\x1b[0m", "")
    assert {c for c in shown if not c.isprintable()} == {"\t", "\n"}
    assert "␛" in shown


def test_pipe_gets_the_answer_as_it_is() -> None:
    pipe = io.StringIO()
    printer = StreamPrinter(pipe)
    printer.write(step(0, "\x1b[31m", "b"))
    printer.finish("\x1b[31mb, and the rest")
    assert pipe.getvalue() == "\x1b[31mb, and the rest\n"


def test_one_is_not_several() -> None:
    done = Round(
        index=0, root=0, tree=EMPTY_TREE, verdict=Verdict((0,), (7,)), token_ids=(7,), cut=None, num_draft_passes=1
    )
    one = Generation("a", [1], "length", 1.0, 2.0, "t", None, [done])
    assert summary(one).startswith("1 token, cut at the length limit · 1 round · τ 1.00 · 1 draft pass · ")
    two = Generation("ab", [1, 7], "length", 1.0, 2.0, "t", None, [done, done])
    assert summary(two).startswith("2 tokens, cut at the length limit · 2 rounds · τ 1.00 · 2 draft passes · ")


def test_visible_keeps_what_can_be_printed() -> None:
    assert visible("naïve 文\n\t🙂") == "naïve 文\n\t🙂"
    assert visible("\x1b]0;title\x07") == "␛]0;title␇"


def test_what_json_lacks_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"gaps": [1.5, float("nan")], "error": {"most": -float("inf")}})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "gaps": [1.5, None],
        "error": {"most": None},
    }


def test_json_holds_no_raw_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"text": "\x1b[2J\x7f\x9b\ud800 é"})
    out = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in out)
    assert "é" in out
