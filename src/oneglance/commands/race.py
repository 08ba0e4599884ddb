"""The live view of the demo: two panels that fill as fast, relative to each other, as the two arms decode."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from oneglance.amounts import plural
from oneglance.commands.pairs import ARMS, DRAFTED, PLAIN, Duel
from oneglance.commands.terminal import round_colour, split_bonus, visible
from oneglance.core import Generation
from oneglance.decoder import Step

SHOW_MS = 4000.0  # how long the slower arm should be watched
BORDERS = {PLAIN: "bright_black", DRAFTED: "green"}


@dataclass
class Lane:
    """What one arm has decoded so far, as it is shown."""

    text: Text = field(default_factory=Text)
    num_rounds: int = 0
    num_tokens: int = 0
    decode_ms: float = 0.0

    def add(self, step: Step, so_far: Generation) -> None:
        """Take a step in: accepted runs in alternating colours, bonus tokens underlined."""
        accepted, bonus = split_bonus(step)
        colour = round_colour(step) or ""
        self.text.append(visible(accepted), style=colour)
        self.text.append(visible(bonus), style=f"bold underline {colour}")
        self.num_rounds = len(so_far.rounds)
        self.num_tokens = so_far.num_tokens
        self.decode_ms = so_far.decode_ms

    def panel(self, arm: int, max_lines: int | None = None) -> Panel:
        """The last ``max_lines`` lines under the arm's name, figures below."""
        lines = self.text.split("\n", allow_blank=True)
        shown = Text("\n").join(lines[-max_lines:] if max_lines else lines)
        counts = f"{plural(self.num_tokens, 'token')} · {plural(self.num_rounds, 'round')}"
        figures = f"{counts} · {self.decode_ms:.0f} ms"
        return Panel(shown, title=ARMS[arm], subtitle=figures, border_style=BORDERS[arm], height=None)


def side_by_side(lanes: tuple[Lane, Lane], *, max_lines: int | None = None) -> RenderableType:
    """Both panels, equally wide."""
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    grid.add_row(*(lane.panel(arm, max_lines) for arm, lane in enumerate(lanes)))
    return grid


def run_race(console: Console, duel: Duel, *, expected_ms: float, is_live: bool = True) -> tuple[Lane, Lane]:
    """Decode with both arms, round by round in step with their own clocks, and show it.

    A small model is done before an eye can follow, so both arms are slowed by the same factor, which is shown. Nothing
    here is measured: the figures of the table come from runs without a display.

    Args:
        console: a terminal.
        duel: the arms.
        expected_ms: what the slower arm takes, from the warm-up.
        is_live: show it while it runs, instead of only returning what would have been shown last.

    Returns:
        What each arm shows in the end.
    """
    slower = max(1, round(SHOW_MS / max(expected_ms, 1.0)))
    caption = Text(f"live, {slower} times slower than it runs" if slower > 1 else "live", style="dim")
    lanes = (Lane(), Lane())
    max_lines = max(4, console.height - 12)
    started = time.perf_counter()
    with Live(console=console, auto_refresh=False, transient=True) if is_live else nullcontext() as live:
        for arm, step, so_far in duel.race():
            lanes[arm].add(step, so_far)
            if live:
                time.sleep(max(0.0, slower * so_far.decode_ms / 1e3 - (time.perf_counter() - started)))
                live.update(Group(side_by_side(lanes, max_lines=max_lines), caption), refresh=True)
    return lanes
