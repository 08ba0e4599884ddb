"""What theory says beside the law, as sections of the page: slopes and scales, bounds, and the plug-in score."""

from __future__ import annotations

from oneglance.report.page import Chart, Section
from oneglance.report.study import LawStudy
from oneglance.report.svg import curves
from oneglance.report.tables import measured
from oneglance.stats.calibration import Calibration


def sections(study: LawStudy) -> list[Section]:
    """Those that the log holds enough for."""
    made = []
    if study.derivatives:
        made += [slope_section(study), bracket_section(study)]
    if study.calibration is not None:
        made.append(calibration_section(study.calibration))
    return made


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


def calibration_section(found: Calibration) -> Section:
    """The plug-in score against measured acceptance, offset by offset (Asm. 1)."""
    columns = {
        "offset": "offset",
        "rounds": "rounds",
        "said": "q",
        "seen": "matched",
        "alive": "matched, all before too",
    }
    columns |= {"said_prefix": "score of the chain", "seen_prefix": "chain matched"}
    rows = []
    for own in found.offsets:
        values = {"said": own.said, "seen": own.seen, "alive": own.seen_alive}
        values |= {"said_prefix": own.said_prefix, "seen_prefix": own.seen_prefix}
        rows.append({"offset": own.offset, "rounds": own.num_rounds, **measured(values)})
    known = [own for own in found.offsets if own.num_rounds]
    lines = {
        "score": [(float(own.offset), own.said_prefix) for own in known],
        "matched": [(float(own.offset), own.seen_prefix) for own in known],
    }
    title = "The chain so far, said and seen"
    text = "Where the curves part, matches of one round come together, which a product of marginals does not know."
    opening = (
        "The tree's score multiplies the marginals of its offsets as if they were independent (Asm. 1). On the top-1 "
        "chain: what each offset's best token was given and how often it was right, alone and where all before it "
        f"were, and the same of the chain as a whole. Over chains of like score the mean gap is {found.error:.3f}."
    )
    chart = Chart(title, text, curves(lines, title=title, x_label="offset", y_label="chain"))
    return Section("Where the plug-in score holds", columns, rows, [opening], [chart])
