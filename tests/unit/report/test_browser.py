"""The report of a real run in a real browser: sorts, tips, trees, keyboard, axe. ``make report-page`` runs this.

Screenshots go to the folder in ``PAGE_SHOTS``, where it is set, to be looked at.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import browsing
from oneglance.cli import main

playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'oneglance[page]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'oneglance[page]'")
pytestmark = browsing.NEEDS_CHROMIUM
SMALL = ("--threads", "1", "--max-new-tokens", "24")


def run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0, words


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Systems of all three kinds, a sweep, costs, the law of a round log, and two decoded texts."""
    folder = tmp_path_factory.mktemp("report")
    rounds, page = folder / "rounds.jsonl", folder / "report.html"
    results = {name: folder / f"{name}.json" for name in ("bench", "sweep", "cost")}
    systems = "plain,chain,tree,ngram,ngram-ocr,transformers,transformers-lookup"
    short = ("--tasks", "docvqa,chartqa", "--limit", 1, "--warmup", 0, *SMALL)
    run("bench", "--systems", systems, *short, "--charge-tau", "tree=4", "--out", results["bench"])
    run("sweep", "budget", "--values", "7,31", "--systems", "tree,chain", *short, "--out", results["sweep"])
    sizes = ("--sizes", "0,15", "--repeats", 2)
    run("cost", "--systems", "tree,ngram", *sizes, *short[:4], *SMALL, "--out", results["cost"])
    run("rounds", "--budget", 31, "--marginals", "--tasks", "docvqa", "--limit", 3, *SMALL, "--out", rounds)
    run("report", *results.values(), "--rounds", rounds, "--resamples", 19, *SMALL, "--out", page)
    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing.chromium() as launched:
        yield launched


@pytest.fixture(params=browsing.LOOKS)
def page(request: pytest.FixtureRequest, browser: Any, report: Path) -> Iterator[Any]:
    """The report, open; it asks for no file but itself."""
    shot, look = f"report-{request.node.name}", request.param
    with browsing.opened(browser, report.as_uri(), look, shot=shot, may_ask=is_own) as shown:
        yield shown


def is_own(url: str) -> bool:
    return url.startswith(("file:", "data:"))


def column(page: Any, table: int, index: int) -> list[str]:
    rows = page.locator("table.sortable").nth(table).locator("tbody tr")
    return [rows.nth(i).locator("th, td").nth(index).inner_text() for i in range(rows.count())]


def test_the_page_holds_what_was_measured(page: Any) -> None:
    headings = page.locator("h2").all_inner_texts()
    assert headings[:3] == [
        "Result 1: systems",
        "Result 1: systems with extra input",
        "Result 1: end to end, beside systems that are not ours",
    ]
    assert {"Result 2: sweep of budget", "Result 3: parts of a round", "The entropy law"} <= set(headings)
    charts = page.locator("h3").all_inner_texts()
    for chart in ("Margins", "Speedup", "τ by budget, docvqa", "Survival, docvqa", "Cost of a round"):
        assert chart in charts
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    boxes = [svg.bounding_box() for svg in page.locator("svg").all()]
    assert all(box["width"] >= 600 for box in boxes), "text in a chart is too small to read"
    failed = page.locator("table.sortable").nth(2).locator("tr", has_text="transformers-lookup").first
    assert "do not match" in failed.inner_text()
    assert page.locator("table.sortable").nth(0).locator("tr", has_text="transformers").count() == 0


def test_tables_sort_by_mouse_and_by_keyboard(page: Any) -> None:
    heads = page.locator("table.sortable").first.locator("thead th")
    labels = [text.removesuffix(" ↕") for text in heads.all_inner_texts()]
    for label in ("ms/token", "τ", "parameters"):
        index = labels.index(label)
        button = heads.nth(index).locator("button")
        orders = []
        button.focus()
        for press in (lambda: page.keyboard.press("Enter"), button.click):
            press()
            shown = [float(text.replace(",", "")) for text in column(page, 0, index) if text != "—"]
            orders.append(shown)
            assert heads.nth(index).get_attribute("aria-sort") in ("ascending", "descending")
            rest = column(page, 0, index)[len(shown) :]
            assert set(rest) <= {"—"}, "what was not measured stands last"
        assert orders == [sorted(orders[0]), sorted(orders[0], reverse=True)]
    assert page.locator("table.sortable").first.locator("th[aria-sort]:not([aria-sort=none])").count() == 1


def test_strips_say_entropy_and_open_trees(page: Any) -> None:
    strip = page.locator(".strip").first
    tip = page.locator(".tip").first
    strip.locator("button.round.even .accepted").first.hover()
    playwright.expect(tip).to_contain_text("accepted: entropy")
    strip.locator(".bonus").first.hover()
    playwright.expect(tip).to_contain_text("bonus: entropy")
    colours = {
        strip.locator(f"button.round.{kind}").first.evaluate("e => getComputedStyle(e).backgroundColor")
        for kind in ("even", "odd")
    }
    assert len(colours) == 2
    round_button = strip.locator("button.round").first
    round_button.click()
    tree = page.locator(f"#{round_button.get_attribute('data-tree')}")
    playwright.expect(tree).to_be_visible()
    assert tree.locator(".yes").count() >= 1
    assert tree.locator(".no").count() >= 1
    accepted = "".join(tree.locator(".yes code").all_inner_texts()[1:])
    kept = "".join(round_button.locator(".accepted").all_inner_texts())
    assert "".join(accepted.split()) == "".join(kept.split())
    assert tree.locator("code").count() > 32, "63 nodes and the tokens"
    strip.locator("button.round").nth(1).click()
    playwright.expect(tree).to_be_hidden()
    assert round_button.get_attribute("aria-pressed") == "false"


def test_everything_is_reached_by_keyboard(page: Any) -> None:
    """Tab goes through the page in order, and everything that can be clicked is on its way."""
    wanted = page.locator("a, button, summary, [tabindex]").count() - page.locator("[hidden][tabindex]").count()
    seen: list[str] = []
    tag = "e => e.tagName + '/' + [...document.querySelectorAll('a, button, summary, [tabindex]')].indexOf(e)"
    for _ in range(wanted):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(f"() => ({tag})(document.activeElement)"))
        assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert len(set(seen)) == wanted
    places = [int(name.split("/")[1]) for name in seen]
    assert places == sorted(places)
    page.locator("button.round").first.focus()
    playwright.expect(page.locator(".tip").first).to_contain_text("entropy at the root")
    page.keyboard.press("Space")
    playwright.expect(page.locator(".tree").first).to_be_visible()
    page.keyboard.press("Space")
    playwright.expect(page.locator(".tree").first).to_be_hidden()


def test_axe_finds_nothing(page: Any) -> None:
    page.locator("button.round").first.click()
    page.evaluate("() => document.querySelectorAll('details').forEach(d => { d.open = true; })")
    found = axe.Axe().run(page, options={})
    assert found.violations_count == 0, found.generate_report()
    assert len(found.response["passes"]) > 20, "axe looked at something"
