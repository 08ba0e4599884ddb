"""The round log: one JSON line a round, read into columns.

A line holds the fields of ``RoundRow``. Lists over offsets have L entries, null where the text ends before that
offset. ``horizon`` is what makes a run's end readable: the longest accepted length that this round could have had,
that is the smallest of L, the depth that the cap left to the tree, and the tokens of the final text after the root. A
round with ``a == horizon`` is right-censored (by the block, the end of the text or the cap); any other ended at a miss,
also where the bonus token happened to end the text. A round of horizon 0 had room for its bonus alone and says nothing
about drafting; ``RoundLog.drafted`` leaves it out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from oneglance.core import InputError
from oneglance.files import parse_object
from oneglance.stats.bootstrap import Array
from oneglance.stats.geometric import Ints, L, Runs

SCHEMA_VERSION = 1
Cut = Literal["none", "eos", "stop", "cap", "context"]
CUTS = ("none", "eos", "stop", "cap", "context")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """One round.

    Attributes:
        run, task, prompt: where it belongs.
        round: 0-based index within the prompt.
        position: of the root in the sequence.
        h_nats, p_max, top2_gap: entropy, top probability and top-2 logit gap of row 0, p(· | x∘b).
        a: accepted tokens that were kept, bonus excluded; a1: leading top-1 matches, both at most ``horizon``.
        horizon: the longest ``a`` that this round could have had.
        cut: why tokens were dropped or the text ends here.
        budget, nodes: what the tree was allowed and what it had.
        ranks, log_q: (L,) rank (0 is the top) and log q of the target's own token at each offset; empty where the
            drafter has no marginals.
        ranks_given, log_q_given, top_log_q_given: (L,) where a rescorer ran, else empty: rank and log q of the target's
            own token, and log q of the best candidate, given the target's own tokens before; null where one of those,
            or the token itself, is no candidate.
        chain_log_q: (L,) likewise, log q of each token of the drafter's top-1 chain given those of the chain.
        path_log_q: plug-in log score of the accepted path.
        gated: the tie-aware gate replaced a token.
        saliency: attention mass of the root row on the image; None where it was not measured.
        t_draft_ms, t_verify_ms, t_host_ms: wall time.
        schema_version: of this format.
    """

    run: str
    task: str
    prompt: str
    round: int
    position: int
    h_nats: float
    p_max: float
    top2_gap: float
    a: int
    a1: int
    horizon: int
    cut: Cut
    budget: int
    nodes: int
    ranks: tuple[int | None, ...] = ()
    log_q: tuple[float | None, ...] = ()
    ranks_given: tuple[int | None, ...] = ()
    log_q_given: tuple[float | None, ...] = ()
    top_log_q_given: tuple[float | None, ...] = ()
    chain_log_q: tuple[float | None, ...] = ()
    path_log_q: float | None = None
    gated: bool = False
    saliency: float | None = None
    t_draft_ms: float = 0.0
    t_verify_ms: float = 0.0
    t_host_ms: float = 0.0
    schema_version: int = SCHEMA_VERSION

    def as_json(self) -> str:
        """The row as one line of the log, without its newline."""
        return json.dumps(asdict(self), allow_nan=False)


@dataclass(frozen=True, slots=True)
class RoundLog:
    """Rounds as columns.

    Attributes:
        rows: the rounds, in the log's order.
    """

    rows: tuple[RoundRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def floats(self, name: str) -> Array:
        """(R,) a number of each round; nan for None."""
        return np.array([math.nan if value is None else value for value in self._column(name)], float)

    def ints(self, name: str) -> Ints:
        """(R,) a whole number of each round."""
        return np.array(self._column(name), np.int64)

    def names(self, name: str) -> NDArray[np.str_]:
        """(R,) ``run``, ``task``, ``prompt`` or ``cut``."""
        return np.array(self._column(name), np.str_)

    @property
    def budget(self) -> int:
        """N of the trees, the largest where logs of several are joined."""
        return max(row.budget for row in self.rows)

    @property
    def h_nats(self) -> Array:
        return self.floats("h_nats")

    @property
    def runs(self) -> Runs:
        """Accepted lengths of the tree, with their horizons."""
        return Runs(self.ints("a"), self.ints("horizon"))

    @property
    def prompts(self) -> NDArray[np.str_]:
        """(R,) names that keep equal prompt ids of different tasks apart."""
        return np.array([f"{row.task}/{row.prompt}" for row in self.rows], np.str_)

    @property
    def ranks(self) -> Ints:
        """(R, L) rank of the target's token, -1 where there is none."""
        return self.table("ranks", -1).astype(np.int64)

    @property
    def log_q(self) -> Array:
        """(R, L) log q of the target's token, nan where there is none."""
        return self.table("log_q")

    def table(self, name: str, empty: float = math.nan) -> Array:
        """(R, L) a list over offsets of each round, ``empty`` where there is none."""
        return np.array([_padded(values, empty) for values in self._column(name)], float).reshape(len(self), L)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Task names in order of appearance."""
        return tuple(dict.fromkeys(row.task for row in self.rows))

    @property
    def drafted(self) -> RoundLog:
        """The rounds that could have accepted something."""
        return RoundLog(tuple(row for row in self.rows if row.horizon > 0))

    def of(self, task: str) -> RoundLog:
        """The rounds of one task."""
        return RoundLog(tuple(row for row in self.rows if row.task == task))

    def _column(self, name: str) -> list[Any]:
        return [getattr(row, name) for row in self.rows]


def read_rounds(path: Path | str) -> RoundLog:
    """Read a JSONL round log.

    Raises:
        InputError: naming the file, the line and the field at fault.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the round log {path}: {error}") from error
    rows = [row_of(line, f"{path}, line {n}") for n, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not rows:
        raise InputError(f"the round log {path} is empty; write it with 'oneglance rounds'")
    return RoundLog(tuple(rows))


def write_rounds(path: Path | str, rows: Iterable[RoundRow]) -> None:
    """Write a JSONL round log."""
    Path(path).write_text("".join(f"{row.as_json()}\n" for row in rows), encoding="utf-8")


def row_of(line: str, where: str = "line 1") -> RoundRow:
    """One checked row of a log.

    Raises:
        InputError: naming ``where`` and the field at fault.
    """
    try:
        data = parse_object(line)
    except ValueError as error:
        raise InputError(f"{where}: not a JSON object ({error})") from error
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(f"{where}: schema_version is {version!r}; this version reads {SCHEMA_VERSION}")
    missing = [f.name for f in fields(RoundRow) if f.default is MISSING and f.name not in data]
    if missing:
        raise InputError(f"{where}: field {missing[0]} is missing")
    unknown = data.keys() - CHECKS.keys()
    if unknown:
        raise InputError(f"{where}: field {min(unknown)} is unknown")
    for name, value in data.items():
        wanted, is_right = CHECKS[name]
        if not is_right(value):
            raise InputError(f"{where}: field {name} is {value!r}; need {wanted}")
    columns: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in data.items()}
    row = RoundRow(**columns)
    _check_together(row, where)
    return row


