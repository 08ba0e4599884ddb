"""What the pages for people say is true: code runs, commands and options exist, links lead somewhere."""

import dataclasses
import html
import inspect
import json
import pkgutil
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from types import FrameType

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
SVG = ROOT / "docs" / "img" / "demo.svg"
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
    sections = {*re.findall(r"\{HELP\}#([\w-]+)", source), cli.OUT_OF_MEMORY.removeprefix(f"{HELP}#")}
    assert sections == anchors(ROOT / HELP) - {"troubleshooting"}


def test_architecture_names_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w./]+)` \|", text, re.MULTILINE))
    rooms = {path.name for path in SRC.glob("*.py")} - {"__init__.py"}
    rooms |= {f"{path.parent.name}/" for path in SRC.glob("*/__init__.py")}
    assert named == rooms, "each room has a line in docs/architecture.md"


def test_the_tree_of_one_round_is_the_one_that_is_drafted() -> None:
    """Each prefix of the drawing: a token hangs on the one before it, or on the one before its branch."""
    text = (ROOT / "docs" / "one-round.md").read_text(encoding="utf-8")
    rows = re.findall(r"^ {8}( *(?:│ +)?└─ .+|└─ .+)$", text, re.MULTILINE)
    shown: list[tuple[str, ...]] = []
    ends: dict[int, tuple[str, ...]] = {}  # column of a branch → the prefix that it hangs on
    for row in rows:
        prefix = ends.get(row.index("└"), ())
        for token in re.finditer(r"'(.*?)'( ─┬)?", row):
            prefix = (*prefix, token[1].encode().decode("unicode_escape"))
            shown.append(prefix)
            if token[2]:
                ends[token.end() - 1] = prefix
    decoder = load(dtype="float32").with_budget(15)
    decode = decoder.target.tokenizer.decode
    rounds = decoder.generate(PROMPT, images=[PAGE]).rounds
    tree, verdict = rounds[2].tree, rounds[2].verdict
    drafted: list[tuple[str, ...]] = [()]
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        drafted.append((*drafted[parent], decode([token_id])))
    assert sorted(shown) == sorted(drafted[1:])
    assert (decode([rounds[2].root]), verdict.num_accepted) == (" Street", 9)


def test_the_walk_names_every_file_that_a_prompt_enters() -> None:
    """By its path, or its name after that of another file of its room."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## One prompt through the code")[2].partition("\n## ")[0]
    named = {Path(file).name if "__" not in file else file for file in re.findall(r"`([\w/]+\.py)`", section)}
    entered = set()

    def follow(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(str(SRC)):
            file = Path(code.co_filename).relative_to(SRC).as_posix()
            entered.add(file if "__" in file else Path(file).name)

    words = ["generate", PROMPT, "--image", str(PAGE), "--max-new-tokens", "14", "--dtype", "float32"]
    before = sys.getprofile()
    sys.setprofile(follow)
    try:
        assert main(words) == 0
    finally:
        sys.setprofile(before)
    assert entered == named - {"__main__.py", "fetch.py"}


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
    rows = re.findall(r"^\| (`[a-z -]+`(?:, `[a-z -]+`)*) \| (.+) \|$", text, re.MULTILINE)
    named = {name for cell, _ in rows for name in re.findall(r"`([a-z -]+)`", cell)}
    assert named == set(COMMANDS) - {"demo", "doctor"}  # made of the others
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
    """Tokens, rounds and τ of the recording in README; times are those of one run."""
    lines: dict[str, list[str]] = defaultdict(list)  # by height: a span of one colour is an element
    for height, part in re.findall(r'<text class="demo-r.*? y="([\d.]+)".*?>([^<]*)<', SVG.read_text(encoding="utf-8")):
        lines[height].append(html.unescape(part).strip())
    rows = {name: numbers for name, *numbers in lines.values()}
    decoder = load(dtype="float32")
    for name, arm in (("plain", decoder.plain()), ("oneglance", decoder)):
        done = arm.generate(PROMPT, images=[PAGE])
        assert done.tau is not None
        assert rows[name][:3] == [str(done.num_tokens), str(len(done.rounds)), f"{done.tau:.2f}"]


def test_the_results_in_readme_are_those_that_were_recorded() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    result = json.loads((ROOT / "docs" / "results" / "bench-trees.json").read_text(encoding="utf-8"))
    rows = {(row["task"], row["system"]): row for row in result["rows"]}
    shown = re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE)
    assert {task for task, _ in shown} == {task for task, _ in rows}
    for task, cells in shown:
        wide, narrow, chain = (
            rows[task, system]
            for system in ("conditioned:budget=63", "conditioned:budget=15", "eagle3@runs/reader-eagle3/head")
        )
        speedups = [f"{r['speedup']:.2f} [{r['ci_low']:.2f}, {r['ci_high']:.2f}]" for r in (wide, narrow, chain)]
        assert wide["identical"] == narrow["identical"] == chain["identical"]
        assert cells.split(" | ") == [f"{wide['tau']:.1f}", *speedups, f"{wide['identical']}/{wide['n']}"]
