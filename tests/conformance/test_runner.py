"""Runners: packed passes in static shapes, by each execution, are the target's own."""

import inspect
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conformance import checks
from conformance.conftest import tiny
from helpers import hf_generate, prompt, random_rescorer, start
from oneglance.audit import Case, audit
from oneglance.core import EMPTY_TREE, BlockMarginals, InputError, OneglanceWarning, TokenTree
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.head import BlockHead, HeadConfig
from oneglance.drafters.plain import NoDrafter
from oneglance.runner import RUNNERS, with_runner
from oneglance.runner.execution import Captured, Compiled, CudaGraphs, Direct
from oneglance.runner.static import StaticShape, width_of
from oneglance.targets import family, kv
from oneglance.targets.base import Target
from oneglance.targets.passes import FreeShape
from oneglance.targets.state import EMBEDDING, Inputs, TargetState
from oneglance.targets.static import Execution, Outputs
from oneglance.testing import FAMILIES, lucky_drafter, tiny_head, tiny_head_config, tiny_target
from oneglance.tree import chain, from_path

STATIC_FAMILIES = tuple(name for name in FAMILIES if family(name).has_static_pass)
HUGE = 1e30
CHAIN = TokenTree((1, 2), (0, 1), (1, 2))


class StubGraphs:
    """Records work as CUDA would: replaying reads and writes the very tensors that were there when it was recorded."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0
        self.is_working = False

    def record(self, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        self.recorded += 1
        rows, features = work()

        def replay() -> None:
            self.replayed += 1
            self.is_working = True
            again, states = work()
            self.is_working = False
            for place, tensor in zip((rows, *features), (again, *states), strict=True):
                place.copy_(tensor)

        return replay, (rows, features)


class Allocations(TorchDispatchMode):
    """Bytes of the tensors that are made outside of recorded work."""

    def __init__(self, stub: StubGraphs) -> None:
        super().__init__()
        self.stub, self.sizes = stub, list[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            is_new = isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in before
            if is_new and not self.stub.is_working:
                self.sizes.append(tensor.untyped_storage().nbytes())
        return out


EXECUTIONS: dict[str, Callable[[], Execution]] = {"static": Direct, "graphs": lambda: Captured(StubGraphs())}


def static(family: str, execution: str | Execution) -> Target:
    made = EXECUTIONS[execution]() if isinstance(execution, str) else execution
    return tiny(family, "sdpa").with_passes(StaticShape(made))


@pytest.fixture(params=[pytest.param((f, e), id=f"{f}-{e}") for f in STATIC_FAMILIES for e in EXECUTIONS])
def target(request: pytest.FixtureRequest) -> Target:
    return static(*request.param)


@pytest.fixture(params=[0, 2])
def inputs(target: Target, request: pytest.FixtureRequest) -> Inputs:
    if request.param and not target.takes_images:
        pytest.skip("takes no images")
    return prompt(target, request.param)


# What every target owes the loop ------------------------------------------------------------------------------------


def test_packed_rows_equal_an_unpacked_uncached_pass(target: Target, inputs: Inputs) -> None:
    checks.check_packed_rows(target, inputs)


def test_cache_after_commit_is_that_of_plain_decoding(target: Target, inputs: Inputs) -> None:
    checks.check_cache_after_commit(target, inputs)


def test_features_are_those_of_plain_decoding(target: Target, inputs: Inputs) -> None:
    checks.check_features(target, inputs, (3, EMBEDDING, 2))


@pytest.mark.parametrize("budget", [1, 31, 127])
def test_text_is_the_targets_own(target: Target, budget: int) -> None:
    inputs = prompt(target, 1 if target.takes_images else 0)
    reference = hf_generate(target, inputs, 18)
    checks.check_identity(target, NoDrafter(), inputs, reference)
    checks.check_identity(target, BlockDrafter(tiny_head(target), target, budget=budget), inputs, reference)
    lucky = lucky_drafter(reference, len(inputs.token_ids), seed=budget, budget=budget, vocab_size=target.vocab_size)
    assert sum(checks.check_identity(target, lucky, inputs, reference)) > 0


def test_the_audit_compares_with_the_plain_loop(target: Target) -> None:
    """Not with single rows of the same passes, as under a fixed shape."""
    case = Case("a", "text", prompt(target))
    truth = hf_generate(target, case.inputs, 12)
    lucky = partial(lucky_drafter, truth, len(case.inputs.token_ids), seed=1, budget=31, vocab_size=target.vocab_size)
    (report,) = list(audit(target, {"lucky": lambda _: lucky()}, [case], max_new_tokens=12))
    assert (report.overall.identical, report.overall.total, report.hf.identical, report.hf.total) == (1, 1, 1, 1)


# Static shapes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (2, 16), (16, 16), (17, 32), (64, 64), (65, 128), (129, 256)])
def test_a_pass_has_the_narrowest_width_that_holds_its_tree(rows: int, width: int) -> None:
    assert width_of(rows) == width


def test_padded_rows_see_the_root_and_nothing_sees_them() -> None:
    packed = StaticShape(Direct()).lay_out(3, TokenTree((4, 5, 6), (0, 1, 0), (1, 2, 1)))
    assert packed.token_ids.tolist() == [3, 4, 5, 6, *[3] * 12]
    assert packed.depths.tolist() == [0, 1, 2, 1, *[0] * 12]
    assert not packed.visible[:4, 4:].any()
    assert packed.visible[4:, 0].all()
    assert not packed.visible[4:, 1:].any()


def poison(state: TargetState) -> None:
    for layer in state.cache.layers:
        assert isinstance(layer, kv.RoomyLayer)
        for room in layer.room or ():
            room[:, :, state.length :] = HUGE


@torch.inference_mode()
def test_stale_rows_are_never_seen(target: Target) -> None:
    clean, root = start(target, prompt(target))
    expected = [target.verify(clean, root, tree).clone() for tree in (EMPTY_TREE, CHAIN)]
    state, root = start(target, prompt(target))
    for tree, rows in zip((EMPTY_TREE, CHAIN), expected, strict=True):
        poison(state)
        assert torch.equal(target.verify(state, root, tree), rows)
        target.rollback(state)


def test_a_sequence_that_outgrows_its_room_goes_on(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "GROWTH", 16)
    inputs = prompt(target)
    reference = hf_generate(target, inputs, 40)
    lucky = lucky_drafter(reference, len(inputs.token_ids), seed=3, budget=15, vocab_size=target.vocab_size)
    checks.check_identity(target, lucky, inputs, reference)


def test_sequences_take_turns(target: Target) -> None:
    ours = [prompt(target, seed=3), prompt(target, text="what?")]
    expected = [hf_generate(target, inputs, 6) for inputs in ours]
    states = [start(target, inputs) for inputs in ours]
    tokens = [[root] for _, root in states]
    for _ in range(5):
        for (state, _), so_far in zip(states, tokens, strict=True):
            token = int(target.verify(state, so_far[-1], CHAIN)[0].argmax())
            target.commit(state, [0], [token])
            so_far.append(token)
    assert tokens == expected


# Drafts -------------------------------------------------------------------------------------------------------------


def head_with(target: Target, **options: Any) -> BlockHead:
    torch.manual_seed(0)
    config = HeadConfig.from_checkpoint(tiny_head_config(target)).model_copy(update=options)
    return BlockHead(config).eval().requires_grad_(False)


def drafters(target: Target, **options: Any) -> tuple[BlockDrafter, BlockDrafter]:
    """The same head with passes as they are, and in static shapes."""
    head = head_with(target, **options)
    plain = target.with_passes(FreeShape())
    return BlockDrafter(head, plain, budget=31), BlockDrafter(head, target, budget=31)


def marginals_along(
    drafter: BlockDrafter, inputs: Inputs, steps: Sequence[int], num_ranks: int | None = None, *, poisoned: bool = False
) -> list[BlockMarginals]:
    """Marginals at roots along one text that is committed in strides of these lengths."""
    target = drafter.target.with_passes(FreeShape())
    state, root = start(target, inputs, drafter.target_layer_ids)
    draft_state, found = drafter.start(state), []
    for step in steps:
        if poisoned:
            for layer in draft_state.layers:
                for room in layer.room or ():
                    room[:, :, draft_state.length :] = HUGE
        found.append(drafter.marginals(root, state, draft_state, 15, num_ranks))
        assert draft_state.length == state.length
        ahead = [5 + i for i in range(step)]
        target.verify(state, root, from_path(ahead[:-1]))
        target.commit(state, range(step), ahead)
        root = ahead[-1]
    return found


def assert_alike(found: Sequence[BlockMarginals], expected: Sequence[BlockMarginals]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.log_q, other.log_q, atol=2e-5)
        assert (one.token_ids[:, 0] == other.token_ids[:, 0]).all()
        assert (one.log_q_given is None) == (other.log_q_given is None)
        if one.log_q_given is not None and other.log_q_given is not None:
            np.testing.assert_allclose(one.log_q_given, other.log_q_given, atol=2e-4)


STRIDES = (1, 3, 16, 17, 40, 2, 16)  # nothing padded, some, all of a block, and more than a block


@torch.inference_mode()
@pytest.mark.parametrize("poisoned", [False, True])
def test_a_static_draft_is_the_eager_one(target: Target, poisoned: bool) -> None:
    """Whatever number of rows is waiting, whatever lies in rows that are not there yet."""
    free, fixed = drafters(target)
    inputs = prompt(target, 1 if target.takes_images else 0)
    assert fixed._static is not None
    assert free._static is None
    assert_alike(marginals_along(fixed, inputs, STRIDES, poisoned=poisoned), marginals_along(free, inputs, STRIDES))


@torch.inference_mode()
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_static_draft_knows_windows_rescorers_and_ranks(execution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "GROWTH", 32)
    target = static("qwen3", execution)
    free, fixed = (
        BlockDrafter(drafter.head, drafter.target, budget=31, rescorer=random_rescorer(target))
        for drafter in drafters(target, layer_types=("full_attention", "sliding_attention"), sliding_window=9)
    )
    for num_ranks in (None, 4):
        found = [marginals_along(d, prompt(target), STRIDES, num_ranks) for d in (fixed, free)]
        assert_alike(*found)
        assert found[0][0].log_q_given is not None


def test_a_draft_at_the_end_of_the_heads_context_is_shorter(target: Target) -> None:
    """No block fits there any more: that pass runs as it is."""
    inputs = prompt(target)
    length = len(inputs.token_ids) + 24
    head = head_with(target, max_position_embeddings=length)
    reference = hf_generate(target, inputs, 22)
    assert checks.check_identity(target, BlockDrafter(head, target, budget=7), inputs, reference)


def test_text_with_static_drafts_is_the_targets_own(target: Target) -> None:
    inputs = prompt(target, 1 if target.takes_images else 0)
    reference = hf_generate(target, inputs, 40)
    for budget in (1, 15, 63):
        drafter = BlockDrafter(tiny_head(target), target, budget=budget, rescorer=random_rescorer(target))
        checks.check_identity(target, drafter, inputs, reference)
        checks.check_identity(target, drafter.with_policy(chain, 5), inputs, reference)


def test_recorded_drafts_see_the_same_addresses_and_allocate_nothing_large() -> None:
    """One recording serves all sequences of a capacity; in a round nothing as large as a mask or a room is made."""
    stub = StubGraphs()
    target = static("qwen3", Captured(stub))
    drafter = BlockDrafter(tiny_head(target), target, budget=15)
    places, made = set(), []
    for seed in range(3):
        state, root = start(target, prompt(target, seed=seed), drafter.target_layer_ids)
        draft_state = drafter.start(state)
        for turn in range(4):
            with torch.inference_mode(), Allocations(stub) as seen:
                drafter.marginals(root, state, draft_state, 15)
            if turn:  # before the first one a sequence makes rooms of its own
                made.append(max(seen.sizes, default=0))
            places.add(tuple(part.data_ptr() for layer in draft_state.layers for part in layer.room or ()))
            target.verify(state, root, EMPTY_TREE)
            target.commit(state, [0], [root])
    assert stub.recorded == 2, "one for drafts, one for single rows"
    assert len(places) == 1, "a later prompt's keys and values lie where the first one's did"
    assert max(made) <= 15 * target.vocab_size * 4, "nothing larger than the logits, which are copied out"


def test_sizes_of_one_head_share_what_was_recorded() -> None:
    stub = StubGraphs()
    target = static("qwen3", Captured(stub))
    drafter = BlockDrafter(tiny_head(target), target, budget=15, branch_k=8)
    inputs = prompt(target)
    reference = hf_generate(target, inputs, 8)
    checks.check_identity(target, drafter, inputs, reference)
    before = stub.recorded
    checks.check_identity(target, drafter.with_budget(12), inputs, reference)
    assert stub.recorded == before


def test_a_draft_that_cannot_be_recorded_leaves_the_targets_passes_recorded() -> None:
    class NoDrafts(StubGraphs):
        def record(self, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
            if "StaticDraft" in repr(inspect.getclosurevars(work).nonlocals["run"]):
                raise RuntimeError("topk cannot be captured")
            return super().record(work)

    stub = NoDrafts()
    target = static("qwen3", Captured(stub))
    inputs = prompt(target)
    reference = hf_generate(target, inputs, 8)
    with pytest.warns(OneglanceWarning, match="topk cannot be captured") as said:
        checks.check_identity(target, BlockDrafter(tiny_head(target), target, budget=15), inputs, reference)
    assert len(said) == 1
    assert stub.replayed > 0


# Graphs -------------------------------------------------------------------------------------------------------------


def addresses(state: TargetState) -> list[int]:
    rooms = [layer.room for layer in state.cache.layers if isinstance(layer, kv.RoomyLayer)]
    return [part.data_ptr() for room in rooms if room for part in room]


def test_graphs_are_recorded_once_a_shape_and_see_the_same_addresses() -> None:
    stub = StubGraphs()
    target = static("qwen3", Captured(stub))
    places = set()
    for seed in range(3):
        state, root = start(target, prompt(target, seed=seed))
        for tree in (EMPTY_TREE, CHAIN, EMPTY_TREE, CHAIN):
            target.verify(state, root, tree)
            target.commit(state, [0], [root])
            places.add(tuple(addresses(state)))
    assert (stub.recorded, stub.replayed) == (2, 12)
    assert len(places) == 1, "a later prompt's keys and values lie where the first one's did"


def test_rows_of_a_pass_outlive_the_next_one() -> None:
    target = static("qwen3", "graphs")
    state, root = start(target, prompt(target))
    rows: Tensor = target.verify(state, root, EMPTY_TREE)
    before = rows.clone()
    target.commit(state, [0], [5])
    target.verify(state, 5, EMPTY_TREE)
    assert torch.equal(rows, before)


def test_what_cannot_be_recorded_runs_as_it_is_and_says_so_once() -> None:
    target = static("qwen3", Captured(CudaGraphs(torch.device("cpu"))))
    inputs = prompt(target)
    reference = hf_generate(target, inputs, 6)
    with pytest.warns(OneglanceWarning, match="not recorded as graphs.*no CUDA graphs on cpu") as said:
        checks.check_identity(target, NoDrafter(), inputs, reference)
    assert len(said) == 1


# Compiled -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own, inside a compilation
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="no C++ compiler")
def test_compiled_passes_are_the_targets_own_and_compiled_once_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setattr(kv, "GROWTH", 64)
    target = tiny_target("qwen3_vl").with_passes(StaticShape(Compiled()))
    drafter = BlockDrafter(tiny_head(target), target, budget=15)
    torch._dynamo.reset()
    counters.clear()
    warm = prompt(target, 1)
    reference = hf_generate(target, warm, 12)
    checks.check_identity(target, drafter, warm, reference)
    checks.check_identity(target, NoDrafter(), warm, hf_generate(target, warm, 12))
    checks.check_packed_rows(target, warm)
    compiled = counters["stats"]["unique_graphs"]
    for seed in range(3):
        inputs = prompt(target, seed % 2, text="another prompt " * (1 + 4 * seed), seed=seed)
        truth, length = hf_generate(target, inputs, 20), len(inputs.token_ids)
        lucky = lucky_drafter(truth, length, budget=15, vocab_size=target.vocab_size, seed=seed)
        checks.check_identity(target, lucky, inputs, truth)
        checks.check_identity(target, drafter, inputs, truth)
        checks.check_identity(target, NoDrafter(), inputs, truth)
    assert counters["stats"]["unique_graphs"] == compiled
    assert compiled <= 5, f"{compiled} programs: more than one for a width and a set of kept layers, and for drafts"


# Choice -------------------------------------------------------------------------------------------------------------


def test_auto_is_eager_on_a_cpu() -> None:
    target = tiny_target("qwen3")
    assert with_runner(target, "auto").passes.name == with_runner(target, "eager").passes.name == "free"


@pytest.mark.parametrize("name", [name for name in RUNNERS if name != "eager"])
def test_static_runners_have_their_names(name: str) -> None:
    assert with_runner(tiny_target("qwen3"), name).passes.name == name


@pytest.mark.parametrize(
    ("family", "attention", "message"),
    [("mllama", "sdpa", "layers of mllama targets do more"), ("qwen3", "eager", "static passes attend by sdpa")],
)
def test_targets_without_static_passes_are_refused_by_name(family: str, attention: str, message: str) -> None:
    target = tiny(family, attention)
    with pytest.raises(InputError, match=f"--runner graphs: .*{message}.*use --runner eager"):
        with_runner(target, "graphs")
    assert with_runner(target, "auto") is target


def test_compiling_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(InputError, match=r"needs a C\+\+ compiler .* use --runner eager"):
        with_runner(tiny("qwen3", "sdpa"), "compile")


def test_an_unknown_runner_is_refused() -> None:
    with pytest.raises(InputError, match="unknown runner 'fast'; choose one of auto, eager, compile, graphs"):
        with_runner(tiny("qwen3", "sdpa"), "fast")
