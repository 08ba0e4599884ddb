"""What a round log says, as sections of the page: the law, its tail, the width replay, image saliency (§6)."""

from __future__ import annotations

from collections.abc import Mapping

from oneglance.core import InputError
from oneglance.report import theory
from oneglance.report.causes import study_saliency
from oneglance.report.section import Chart, Section
from oneglance.report.study import LawStudy, WidthStudy, study_law, study_tail, study_width
from oneglance.report.svg import Bar, curves, forest
from oneglance.report.tables import measured, of_interval
from oneglance.stats.bootstrap import Array
from oneglance.stats.calibration import Calibration
from oneglance.stats.law import Method
from oneglance.stats.rounds import RoundLog
from oneglance.stats.tail import Tail


def sections(
    log: RoundLog,
    *,
    marginals: Array | None,
    vocab_size: int | None,
    method: Method = "ml",
    resamples: int = 999,
    seed: int = 0,
) -> list[Section]:
    """Everything that the log holds enough for.

    Args:
        log: drafted rounds of one drafter, tree and budget.
        marginals: (R, L, K) of the same rounds, for the width replay and the calibration of scores.
        vocab_size: for Fano's bound.
        method: estimator.
        resamples: of the tail's parametric bootstrap.
        seed: of all resampling.
    """
    study = study_law(log, method=method, vocab_size=vocab_size, marginals=marginals, seed=seed)
    made = [law_section(study), *theory.sections(study)]
    if study.calibration is not None:
        made.append(calibration_section(study.calibration, study.calibration_given))
    tails, widths, left_out = {}, {}, {}
    for task in log.tasks:
        own = log.names("task") == task
        try:
            tails[task] = study_tail(log.of(task), method=method, resamples=resamples, seed=seed)
            if marginals is not None:
                widths[task] = study_width(log.of(task), marginals[own], method=method)
        except InputError as error:
            left_out[task] = str(error)
    if tails:
        made.append(tail_section(tails, left_out))
    if widths:
        made += [width_section(widths), gain_section(widths)]
    if any(row.saliency is not None for row in log.rows):
        made.append(saliency_section(log, seed))
    return made


def law_section(study: LawStudy) -> Section:
    """Table 12, with the decile curves of Fig. 3a and the slopes."""
    columns = {"task": "task", "verdict": "verdict", "rounds": "rounds", "prompts": "prompts", "b0": "b0", "b1": "b1"}
    columns |= {"low": "low", "high": "high", "curve": "R² curve", "isotonic": "R² isotonic", "round": "R² round"}
    columns |= {"ceiling": "ceiling", "reached": "reached", "a": "a", "long": "P(a ≥ 8)"}
    rows, notes = [], []
    for task, fit in study.fits.items():
        law = fit.law
        values = {"b0": law.b0.value, "b1": law.b1.value, "low": law.b1.low, "high": law.b1.high}
        values |= {"curve": fit.curve_r2, "isotonic": fit.isotonic_r2, "round": fit.round_r2}
        values |= {"ceiling": fit.ceiling.share, "reached": fit.fraction, "a": fit.mean_a.value, "long": fit.long_runs}
        names = {"task": task, "verdict": fit.verdict, "rounds": law.num_rounds, "prompts": law.num_prompts}
        rows.append({**names, **measured(values)})
        failed = [criterion for criterion, is_met in fit.criteria.items() if not is_met]
        if failed:
            notes.append(f"{task}: {fit.verdict}, because not: {law.degenerate or ', '.join(failed)}.")
    for name, gap in study.gaps.items():
        d = gap.difference
        notes.append(
            f"{name}: accepted length differs by {d.value:+.2f} [{d.low:.2f}, {d.high:.2f}], Mann-Whitney over prompts "
            f"p = {gap.p_prompts:.2g}."
        )
    if study.fano is not None:
        notes.append(f"Fano's bound: {len(study.fano.violations)} of {study.fano.num_rows} rows violate it.")
    lines = {task: [(round(b.mean_nats, 3), b.mean_a.value) for b in fit.bins] for task, fit in study.fits.items()}
    title = "Accepted length by entropy"
    text = "Deciles of entropy at the root; each point is the mean accepted length, bonus excluded, of its rounds."
    charts = [Chart(title, text, curves(lines, title=title, x_label="H (nats)", y_label="a"))]
    bars = [Bar(t, f.law.b1.value, f.law.b1.low, f.law.b1.high) for t, f in study.fits.items() if not f.law.degenerate]
    if bars:
        text = "b1 of logit p = b0 - b1·H; right of the rule, entropy shortens what is accepted."
        charts.append(Chart("Slopes", text, forest(bars, title="Slopes", percent=False)))
    opening = (
        "logit p = b0 - b1·H, and E[a | H] is the mean of a run of such matches, truncated at the block (Eq. 2). "
        "Intervals resample prompts. The ceiling is what any function of entropy can explain of single rounds (Prop. "
        "2), so R² of rounds is to be read against it, as the share reached, and R² of the curve against one. The law "
        "holds where b1 and the rank correlation exclude zero, the fit is not degenerate, and the curve or the "
        "ceiling is met by half."
    )
    return Section("The entropy law", columns, rows, [opening, *notes], charts)


