"""The programs of examples/ run by the command line that each of them shows."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAYS = {  # what each one must print
    "read_page.py": r"Lima Bakery[\s\S]*94 tokens in 10 rounds, 9\.30 a round",
    "drop_in.py": r"\d+ new tokens, identical",
    "own_drafter.py": r"\d\.\d\d tokens a round, identical",
    "train_head.py": r"step 2: loss [\s\S]*\d\.\d\d tokens a round with the new head",
}


def shown(path: Path) -> list[str]:
    """The words of the docstring's line that starts the program."""
    (line,) = re.findall(r"^python (examples/.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return shlex.split(line)


def test_every_example_is_run() -> None:
    others = {"openai_client.py"}  # tests/serve/test_client.py has a server for it
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(SAYS) | others


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
@pytest.mark.parametrize("words", [[], ["none.png", "x", "1"]], ids=["nothing", "no file"])
def test_bad_words_show_the_usage(
    path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if path.name == "openai_client.py":
        pytest.importorskip("openai", reason="the example needs it")
    words = words if path.name == "train_head.py" else words[:2]
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(path), run_name="__main__")
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert f"Usage: {path.name}" in said
    assert ("'none.png' does not exist" if words else "Missing argument") in said


@pytest.mark.parametrize("name", SAYS)
def test_it_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    words = shown(ROOT / "examples" / name)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "head") if word.startswith("runs/") else word for word in words])
    code: object = None
    try:
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    assert not code, said
    assert re.search(SAYS[name], said.out + said.err), said
