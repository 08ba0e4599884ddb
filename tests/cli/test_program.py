"""The program around the commands: help, version, exit codes, notes, pipes that close, real terminals."""

import importlib
import os
import re
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path
from typing import get_type_hints

import pytest
import typer

from oneglance import __version__, cli
from oneglance.commands import options
from oneglance.core import InputError, OneglanceWarning

from .conftest import PAGE, Run

PROGRAM = str(Path(sysconfig.get_path("scripts")) / "oneglance")
GENERATE = [PROGRAM, "generate", "-", "--image", PAGE, "--dtype", "float32", "--threads", "1"]
QUESTION = b"Transcribe the document.\n"


@pytest.mark.parametrize("words", [["--help"], ["-h"]])
def test_help_lists_each_command_once_and_grouped(run: Run, words: list[str]) -> None:
    result = run(*words)
    assert result.code == 0
    for name, row in cli.COMMANDS.items():
        assert result.out.count(row.help) == 1
        assert f"{name}  " in result.out
    for panel in ("Run", "Prove", "Measure", "Train", "Study", "Ship"):
        assert f"{panel}:\n" in result.out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from oneglance.cli import main; main(['--help']); "
        "print([m for m in ('torch', 'transformers', 'numpy', 'PIL', 'pydantic', 'rich') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("[]\n")


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_help_of_a_command_imports_no_torch(name: str) -> None:
    code = (
        f"import sys; from oneglance.cli import main; code = main([{name!r}, '--help']); "
        "print(code, [m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("0 []\n")
    assert f"oneglance {name}" in result.stdout


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_table_names_functions_that_exist(name: str) -> None:
    module, function = cli.COMMANDS[name].place.split(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_commands_that_decode_open_targets_by_the_same_options() -> None:
    wanted = {name: getattr(options, name) for name in ("Target", "Dtype", "Device", "DeviceMap", "Attention")}
    for name in ("demo", "generate", "doctor", "audit", "bench", "calibrate-gate"):
        module, function = cli.COMMANDS[name].place.split(":")
        taken = get_type_hints(getattr(importlib.import_module(module), function), include_extras=True).values()
        assert [w for w, option in wanted.items() if option not in taken] == [], name


def test_help_names_extras(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in square brackets is no style of rich."""
    monkeypatch.setenv("COLUMNS", "200")
    assert "of this schema ([grammar])." in run("generate", "--help").out
    assert "on the hub ([data])." in run("bench", "--help").out
    assert "[SECTION.KEY=VALUE]" in run("fit-head", "--help").out


@pytest.mark.parametrize("words", [[], ["generate"], ["run"], ["inspect"], ["probe", "saliency"]])
def test_help_has_no_word_of_python(run: Run, words: list[str]) -> None:
    shown = run(*words, "--help").out
    assert not re.search(r"<(bool|str|int|float|path|list)\b", shown, re.IGNORECASE), shown
    assert "--help" in shown


def test_the_likeliest_option_comes_first(run: Run) -> None:
    assert "No such option: --imgae (Possible options: --image" in run("generate", "x", "--imgae", "y").error


def test_version(run: Run) -> None:
    assert run("--version").out == f"oneglance {__version__}\n"


def test_unknown_command_is_a_usage_error_with_a_suggestion(run: Run) -> None:
    result = run("generat")
    assert (result.code, result.out) == (2, "")
    assert "Did you mean 'generate'?" in result.err


def test_commands_of_two_words(run: Run) -> None:
    assert "LOG" in run("probe", "saliency", "--help").out
    result = run("probe")
    assert (result.code, result.out) == (2, "")
    assert "probe image" in result.err


def test_no_command_shows_the_help(run: Run) -> None:
    result = run()
    assert result.code in (0, 2)
    assert "generate" in result.out + result.err


def failing() -> None:
    raise InputError("the file \x1b[2J is\nbroken; mend it")


def noting() -> None:
    for message in ("a costs b", "a costs b", "c costs d"):
        warnings.warn(message, OneglanceWarning, stacklevel=1)
    warnings.warn("not ours", UserWarning, stacklevel=1)
    print("done")


def interrupted() -> None:
    raise KeyboardInterrupt


def too_large() -> None:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


def broken() -> None:
    raise RuntimeError("shapes do not match")


def failed() -> None:
    raise typer.Exit(1)


COMMANDS = (failing, noting, interrupted, too_large, broken, failed)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {f.__name__: cli.Row(f"{__name__}:{f.__name__}", "Test", "") for f in COMMANDS}
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    monkeypatch.setattr(cli, "COMMANDS", rows)


@pytest.mark.usefixtures("table")
def test_bad_input_is_one_clean_line(run: Run) -> None:
    assert run("failing").error == "the file [2J is broken; mend it"


@pytest.mark.usefixtures("table")
def test_our_warnings_are_noted_once_and_others_are_silent(run: Run) -> None:
    result = run("noting")
    assert (result.code, result.out) == (0, "done\n")
    assert result.err == "note: a costs b\nnote: c costs d\n"


@pytest.mark.usefixtures("table")
def test_interruption_exits_as_a_shell_expects(run: Run) -> None:
    assert run("interrupted").code == 130


@pytest.mark.usefixtures("table")
def test_out_of_memory_is_one_line_and_other_failures_are_not_hidden(run: Run) -> None:
    assert run("too_large").error.endswith(f"{cli.OUT_OF_MEMORY} what to lower")
    assert run("failed").code == 1
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run("broken")


@pytest.mark.parametrize("module", ["typer", "oneglance.commands.demo", "torch"])
def test_interruption_is_quiet_whatever_is_being_imported(module: str) -> None:
    """Ctrl-C in the first moments, when most of the time goes into imports."""
    code = f"""
import importlib.abc, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and what they start
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from oneglance.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code, "demo"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# In a process of its own ----------------------------------------------------------------------------------------------


def test_reader_that_goes_away_ends_the_answer_quietly() -> None:
    with subprocess.Popen(GENERATE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.write(QUESTION)
        process.stdin.close()
        err = process.stderr.read().decode()
        assert process.wait() == 128 + 13
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_terminal_gets_colours_and_stderr_no_notices() -> None:
    import pty

    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    words = [*GENERATE[:2], QUESTION.decode().strip(), *GENERATE[3:]]
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment) as process:
        os.close(theirs)
        shown = b""
        while chunk := read_terminal(ours):
            shown += chunk
        assert process.stderr
        err = process.stderr.read().decode()
        assert process.wait() == 0
    os.close(ours)
    assert b"\x1b[36m" in shown
    assert b"\x1b[4m" in shown
    assert "\x1b" not in err
    assert err.count("\n") == 1, err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_gets_its_cursor_back_from_whoever_ends_the_process() -> None:
    """SIGTERM under a bar: what ``kill`` and ``timeout`` send."""
    import pty

    code = """
import sys, time
from oneglance import cli
from oneglance.__main__ import main
from oneglance.commands.terminal import bar
def wait(argv=None):
    with bar(show=True) as shown:
        shown.add_task("waiting")
        time.sleep(60)
cli.main = wait
sys.exit(main())
"""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while not (HIDDEN in shown and b"waiting" in shown):
            shown += os.read(ours, 65536)
        process.terminate()
        while chunk := read_terminal(ours):
            shown += chunk
        assert process.wait() == 128 + 15
    os.close(ours)
    assert shown.rindex(SHOWN) > shown.rindex(HIDDEN)
    assert b"Traceback" not in shown


HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"  # of the cursor


def read_terminal(descriptor: int) -> bytes:
    """The next output; empty once the other side has closed, which Linux reports as an error."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""
