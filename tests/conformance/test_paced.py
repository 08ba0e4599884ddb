"""A width that is chosen: the text stays the target's whatever is decided, and what was measured is kept."""

import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers import decode_ids, hf_generate, prompt, random_rescorer, start
from oneglance.audit import Case, audit
from oneglance.core import EMPTY_TREE, DraftError, InputError, OneglanceWarning, SamplingParams
from oneglance.cost import MAX_NODES
from oneglance.decoder import Decoder
from oneglance.drafters import paced, timing
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.ngram import prepare as prepare_ngram
from oneglance.drafters.paced import Paced, at_budget
from oneglance.drafters.timing import DraftCost, Measured, VerifyCost, doubt_of, measure, provenance, verify_costs
from oneglance.pace import Choice, Controller, Outlook
from oneglance.runner.execution import Direct
from oneglance.runner.static import StaticShape
from oneglance.targets.base import Target
from oneglance.targets.passes import FixedShape
from oneglance.testing import FAMILIES, tiny_head, tiny_target
from oneglance.tree import best_first, chain
from pacing import costs_of

NUM_TOKENS = 14


class Whimsical(Controller):
    """Goes plain, drafts and probes as the dice fall, and prices nodes anew each round: no two trees are of a size."""

    def __post_init__(self, kept: Any) -> None:
        super().__post_init__(kept)
        self.rng = random.Random(7)
        self.seen: list[Choice] = []

    def choose(self, outlook: Outlook) -> Choice:
        self.costs = costs_of(slope=self.rng.choice((0.0, 0.01, 0.2)), draft=self.rng.choice((0.1, 3.0)))
        self._costs_at = lambda bucket: self.costs.at(bucket)  # type: ignore[assignment]
        self.seen.append(self.rng.choice(("plain", "draft", "draft", "probe")))
        return self.seen[-1]


def bound(target: Target, **options: Any) -> BlockDrafter:
    return BlockDrafter(tiny_head(target), target, **options)


def whimsical(target: Target) -> Paced:
    return Paced(bound(target, budget=MAX_NODES), Whimsical(costs_of(), "exchange"))


