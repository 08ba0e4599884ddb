"""The page in a real browser: upload, ask, colours, tree, race, errors, keyboard. ``make page`` runs this.

Screenshots go to the folder in ``PAGE_SHOTS``, where it is set, to be looked at.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import browsing
from oneglance.decoder import Decoder

from .conftest import Running, png, running

playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'oneglance[page]'")
pytestmark = browsing.NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing.chromium() as launched:
        yield launched


@pytest.fixture(params=browsing.LOOKS)
def page(request: pytest.FixtureRequest, browser: Any, server: Running) -> Iterator[Any]:
    """The page, open and connected; it may ask nobody else."""
    with browsing.opened(
        browser,
        server.url,
        request.param,
        shot=request.node.name,
        may_ask=lambda url: local(url, server),
        may_say=lambda line: "status of 400" in line,  # the browser's own note of a refusal
        reduced_motion="reduce",
    ) as shown:
        playwright.expect(shown.locator("#model")).to_contain_text("builtin:reader")
        yield shown


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
    newline = page.locator("#answer .tok.newline").first  # has no width of its own, and may be the bonus
    assert newline.bounding_box()["width"] > 4
    assert page.locator("#recent button").count() == 1


def test_tree_has_no_two_nodes_in_one_place(page: Any) -> None:
    page.click("[data-example='demo_chart.png']")
    playwright.expect(page.locator("#preview")).to_be_visible()
    ask(page)
    page.locator("#answer .tok.accepted").first.click()
    for _ in range(20):
        boxes = page.eval_on_selector_all(
            "#tree rect", "all => all.map(e => { const b = e.getBoundingClientRect(); return [b.x, b.y, b.width]; })"
        )
        assert len({(x, y) for x, y, _ in boxes}) == len(boxes) > 10
        rights = sorted((y, x, x + width) for x, y, width in boxes)
        assert all(a[0] != b[0] or a[2] < b[1] for a, b in pairwise(rights))
        texts = page.eval_on_selector_all(
            "#tree g", "all => all.map(e => [e.children[0], e.children[1]].map(c => c.getBoundingClientRect().right))"
        )
        assert all(label < box for box, label in texts)
        if page.locator("#next").is_disabled():
            break
        page.click("#next")
    assert page.locator("#next").is_disabled()


def test_dropped_image(page: Any, server: Running) -> None:
    chart = list(server.http.get("/examples/demo_chart.png").content)
    data = page.evaluate_handle(
        """(bytes) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], "chart.png", { type: "image/png" }));
            return data;
        }""",
        chart,
    )
    page.dispatch_event("#drop", "dragover", {"dataTransfer": data})
    assert "over" in page.locator("#drop").get_attribute("class")
    page.dispatch_event("#drop", "drop", {"dataTransfer": data})
    playwright.expect(page.locator("#preview")).to_be_visible()
    assert page.locator("#preview").evaluate("async e => { await e.decode(); return e.naturalWidth; }") == 256
    assert "chart.png" in page.locator("#preview").get_attribute("alt")
    page.click("#remove")
    playwright.expect(page.locator("#preview")).to_be_hidden()


def test_sliders_and_recent_runs(page: Any) -> None:
    page.click("[data-example='demo_chart.png']")
    playwright.expect(page.locator("#preview")).to_be_visible()
    ask(page)
    greedy = page.locator("#answer").text_content()
    page.locator("#budget").press("Home")
    page.locator("#temperature").press("End")
    page.locator("#tokens").press("Home")
    playwright.expect(page.locator("#budget-out")).to_have_text("1 nodes")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.click("#ask")
    body = asked.value.post_data_json
    assert (body["budget"], body["temperature"], body["max_tokens"]) == (1, 1.5, 16)
    playwright.expect(page.locator("#recent button")).to_have_count(2)
    assert page.locator("#figures").text_content().endswith(str(body["seed"]))
    assert page.locator("#answer").text_content() != greedy
    page.locator("#recent button").nth(1).click()
    assert page.locator("#answer").text_content() == greedy
    page.locator("#answer .tok.accepted").first.click()
    playwright.expect(page.locator("#round-text")).to_contain_text("63 candidates")


def test_every_control_is_reached_by_tab_and_shows_it(page: Any) -> None:
    page.click("[data-example='demo_chart.png']")
    playwright.expect(page.locator("#preview")).to_be_visible()
    ask(page)
    page.locator("#answer .tok.accepted").first.click()
    page.locator(".skip").focus()
    reached, rings = [], []
    for _ in range(40):
        page.keyboard.press("Tab")
        name, ring = page.evaluate(FOCUS)
        if name in reached or name == "BODY":
            break
        reached.append(name)
        rings.append(ring)
    wanted = "theme file remove demo_page.png demo_chart.png prompt budget temperature tokens SUMMARY ask race"
    assert [name for name in reached if name in wanted.split()] == wanted.split()
    after = reached[reached.index("race") :]
    assert [name for name in after if name != "previous"] == ["race", "SPAN", "next", "tree", "recent"]
    assert all(rings), dict(zip(reached, rings, strict=True))


FOCUS = """() => {
    const at = document.activeElement;
    const name = at.id || at.dataset.example || (at.closest("#recent") ? "recent" : at.tagName);
    const shown = at.id === "file" ? at.nextElementSibling : at;
    const style = getComputedStyle(shown);
    return [name, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
}"""


def test_axe_finds_nothing(page: Any) -> None:
    """Names, roles, contrast and order, by axe-core's rules, with every section of the page shown."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'oneglance[page]'").Axe()

    def violations() -> list[str]:
        found = axe.run(page).response["violations"]
        return [f"{own['id']}: {node['html'][:120]}" for own in found for node in own["nodes"]]

    assert violations() == []
    page.click("[data-example='demo_chart.png']")
    playwright.expect(page.locator("#preview")).to_be_visible()
    page.click("#race")
    playwright.expect(page.locator("#race-note")).to_contain_text("identical", timeout=60_000)
    page.locator("#answer .tok.accepted").first.click()
    assert violations() == []
    page.click("#theme")
    assert violations() == []


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
