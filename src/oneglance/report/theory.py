"""What theory says beside the law, as sections of the page: slopes and scales, and bounds."""

from __future__ import annotations

from oneglance.report.section import Chart, Section
from oneglance.report.study import LawStudy
from oneglance.report.svg import curves
from oneglance.report.tables import measured


def sections(study: LawStudy) -> list[Section]:
    """Those that the log holds enough for."""
    return [slope_section(study), bracket_section(study)] if study.derivatives else []


def slope_section(study: LawStudy) -> Section:
    """The derivative identities (B.2), and the scale s between target and drafter (Prop. 1)."""
    columns = {"task": "task", "h": "mean H", "p_slope": "∂p/∂H", "mean_slope": "∂E/∂H", "endless": "-b1·E, endless"}
    columns |= {"truncation": "p^L", "offset": "b1 of offset 1"}
    columns |= {f.shape: f"s, {f.shape.replace('_', ' ')}" for f in study.families}
    rows = []
    for task, own in study.derivatives.items():
        scale = study.scales.get(task)
        values = {"h": own.h_nats, "p_slope": own.p_slope, "mean_slope": own.mean_slope, "endless": own.endless}
        values |= {"truncation": own.truncation}
        values |= {} if scale is None else {"offset": scale.offset_slope, **scale.s}
        rows.append({"task": task, **measured(values)})
    notes = [
        f"{f.shape.replace('_', ' ')}: κ = {f.kappa:.2f}, R² {f.r2:.2f} over {f.num_points} temperatures."
        for f in study.families
    ]
    opening = (
        "The law's slopes at each task's mean entropy: of p, of the truncated mean, and of the mean of an endless "
        "block; p^L is what the block's end takes away. s = κ / b1 of offset 1, by the shape that the target's logits "
        "are taken to have: κ is how fast the logit of its top probability falls with entropy as that shape is heated "
        "(Prop. 1). It depends on how temperatures are spaced, which the paper does not say; ours are log-spaced."
    )
    return Section("Slopes and scales", columns, rows, [opening, *notes], [])


def bracket_section(study: LawStudy) -> Section:
    """The law between a lower and an upper bound at decile entropies (Fig. 4)."""
    columns = {"task": "task", "h": "H", "lower": "AdaEDL", "fitted": "law", "measured": "a", "upper": "2 log N / H"}
    rows, charts = [], []
    for task, between in study.brackets.items():
        means = [b.mean_a.value for b in study.fits[task].bins]
        table = list(zip(between.h_nats, between.lower, between.fitted, means, between.upper, strict=True))
        rows += [{"task": task, **dict(zip(list(columns)[1:], map(float, line), strict=True))} for line in table]
        lines = {
            name: [(round(float(line[0]), 3), float(line[index])) for line in table]
            for index, name in ((1, "AdaEDL"), (2, "law"), (3, "measured"))
        }
        title = f"The law and what was measured, {task}"
        text = "Deciles of entropy; the ceiling 2 log N / H is in the table, and lies above."
        charts.append(Chart(title, text, curves(lines, title=title, x_label="H (nats)", y_label="a")))
    opening = (
        "Accepted length at the mean entropy of each decile, between AdaEDL's bound 1 - √(γH) and what N candidates "
        f"can verify. The paper draws the bound without its constant: γ = {study.gamma} is ours, from Pinsker's "
        "inequality."
    )
    return Section("Between its bounds", columns, rows, [opening], charts)
