"""Costs of a round: the fit, interpolation, the two objectives against brute force over every width, and the file."""

import contextlib
import json
import math
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneglance.core import BlockMarginals, InputError
from oneglance.cost import (
    MAX_NODES,
    Costs,
    Exchange,
    Objective,
    Point,
    as_measured,
    cache_file,
    cache_folder,
    fit_convex,
    read_costs,
    throughput,
    write_costs,
)
from oneglance.pace import Controller
from oneglance.tree import best_end, best_first, cost_aware, num_that_pay
from pacing import bent_costs, costs_of

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
times = st.lists(st.floats(0.1, 50), min_size=2, max_size=7)


@given(times)
def test_the_fit_only_rises_and_only_bends_upwards(ms: list[float]) -> None:
    at = np.arange(2, 200)
    fitted = fit_convex(SIZES[1 : len(ms) + 1], ms, at=at)
    steps = np.diff(fitted)
    assert (fitted >= 0).all()
    assert (steps >= -1e-9).all()
    assert (np.diff(steps) >= -1e-9 * max(1.0, steps.max())).all()


@given(times, st.floats(0, 5), st.floats(0, 1), st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_no_line_of_that_class_fits_better(ms: list[float], constant: float, slope: float, bends: list[float]) -> None:
    x = np.array(SIZES[1 : len(ms) + 1], float)

    def error(line: np.ndarray) -> float:
        return float(((line / np.array(ms) - 1) ** 2).sum())

    other = constant + slope * x + sum(b * np.maximum(x - k, 0) for b, k in zip(bends, x[1:-1], strict=False))
    assert error(fit_convex(list(x), ms, at=x)) <= error(np.asarray(other)) + 1e-9


def test_what_is_convex_already_is_kept() -> None:
    ms = [5.0, 5.0, 5.1, 5.5, 7.0, 12.0, 30.0]
    assert fit_convex(SIZES[1:], ms, at=SIZES[1:]) == pytest.approx(ms, rel=1e-6)


def test_costs_between_and_beyond_the_measured_contexts() -> None:
    table = {100: (4.0, 6.0, 8.0), 300: (5.0, 10.0, 16.0)}
    points = [
        Point(context=c, rows=r, ms=ms) for c, row in table.items() for r, ms in zip((1, 2, 128), row, strict=True)
    ]
    costs = Costs(draft_ms=2.0, ingest_ms=0.1, verify=tuple(points))
    assert costs.at(10).verify_ms == costs.at(100).verify_ms
    middle = costs.at(200)
    assert (middle.plain_ms, middle.verify_ms[1], middle.verify_ms[127]) == pytest.approx((4.5, 8.0, 12.0))
    assert middle.drafted_ms(1) == pytest.approx(10.0)
    assert middle.drafted_ms(1.5) == pytest.approx(2 + (middle.verify_ms[1] + middle.verify_ms[2]) / 2)
    beyond = costs.at(500)
    shift = beyond.plain_ms - costs.at(300).plain_ms
    assert shift > 0
    assert np.diff(beyond.verify_ms) == pytest.approx(np.diff(costs.at(300).verify_ms))


@pytest.mark.parametrize("rows", [(2, 4, 8), (1, 2), (1,)])
def test_too_few_points_are_refused(rows: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one row and two larger"):
        Costs(draft_ms=1, ingest_ms=0, verify=tuple(Point(context=9, rows=r, ms=1.0) for r in rows))


def best_by_brute_force(scores: list[float], costs: Costs, objective: Objective) -> float:
    """The highest value over every n, by its definition."""
    cost = costs.at(0)
    return max(
        objective(1 + sum(math.exp(s) for s in scores[:n]), costs.draft_ms + cost.verify_ms[n])
        for n in range(len(scores) + 1)
    )


objectives = st.one_of(st.just(throughput), st.floats(0.001, 2).map(Exchange))


@given(st.lists(st.floats(-9, 0), max_size=60), bent_costs(), objectives)
def test_the_first_node_that_does_not_pay_ends_the_search(
    scores: list[float], costs: Costs, objective: Objective
) -> None:
    """θ(n) = (1 + Φ(n)) / (C_d + C_v(n + 1)), and Φ(n) + 1 - λC: the stop is the maximum over all n."""
    scores = sorted(scores, reverse=True)
    count = num_that_pay(scores, mass=math.exp, value=costs.at(0).value(objective))
    own = objective(1 + sum(map(math.exp, scores[:count])), costs.draft_ms + costs.at(0).verify_ms[count])
    assert own == pytest.approx(best_by_brute_force(scores, costs, objective), rel=1e-9, abs=1e-9)


@given(st.integers(0, 1 << 32), st.booleans(), bent_costs(), objectives, st.integers(0, 40))
def test_a_cost_aware_tree_is_the_start_of_the_best_first_one(
    seed: int, is_conditioned: bool, costs: Costs, objective: Objective, budget: int
) -> None:
    rng = np.random.default_rng(seed)
    log_q = np.log(-np.sort(-rng.dirichlet(np.full(5, 0.5), 4), axis=1))
    rows = np.log(rng.dirichlet(np.full(5, 0.5), (3, 5))) if is_conditioned else None
    given_marginals = BlockMarginals(np.arange(20).reshape(4, 5), log_q, rows)
    cost = costs.at(0)
    every = partial(num_that_pay, mass=math.exp, value=cost.value(objective, is_fitted=True))
    few = partial(best_end, mass=math.exp, value=cost.value(objective), ends=cost.ends)
    for pick in (every, few):
        tree = cost_aware(given_marginals, budget, pick=pick)
        assert tree == best_first(given_marginals, len(tree))
        assert len(tree) <= budget


steps = st.lists(st.floats(0.1, 30), min_size=128, max_size=128)


@given(
    st.lists(st.floats(-9, 0), max_size=60),
    steps,
    objectives,
    st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True),
)
def test_the_best_of_a_few_widths_is_found_at_any_costs(
    scores: list[float], ms: list[float], objective: Objective, ends: list[int]
) -> None:
    """Against all of them, and the single step; what is not looked at could not have won."""
    scores, ends = sorted(scores, reverse=True), sorted(ends)

    def worth(end: int) -> float:
        return objective(1 + sum(map(math.exp, scores[:end])), ms[end])

    count = best_end(scores, mass=math.exp, value=lambda n, tokens: objective(tokens, ms[n]), ends=ends)
    chosen = [end for end in (0, *ends) if min(end, len(scores)) == count]
    assert max(map(worth, chosen)) == pytest.approx(max(map(worth, (0, *ends))), rel=1e-9, abs=1e-9)


def test_widths_that_cannot_win_are_not_grown() -> None:
    seen: list[float] = []

    def scores() -> Iterator[float]:
        for place in range(127):
            seen.append(-0.5 * place)
            yield seen[-1]

    value = costs_of(plain=2.0, draft=1.0, first=2.0, slope=0.1).at(0).value(Exchange(1.0))
    assert best_end(scores(), mass=math.exp, value=value, ends=(3, 7, 15, 31, 63, 127)) == 7
    assert len(seen) == 7, "the last mass says that no further width can win"


ROWS = np.array([2.0, 8.0, 16.0, 64.0])


def test_measured_costs_are_kept_and_never_fall() -> None:
    ms = np.array([5.0, 7.0, 6.0, 12.0])
    line = as_measured(ROWS, ms, at=np.arange(2, 129), is_padded=False)
    assert line[[0, 6, 14, 62]] == pytest.approx([5.0, 6.5, 6.5, 12.0]), "two that contradict each other share a mean"
    assert (np.diff(line) >= 0).all()
    assert line[-1] > 12.0, "what lies beyond is more, not the same"
    honest = np.array([5.0, 6.0, 7.0, 12.0])
    assert as_measured(ROWS, honest, at=ROWS, is_padded=False) == pytest.approx(honest)


def test_padded_passes_cost_what_the_next_width_costs() -> None:
    points = [Point(context=9, rows=r, ms=float(ms)) for r, ms in ((1, 4), (16, 5), (32, 9), (64, 12), (128, 30))]
    costs = Costs(draft_ms=1.0, ingest_ms=0.0, verify=tuple(points), is_padded=True)
    cost = costs.at(9)
    assert costs.ends == cost.ends == (15, 31, 63, 127)
    assert [cost.verify_ms[n] for n in (0, 1, 15, 16, 31, 32, 127)] == pytest.approx([4, 5, 5, 9, 9, 12, 30])
    assert cost.drafted_ms(10) == 6


def test_only_widths_of_every_context_are_compared() -> None:
    table = {9: (1, 2, 8, 16, 200), 99: (1, 8, 16, 64)}
    points = [Point(context=c, rows=r, ms=1.0 + r / 9) for c, rows in table.items() for r in rows]
    assert Costs(draft_ms=1.0, ingest_ms=0.0, verify=tuple(points)).ends == (7, 15)


def test_a_draft_that_promises_nothing_gets_no_tree() -> None:
    value = costs_of(plain=1.0, draft=1.0, first=10.0, slope=0.1).at(0).value(throughput)
    assert num_that_pay([math.log(0.01)] * 5, mass=math.exp, value=value) == 0
    free = costs_of(plain=1.0, draft=1.0, first=1.0, slope=0.0).at(0).value(throughput)
    assert num_that_pay([math.log(0.01)] * 5, mass=math.exp, value=free) == 5


def test_a_node_pays_by_the_exchange_rate() -> None:
    """Stop when the next mass falls below λ·ΔC_v (Prop. 4)."""
    value = costs_of(plain=2.0, draft=1.0, first=2.0, slope=0.1).at(0).value(Exchange(2.0))
    masses = [0.9, 0.5, 0.21, 0.19, 0.1]
    assert num_that_pay(map(math.log, masses), mass=math.exp, value=value) == 3


# The file --------------------------------------------------------------------------------------------------------


def test_costs_are_kept_by_what_they_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEGLANCE_CACHE", str(tmp_path))
    where: dict[str, str | int | None] = {"machine": "one", "threads": 2, "head": None}
    path = cache_file(where)
    assert path.is_relative_to(tmp_path)
    assert path != cache_file({**where, "threads": 1})
    assert read_costs(path, where) is None
    costs = costs_of().model_copy(update={"provenance": where})
    write_costs(path, costs, {"hits": [1.0]})
    assert read_costs(path, where) == (costs, {"hits": [1.0]})
    assert read_costs(path, {**where, "machine": "two"}) is None
    assert [file.name for file in path.parent.iterdir()] == [path.name], "a partial file is left"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "costs.json"
    write_costs(path, costs_of(), {})
    before = path.read_text()

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(OSError, match="disk full"):
        write_costs(path, costs_of(draft=9.0), {})
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"draft_ms": 1}', '{"schema_version": 99}'])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"costs\.json holds no measured costs"):
        read_costs(path, {})


