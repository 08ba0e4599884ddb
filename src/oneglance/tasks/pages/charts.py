"""chartqa: bar, line and pie charts with a templated answer."""

from __future__ import annotations

from typing import Final

from oneglance.tasks.pages import words as w
from oneglance.tasks.pages.page import MARGIN, ROW, SQUARE, Page, Sheet, fitted
from oneglance.tasks.pages.pick import Pick

PROMPTS: Final = ("List the chart values.", "Read the chart.", "What are the values in the chart?")
FACES: Final = ("sans", "humanist", "serif", "slab")
INK: Final = (25, 25, 25)
AXIS: Final = (140, 140, 140)
HIGH: Final = 99
"""The largest value."""


def chart(pick: Pick) -> Sheet:
    """One of four layouts."""
    return pick.one((rows, columns, line, pie))(pick)


class _Plot:
    """A chart's page, title and typeface; collects the (label, value) pairs."""

    def __init__(self, pick: Pick, kind: str, groups: tuple[tuple[str, tuple[str, ...]], ...], count: int) -> None:
        group, labels = pick.one(groups)
        self.page = Page(SQUARE, pick.one(w.PAPERS))
        self.face = pick.one(FACES)
        self.size = pick.whole(15, 17)
        self.colour = pick.one(list(w.COLOURS.values()))
        self.kind = kind
        self.title = f"{pick.one(w.MEASURES)} by {group}"
        self.labels = pick.some(labels, count)
        if labels in (w.SHORT_MONTHS, w.SHORT_DAYS):
            self.labels.sort(key=labels.index)
        self.values = [pick.value_for(label, 1, HIGH) for label in self.labels]
        middle = ROW / 2 + pick.whole(-3, 3)
        self.page.text((SQUARE[0] / 2, middle), self.title, face="bold", size=18, fill=INK, align="centre")

    def write(self, at: tuple[float, float], text: str, *, align: str = "left", width: float = 90) -> None:
        """A label or value in the chart's typeface."""
        size = fitted(self.face, self.size, text, width)
        self.page.text(at, text, face=self.face, size=size, fill=INK, align=align)

    def sheet(self, pick: Pick, *, unit: str = "") -> Sheet:
        """The finished page and its list of values."""
        self.page.finish(pick)
        pairs = [f"{label}: {value}{unit}" for label, value in zip(self.labels, self.values, strict=True)]
        answer = "\n".join([f"{self.kind} chart: {self.title}", *pairs])
        return Sheet(self.page, pick.one(PROMPTS), answer, tuple(pairs))


LONG: Final = (("city", w.CITIES), ("product", w.ITEMS), ("office", w.DEPARTMENTS), ("name", w.FIRST))
SHORT: Final = (("month", w.SHORT_MONTHS), ("day", w.SHORT_DAYS), ("quarter", ("Q1", "Q2", "Q3", "Q4")))


def rows(pick: Pick) -> Sheet:
    """Horizontal bars, one per row."""
    count = pick.whole(3, 7)
    plot = _Plot(pick, "Bar", LONG, count)
    left, unit = pick.whole(92, 104), 118 / HIGH
    for index, (label, value) in enumerate(zip(plot.labels, plot.values, strict=True)):
        middle = ROW * (index + 1) + ROW / 2
        end = left + unit * value
        plot.page.pen.rectangle((left, middle - 9, end, middle + 9), fill=plot.colour)
        plot.write((left - 6, middle), label, align="right", width=left - 6 - MARGIN)
        plot.write((end + 5, middle), str(value))
    plot.page.pen.line((left, ROW, left, ROW * (count + 1)), fill=AXIS)
    return plot.sheet(pick)


def columns(pick: Pick) -> Sheet:
    """Vertical bars with the value on top and the label below."""
    plot, xs, heights = _upright(pick, "Bar")
    for x, label, value, y in zip(xs, plot.labels, plot.values, heights, strict=True):
        plot.page.pen.rectangle((x - 15, y, x + 15, ROW * 7), fill=plot.colour)
        plot.write((x, y - 11), str(value), align="centre")
        plot.write((x, ROW * 7 + ROW / 2), label, align="centre", width=50)
    return plot.sheet(pick)


def line(pick: Pick) -> Sheet:
    """Points joined by a line, with the value above each point."""
    plot, xs, heights = _upright(pick, "Line")
    points = list(zip(xs, heights, strict=True))
    plot.page.pen.line(points, fill=plot.colour, width=2)
    for (x, y), label, value in zip(points, plot.labels, plot.values, strict=True):
        plot.page.pen.rectangle((x - 11, y - 19, x + 11, y - 5), fill=plot.page.ground)
        plot.page.pen.ellipse((x - 4, y - 4, x + 4, y + 4), fill=plot.colour)
        plot.write((x, y - 13), str(value), align="centre")
        plot.write((x, ROW * 7 + ROW / 2), label, align="centre", width=50)
    return plot.sheet(pick)


def _upright(pick: Pick, kind: str) -> tuple[_Plot, list[float], list[float]]:
    """A plot with its columns' middles and the heights of its values, px."""
    count = pick.whole(3, 4)
    plot = _Plot(pick, kind, SHORT, count)
    step = (SQUARE[0] - 2 * MARGIN) / count
    xs = [MARGIN + step * (index + 0.5) for index in range(count)]
    floor, reach = ROW * 7, ROW * 4.8
    plot.page.pen.line((MARGIN, floor, SQUARE[0] - MARGIN, floor), fill=AXIS)
    return plot, xs, [floor - 6 - reach * value / HIGH for value in plot.values]


def pie(pick: Pick) -> Sheet:
    """Slices on the left, their labels and shares on the right."""
    count = pick.whole(3, 5)
    plot = _Plot(pick, "Pie", LONG, count)
    plot.values = _shares(pick, count)
    colours = pick.some(list(w.COLOURS.values()), count)
    top, start = pick.whole(70, 100), pick.real(0, 360)
    for index, (label, value) in enumerate(zip(plot.labels, plot.values, strict=True)):
        end = start + 3.6 * value
        plot.page.pen.pieslice((MARGIN, top, MARGIN + 96, top + 96), start, end, fill=colours[index])
        start, middle = end, ROW * (index + 2) + ROW / 2
        plot.page.pen.rectangle((114, middle - 6, 126, middle + 6), fill=colours[index])
        plot.write((132, middle), f"{label} {value}%", width=SQUARE[0] - MARGIN - 132)
    return plot.sheet(pick, unit="%")


def _shares(pick: Pick, count: int) -> list[int]:
    """Whole percentages, each at least 5, that add up to 100."""
    cuts = sorted(pick.some(range(1, 100 - 5 * count), count - 1))
    return [b - a + 5 for a, b in zip([0, *cuts], [*cuts, 100 - 5 * count], strict=True)]
