"""The command lines of README and quickstart, run: tiny models stand in for those that would be downloaded."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from helpers import picture
from oneglance.cli import main
from oneglance.commands import doctor
from oneglance.drafters.checkpoint import save_checkpoint
from oneglance.testing import save_target, tiny_head, tiny_head_config, tiny_target

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "quickstart.md")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINES = sorted(
    {
        line.partition(" #")[0].strip()
        for page in PAGES
        for language, code in BLOCK.findall(page.read_text(encoding="utf-8"))
        for line in code.splitlines()
        if language in ("", "sh") and line.startswith("oneglance ")
    }
)
ELSEWHERE = ("oneglance serve",)  # never ends by itself: tests/serve starts it
STAND_INS = {
    "OWNER/MODEL": "target",
    "Qwen/Qwen3-VL-8B-Instruct": "target",
    "OWNER/HEAD": "head",
    "z-lab/Qwen3-8B-DFlash-b16": "head",
    "runs/fit-head/run/head": "head",
    " page.png": " scans/0.png",
    " --device cuda": "",
    "src/oneglance/assets": str(ROOT / "src" / "oneglance" / "assets"),
}
SMALLER = (  # the same command over fewer and shorter answers
    (r"--tasks \S+", "--tasks chartqa"),
    (r"--prompts \d+", "--prompts 1"),
    (r"--limit \d+", "--limit 1"),
    (r"--context \d+", "--context 512"),
    (r"^(oneglance (?:generate|run|worth-it|audit|bench|fit-head) .*)", r"\1 --max-new-tokens 8"),
    (r"^(oneglance fit-head .*)", r"\1 optimiser.max_steps=2"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, a head, pictures and questions."""
    folder = tmp_path_factory.mktemp("newcomer")
    target = tiny_target("qwen3_vl")
    save_target(target, folder / "target")
    save_checkpoint(tiny_head(target), folder / "head", tiny_head_config(target))
    (folder / "scans").mkdir()
    for index in range(3):
        picture(index).save(folder / "scans" / f"{index}.png")
    (folder / "questions.txt").write_text("What is it?\n")
    return folder


def stand_in(line: str) -> list[str]:
    """The words of a line, over what is there."""
    for name, here in STAND_INS.items():
        line = line.replace(name, here)
    for long, short in SMALLER:
        line = re.sub(long, short, line)
    return shlex.split(line)[1:]


def test_there_are_lines() -> None:
    assert len(LINES) > 15


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith(ELSEWHERE)])
def test_it_runs(line: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(doctor, "PAIRS", 1)
    shutil.rmtree("runs", ignore_errors=True)  # what another line trained
    code = main(stand_in(line))
    said = capsys.readouterr()
    allowed = (0, 1) if line.startswith(("oneglance doctor", "oneglance inspect")) else (0,)  # a random head
    assert code in allowed, said.err
    assert said.out.strip()
