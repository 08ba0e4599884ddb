"""What probes, ablations and transfer say, as sections of the page (Tables 13 to 16)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oneglance.report.causes import Ablation, ImageEffect, Transfer
from oneglance.report.section import Chart, Section
from oneglance.report.svg import Bar, forest
from oneglance.report.tables import measured, of_interval


def image_section(found: Mapping[str, ImageEffect]) -> Section:
    """The right image against another prompt's, at the same roots (§6)."""
    columns = {
        "task": "task",
        "roots": "roots",
        "prompts": "prompts",
        "lift": "lift of a",
        "low": "low",
        "high": "high",
    }
    columns |= {
        "h_right": "H right",
        "h_wrong": "H mismatched",
        "total": "effect on a",
        "residual": "with H held fixed",
    }
    columns |= {"residual_low": "low", "residual_high": "high", "within": "within H bins"}
    rows = []
    for task, e in found.items():
        row: dict[str, Any] = {"task": task, "roots": e.num_roots, "prompts": e.num_prompts}
        row |= measured(of_interval("lift", e.lift)) | {"h_right": e.h_right.value, "h_wrong": e.h_mismatched.value}
        if e.effect is not None:
            row |= {"total": e.effect.total.value, "within": e.effect.within_bins.value}
            row |= measured(of_interval("residual", e.effect.residual, "residual_low", "residual_high"))
        rows.append(row)
    opening = (
        "Each prompt is decoded with its own image; along that text both arms start rounds at the same roots, one with "
        "the right image and one with that of another prompt of the task. The lift is mean accepted length, right over "
        "mismatched, less one. The effect is in tokens; what is left of it with entropy held fixed is the part that "
        "does not pass through entropy, by a linear term and by a level for each entropy decile. Intervals resample "
        "prompts."
    )
    bars = [Bar(task, e.lift.value, e.lift.low, e.lift.high) for task, e in found.items()]
    text = "Mean accepted length, right over mismatched image, less one."
    chart = Chart("Lift of the right image", text, forest(bars, title="Lift of the right image"))
    return Section("The image acts through entropy", columns, rows, [opening], [chart])


ARMS = {
    "conditioning": "zeroed: zeros. text-only: the target's own text stack without the image, zeros at image rows; "
    "twin: the same of a text-only model. mismatched: the target's states under another prompt's image.",
    "layers": "An arm is named by the kept layers that stay; the features of the others are zeros.",
}


def ablation_section(found: Ablation, *, baseline: str, kind: str) -> Section:
    """Shares of τ kept (Table 16).

    Args:
        found: arms by task.
        baseline: the untouched arm.
        kind: of ``ARMS``; empty where the log does not say.
    """
    columns = {"task": "task", "tree": "tree", "arm": "arm", "rounds": "rounds", "prompts": "prompts", "tau": "τ"}
    columns |= {"share": "share of τ", "low": "low", "high": "high"}
    rows = []
    for task, trees in found.kept.items():
        for tree, arms in trees.items():
            for arm, kept in arms.items():
                row: dict[str, Any] = {"task": task, "tree": tree, "arm": arm}
                row |= {"rounds": kept.num_rounds, "prompts": kept.num_prompts, "tau": kept.tau.value}
                rows.append(row if arm == baseline else row | measured(of_interval("share", kept.share)))
    notes = [
        f"{task}, {arm}: share kept by the tree less share kept by the chain {gap.value:+.1%} "
        f"[{gap.low:+.1%}, {gap.high:+.1%}]."
        for task, gaps in found.gaps.items()
        for arm, gap in gaps.items()
    ]
    opening = (
        f"The target verifies as ever and every arm writes the same text; only what the head reads differs. The share "
        f"is the arm's τ over that of {baseline}, on the same prompts. The head is not trained again: this is what it "
        f"relies on. {ARMS.get(kind, '')}".rstrip()
    )
    heading = f"What the head reads: {kind}" if kind else "What the head reads"
    return Section(heading, columns, rows, [opening, *notes], [_shares(found, baseline)])


def _shares(found: Ablation, baseline: str) -> Chart:
    """The last task's arms, which is all tasks together where there are several."""
    task, trees = list(found.kept.items())[-1]
    bars = [
        Bar(f"{tree}: {arm}", kept.share.value, kept.share.low, kept.share.high)
        for tree, arms in trees.items()
        for arm, kept in arms.items()
        if arm != baseline
    ]
    title = f"Share of τ kept, {task}"
    text = f"τ of each arm over that of {baseline}; at 100 % nothing was lost. 95 % bootstrap over prompts."
    return Chart(title, text, forest(bars, title=title, centre=1.0))


def transfer_section(found: Transfer) -> Section:
    """The law across drafters, targets and modalities (Tables 14 and 15)."""
    columns = {"log": "log", "target": "target", "run": "drafter", "task": "task", "rounds": "rounds"}
    columns |= {"prompts": "prompts", "b0": "b0", "b1": "b1", "low": "low", "high": "high", "sign": "sign of b1"}
    columns |= {"curve": "R² curve", "a": "a", "verdict": "verdict"}
    rows = [
        {
            "log": row.log,
            "target": row.target,
            "run": row.run,
            "task": row.task,
            "rounds": row.fit.law.num_rounds,
            "prompts": row.fit.law.num_prompts,
            "b0": row.fit.law.b0.value,
            **measured(of_interval("b1", row.fit.law.b1)),
            "sign": {1: "+", 0: "0", -1: "-"}[row.sign],
            "curve": row.fit.curve_r2,
            "a": row.fit.mean_a.value,
            "verdict": row.fit.verdict,
        }
        for row in found.rows
    ]
    opening = "A row a log and task. The sign is that of b1, 0 where its interval holds zero."
    notes = [f"{name}: excluded, {reason}." for name, reason in found.excluded.items()]
    bars = [
        Bar(f"{row.log}: {row.task}", row.fit.law.b1.value, row.fit.law.b1.low, row.fit.law.b1.high)
        for row in found.rows
    ]
    text = "b1 of logit p = b0 - b1·H; right of the rule, entropy shortens what is accepted."
    charts = [Chart("b1 by log", text, forest(bars, title="b1 by log", percent=False))] if bars else []
    return Section("Does the form transfer?", columns, rows, [opening, *notes], charts)
