"""What the pages for people say is true: code runs, commands and options exist, links lead somewhere."""

import re
from pathlib import Path

import pytest

from oneglance.cli import COMMANDS, main
from oneglance.commands.demo import PAGE, PROMPT
from oneglance.decoder import load
from oneglance.report.paper import items

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SRC = ROOT / "src" / "oneglance"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    """Code blocks of one language."""
    return [code for name, code in BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]


# a block that imports the package is a whole program; others are fragments
CODE = [
    pytest.param(code, id=f"{page.name}-{index}")
    for page in PAGES
    for index, code in enumerate(blocks(page, "python"))
    if "import oneglance" in code
]
LINES = sorted(
    {line for page in PAGES for code in blocks(page, "") for line in code.splitlines() if line.startswith("oneglance ")}
    | {code for page in PAGES for code in re.findall(r"`(oneglance \w[^`]*)`", page.read_text(encoding="utf-8"))}
    | {item.command for item in items().values()}  # what reproduce tells people to run
)


@pytest.mark.parametrize("code", CODE)
def test_python_runs(code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("line", LINES)
def test_commands_and_options_exist(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = line.split()[1:3]
    name = next((name for name in (" ".join(words), words[0]) if name in COMMANDS), None)
    assert name is not None
    monkeypatch.setenv("COLUMNS", "200")
    main([name, "--help"])
    shown = capsys.readouterr().out
    for option in re.findall(r"(--[a-z-]+)", line.split("#")[0]):
        assert f"{option} " in shown, option


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    for target in targets:
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_architecture_names_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w./]+)` \|", text, re.MULTILINE))
    rooms = {path.name for path in SRC.glob("*.py")} - {"__init__.py"}
    rooms |= {f"{path.parent.name}/" for path in SRC.glob("*/__init__.py")}
    assert named == rooms, "each room has a line in docs/architecture.md"


def test_paper_map_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
    files = re.findall(r"`([\w/]+\.py)`", text)
    assert files
    for file in files:
        assert (SRC / file).exists(), file


def test_the_recorded_demo_is_what_the_program_gives() -> None:
    """Tokens, rounds and τ of README's recording; times are those of one run."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^ (plain|oneglance) +(\d+ +\d+ +[\d.]+) ", text, re.MULTILINE))
    decoder = load(dtype="float32")
    for name, arm in (("plain", decoder.plain()), ("oneglance", decoder)):
        done = arm.generate(PROMPT, images=[PAGE])
        assert done.tau is not None
        assert rows[name].split() == [str(done.num_tokens), str(len(done.rounds)), f"{done.tau:.2f}"]