def calibration_section(found: Calibration, given: Calibration | None) -> Section:
    """Asm. 1: what scores promise against what matched, before and after a rescorer."""
    arms = {"marginal": found} if given is None else {"marginal": found, "conditioned": given}
    columns = {"scores": "scores", "offset": "offset", "rounds": "rounds", "said": "q of the top token"}
    columns |= {
        "seen": "matched",
        "alive": "matched, all before too",
        "said_prefix": "score of the chain so far",
        "seen_prefix": "all of it matched",
    }
    rows = []
    for name, own in arms.items():
        for at in own.offsets:
            values = {"said": at.said, "seen": at.seen, "alive": at.seen_alive}
            values |= {"said_prefix": at.said_prefix, "seen_prefix": at.seen_prefix}
            rows.append({"scores": name, "offset": at.offset, "rounds": at.num_rounds, **measured(values)})
    lines = {name: [(round(b.said, 3), b.seen) for b in own.bins] for name, own in arms.items()}
    lines["honest"] = [(0.0, 0.0), (1.0, 1.0)]
    title = "What a score is worth"
    text = "Prefixes of the top-1 chain in ten bins of their score, against how often all of a prefix matched."
    charts = [Chart(title, text, curves(lines, title=title, x_label="plug-in score", y_label="matched"))]
    notes = [f"{name}: scores are off by {own.error:.3f} on average." for name, own in arms.items()]
    opening = (
        "The score of a prefix is a product of what each offset says: on its own (marginal), or given the tokens "
        "before it (conditioned). A product of marginals is right where offsets are independent (Asm. 1), too low "
        "where matches come together, and too high where tokens that are likely alone do not go together."
    )
    return Section("What scores promise", columns, rows, [opening, *notes], charts)


def tail_section(tails: Mapping[str, Tail], left_out: Mapping[str, str]) -> Section:
    """Prop. 3 and Thm. 2: the floor against its cap, and one hazard against two states."""
    columns = {"task": "task", "rounds": "rounds", "prompts": "prompts", "a": "floor a", "low": "low", "high": "high"}
    columns |= {
        "cap": "M(σ(b0))",
        "loose": "e^b0",
        "chi_one": "χ² one",
        "p_one": "p",
        "chi_two": "χ² two",
        "p_two": "p",
    }
    columns |= {"ratio": "2Δℓ", "p_chi2": "p, χ²₄", "p_boot": "p, bootstrap", "pi": "π", "pi_star": "π*"}
    rows, notes = [], []
    for task, tail in tails.items():
        mean, one, two, ratio = tail.floor_mean, tail.chi_single, tail.chi_two_state, tail.ratio
        values = {"a": mean.value, "low": mean.low, "high": mean.high, "cap": tail.cap, "loose": tail.loose_cap}
        values |= {"chi_one": one.statistic, "chi_two": two.statistic, "ratio": ratio.statistic}
        values |= {"pi": tail.fit.model.pi, "pi_star": tail.pi_star}
        chances = {"p_one": one.p, "p_two": two.p, "p_chi2": ratio.p_chi2, "p_boot": ratio.p_bootstrap}
        names = {"task": task, "rounds": tail.num_rounds, "prompts": tail.num_prompts}
        rows.append({**names, **measured(values), **{n: f"{p:.2g}" for n, p in chances.items() if p == p}})
        says = "lies above" if tail.exceeds_cap else "does not lie above"
        share = {True: "exceeds π*", False: "stays under π*", None: "cannot be told from run lengths"}
        note = f"{task}: the floor's interval {says} e^b0"
        if ratio.p_bootstrap < 0.05:  # where one hazard does as well, no share copies
            note += f"; the share π that copies {share[tail.above_threshold]}"
        if tail.held_out is not None:
            held = tail.held_out
            note += (
                f"; two states fit unseen prompts better in {held.wins} of {len(held.splits)} splits, mean χ² "
                f"{held.mean_two_state:.1f} against {held.mean_single:.1f}"
            )
        notes.append(f"{note}.")
    notes += [f"{task}: left out, {reason}." for task, reason in left_out.items()]
    opening = (
        "Rounds of the lowest entropy decile. One hazard caps their mean at e^b0 (Thm. 2); a share of verbatim copies "
        "can lift it: where the share π of rounds that enter so exceeds π*, the mean lies above. The likelihood ratio "
        "has the paper's χ²₄ figure, which does not apply because under one hazard the second state's parameters do "
        "not exist, and a parametric bootstrap, which does. Both take rounds as independent. Either way the finding "
        "is relative: which of the two models is nearer, not that one is exact."
    )
    return Section("The tail of the floor", columns, rows, [opening, *notes], [])