@pytest.fixture
def qwen3() -> Target:
    return tiny_target("qwen3")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and few repeats: no figure of a real clock is looked at."""
    monkeypatch.setenv("ONEGLANCE_CACHE", str(tmp_path))
    monkeypatch.setattr(timing, "REPEATS", 3)
    monkeypatch.setattr(timing, "SPREAD", float("inf"))
    monkeypatch.setattr(timing, "DIP", float("inf"))
    monkeypatch.setattr(timing, "CONTEXTS", (24, 40))
    return tmp_path


@pytest.mark.parametrize("family", FAMILIES)
def test_any_widths_give_the_targets_own_text(family: str) -> None:
    target = tiny_target(family)
    inputs = prompt(target, 1 if target.takes_images else 0)
    drafter = whimsical(target)
    generation = decode_ids(Decoder(target, drafter), inputs, NUM_TOKENS).generation
    assert generation.token_ids == hf_generate(target, inputs, NUM_TOKENS)
    assert generation.fell_back is None
    assert set(drafter.controller.seen) == {"plain", "draft", "probe"}
    assert len({len(r.tree) for r in generation.rounds}) > 2
    for done, choice in zip(generation.rounds, drafter.controller.seen, strict=False):
        assert done.num_draft_passes == (choice != "plain")


def test_drawn_tokens_do_not_depend_on_widths(qwen3: Target) -> None:
    params = SamplingParams(max_new_tokens=20, temperature=1.0, seed=3)
    inputs = prompt(qwen3)
    texts = []
    for drafter in (whimsical(qwen3), None):
        decoder = Decoder(qwen3, drafter) if drafter else Decoder(qwen3, bound(qwen3)).plain()
        stream = decoder.stream_inputs(inputs, params)
        for _ in stream:
            pass
        texts.append(stream.generation.token_ids)
    assert texts[0] == texts[1]


def test_the_audit_passes_with_a_width_that_is_chosen(qwen3: Target) -> None:
    arms = {"auto": partial(at_budget, lambda target, **options: bound(target, **options), budget="auto")}
    cases = [Case(str(i), "text", prompt(qwen3, text=f"prompt {i}")) for i in range(3)]
    *_, report = audit(qwen3, arms, iter(cases), max_new_tokens=12, compare_hf=False)
    assert report.bugs == 0
    assert report.overall.identical == report.overall.total == 3


@torch.inference_mode()
def test_rounds_that_go_plain_lose_no_context(qwen3: Target) -> None:
    """After two plain rounds the marginals are those of a drafter that drafted in each."""
    found = []
    for choices in (("plain", "plain", "draft"), ("draft", "draft", "draft")):
        drafter = bound(qwen3, budget=MAX_NODES)
        controller = Controller(costs_of(slope=0.0))
        left = iter(choices)
        controller.choose = lambda outlook, left=left: next(left)  # type: ignore[assignment,method-assign,misc]
        auto = Paced(drafter, controller)
        state, root = start(qwen3, prompt(qwen3), auto.target_layer_ids)
        draft_state = auto.start(state)
        for _ in range(3):
            tree = auto.draft(root, state, draft_state, max_depth=15)
            root = int(qwen3.verify(state, root, EMPTY_TREE)[0].argmax())
            qwen3.commit(state, (0,), (root,))
        found.append(tree)
    assert len(found[0])
    assert found[0].token_ids == found[1].token_ids


def test_a_plain_round_runs_no_draft_and_an_empty_draft_is_counted(qwen3: Target) -> None:
    drafter = bound(qwen3, budget=MAX_NODES)
    calls = []
    marginals = drafter.marginals
    drafter.marginals = lambda *args: (calls.append(1), marginals(*args))[1]  # type: ignore[method-assign,func-returns-value]
    for plain, draft, expected in ((0.01, 50.0, 0), (50.0, 0.01, 1)):
        calls.clear()
        costs = costs_of(plain=plain, draft=draft, first=1e6)  # no node can pay
        auto = Paced(drafter, Controller(costs, "exchange"))
        if expected:
            auto.controller.choose = lambda outlook: "draft"  # type: ignore[method-assign]
        generation = decode_ids(Decoder(qwen3, auto), prompt(qwen3), 6).generation
        rounds = generation.rounds[:-1]  # the last one has no room for a draft
        assert [len(r.tree) for r in rounds] == [0] * len(rounds)
        assert [r.num_draft_passes for r in rounds] == [expected] * len(rounds)
        assert len(calls) == expected * len(rounds)


def test_the_controller_lives_across_generations_and_sees_how_they_end(qwen3: Target) -> None:
    auto = Paced(bound(qwen3, budget=MAX_NODES), Controller(costs_of()))
    seen: list[int] = []
    auto.controller.finished = seen.append  # type: ignore[method-assign]
    decoder = Decoder(qwen3, auto)
    total = 0
    for size in (5, 9):
        generation = decode_ids(decoder, prompt(qwen3), size).generation
        assert seen[-1] == generation.num_tokens
        total += sum(1 for r in generation.rounds if not r.gated)
    stream = decoder.stream_inputs(prompt(qwen3), SamplingParams(max_new_tokens=50, ignore_eos=True))
    for _ in range(3):
        next(stream)
    stream.close()
    assert len(seen) == 2, "an answer that was broken off has no length"
    assert auto.controller.num_rounds <= total + 3


def test_a_failing_draft_ends_drafting_and_not_the_text(qwen3: Target) -> None:
    drafter = bound(qwen3, budget=MAX_NODES)
    marginals = drafter.marginals
    calls = iter(range(99))

    def fail(*args: Any) -> Any:
        if next(calls) == 2:
            raise DraftError("out of positions")
        return marginals(*args)

    drafter.marginals = fail  # type: ignore[method-assign]
    with pytest.warns(OneglanceWarning, match="decoded plainly"):
        generation = decode_ids(
            Decoder(qwen3, Paced(drafter, Controller(costs_of(slope=0.0)))), prompt(qwen3), 20
        ).generation
    assert generation.fell_back == "out of positions"
    assert generation.token_ids == hf_generate(qwen3, prompt(qwen3), 20)[: generation.num_tokens]


# Measured and kept -----------------------------------------------------------------------------------------------


def test_measuring_times_every_width_in_every_context(qwen3: Target) -> None:
    costs = measure(qwen3, bound(qwen3, budget=MAX_NODES)).costs
    assert {(p.context, p.rows) for p in costs.verify} == {(c, n + 1) for c in (24, 40) for n in timing.SIZES}
    assert costs.draft_ms > 0
    assert costs.provenance["dtype"] == "float32"
    assert costs.provenance["threads"] == torch.get_num_threads()
    (one,) = verify_costs(qwen3, prompt(qwen3), [3], repeats=5, seconds=0.0)
    assert one.repeats == 3, "three turns at least, and no more once the time is up"


def test_of_padded_passes_the_full_ones_are_measured(qwen3: Target) -> None:
    """Between them a pass costs what the next one costs, and no width between is compared."""
    costs = measure(qwen3.with_passes(StaticShape(Direct())), bound(qwen3, budget=MAX_NODES)).costs
    assert costs.is_padded
    assert costs.ends == (15, 31, 63, 127)
    assert costs.at(24).verify_ms[3] == costs.at(24).verify_ms[15]


def test_scores_of_another_kind_have_a_file_of_their_own(qwen3: Target) -> None:
    """What was learned of marginals says nothing of conditioned scores."""
    plain, conditioned = bound(qwen3), bound(qwen3, rescorer=random_rescorer(qwen3))
    assert provenance(qwen3, plain) != provenance(qwen3, conditioned)


def test_a_draft_looks_at_no_more_ranks_than_its_tree_can_use(qwen3: Target) -> None:
    drafter = bound(qwen3, budget=MAX_NODES)
    asked: list[int] = []
    marginals = drafter.marginals
    drafter.marginals = lambda *args: (asked.append(args[-1]), marginals(*args))[1]  # type: ignore[method-assign,func-returns-value]
    auto = Paced(drafter, Controller(costs_of()))
    generation = decode_ids(Decoder(qwen3, auto), prompt(qwen3), 12).generation
    assert generation.token_ids == hf_generate(qwen3, prompt(qwen3), 12)
    assert set(asked) <= {16, 32, 64, 127}
    assert max(asked) == auto.controller.num_ranks(0)
    state, root = start(qwen3, prompt(qwen3), drafter.target_layer_ids)
    found = marginals(root, state, drafter.start(state), 15, 4)
    assert found.token_ids.shape[1] == 4


def test_costs_are_measured_once(qwen3: Target, quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bind = partial(at_budget, lambda target, **options: bound(target, **options), qwen3, budget="auto")
    costs = costs_of()  # with which every round drafts
    with monkeypatch.context() as patched:
        found = lambda *given: Measured(costs.model_copy(update={"provenance": provenance(*given)}))  # noqa: E731
        patched.setattr(paced, "measure", found)
        first = bind(keeps=True)
    assert isinstance(first, Paced)
    decode_ids(Decoder(qwen3, first), prompt(qwen3), 60)
    assert first.controller.num_trees >= paced.WORTH_KEEPING
    monkeypatch.setattr(paced, "measure", lambda *_: pytest.fail("measured again"))
    again = bind(keeps=True)
    assert isinstance(again, Paced)
    assert again.controller.costs == first.controller.costs
    assert again.controller.learned() == first.controller.learned()
    assert again.controller.num_rounds == 0
    cold = bind()
    assert isinstance(cold, Paced)
    assert cold.controller.learned() == Controller(first.controller.costs).learned()
    with pytest.raises(pytest.fail.Exception, match="measured again"):  # another precision has other costs
        at_budget(lambda target, **options: bound(target, **options), qwen3.in_float64(), budget="auto")


class Clock:
    """Stands still, but for packed passes and drafts: these take what a script says.

    Args:
        pass_ms: (N, how many packed passes ran before) → milliseconds.
        draft_ms: of a draft.
    """

    def __init__(self, target: Target, pass_ms: Callable[[int, int], float], draft_ms: Iterator[float]) -> None:
        self.now = 0.0
        self.num_passes = 0
        self._pass_ms, self._draft_ms = pass_ms, draft_ms
        self._verify = target.verify
        target.verify = self.verify  # type: ignore[method-assign]

    def perf_counter(self) -> float:
        return self.now

    def verify(self, state: Any, root: int, tree: Any) -> Any:
        self.now += self._pass_ms(len(tree), self.num_passes) / 1e3
        self.num_passes += 1
        return self._verify(state, root, tree)

    def bind(self, target: Target, **options: Any) -> BlockDrafter:
        drafter = bound(target, **options)
        marginals = drafter.marginals

        def timed(*args: Any) -> Any:
            self.now += next(self._draft_ms) / 1e3
            return marginals(*args)

        drafter.marginals = timed  # type: ignore[method-assign]
        return drafter


PER_SERIES = len(timing.SIZES) * (3 + timing.WARMUPS)  # packed passes


def quiet(size: int, _: int) -> float:
    """Cheapest at 16 rows, as kernels may be; a single row costs more than two."""
    return {0: 6.0, 15: 4.5}.get(size, 5.0 + 0.1 * size)


@pytest.fixture
def strict(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of the package again, at one context."""
    monkeypatch.setattr(timing, "CONTEXTS", (24,))
    monkeypatch.setattr(timing, "SPREAD", 1.5)
    monkeypatch.setattr(timing, "DIP", 1.5)


