"""Everything by others that the package ships has its licence beside it."""

import re
import tomllib
from pathlib import Path

import pytest
from PIL import ImageFont

from oneglance.tasks.pages.page import FACES

ROOT = Path(__file__).parents[2]
FONTS = ROOT / "src" / "oneglance" / "assets" / "fonts"
FILES = sorted(path for path in FONTS.iterdir() if path.suffix in (".ttf", ".otf"))
TEXTS = {"Apache-2.0": "LICENSE-APACHE-2.0.txt", "OFL-1.1": "LICENSE-OFL-1.1.txt"}
OWN_WORDS = {
    "Apache-2.0": "Licensed under the Apache License, Version 2.0",
    "OFL-1.1": "SIL Open Font License, Version 1.1",
}


def row(path: Path) -> tuple[str, str, str]:
    """What the table says of a font: name and version, copyright, licence."""
    for line in (FONTS / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and path.name in cells[0].split(", "):
            return cells[1], cells[2], cells[3].partition(",")[0]
    raise AssertionError(f"{path.name} has no row in {FONTS / 'README.md'}")


def test_the_fonts_are_those_that_pages_are_drawn_with() -> None:
    assert {path.name for path in FILES} == set(FACES.values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_font_has_the_licence_that_it_names_itself(path: Path) -> None:
    name, owner, licence = row(path)
    said = path.read_bytes().decode("utf-16-be", "ignore") + path.read_bytes()[1:].decode("utf-16-be", "ignore")
    assert OWN_WORDS[licence] in said
    assert (ImageFont.truetype(path).getname()[0] or "").removesuffix(" Semibold") == re.sub(r" [\d.]+$", "", name)
    assert re.findall(r"\d{4}", owner)[0] in said
    text = (FONTS / TEXTS[licence]).read_text(encoding="utf-8")
    if licence == "OFL-1.1":  # which asks for the copyright notice in its text
        assert f"{re.sub(r' [0-9.]+$', '', name)}: Copyright {owner}" in text


def test_the_package_names_every_licence_and_ships_its_text() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["license"].split(" AND ")) == {row(path)[2] for path in FILES} | {"Apache-2.0"}
    shipped = {path for pattern in project["license-files"] for path in ROOT.glob(pattern)}
    assert shipped == {ROOT / "LICENSE", ROOT / "NOTICE", *(FONTS / name for name in TEXTS.values())}


def test_the_notice_names_every_asset() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    ours = {".yaml"}  # settings, as good as code
    for path in sorted((ROOT / "src" / "oneglance" / "assets").iterdir()):
        if path.suffix not in ours:
            assert path.relative_to(ROOT).as_posix() in notice
