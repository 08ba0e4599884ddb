"""What the pages for people say is true: code runs, commands and options exist, links lead somewhere."""

import dataclasses
import inspect
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

import oneglance
from oneglance import cli
from oneglance.cli import COMMANDS, main
from oneglance.commands.demo import PAGE, PROMPT
from oneglance.commands.doctor import HELP
from oneglance.core import SamplingParams
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


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub and MkDocs make them of ASCII headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    for target in targets:
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        other = page.parent / path if path else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


def test_the_doctor_sends_people_to_sections_that_exist() -> None:
    source = (SRC / "commands" / "doctor.py").read_text(encoding="utf-8")
    sections = re.findall(r"\{HELP\}#([\w-]+)", source)
    assert sections
    assert set(sections) <= anchors(ROOT / HELP)


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


def test_paper_map_has_each_item_with_its_command() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| (Table|Figure) (\d+) \| (.+?) \| `(.+?)` \| (.+) \|$", text, re.MULTILINE)
    wanted = [
        (name.replace("fig", "Figure ").replace("table", "Table "), i.title, i.command) for name, i in items().items()
    ]
    assert [(f"{kind} {number}", title, command) for kind, number, title, command, _ in shown] == wanted


def test_the_python_reference_has_each_command() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \| (.+) \|$", text, re.MULTILINE)
    named = {name for cell, _ in rows for name in re.findall(r"`([a-z-]+)`", cell)}
    no_python = {"demo", "doctor", "worth-it", "ledger", "transfer", "train-matched", "push"}  # made of the others
    assert named | no_python == {name for name in COMMANDS if " " not in name}
    places = [place for _, cell in rows for place in re.findall(r"`(oneglance(?:\.\w+)+)`", cell)]
    assert places
    for place in places:
        assert pkgutil.resolve_name(place) is not None, place


def test_the_version_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == oneglance.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+), ", changelog, re.MULTILINE)[0] == project["version"]


def test_python_takes_what_the_command_line_takes() -> None:
    """Arguments of ``load`` and of sampling have the options' names."""
    taken = {param.name for param in cli._command("generate").params}
    known = {*inspect.signature(load).parameters, *(field.name for field in dataclasses.fields(SamplingParams))}
    only_python = {"logits_processors", "ignore_eos"}
    renamed = {"bad_words"}  # --bad-word, once for each
    assert known - only_python - renamed <= taken


def test_the_recorded_demo_is_what_the_program_gives() -> None:
    """Tokens, rounds and τ of the recording; times are those of one run."""
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^ (plain|oneglance) +(\d+ +\d+ +[\d.]+) ", text, re.MULTILINE))
    decoder = load(dtype="float32")
    for name, arm in (("plain", decoder.plain()), ("oneglance", decoder)):
        done = arm.generate(PROMPT, images=[PAGE])
        assert done.tau is not None
        assert rows[name].split() == [str(done.num_tokens), str(len(done.rounds)), f"{done.tau:.2f}"]
