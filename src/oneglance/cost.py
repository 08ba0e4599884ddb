"""What a round costs on one machine, and what it is worth (§4.2, B.5). Pure: timings come from ``drafters.timing``.

A packed pass over n nodes has M = n + 1 rows. What it costs at the measured widths is what was measured; between them
it is interpolated, or, where passes are padded, the next width's. Beside that stands a fit by a line that only rises
and only bends upwards (the class in which CaDDTree's stop is exact). The single row is kept as measured in both,
because kernels treat it apart. Between measured contexts costs are interpolated, beyond the last one extrapolated.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from scipy.optimize import isotonic_regression, nnls

from oneglance.core import InputError
from oneglance.files import parse_json

SCHEMA_VERSION = 2
MAX_NODES = 127  # of a tree whose width is chosen: further nodes have paid on no curve that was measured
BASE_NODES = 16  # of the tree that counts as part of the draft pass
MAX_SIZE = 2**31  # of a context or a pass
MAX_POINTS = 1024  # more would take longer to fit than to measure
MOST_LEARNED = 1e12  # of a kept sum; they fade, and stay far below
LEAST_MS, MOST_MS = 1e-6, 1e9  # what a pass can take: a nanosecond to eleven days
FOLDER = "ONEGLANCE_CACHE"

Objective = Callable[[float, float], float]
"""(expected tokens of a round, its milliseconds) → what it is worth."""


def throughput(tokens: float, ms: float) -> float:
    """θ, tokens a millisecond of this round alone: CaDDTree's rule."""
    return tokens / ms


@dataclass(frozen=True, slots=True)
class Exchange:
    """Tokens less what their time would have brought elsewhere, at ``rate`` tokens a millisecond (Prop. 4).

    A node then pays if its mass is at least rate · ΔC. Over many rounds this is the optimum, where ``rate`` is what
    those rounds reach (a ratio of sums); maximising each round's own ratio is not.
    """

    rate: float

    def __call__(self, tokens: float, ms: float) -> float:
        return tokens - self.rate * ms


