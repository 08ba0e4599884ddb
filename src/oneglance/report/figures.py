"""Figures of §6 from the dataclasses of ``stats/``: decile curves, law fits within brackets, width, calibration.

matplotlib is imported when a figure is drawn; without it one line says which extra to install. Figures are drawn
without pyplot, so nothing opens a window or keeps state.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oneglance.core import InputError
from oneglance.report.causes import SaliencyEffect
from oneglance.stats.calibration import Calibration
from oneglance.stats.curve import Fit
from oneglance.stats.replay import POLICIES, ParetoPoint
from oneglance.stats.theory import brackets

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")  # told apart without red-green
MARKS = ("o", "s", "^", "D", "v", "P", "X")
PANEL = (3.2, 2.6)  # inches


def decile_curves(fits: Mapping[str, Fit], *, cap: float | None = None) -> Any:
    """Measured accepted length against measured entropy, a curve a task (Fig. 3a).

    Args:
        fits: by task.
        cap: a line to draw, such as the pooled law's e^b0.
    """
    figure, (axes,) = _panels(1, width=2)
    for index, (task, fit) in enumerate(fits.items()):
        h, means, errors = _points(fit)
        axes.errorbar(h, means, yerr=errors, label=f"{task} (n = {_num_rounds(fit)})", **_style(index))
    if cap is not None:
        axes.axhline(cap, color="0.4", linestyle=":", label=f"cap e^b0 = {cap:.2f}")
    axes.set_xlabel("entropy at the root H (nats), decile mean")
    axes.set_ylabel("accepted length a")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small", frameon=False)
    return figure


def law_panels(fits: Mapping[str, Fit], *, budget: int = 31) -> Any:
    """Each task's law between the AdaEDL bound and the verification ceiling, deciles as points (Fig. 4, Fig. 8)."""
    if not fits:
        raise InputError("there is no fit to draw; log more rounds")
    figure, panels = _panels(len(fits))
    for index, (axes, (task, fit)) in enumerate(zip(panels, fits.items(), strict=True)):
        h, means, errors = _points(fit)
        grid = np.linspace(0.01, max(float(h.max()), 0.1) * 1.05, 200)
        between = brackets(fit.law, grid, budget=budget)
        if budget > 1:
            axes.fill_between(grid, np.maximum(between.lower, 1e-2), between.upper, color="0.93", label="brackets")
        if fit.law.degenerate is None:
            axes.plot(grid, between.fitted, color=COLOURS[index % len(COLOURS)], label="law")
        axes.errorbar(h, means, yerr=errors, **{**_style(index), "linestyle": "none"})
        axes.set_yscale("log")
        axes.set_ylim(0.1, fit.law.num_offsets * 1.2)
        axes.set_title(_title(task, fit), fontsize="small")
        axes.set_xlabel("H (nats)")
        axes.set_ylabel("E[a | H]")
    panels[0].legend(fontsize="small", frameon=False, loc="lower left")
    return figure


def width_pareto(points: Sequence[ParetoPoint]) -> Any:
    """Accepted length against nodes a round, a curve a policy (Fig. 5)."""
    figure, (axes,) = _panels(1, width=2)
    for index, policy in enumerate(POLICIES):
        own = [point for point in points if point.policy == policy]
        if own:
            axes.plot([p.used for p in own], [p.mean_a for p in own], label=policy, **_style(index))
    axes.set_xlabel("nodes a round")
    axes.set_ylabel("accepted length a")
    axes.legend(fontsize="small", frameon=False)
    return figure


def saliency_split(effects: Mapping[str, SaliencyEffect]) -> Any:
    """Accepted length of high and low image saliency within entropy deciles (Fig. 7)."""
    figure, panels = _panels(len(effects))
    for axes, (task, effect) in zip(panels, effects.items(), strict=True):
        h = [gap.mean_nats for gap in effect.gaps]
        axes.plot(h, [gap.high for gap in effect.gaps], label="high saliency", **_style(1))
        axes.plot(h, [gap.low for gap in effect.gaps], label="low saliency", **_style(0))
        axes.set_title(f"{task}: ratio {effect.mean_gap:.2f}, n = {effect.num_rounds}", fontsize="small")
        axes.set_xlabel("H (nats), decile mean")
        axes.set_ylabel("accepted length a")
    panels[0].legend(fontsize="small", frameon=False)
    return figure


def calibration_plot(found: Calibration, given: Calibration | None = None) -> Any:
    """Plug-in score against measured acceptance, and survival said and seen by offset (Asm. 1).

    Args:
        found: of the marginals' scores.
        given: of a rescorer's, in the same rounds.
    """
    figure, (scores, offsets) = _panels(2)
    scores.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    both = {"marginal": found} if given is None else {"marginal": found, "conditioned": given}
    for index, (name, own) in enumerate(both.items()):
        label = f"{name}, gap {own.error:.3f}"
        scores.plot([b.said for b in own.bins], [b.seen for b in own.bins], label=label, **_style(index))
        known = [o for o in own.offsets if o.num_rounds]
        at = [o.offset for o in known]
        said = {**_style(index), "linestyle": "--", "fillstyle": "none"}
        offsets.plot(at, [o.said_prefix for o in known], label=f"{name}: score", **said)
        offsets.plot(at, [o.seen_prefix for o in known], label=f"{name}: matched", **_style(index))
    scores.set_xlabel("plug-in score")
    scores.set_ylabel("matched")
    offsets.set_xlabel("offset")
    offsets.set_ylabel("whole chain so far")
    for axes in (scores, offsets):
        axes.legend(fontsize="small", frameon=False)
    return figure


def save(figure: Any, path: Path | str) -> None:
    """Write a figure; the suffix names the format (png, pdf, svg)."""
    figure.savefig(path, dpi=150, bbox_inches="tight")


def _panels(count: int, *, width: int = 1) -> tuple[Any, list[Any]]:
    try:
        module = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise InputError("figures need matplotlib: pip install 'oneglance[report]'") from error
    columns = min(3, count)
    rows = -(-count // columns)
    figure = module.Figure(figsize=(PANEL[0] * columns * width, PANEL[1] * rows * width**0.5), layout="constrained")
    axes = [figure.add_subplot(rows, columns, index + 1) for index in range(count)]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _points(fit: Fit) -> tuple[Any, Any, Any]:
    """Entropy, mean and distances to the interval's ends of each decile; none where one prompt gives no interval."""
    h = np.array([b.mean_nats for b in fit.bins])
    means = np.array([b.mean_a.value for b in fit.bins])
    low = means - np.array([b.mean_a.low for b in fit.bins])
    high = np.array([b.mean_a.high for b in fit.bins]) - means
    return h, means, np.maximum(0.0, np.nan_to_num(np.stack([low, high])))


def _num_rounds(fit: Fit) -> int:
    return sum(b.num_rounds for b in fit.bins)


def _style(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKS[index % len(MARKS)], "markersize": 4}


def _title(task: str, fit: Fit) -> str:
    if fit.law.degenerate is not None:
        return f"{task}: no fit"
    return f"{task}: b0 = {fit.law.b0.value:.2f}, b1 = {fit.law.b1.value:.2f}, n = {_num_rounds(fit)}"
