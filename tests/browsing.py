"""A real Chromium, and pages in it as people see them: light, dark, and on a phone.

Screenshots go to the folder in ``PAGE_SHOTS``, where it is set, to be looked at.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

LOOKS = ("light", "dark", "phone")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDS_CHROMIUM = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt install chromium")]


@contextmanager
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'oneglance[page]'")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield launched
        launched.close()


@contextmanager
def opened(
    browser: Any,
    url: str,
    look: str,
    *,
    shot: str,
    may_ask: Callable[[str], bool],
    may_say: Callable[[str], bool] = lambda line: False,
    **options: Any,
) -> Iterator[Any]:
    """A page that may ask for nothing else and say nothing else on the console, and no more of it than fits is wide.

    Args:
        browser: a launched one.
        url: of the page.
        look: one of ``LOOKS``.
        shot: name of its screenshot.
        may_ask, may_say: addresses and lines that are allowed.
        options: of the browser's page.
    """
    size = {"width": 390, "height": 844} if look == "phone" else {"width": 1280, "height": 1000}
    page = browser.new_page(viewport=size, color_scheme="dark" if look == "dark" else "light", **options)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asked: None if may_ask(asked.url) else said.append(asked.url))
    page.goto(url)
    yield page
    assert [line for line in said if not may_say(line)] == []
    folder = os.environ.get("PAGE_SHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{folder}/{shot}.png", full_page=True)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= size["width"]
    page.close()
