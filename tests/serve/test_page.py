"""The page in a real browser: upload, ask, colours, tree, race, errors, keyboard. ``make page`` runs this.

Screenshots go to the folder in ``PAGE_SHOTS``, where it is set, to be looked at.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oneglance.decoder import Decoder

from .conftest import Running, png, running

playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'oneglance[page]'")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt install chromium")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(params=["light", "dark", "phone"])
def page(request: pytest.FixtureRequest, browser: Any, server: Running) -> Iterator[Any]:
    """The page, open and connected; it may ask nobody else and say nothing on the console."""
    size = {"width": 390, "height": 844} if request.param == "phone" else {"width": 1280, "height": 1000}
    scheme = "dark" if request.param == "dark" else "light"
    opened = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda asked: said.append(asked.url) if not local(asked.url, server) else None)
    opened.goto(server.url)
    playwright.expect(opened.locator("#model")).to_contain_text("builtin:reader")
    yield opened
    assert [line for line in said if "status of 400" not in line] == []  # the browser's own note of a refusal
    folder = os.environ.get("PAGE_SHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        opened.screenshot(path=f"{folder}/{request.node.name}.png", full_page=True)
    assert opened.evaluate("() => document.documentElement.scrollWidth") <= size["width"]
    opened.close()


def local(url: str, server: Running) -> bool:
    return url.startswith((server.url, "data:", "blob:"))


def ask(page: Any) -> None:
    page.click("#ask")
    playwright.expect(page.locator("#status")).to_contain_text("Complete", timeout=60_000)


def test_upload_ask_and_look_at_a_round(page: Any, reader: Decoder, server: Running) -> None:
    chart = server.http.get("/examples/demo_chart.png").content
    page.set_input_files("#file", {"name": "chart.png", "mimeType": "image/png", "buffer": chart})
    playwright.expect(page.locator("#preview")).to_be_visible()
    page.fill("#prompt", "List the chart values.")
    ask(page)
    alone = reader.generate("List the chart values.", images=[chart])
    assert page.locator("#answer").text_content() == alone.text
    assert page.locator("#figures").text_content().startswith(f"tokens{alone.num_tokens}rounds{len(alone.rounds)}")
    accepted = page.locator("#answer .tok.accepted")
    assert accepted.count() > 0
    colours = {
        page.locator(f"#answer .tok.accepted.{kind}").first.evaluate("e => getComputedStyle(e).backgroundColor")
        for kind in ("even", "odd")
    }
    assert len(colours) == 2
    accepted.first.hover()
    playwright.expect(page.locator("#token")).to_contain_text(
        re.compile(r"round \d+, accepted · p [01]\.\d+ · entropy")
    )
    accepted.first.click()
    playwright.expect(page.locator("#round-text")).to_contain_text("63 candidates in one pass. Accepted")
    assert page.locator("#tree g.on").count() > 1
    assert page.locator("#tree g.off").count() > 1
    assert page.locator("#recent button").count() == 1


def test_keyboard_walks_the_tokens(page: Any) -> None:
    page.click("[data-example='demo_chart.png']")
    playwright.expect(page.locator("#preview")).to_be_visible()
    ask(page)
    page.locator("#answer .tok").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    label = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    assert label == page.locator("#token").text_content()
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#round-box")).to_be_visible()
    title = page.locator("#round-title").text_content()
    page.click("#previous")
    assert page.locator("#round-title").text_content() != title


def test_race_has_one_text(page: Any) -> None:
    page.click("[data-example='demo_chart.png']")
    playwright.expect(page.locator("#preview")).to_be_visible()
    page.click("#race")
    playwright.expect(page.locator("#race-note")).to_contain_text("identical", timeout=60_000)
    plain = page.locator("#lane-plain").text_content()
    assert plain == page.locator("#lane-drafted").text_content() != ""


def test_errors_are_shown(page: Any) -> None:
    page.set_input_files("#file", {"name": "x.png", "mimeType": "image/png", "buffer": png()[:50]})
    page.click("#ask")
    playwright.expect(page.locator("#error")).to_contain_text("damaged")


def test_key(browser: Any, tiny: Decoder) -> None:
    with running(lambda: tiny, api_key="s3cret") as guarded:
        page = browser.new_page()
        page.goto(guarded.url)
        playwright.expect(page.locator("#error")).to_contain_text("API key")
        page.fill("#key", "s3cret")
        page.keyboard.press("Tab")
        playwright.expect(page.locator("#model")).to_contain_text("text and images")
        playwright.expect(page.locator("#error")).to_be_hidden()
        page.close()
