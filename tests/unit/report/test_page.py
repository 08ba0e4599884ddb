"""The report page: what it holds, that nothing is fetched, and that a browser sorts it and opens its trees."""

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from oneglance.bench.metrics import summarise
from oneglance.bench.record import Record
from oneglance.report import paper
from oneglance.report.page import render
from oneglance.report.strips import Node, Piece, Strip, Token
from oneglance.report.svg import ticks
from oneglance.report.tables import comma_separated, latex, markdown

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def records() -> list[Record]:
    times = {"plain": 40.0, "chain": 25.0, "tree": 20.0}
    return [
        Record(
            s, "docvqa<b>", p, tuple(range(9)), (1,) * 8 if s == "plain" else (4, 4), ms, 5.0, True, 0.1,
            accepted=() if s == "plain" else (3, 3), verify_ms=ms / 2, draft_ms=1.0,
        )
        for p in "abc"
        for s, ms in times.items()
    ]  # fmt: skip


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    rows = [row.as_dict() for row in summarise(records())]
    margin = {"task": "docvqa", "ours": "tree", "other": "chain", "over_ours": 0.25, "low": None, "high": None}
    return {"rows": rows, "manifest": {"cpu": "a <fast> one"}, "margins": [margin]}


@pytest.fixture(scope="module")
def page(result: dict[str, Any]) -> str:
    nodes = (Node("root", (1, 2), True), Node("yes", (), True), Node("<no>", (), False))
    first, *kept = (Token(text, 0.5, 0.9) for text in ("I", "yes", "!"))
    strip = Strip("docvqa", "Read <it>.", 2.0, (Piece(-1, (first,), 0, ()), Piece(0, tuple(kept), 1, nodes)))
    return render([result], [strip])


class Reader(HTMLParser):
    """Tags, attributes and balance of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"


def test_the_page_is_whole_and_fetches_nothing(page: str) -> None:
    reader = Reader(page)
    assert reader.open == []
    for tag, attributes in reader.tags:
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#")), (tag, attributes)
    assert "http://" not in page
    assert "https://" not in page
    assert "default-src 'none'" in page


def test_what_a_model_or_a_file_says_is_text(page: str) -> None:
    for raw in ("<fast>", "<no>", "<it>", "docvqa<b>"):
        assert raw not in page
        assert raw.replace("<", "&lt;").replace(">", "&gt;") in page


def test_screen_readers_and_keyboards_find_their_way(page: str) -> None:
    reader = Reader(page)
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in reader.tags:
        if tag == "svg":
            assert attributes.get("role") == "img"
            assert attributes.get("aria-label")
        if tag == "th":
            assert attributes.get("scope") in ("col", "row")
        if "data-tree" in attributes:
            assert tag == "button"
            assert attributes["data-tree"] in ids
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids
    assert sum(tag == "html" and attributes.get("lang") == "en" for tag, attributes in reader.tags) == 1


def test_a_number_that_was_not_measured_is_a_dash(result: dict[str, Any]) -> None:
    rows = result["rows"]
    assert "| plain | 3 | — |" in markdown(rows)
    assert r"docvqa<b> & plain & 3 & —" in latex(rows)
    header, first, *_ = comma_separated(rows).splitlines()
    assert header.startswith("task,system,n,passes")
    assert first.startswith("docvqa<b>,plain,3,,")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_sorts_and_opens_a_tree(page: str, tmp_path: Path) -> None:
    probe = """<script>
    const said = [];
    window.addEventListener("error", event => said.push("error " + event.message));
    const button = [...document.querySelectorAll("thead button")].find(b => b.textContent === "ms/token");
    const order = () => [...document.querySelector("tbody").rows].map(row => row.cells[1].textContent).join();
    button.click(); said.push(order()); button.click(); said.push(order());
    document.querySelector("button.round").click();
    const tree = document.querySelector(".tree");
    said.push(tree.hidden ? "hidden" : "shown", tree.querySelectorAll(".yes").length);
    document.querySelector("button.round").click();
    said.push(tree.hidden ? "hidden" : "shown");
    document.title = said.join(" ");
    </script></body>"""
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", probe), encoding="utf-8")
    assert BROWSER is not None
    words = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--dump-dom",
        f"--user-data-dir={tmp_path / 'user'}",
    ]
    done = subprocess.run([*words, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert "<title>tree,chain,plain plain,chain,tree shown 2 hidden</title>" in done.stdout


def test_the_papers_numbers_name_their_revision() -> None:
    """Each quoted value has a revision; what has none is a dash, never a guess."""
    for item in paper.items().values():
        for value in item.values:
            assert value.revision in ("arXiv 2609.00355v1", "authors' README, commit 59ea1c6")
    (empty,) = paper.beside(paper.items()["table10"], [], is_same_target=False)
    assert (empty.paper, empty.ours) == ("—", "—")
    assert set(paper.items()) == {f"table{i}" for i in range(1, 18)} | {f"fig{i}" for i in range(1, 10)}


def test_the_status_follows_the_interval() -> None:
    item = paper.items()["table12"]
    ours = [
        paper.Measured("tree", "b1", "docvqa", 0.9, 0.8, 1.0),
        paper.Measured("tree", "b1", "caption", 0.9, 0.8, 1.0),
    ]
    found = {line.task: line for line in paper.beside(item, ours, is_same_target=True) if line.quantity == "b1"}
    assert (found["docvqa"].paper, found["docvqa"].status) == (0.95, "in our interval")
    assert found["caption"].status == "outside our interval"
    assert found["chartqa"].status.startswith("not run")
    other = paper.beside(item, ours, is_same_target=False)
    assert all(line.status != "in our interval" for line in other)


def test_ticks_stay_readable() -> None:
    assert ticks([3.0, 1.0, 3.0]) == [1.0, 3.0]
    for span in (0.3, 1.0, 1.7, 4.2, 99.0):
        many = [0.003 + span / 99 * i for i in range(100)]
        found = ticks(many)
        assert 3 <= len(found) <= 12
        assert many[0] <= found[0] < found[-1] <= many[-1]
