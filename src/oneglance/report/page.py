"""One self-contained HTML page of results: no network, no framework, light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2

from oneglance.report.results import sections
from oneglance.report.section import Section
from oneglance.report.strips import Strip
from oneglance.report.tables import cell


def render(
    results: Sequence[Mapping[str, Any]],
    strips: Sequence[Strip] = (),
    *,
    title: str = "oneglance",
    studies: Sequence[Section] = (),
) -> str:
    """The page.

    Args:
        results: objects that bench, sweep, worth-it or cost wrote with ``--out``.
        strips: decoded prompts.
        title: of the page.
        studies: what round logs say, from ``report.entropy``.
    """
    source = (resources.files("oneglance.report") / "page.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["cell"] = cell
    names = [f"Result {index}" if len(results) > 1 else "" for index in range(1, len(results) + 1)]
    shown = [own for result, name in zip(results, names, strict=True) for own in sections(result, name)]
    page: str = environment.from_string(source).render(title=title, sections=[*shown, *studies], strips=strips)
    return page