def _check_together(row: RoundRow, where: str) -> None:
    for name in ("a", "a1"):
        if getattr(row, name) > row.horizon:
            raise InputError(f"{where}: field {name} is {getattr(row, name)}, beyond the horizon {row.horizon}")
    if row.nodes > row.budget:
        raise InputError(f"{where}: field nodes is {row.nodes}, beyond the budget {row.budget}")
    if row.a > row.nodes:
        raise InputError(f"{where}: field a is {row.a}, but the tree has only {row.nodes} nodes")


def _is_int(value: object, low: int = 0, high: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: object, low: float = -math.inf, high: float = math.inf) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and low <= value <= high  # type: ignore[arg-type, operator]


def _is_list(value: object, is_right: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and len(value) in (0, L) and all(v is None or is_right(v) for v in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("run", "task", "prompt"), ("a name", _is_text)),
    **dict.fromkeys(("round", "position", "budget", "nodes"), ("a whole number ≥ 0", _is_int)),
    **dict.fromkeys(("a", "a1", "horizon"), (f"a whole number in 0..{L}", lambda v: _is_int(v, 0, L))),
    **dict.fromkeys(("h_nats", "top2_gap"), ("a finite number ≥ 0", lambda v: _is_number(v, 0))),
    **dict.fromkeys(("t_draft_ms", "t_verify_ms", "t_host_ms"), ("a finite number ≥ 0", lambda v: _is_number(v, 0))),
    "p_max": ("a probability", lambda v: _is_number(v, 0, 1)),
    "cut": (f"one of {', '.join(CUTS)}", lambda v: v in CUTS),
    **dict.fromkeys(
        ("ranks", "ranks_given"), (f"an empty list or {L} whole numbers or nulls", lambda v: _is_list(v, _is_int))
    ),
    **dict.fromkeys(
        ("log_q", "log_q_given", "top_log_q_given", "chain_log_q"),
        (f"an empty list or {L} numbers ≤ 0 or nulls", lambda v: _is_list(v, lambda q: _is_number(q, high=0))),
    ),
    "path_log_q": ("a number ≤ 0 or null", lambda v: v is None or _is_number(v, high=0)),
    "gated": ("true or false", lambda v: isinstance(v, bool)),
    "saliency": ("a finite number or null", lambda v: v is None or _is_number(v)),
    "schema_version": (f"{SCHEMA_VERSION}", lambda v: v == SCHEMA_VERSION),
}


def _padded(values: Sequence[Any], empty: float) -> list[float]:
    filled = [empty if value is None else value for value in values]
    return filled + [empty] * (L - len(filled))