class Point(BaseModel):
    """The time of a packed pass.

    Attributes:
        context: committed rows.
        rows: M, the root included.
        ms: milliseconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    context: int = Field(ge=0, le=MAX_SIZE)
    rows: int = Field(ge=1, le=MAX_SIZE)
    ms: float = Field(ge=LEAST_MS, le=MOST_MS)


class Costs(BaseModel):
    """Measured costs of a target and its drafter.

    Attributes:
        provenance: what they depend on: machine, versions, dtype, threads, …
        draft_ms: one draft pass with its tree, of ``BASE_NODES`` and as many candidates an offset.
        node_ms: what each further node and candidate adds to it: more to rank, to rescore and to build.
        ingest_ms: a row of context that the drafter has not seen yet.
        verify: packed passes; the single row and at least two more numbers of rows in every context.
        is_padded: passes have one of the measured numbers of rows and no other.

    Raises:
        ValueError: too few points to fit, or no width that was measured in every context.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    schema_version: int = SCHEMA_VERSION
    provenance: dict[str, str | int | None] = Field(default_factory=dict)
    draft_ms: float = Field(ge=0, le=MOST_MS, strict=True)
    node_ms: float = Field(default=0.0, ge=0, le=MOST_MS, strict=True)
    ingest_ms: float = Field(ge=0, le=MOST_MS, strict=True)
    verify: tuple[Point, ...] = Field(max_length=MAX_POINTS)
    is_padded: bool = False

    def model_post_init(self, context: Any, /) -> None:
        if not self._lines:
            raise ValueError("no packed pass was measured")
        if not self.ends:
            raise ValueError(f"no width of 1 to {MAX_NODES} nodes was measured in every context")

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Numbers of nodes that were measured in every context; the single step left out."""
        by_context = [{p.rows - 1 for p in self.verify if p.context == size} for size in self._lines]
        return tuple(sorted(n for n in set.intersection(*by_context) if 1 <= n <= MAX_NODES))

    @cached_property
    def _lines(self) -> dict[int, list[list[float]]]:
        """Context → (2, MAX_NODES + 1) milliseconds at n nodes, as measured and as fitted, in order of context."""
        lines = {}
        for size in sorted({point.context for point in self.verify}):
            own = sorted((p.rows, p.ms) for p in self.verify if p.context == size)
            wide = [(rows, ms) for rows, ms in own if rows > 1]
            if own[0][0] != 1 or len(wide) < 2:
                raise ValueError(f"context {size}: one row and two larger passes must be measured, got {own}")
            at = np.arange(2, MAX_NODES + 2)
            rows, ms = (np.array(values, float) for values in zip(*wide, strict=True))
            both = [as_measured(rows, ms, at=at, is_padded=self.is_padded), fit_convex(rows, ms, at=at)]
            lines[size] = np.column_stack([[own[0][1]] * 2, both]).tolist()
        return lines

    @cached_property
    def _ms_per_row(self) -> float:
        """What a further row of context adds, by the two longest contexts."""
        (short, first), (long, last) = (*self._lines.items(), *self._lines.items())[-2:]
        return max(0.0, float(np.mean(last) - np.mean(first)) / (long - short)) if long > short else 0.0

    def at(self, context: int) -> RoundCost:
        """The costs at that many committed rows."""
        sizes, tables = list(self._lines), np.array(list(self._lines.values()))
        above = int(np.searchsorted(sizes, context))
        if above == 0:
            ms = tables[0]
        elif above < len(sizes):
            share = (context - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
            ms = (1 - share) * tables[above - 1] + share * tables[above]
        else:  # one shift for all widths keeps the line convex
            ms = tables[-1] + self._ms_per_row * (context - sizes[-1])
        measured, fitted = ms.tolist()
        drafts = [self.draft_ms + self.node_ms * max(0, n - BASE_NODES) for n in range(MAX_NODES + 1)]
        return RoundCost(drafts, self.ingest_ms, measured, fitted, self.ends)


@dataclass(frozen=True, slots=True)
class RoundCost:
    """The costs of one round.

    Attributes:
        draft_ms: (MAX_NODES + 1,) a draft pass and its tree, by number of nodes.
        ingest_ms: a row that a draft must take in first.
        verify_ms: (MAX_NODES + 1,) a packed pass by number of nodes, as measured.
        fitted_ms: the same by the convex fit.
        ends: numbers of nodes at which ``verify_ms`` was measured, increasing.
    """

    draft_ms: list[float]
    ingest_ms: float
    verify_ms: list[float]
    fitted_ms: list[float]
    ends: tuple[int, ...]

    @property
    def plain_ms(self) -> float:
        """A single step."""
        return self.verify_ms[0]

    def drafted_ms(self, num_nodes: float) -> float:
        """A drafted round of that many nodes, a fraction between two numbers; nothing to take in."""
        low = min(int(num_nodes), MAX_NODES)
        high = min(low + 1, MAX_NODES)
        share = num_nodes - int(num_nodes)
        drafts, passes = self.draft_ms, self.verify_ms
        return (1 - share) * (drafts[low] + passes[low]) + share * (drafts[high] + passes[high])

    def value(self, objective: Objective, *, is_fitted: bool = False) -> Callable[[int, float], float]:
        """(n, tokens) → what a drafted round is worth; its draft is spent by then, and counts for every n alike."""
        verify_ms = self.fitted_ms if is_fitted else self.verify_ms
        return lambda n, tokens: objective(tokens, self.draft_ms[n] + verify_ms[n])


def as_measured(rows: np.ndarray, ms: np.ndarray, *, at: np.ndarray, is_padded: bool) -> np.ndarray:
    """Milliseconds at any number of rows, from (P,) points in order of rows: more rows never cost less.

    Between points the line is straight, or with ``is_padded`` the next point's; beyond the last one it goes on as the
    convex fit does.
    """
    rising = isotonic_regression(ms).x
    beyond = np.maximum(fit_convex(rows, ms, at=at) - fit_convex(rows, ms, at=rows[-1:]), 0.0)
    inside = rising[np.minimum(np.searchsorted(rows, at), len(rows) - 1)] if is_padded else np.interp(at, rows, rising)
    return np.asarray(inside + beyond)


def fit_convex(rows: Sequence[float] | np.ndarray, ms: Sequence[float] | np.ndarray, *, at: Any) -> np.ndarray:
    """Least squares of relative errors among non-negative, non-decreasing, convex lines with knots at the points.

    Args:
        rows, ms: (P,) points in order of rows, two at least.
        at: where the line is evaluated; beyond the points its ends go on straight.
    """
    x, y, where = (np.asarray(values, float) for values in (rows, ms, at))

    def columns(points: np.ndarray) -> np.ndarray:
        hinges = np.maximum(points[:, None] - x[None, 1:-1], 0.0)
        return np.column_stack([np.ones_like(points), points, hinges])

    weights, _ = nnls(columns(x) / y[:, None], np.ones_like(y))
    return np.asarray(columns(where) @ weights)


# The file --------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where measured costs are kept: $ONEGLANCE_CACHE, else the user's cache folder."""
    if os.environ.get(FOLDER):
        return Path(os.environ[FOLDER])
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "oneglance"


def cache_file(provenance: Mapping[str, str | int | None]) -> Path:
    """The file of costs that depend on this; another machine, dtype, … has another one."""
    key = json.dumps(dict(provenance), sort_keys=True)
    return cache_folder() / "costs" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def read_costs(path: Path, provenance: Mapping[str, str | int | None]) -> tuple[Costs, dict[str, Any]] | None:
    """Costs and what else was learned, or None where nothing of this provenance is kept.

    Raises:
        InputError: a file is there and cannot be used.
    """
    if not os.path.isfile(path):
        return None
    costs, learned = load_costs(path)
    return (costs, learned) if costs.provenance == dict(provenance) else None


def load_costs(path: Path) -> tuple[Costs, dict[str, Any]]:
    """Costs of whatever machine, and what else was learned.

    Raises:
        InputError: the file cannot be read, or holds no costs of this schema.
    """
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        learned = content.pop("learned", {})
        costs = Costs(**content)
        if costs.schema_version != SCHEMA_VERSION:
            raise ValueError(f"schema {costs.schema_version}")
        check_learned(learned)
        return costs, dict(learned)
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise InputError(f"{path} holds no measured costs that can be used; --budget auto writes such files") from error


def check_learned(value: object) -> None:
    """Refuse numbers that no rounds can teach, at whatever depth of lists and objects.

    Raises:
        ValueError: one is not finite, or absurdly large.
    """
    if isinstance(value, float | int) and not abs(value) <= MOST_LEARNED:
        raise ValueError(f"{value} was never learned")
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        check_learned(part)


def write_costs(path: Path, costs: Costs, learned: Mapping[str, Any]) -> None:
    """Write the file whole or not at all; of two processes the last one wins.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**costs.model_dump(), "learned": dict(learned)}, indent=1) + "\n"
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".partial")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def cpu_name() -> str:
    """The processor, as the system calls it."""
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