ABSURD = [
    *(-1, 0, -0.0, 1e300, -1e300, 10**400, 2**63, 129, 1e-300, math.nan, math.inf, -math.inf),
    *(None, True, "5", "", "nan", [], [1], [[1.0] * 3], {}, {"ms": 1}),
]


def places(value: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where in an object of lists and objects something stands."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*at, key)
        yield from places(part, (*at, key))


SOUND = json.loads(
    json.dumps(
        {
            **costs_of().model_copy(update={"provenance": {"threads": 2}}).model_dump(),
            "learned": {"standing": {"tokens": [[2.0, 1.0]] * 6}},
        }
    )
)


@given(st.lists(st.tuples(st.sampled_from(list(places(SOUND))), st.sampled_from([*ABSURD, "gone"])), max_size=3))
def test_absurd_numbers_are_refused_or_do_no_harm(damage: list[tuple[tuple[str | int, ...], object]]) -> None:
    """A damaged cache is one clear error, or costs that are finite, never fall, and know a width."""
    content = json.loads(json.dumps(SOUND))
    for place, absurd in damage:
        holder = content
        try:
            for key in place[:-1]:
                holder = holder[key]
            if absurd == "gone":
                del holder[place[-1]]
            else:
                holder[place[-1]] = absurd
        except (KeyError, IndexError, TypeError):
            continue  # what was to be damaged is gone already
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "costs.json"
        path.write_text(json.dumps(content))
        try:
            found = read_costs(path, content.get("provenance", {}))
        except InputError:
            return
    assert found is not None
    costs, learned = found
    assert set(costs.ends) <= set(range(1, MAX_NODES + 1))
    assert costs.ends
    for context in (0, 1000, 10**6):
        cost = costs.at(context)
        for line in (cost.verify_ms, cost.fitted_ms, cost.draft_ms):
            assert np.isfinite(line).all()
            assert min(line) >= 0
            assert (np.diff(line[1:]) >= -1e-6 * max(line)).all()
    with contextlib.suppress(ValueError, TypeError):  # who resumes from it says so, and measures anew
        controller = Controller.resume(costs, learned)
        assert controller.pick([-1.0] * MAX_NODES, choice="draft", context=0) in costs.ends


@pytest.mark.parametrize(
    "change",
    [
        {"draft_ms": -1.0},
        {"draft_ms": math.nan},
        {"draft_ms": "1.0"},
        {"draft_ms": True},
        {"ingest_ms": 1e300},
        {"verify": []},
        {"verify": [{"context": 0, "rows": rows, "ms": 0.0} for rows in SIZES]},
        {"verify": [{"context": 0, "rows": rows, "ms": math.nan} for rows in SIZES]},
        {"verify": [{"context": 0, "rows": rows, "ms": 1e300} for rows in SIZES]},
        {"verify": [{"context": 0, "rows": rows, "ms": 1.0} for rows in (1, 200, 2**31)]},
        {"verify": [{"context": 0, "rows": rows, "ms": 1.0} for rows in (1, 2, 2**40)]},
        {"verify": [{"context": 0, "rows": rows, "ms": 1.0} for rows in range(1, 5000)]},
        {"verify": [{"context": 0, "rows": "2", "ms": 1.0}]},
        {"provenance": [1]},
        {"learned": [1]},
        {"learned": {"hits": [math.nan] * 25}},
        {"learned": {"hits": [1e300] * 25}},
    ],
)
def test_absurd_files_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**SOUND, **change}))
    with pytest.raises(InputError, match="holds no measured costs"):
        read_costs(path, {"threads": 2})


def test_a_later_schema_is_not_guessed_at(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    write_costs(path, costs_of(), {})
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))
    with pytest.raises(InputError, match="no measured costs"):
        read_costs(path, {})


def test_the_cache_follows_the_users_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEGLANCE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/oneglance")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "oneglance"


def test_no_tree_is_wider_than_the_table() -> None:
    assert len(costs_of().at(0).verify_ms) == MAX_NODES + 1