def scripted(
    monkeypatch: pytest.MonkeyPatch,
    target: Target,
    pass_ms: Callable[[int, int], float],
    draft_ms: Iterator[float] | None = None,
) -> tuple[Clock, Callable[[], Any]]:
    """A clock, and what binds a drafter of budget auto under it."""
    clock = Clock(target, pass_ms, draft_ms or repeat(3.0))
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock, lambda: at_budget(clock.bind, target, budget="auto", keeps=True)


@pytest.mark.usefixtures("strict")
def test_times_that_fit_together_are_kept_at_once(qwen3: Target, quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, bind = scripted(monkeypatch, qwen3, quiet)
    costs = bind().controller.costs
    assert len(list((quick / "costs").iterdir())) == 1
    assert {(p.rows, round(p.ms, 6)) for p in costs.verify} == {(n + 1, round(quiet(n, 0), 6)) for n in timing.SIZES}
    assert costs.draft_ms == pytest.approx(3.0)
    num_passes = clock.num_passes
    bind()
    assert clock.num_passes == num_passes


@pytest.mark.usefixtures("strict")
def test_a_series_that_something_disturbed_is_measured_again(
    qwen3: Target, quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that one is, and only what came of the quiet one is kept."""

    def disturbed(size: int, num_before: int) -> float:
        return 177.0 if size == 0 and num_before < PER_SERIES else quiet(size, 0)

    clock, bind = scripted(monkeypatch, qwen3, quiet)
    bind()
    undisturbed = clock.num_passes
    (path,) = (quick / "costs").iterdir()
    path.unlink()
    del qwen3.verify  # type: ignore[method-assign]
    clock, bind = scripted(monkeypatch, qwen3, disturbed)
    costs = bind().controller.costs
    assert clock.num_passes == undisturbed + PER_SERIES
    assert [p.ms for p in costs.verify if p.rows == 1] == pytest.approx([6.0])
    assert len(list((quick / "costs").iterdir())) == 1


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(
    ("pass_ms", "draft_ms", "reason"),
    [
        (lambda size, _: 177.0 if size == 0 else 35.0, None, "a pass of 0 nodes took 177 ms, and a pass of 1 node 35"),
        (lambda size, n: quiet(size, n) * (1 + 9 * (n // len(timing.SIZES) % 2)), None, "took .* ms, and then"),
        (quiet, iter([3.0, 9.0] * 99), "a draft of 16 nodes took"),
    ],
)
def test_costs_of_a_busy_machine_serve_one_run(
    qwen3: Target,
    quick: Path,
    monkeypatch: pytest.MonkeyPatch,
    pass_ms: Callable[[int, int], float],
    draft_ms: Iterator[float] | None,
    reason: str,
) -> None:
    clock, bind = scripted(monkeypatch, qwen3, pass_ms, draft_ms)
    with pytest.warns(OneglanceWarning, match=f"do not fit together .*{reason}.*let nothing else run") as caught:
        drafter = bind()
    assert len(caught) == 1
    assert clock.num_passes <= 3 * (len(timing.CONTEXTS) * PER_SERIES + 99)
    decode_ids(Decoder(qwen3, drafter), prompt(qwen3), 40)
    assert drafter.controller.num_rounds
    assert not (quick / "costs").exists(), "neither costs nor what was learned by them"


@pytest.mark.usefixtures("strict")
def test_a_little_less_time_for_more_rows_is_no_disturbance() -> None:
    """17 rows may take longer than 32; within the quartiles anything may."""
    passes = [VerifyCost(15, 5.0, 5.0, 5.1, 9), VerifyCost(16, 8.0, 7.4, 8.4, 9), VerifyCost(31, 6.0, 6.0, 6.1, 9)]
    assert doubt_of(passes) is None
    assert "of 16 nodes took 9.3 ms, and a pass of 31 nodes 6.1 ms" in str(
        doubt_of([*passes[:1], VerifyCost(16, 9.4, 9.3, 9.5, 9), *passes[2:]])
    )
    assert doubt_of([VerifyCost(16, 9.4, 9.3, 9.5, 9), VerifyCost(31, 6.0, 5.0, 7.0, 9)]) is None
    assert "draft of 16 nodes" in str(doubt_of([DraftCost(16, 3.0, 2.0, 3.1, 0.0), DraftCost(64, 3.0, 3.0, 3.0, 0.0)]))


def test_a_file_that_cannot_be_used_is_measured_anew(qwen3: Target, quick: Path) -> None:
    bind = partial(at_budget, lambda target, **options: bound(target, **options), qwen3, budget="auto")
    bind()
    (path,) = (quick / "costs").iterdir()
    path.write_text('{"schema_version": 1}')
    with pytest.warns(OneglanceWarning, match="measuring anew"):
        bind()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bind()


def test_a_cache_that_cannot_be_written_costs_a_warning(
    qwen3: Target, quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (quick / "file").write_text("")
    monkeypatch.setenv("ONEGLANCE_CACHE", str(quick / "file"))
    with pytest.warns(OneglanceWarning, match="cannot keep the measured costs"):
        drafter = at_budget(lambda target, **options: bound(target, **options), qwen3, budget="auto", keeps=True)
    assert decode_ids(Decoder(qwen3, drafter), prompt(qwen3), 20).generation.fell_back is None


def test_what_does_not_go_with_auto_is_refused(qwen3: Target) -> None:
    bind: Any = lambda target, **options: bound(target, **options)  # noqa: E731
    with pytest.raises(InputError, match="best-first"):
        at_budget(bind, qwen3, budget="auto", policy=chain)
    with pytest.raises(InputError, match="fixed shape"):
        at_budget(bind, qwen3.with_passes(FixedShape(64)), budget="auto", policy=best_first)
    with pytest.raises(InputError, match="marginals"):
        at_budget(prepare_ngram(), qwen3, budget="auto")


def test_a_request_may_still_name_its_budget(qwen3: Target) -> None:
    decoder = Decoder(qwen3, Paced(bound(qwen3, budget=MAX_NODES), Controller(costs_of())))
    generation = decode_ids(decoder.with_budget(5), prompt(qwen3), 12).generation
    assert {len(r.tree) for r in generation.rounds[:-1]} == {5}
