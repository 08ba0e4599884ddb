"""Charts as inline SVG: nothing to load, colours from the page's own variables, a title and text for every mark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, ROW, LEFT, RIGHT = 720, 26, 210, 150
PLOT_HEIGHT = 240
MAX_TICKS = 12


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of a forest plot: a value with its interval, nan where there is none."""

    label: str
    value: float
    low: float
    high: float


def forest(bars: Sequence[Bar], *, title: str, centre: float = 0.0, percent: bool = True) -> str:
    """A forest plot: intervals on one axis, a rule at ``centre``."""
    edges = [x for bar in bars for x in (bar.value, bar.low, bar.high) if math.isfinite(x)] + [centre]
    edges_low, edges_high = min(edges), max(edges)
    pad = (edges_high - edges_low) * 0.05 or 0.1
    low, high = edges_low - pad, edges_high + pad
    height = ROW * (len(bars) + 1) + 10

    def x(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    parts = [f'<line class="rule" x1="{x(centre):.1f}" x2="{x(centre):.1f}" y1="4" y2="{height - ROW}"/>']
    for index, bar in enumerate(bars):
        y = ROW * index + ROW / 2 + 4
        text = _with_bounds(bar, percent)
        if math.isfinite(bar.low):
            parts.append(f'<line class="mark" x1="{x(bar.low):.1f}" x2="{x(bar.high):.1f}" y1="{y}" y2="{y}"/>')
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(bar.label)}</text>',
            f'<circle class="dot" cx="{x(bar.value):.1f}" cy="{y}" r="4">'
            f"<title>{escape(bar.label)}: {text}</title></circle>",
            f'<text x="{WIDTH - RIGHT + 8}" y="{y + 4}">{text}</text>',
        ]
    y = height - ROW
    parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
    parts += [
        f'<text x="{x(tick):.1f}" y="{height - 8}" text-anchor="middle">{_number(tick, percent)}</text>'
        for tick in _apart([centre, edges_low, edges_high], 70 / (WIDTH - LEFT - RIGHT) * (high - low))
    ]
    return _svg(title, height, parts, [f"{bar.label} {_with_bounds(bar, percent)}" for bar in bars])


def curves(
    lines: Mapping[str, Sequence[tuple[float, float]]], *, title: str, x_label: str, y_label: str, low: float = 0.0
) -> str:
    """Line charts of several series, each with points that name their values."""
    points = [point for line in lines.values() for point in line]
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    x_low, x_high, y_high = min(xs), max(xs), max([*ys, low + 1e-9])
    span = (x_high - x_low) or 1.0
    top, bottom, left = 12, PLOT_HEIGHT - 42, 60

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = left + (point[0] - x_low) / span * (WIDTH - left - RIGHT)
        return x, bottom - (point[1] - low) / (y_high - low) * (bottom - top)

    parts = [
        f'<line class="rule" x1="{left}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>',
        f'<line class="rule" x1="{left}" x2="{left}" y1="{top}" y2="{bottom}"/>',
        f'<text x="{left - 6}" y="{top + 6}" text-anchor="end">{y_high:.3g}</text>',
        f'<text x="{left - 6}" y="{bottom}" text-anchor="end">{low:.3g}</text>',
        f'<text x="{(left + WIDTH - RIGHT) / 2}" y="{PLOT_HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="4" y="{(top + bottom) / 2}" transform="rotate(-90 14 {(top + bottom) / 2})" text-anchor="middle">'
        f"{escape(y_label)}</text>",
    ]
    parts += [
        f'<text x="{place((tick, low))[0]:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>'
        for tick in ticks(xs)
    ]
    for index, (name, line) in enumerate(lines.items()):
        placed = [place(point) for point in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        colour = f"s{index % 7}{' dashed' if index // 7 % 2 else ''}"
        parts.append(f'<polyline class="line {colour}" points="{path}"/>')
        parts += [
            f'<circle class="s{index % 7}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">'
            f"<title>{escape(name)}: {escape(x_label)} {point[0]:g}, {escape(y_label)} {point[1]:.3g}</title></circle>"
            for (x, y), point in zip(placed, line, strict=True)
        ]
        y = top + 8 + 18 * index
        parts += [
            f'<path class="line {colour}" d="M{WIDTH - RIGHT + 8},{y - 3}h18"/>',
            f'<text x="{WIDTH - RIGHT + 32}" y="{y + 1}">{escape(name)}</text>',
        ]
    says = [f"{name}: {', '.join(f'{y:.3g} at {x:g}' for x, y in line)}" for name, line in lines.items()]
    return _svg(title, max(PLOT_HEIGHT, 30 + 18 * len(lines)), parts, says)


def ticks(xs: Sequence[float]) -> list[float]:
    """Each value where they are few, else round numbers between the outermost."""
    own = sorted(set(xs))
    if len(own) <= MAX_TICKS:
        return own
    span = own[-1] - own[0]
    power = 10 ** math.floor(math.log10(span))
    step = next(power * factor for factor in (0.1, 0.2, 0.5, 1) if span / (power * factor) < MAX_TICKS)
    return [i * step for i in range(math.ceil(own[0] / step), math.floor(own[-1] / step) + 1)]


def stacks(rows: Mapping[str, Mapping[str, float]], *, title: str, unit: str) -> str:
    """Horizontal bars of parts: what a round's time is made of."""
    names = list(dict.fromkeys(name for parts in rows.values() for name in parts))
    longest = max(sum(parts.values()) for parts in rows.values()) or 1.0
    height = ROW * len(rows) + 34
    drawn = []
    for index, (label, parts) in enumerate(rows.items()):
        y, x = ROW * index + 4, float(LEFT)
        drawn.append(f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(label)}</text>')
        for name, value in parts.items():
            width = value / longest * (WIDTH - LEFT - 90)
            drawn.append(
                f'<rect class="s{names.index(name) % 7}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 8}">'
                f"<title>{escape(label)}, {escape(name)}: {value:.2f} {unit}</title></rect>"
            )
            x += width
        drawn.append(f'<text x="{x + 6:.1f}" y="{y + 15}">{sum(parts.values()):.2f} {unit}</text>')
    for index, name in enumerate(names):
        x = LEFT + 90 * index
        drawn.append(f'<rect class="s{index % 7}" x="{x}" y="{height - 20}" width="10" height="10"/>')
        drawn.append(f'<text x="{x + 14}" y="{height - 11}">{escape(name)}</text>')
    says = [
        f"{label}: {', '.join(f'{name} {value:.2f} {unit}' for name, value in parts.items())}"
        for label, parts in rows.items()
    ]
    return _svg(title, height, drawn, says)


def _svg(title: str, height: float, parts: Sequence[str], says: Sequence[str]) -> str:
    """An image whose label also says its numbers, for those who hear it."""
    label = escape(f"{title}. {'; '.join(says)}.")
    return f'<svg role="img" viewBox="0 0 {WIDTH} {height:g}" aria-label="{label}">{"".join(parts)}</svg>'


def _apart(ticks: Sequence[float], least: float) -> list[float]:
    """The ticks that stand at least so far from those before them."""
    kept: list[float] = []
    for tick in ticks:
        if all(abs(tick - other) >= least for other in kept):
            kept.append(tick)
    return kept


def _with_bounds(bar: Bar, percent: bool) -> str:
    text = _number(bar.value, percent)
    if math.isfinite(bar.low):
        text += f" [{_number(bar.low, percent)}, {_number(bar.high, percent)}]"
    return text


def _number(value: float, percent: bool) -> str:
    return (f"{value:+.1%}" if value else "0") if percent else f"{value:.2f}"