def width_section(widths: Mapping[str, WidthStudy]) -> Section:
    """Fig. 5: policies at equal budget, replayed."""
    policies = dict.fromkeys(point.policy for study in widths.values() for point in study.points)
    columns = {"task": "task", "budget": "nodes a round", **{name: name.replace("_", " ") for name in policies}}
    rows, charts = [], []
    for task, study in widths.items():
        lines: dict[str, list[tuple[float, float]]] = {}
        for point in study.points:
            lines.setdefault(point.policy, []).append((float(point.budget), point.mean_a))
        for budget in dict.fromkeys(point.budget for point in study.points):
            own = {point.policy: point.mean_a for point in study.points if point.budget == budget}
            rows.append({"task": task, "budget": budget, **measured(own)})
        title = f"Width policies, {task}"
        text = f"{study.num_rounds} rounds of {study.num_prompts} prompts, every policy at the same mean budget."
        charts.append(Chart(title, text, curves(lines, title=title, x_label="nodes a round", y_label="a")))
    opening = (
        "Mean accepted length of each policy. Trees of other widths are replayed on the marginals that the log kept: "
        "nothing is decoded again. The oracle knows what each node is worth and bounds every policy."
    )
    return Section("Width by entropy", columns, rows, [opening], charts)


def gain_section(widths: Mapping[str, WidthStudy]) -> Section:
    """Prop. 5 and 6: what moving width by entropy could bring, and what it costs to know entropy alone."""
    columns = {"task": "task", "b1": "b1", "bimodality": "bimodality", "extremes": "V near 0", "headroom": "headroom"}
    columns |= {"peak": "H of peak V", "regret": "regret", "bound": "bound", "mean_bound": "2K·E|V* - V̂|"}
    columns |= {"floor": "E[Var(V* | H)]"}
    rows = []
    for task, study in widths.items():
        room, cost, at = study.headroom, study.regret, study.peak.h_nats
        values = {"b1": study.law.b1.value, "bimodality": room.bimodality, "extremes": room.at_extremes}
        values |= {"headroom": room.relative, "peak": float("nan") if at is None else at, "regret": cost.regret}
        values |= {"bound": cost.bound, "mean_bound": cost.mean_bound, "floor": cost.floor}
        rows.append({"task": task, **measured(values)})
    top = next(iter(widths.values())).peak.p
    opening = (
        f"V(H) = p(1 - p^L) is what a wider tree is worth under the law; it peaks at p = {top:.3f}, at the entropy "
        "given, or at none (a dash), and then only falls. The headroom is mean V of the better half of the rounds "
        "over that of all, less one (Prop. 5); beside it Sarle's bimodality of the entropies (5/9 for a uniform, 1 "
        "for two points) and the share of rounds whose V is under a tenth of the peak. The regret is what giving "
        "width to half of the rounds by V(H) loses against knowing what it was worth, in tokens over the log, with "
        "its bound, the paper's written bound, which is none, and the variance that no rule of entropy alone removes "
        "(Prop. 6)."
    )
    return Section("What choosing width by entropy could bring", columns, rows, [opening], [])


def saliency_section(log: RoundLog, seed: int = 0) -> Section:
    """Table 13: entropy against attention on the image."""
    columns = {"task": "task", "rounds": "rounds", "prompts": "prompts", "v": "mean v", "a_h": "r(a, H)"}
    columns |= {"a_v": "r(a, v)", "partial": "r(a, v | H)", "low": "low", "high": "high", "gap": "gap in deciles"}
    rows, charts = [], []
    for task, effect in study_saliency(log, seed=seed).items():
        lines = {
            half: [
                (round(gap.mean_nats, 3), getattr(gap, half))
                for gap in effect.gaps
                if getattr(gap, half) == getattr(gap, half)
            ]
            for half in ("high", "low")
        }
        title = f"Accepted length by saliency, {task}"
        text = (
            "The more and the less salient half of each entropy decile; curves on one another say that v adds nothing."
        )
        charts.append(Chart(title, text, curves(lines, title=title, x_label="H (nats)", y_label="a")))
        found = effect.correlations
        values = {"v": effect.mean_saliency, "a_h": found.a_h.value, "a_v": found.a_v.value, "gap": effect.mean_gap}
        names = {"task": task, "rounds": effect.num_rounds, "prompts": effect.num_prompts}
        rows.append({**names, **measured({**values, **of_interval("partial", found.partial)})})
    opening = (
        "v is the share of the root row's attention on image rows, over heads and kept layers. Its correlation with "
        "accepted length is given with entropy taken out, and as the ratio of mean accepted length, high over low v, "
        "within entropy deciles: 1 where v says nothing that entropy does not."
    )
    return Section("Image saliency", columns, rows, [opening], charts)
