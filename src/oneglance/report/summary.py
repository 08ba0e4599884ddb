"""Results as a page of docs shows them: a table a question, systems side by side, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from oneglance.bench.metrics import geomean
from oneglance.report.matched import by_size, is_matched, largest, matched_sections
from oneglance.report.results import COSTS, PASSES, Rows, is_cost, regression, split
from oneglance.report.tables import cell, document, markdown, with_bounds

MAX_SYSTEMS = 4  # side by side in one table
FACTS: dict[str, str] = {
    "system": "system",
    "passes": "draft passes a round",
    "nodes": "nodes verified",
    "num_parameters": "parameters, embeddings left out",
    "weights": "weights",
    "identical": "identical",
    "is_lossless": "lossless as measured",
}


def place_of(result: Mapping[str, Any]) -> str:
    """The name of the markers between which a result goes: bench, sweep-budget, cost, …"""
    if is_matched(result):
        return "matched"
    return "cost" if is_cost(result) else f"sweep-{result['axis']}" if "axis" in result else "bench"


def summary(result: Mapping[str, Any]) -> str:
    """Markdown between two markers."""
    parts = [provenance(result["manifest"]), *WRITERS[place_of(result).partition("-")[0]](result)]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def provenance(manifest: Mapping[str, Any]) -> str:
    """Which command wrote the numbers, on which machine, of which code."""
    versions = manifest["versions"]
    device = manifest["gpu"] if str(manifest.get("device", "cpu")) != "cpu" else manifest["cpu"]
    facts = (
        f"{device}, {manifest['threads']} threads, {manifest.get('dtype', 'float32')}",
        f"torch {versions['torch']}, transformers {versions['transformers']}",
        f"commit {manifest['git_sha']}, {manifest['time'][:10]}",
    )
    return f"`{manifest['command']}`: {'; '.join(facts)}."


def _bench(result: Mapping[str, Any]) -> list[str]:
    own, more, outside = split(result["rows"])
    parts = [_identity([*own, *more], outside), *_side_by_side(own)]
    if result.get("margins"):
        ours = result["margins"][0]["ours"]
        parts += [f"Times of the others over those of `{ours}`, above 1 where ours is faster:", _margins(result)]
    if more:
        given = ", ".join(dict.fromkeys(row["extra_input"] for row in more))
        parts += [f"With extra input ({given}), so in a block of its own:", *_side_by_side([*_plain(own), *more])]
    if outside:
        ours = {"plain", *(m["ours"] for m in result.get("margins") or [])}
        beside = [row for row in own if row["system"] in ours]
        parts += ["End to end, prefill included, where nothing is divided:", _end_to_end([*beside, *outside])]
        parts += _failures(outside)
    return [*parts, "What drafted:", markdown(facts([row for row in (*own, *more) if row["system"] != "plain"]), FACTS)]


def _identity(own: Rows, outside: Rows) -> str:
    """How many outputs were those of the independent plain loop."""
    said = [f"{_share(own)} outputs of our loop"]
    said += [f"{_share(rows)} of {name}" for name, rows in _by(outside, "system").items()]
    tasks = ", ".join(f"{task} {rows[0]['n']}" for task, rows in _by(own, "task").items())
    return f"Prompts: {tasks}. Identical to the independent plain loop: {', '.join(said)}."


def _side_by_side(rows: Rows) -> list[str]:
    """τ and speedup of every drafting system, a few a table."""
    tasks = _by(rows, "task")
    names = [name for name in _by(rows, "system") if name != "plain"]
    return [_few_systems(tasks, names[at : at + MAX_SYSTEMS]) for at in range(0, len(names), MAX_SYSTEMS)]


def short(names: Iterable[str]) -> dict[str, str]:
    """Names without their weights, where that leaves them different."""
    bare = {name: name.partition("@")[0] for name in names}
    return {name: own if list(bare.values()).count(own) == 1 else name for name, own in bare.items()}


def _few_systems(tasks: Mapping[str, Rows], names: Sequence[str]) -> str:
    columns = {"task": "task", "tokens": "tokens"}
    for name, label in short(names).items():
        columns |= {f"{name} tau": f"{label} τ", f"{name} speedup": "speedup [95 %]"}
    lines: Rows = []
    for task, rows in tasks.items():
        line: dict[str, Any] = {"task": task, "tokens": f"{rows[0]['tokens']:.0f}"}
        for row in rows:
            line |= {f"{row['system']} tau": cell(row["tau"], "tau"), f"{row['system']} speedup": speedup(row)}
        lines.append(line)
    if len(tasks) > 1:
        mean: dict[str, Any] = {"task": "geometric mean", "tokens": ""}
        for name in names:
            gains = [row["speedup"] for rows in tasks.values() for row in rows if row["system"] == name]
            known = [gain for gain in gains if gain is not None]
            mean |= {f"{name} tau": "", f"{name} speedup": f"{geomean(known):.2f}" if known else "—"}
        lines.append(mean)
    return markdown(lines, columns)


def _margins(result: Mapping[str, Any]) -> str:
    labels = short(dict.fromkeys(m["other"] for m in result["margins"]))
    columns = {"task": "task", **{name: f"over {label}" for name, label in labels.items()}}
    lines = []
    for task, found in _by(result["margins"], "task").items():
        ratios = {m["other"]: with_bounds(*(None if m[k] is None else 1 + m[k] for k in BOUNDS)) for m in found}
        lines.append({"task": task, **ratios})
    return markdown(lines, columns)


BOUNDS = ("over_ours", "low", "high")


def _end_to_end(rows: Rows) -> str:
    columns = {"task": "task", **{name: f"{label}, ms" for name, label in short(_by(rows, "system")).items()}}
    lines = []
    for task, own in _by(rows, "task").items():
        times = {r["system"]: None if r["end_to_end_ms"] is None else f"{r['end_to_end_ms']:.0f}" for r in own}
        lines.append({"task": task, **times})
    return markdown(lines, columns)


def _failures(outside: Rows) -> list[str]:
    return [
        f"{row['system']} failed on {row['failures']} of {row['n'] * row['replicates']} prompts of {row['task']}: "
        f"{row['failure']}."
        for row in outside
        if row["failures"]
    ]


def facts(rows: Rows) -> Rows:
    """What each system is, its counts averaged over tasks: the columns of ``FACTS``."""
    lines = []
    for name, own in _by(rows, "system").items():
        counts = {key: _mean(row[key] for row in own) for key in ("passes", "nodes")}
        rest = {key: own[0][key] for key in ("num_parameters", "weights")}
        is_lossless = all(row["is_lossless"] for row in own)
        lines.append({"system": name, **counts, **rest, "identical": _share(own), "is_lossless": is_lossless})
    return lines


def _sweep(result: Mapping[str, Any]) -> list[str]:
    """A row a task, system and quantity; a column a value."""
    rows = result["rows"]
    values = list(dict.fromkeys(row["value"] for row in rows if row["value"] is not None))
    columns = {"task": "task", "system": "system", "what": f"by {result['axis']}"}
    columns |= {cell(value, "value"): cell(value, "value") for value in values}
    lines: Rows = []
    for task, own in _by(rows, "task").items():
        for system, points in _by(own, "system").items():
            for what, show in QUANTITIES.items():
                line = {cell(p["value"], "value"): show(p) for p in points if p["value"] is not None}
                if any(line.values()):
                    lines.append({"task": task, "system": system, "what": what, **line})
    shared = [row for row in rows if row["value"] is None]
    notes = [f"{row['task']}: the plain arm that all share takes {row['ms_per_token']:.2f} ms/token." for row in shared]
    unit = f"Values are {result['unit']}." if result.get("unit") else ""
    return [_identity(rows, []), unit, markdown(lines, columns), " ".join(notes)]


def _tokens(row: Mapping[str, Any]) -> str | None:
    return f"{row['context']:.0f}" if row["system"] == "plain" else None


def _plain_ms(row: Mapping[str, Any]) -> str | None:
    return f"{row['ms_per_token']:.2f}" if row["system"] == "plain" else None


def _tau(row: Mapping[str, Any]) -> str | None:
    return None if row["tau"] is None else f"{row['tau']:.2f}"


def _speedup(row: Mapping[str, Any]) -> str | None:
    return None if row["speedup"] is None else speedup(row)


QUANTITIES: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
    "prompt tokens": _tokens,
    "ms/token": _plain_ms,
    "τ": _tau,
    "speedup [95 %]": _speedup,
}


def _cost(result: Mapping[str, Any]) -> list[str]:
    opening = f"Milliseconds a round; a plain step takes {result['t_plain_ms']:.2f} ms, host included."
    alone = "One packed pass alone, 0 nodes being the pass of a plain step:"
    return [opening, markdown(result["systems"], COSTS), regression(result), alone, markdown(result["verify"], PASSES)]


def _matched(result: Mapping[str, Any]) -> list[str]:
    columns, rows = by_size(result)
    return [document([largest(own) for own in matched_sections(result)], level=4), markdown(rows, columns)]


WRITERS: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "bench": _bench,
    "sweep": _sweep,
    "cost": _cost,
    "matched": _matched,
}


def speedup(row: Mapping[str, Any]) -> str:
    """A row's speedup with its interval."""
    return with_bounds(row["speedup"], row["ci_low"], row["ci_high"])


def _plain(rows: Rows) -> Rows:
    return [row for row in rows if row["system"] == "plain"]


def _by(rows: Iterable[dict[str, Any]], name: str) -> dict[str, Rows]:
    """Rows by one of their fields, in order of appearance."""
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row[name], []).append(row)
    return found


def _share(rows: Rows) -> str:
    return f"{sum(row['identical'] for row in rows)} of {sum(row['n'] * row['replicates'] for row in rows)}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
