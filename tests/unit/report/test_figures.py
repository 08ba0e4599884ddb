"""Figures hold the numbers that they were given; without matplotlib one line names the extra."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oneglance.core import InputError
from oneglance.report import figures
from oneglance.stats.calibration import calibrate
from oneglance.stats.curve import Fit, assess
from oneglance.stats.law import fit_law
from oneglance.stats.replay import ParetoPoint
from simulate import simulate_rounds


@pytest.fixture(scope="module")
def fits() -> dict[str, Fit]:
    found = {}
    for seed, (task, b0, b1) in enumerate((("caption", 0.6, 0.5), ("docvqa", 1.2, 0.9))):
        rounds = simulate_rounds(b0, b1, num_rounds=400, num_prompts=20, seed=seed)
        fit = fit_law(rounds.h_nats, rounds.a, horizon=rounds.horizon, prompts=rounds.prompts)
        found[task] = assess(fit, rounds.h_nats, rounds.a, rounds.prompts, horizon=rounds.horizon)
    none = np.zeros(40, int)
    found["ngram"] = assess(fit_law(np.arange(40.0), none), np.arange(40.0), none, np.arange(40) // 2)
    return found


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, fits: dict[str, Fit]) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(InputError, match=r"pip install 'oneglance\[report\]'"):
        figures.decile_curves(fits)


def test_decile_curves_hold_the_deciles(fits: dict[str, Fit]) -> None:
    pytest.importorskip("matplotlib", reason="the [report] extra is not installed")
    (axes,) = figures.decile_curves(fits, cap=3.41).axes
    for line, fit in zip(axes.containers, fits.values(), strict=True):
        np.testing.assert_allclose(line[0].get_ydata(), [b.mean_a.value for b in fit.bins])
        np.testing.assert_allclose(line[0].get_xdata(), [b.mean_nats for b in fit.bins])
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "docvqa (n = 400)" in labels
    assert "cap e^b0 = 3.41" in labels


def test_law_panels_and_every_format(fits: dict[str, Fit], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the [report] extra is not installed")
    figure = figures.law_panels(fits)
    assert len(figure.axes) == 3
    assert [axes.get_yscale() for axes in figure.axes] == ["log"] * 3
    assert figure.axes[2].get_title() == "ngram: no fit"
    for suffix in ("png", "svg", "pdf"):
        figures.save(figure, tmp_path / f"law.{suffix}")
        assert (tmp_path / f"law.{suffix}").stat().st_size > 1000
    with pytest.raises(InputError, match="no fit to draw"):
        figures.law_panels({})


def test_width_and_calibration() -> None:
    pytest.importorskip("matplotlib", reason="the [report] extra is not installed")
    points = [ParetoPoint("fixed", 7, 7.0, 1.5, 0.0), ParetoPoint("fixed", 15, 15.0, 2.0, 0.0)]
    (axes,) = figures.width_pareto(points).axes
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [1.5, 2.0])
    found = calibrate([[0, 0], [0, -1]], np.log([[0.8, 0.9], [0.6, 0.5]]))
    scores, offsets = figures.calibration_plot(found).axes
    np.testing.assert_allclose(scores.lines[1].get_xdata(), [b.said for b in found.bins])
    np.testing.assert_allclose(offsets.lines[0].get_ydata(), [o.said_prefix for o in found.offsets])
    given = calibrate([[0, 0], [0, -1]], np.log([[0.9, 0.9], [0.9, 0.5]]))
    scores, offsets = figures.calibration_plot(found, given).axes
    np.testing.assert_allclose(scores.lines[2].get_ydata(), [b.seen for b in given.bins])
    np.testing.assert_allclose(offsets.lines[3].get_ydata(), [o.seen_prefix for o in given.offsets])
    assert [text.get_text().split(",")[0] for text in scores.get_legend().get_texts()] == ["marginal", "conditioned"]
