"""Rows of the round log against oracles: the plain loop's rows, and logits whose ranks are counted by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from helpers import picture
from oneglance.audit import Reference, reference
from oneglance.bench.roundlog import record
from oneglance.core import BlockMarginals, DraftError, SamplingParams, TokenTree
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.rescorer import RESCORERS, RescorerConfig, build
from oneglance.stats.rounds import RoundLog, row_of
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import failing_drafter, lucky_drafter, tiny_head, tiny_target
from oneglance.tree import from_path

NEW = 40


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3_vl")


@pytest.fixture(scope="module")
def inputs(target: Target) -> Any:
    return encode(target, "What is here?", images=[picture(1)])


@pytest.fixture(scope="module")
def truth(target: Target, inputs: Any) -> Reference:
    return reference(target, inputs, max_new_tokens=NEW)


def rows_of(target: Target, inputs: Any, drafter: Any, **options: Any) -> Any:
    params = SamplingParams(NEW, **options)
    done = record(Decoder(target, drafter), inputs, params, run="r", task="t", prompt="p", num_ranks=4)
    for row in done.rows:
        assert row_of(row.as_json()) == row  # every row passes the reader's own checks
    return done


def test_rows_of_the_root_are_those_of_the_plain_loop(target: Target, inputs: Any, truth: Reference) -> None:
    length = len(inputs.token_ids)
    drafter = lucky_drafter(truth.token_ids, length, seed=3, budget=12, vocab_size=target.vocab_size)
    done = rows_of(target, inputs, drafter)
    assert done.generation.token_ids == truth.token_ids
    at = 0
    for row, own in zip(done.rows, done.generation.rounds, strict=True):
        assert row.position == length + at
        p = truth.rows[at + 1].double().softmax(-1).numpy()
        assert row.h_nats == pytest.approx(float(-(p[p > 0] * np.log(p[p > 0])).sum()), abs=1e-4)
        assert row.p_max == pytest.approx(p.max(), abs=1e-4)
        assert row.top2_gap == pytest.approx(truth.gaps[at + 1], abs=1e-3)
        assert row.a == min(len(own.token_ids), own.verdict.num_accepted)
        assert row.nodes == len(own.tree)
        at += len(own.token_ids)
    assert at == len(truth.token_ids) - 1
    assert max(row.a for row in done.rows) > 1
    assert done.marginals is None  # scripted trees come without marginals
    assert all(row.ranks == () for row in done.rows)


@dataclass
class Known:
    """Proposes the target's own next token, and shows random logits."""

    truth: Sequence[int]
    start_at: int
    seen: list[Any]
    vocab_size: int
    watch: Any = None
    name: str = "known"
    target_layer_ids: tuple[int, ...] = ()

    def start(self, state: Any) -> None:
        return None

    def draft(self, root: int, state: Any, draft_state: None, *, max_depth: int) -> TokenTree:
        logits = torch.randn(15, self.vocab_size, generator=torch.Generator().manual_seed(len(self.seen))).round()
        self.seen.append((len(state.token_ids), logits))
        if self.watch is not None:
            self.watch(logits, BlockMarginals(*(np.empty((0, 1)) for _ in range(2))))
        ahead = self.truth[len(state.token_ids) - self.start_at :][: min(2, max_depth)]
        return from_path(list(ahead))

    def num_passes(self, tree: TokenTree) -> int:
        return 1


def test_ranks_count_what_stands_before_the_targets_token(target: Target, inputs: Any, truth: Reference) -> None:
    drafter = Known(truth.token_ids, len(inputs.token_ids), [], target.vocab_size)
    done = rows_of(target, inputs, drafter)
    assert drafter.watch is None  # nobody watches once the log is written
    checked = 0
    for table, row, (so_far, logits) in zip(done.marginals, done.rows, drafter.seen, strict=True):
        ahead = truth.token_ids[so_far - len(inputs.token_ids) :][:15]
        order = [sorted(range(target.vocab_size), key=lambda i, line=line: (-line[i], i)) for line in logits.tolist()]
        assert row.ranks[: len(ahead)] == tuple(order[j].index(token) for j, token in enumerate(ahead))
        assert row.ranks[len(ahead) :] == (None,) * (15 - len(ahead))
        log_q = logits.double().log_softmax(-1)
        for j, token in enumerate(ahead):
            assert row.log_q[j] == pytest.approx(float(log_q[j, token]))
            checked += 1
        np.testing.assert_allclose(table, log_q.topk(4).values, rtol=1e-5)  # ranks in a tie have equal values
        leading = next((j for j, rank in enumerate(row.ranks) if rank != 0), 15)
        assert row.a1 == min(leading, row.horizon)
    assert checked > 100


def test_the_last_rounds_are_censored_by_the_cap(target: Target, inputs: Any, truth: Reference) -> None:
    done = rows_of(target, inputs, Known(truth.token_ids, len(inputs.token_ids), [], target.vocab_size))
    left = NEW - 1
    for row, own in zip(done.rows, done.generation.rounds, strict=True):
        assert row.horizon == min(15, left - 1)
        left -= len(own.token_ids)
    assert left == 0
    assert done.rows[-1].cut == "cap"
    assert [row.a for row in done.rows][:-1] == [2] * (len(done.rows) - 1)


def test_an_end_inside_the_accepted_path_censors(target: Target, inputs: Any, truth: Reference) -> None:
    length = len(inputs.token_ids)
    stop = target.tokenizer.decode(truth.token_ids[2:3])
    first = next(i for i in range(1, NEW) if stop in target.tokenizer.decode(truth.token_ids[: i + 1]))
    drafter = Known(truth.token_ids, length, [], target.vocab_size)
    done = rows_of(target, inputs, drafter, stop=(stop,))
    assert done.generation.num_tokens == first + 1
    assert done.rows[-1].cut == "stop"
    assert done.rows[-1].horizon <= first


@pytest.mark.parametrize("kind", sorted(RESCORERS))
def test_a_rescorers_scores_stand_beside_the_marginal_ones(target: Target, inputs: Any, kind: str) -> None:
    """Against the tree of the same round: what it holds of the text, and its best chain."""
    torch.manual_seed(4)
    shape = {"vocab_size": target.vocab_size, "hidden_size": target.hidden_size}
    rescorer = build(RescorerConfig(kind=kind, rank=4, **shape)).requires_grad_(False)
    torch.nn.init.normal_(rescorer.after.weight)
    drafter = BlockDrafter(tiny_head(target, seed=5), target, budget=40, rescorer=rescorer)
    done = rows_of(target, inputs, drafter)
    tokens = done.generation.token_ids
    at = num_known = 0
    for row, own in zip(done.rows, done.generation.rounds, strict=True):
        ahead, at = tokens[at + 1 :][:15], at + len(own.token_ids)
        if not len(own.tree):
            assert row.chain_log_q == ()
            continue
        tree, node = own.tree, 0
        for offset, token in enumerate(ahead):
            node = tree.children[node].get(token, -1) if node >= 0 else -1
            if node > 0:
                assert tree.scores[node - 1] == pytest.approx(sum(row.log_q_given[: offset + 1]), abs=1e-4)
                num_known += 1
            if row.log_q_given[offset] is not None:
                assert row.log_q_given[offset] <= row.top_log_q_given[offset]
                assert (row.ranks_given[offset] == 0) == (row.log_q_given[offset] == row.top_log_q_given[offset])
        assert row.log_q_given[len(ahead) :] == (None,) * (15 - len(ahead))
        leading = next((j for j, rank in enumerate(row.ranks_given) if rank != 0), 15)
        assert row.chain_log_q[:leading] == pytest.approx(row.top_log_q_given[:leading], abs=1e-4)
        assert row.chain_log_q[0] == pytest.approx(tree.scores[0])
    assert num_known > 3
    assert all(row.log_q_given == row.chain_log_q == () for row in rows_of(target, inputs, plain(target)).rows)


def plain(target: Target) -> BlockDrafter:
    return BlockDrafter(tiny_head(target, seed=5), target, budget=20)


def test_a_block_head_gives_its_own_scores(target: Target, inputs: Any) -> None:
    drafter = plain(target)
    done = rows_of(target, inputs, drafter)
    log = RoundLog(done.rows)
    assert done.marginals.shape == (len(done.rows), 15, 4)
    assert drafter.watch is None
    for row in done.rows:
        assert row.budget == 20
        if row.a:  # the plug-in score is the sum of what was logged of the same tokens
            assert row.path_log_q == pytest.approx(sum(row.log_q[: row.a]), abs=1e-3)
    assert (done.marginals[:, :, :-1] >= done.marginals[:, :, 1:]).all()
    assert (log.drafted.runs.a <= log.drafted.runs.horizon).all()


def test_rounds_after_a_gated_choice_or_a_failure_were_not_drafted(target: Target, inputs: Any) -> None:
    gated = rows_of(target, inputs, BlockDrafter(tiny_head(target), target, budget=8), gate=1e9)
    assert gated.rows[0].gated
    assert [row.horizon for row in gated.rows[:4]] == [0, 0, 0, 0]
    with pytest.warns(UserWarning, match="drafting ended"):
        failed = rows_of(target, inputs, failing_drafter(2, DraftError("no more")))
    assert [row.horizon > 0 for row in failed.rows[:2]] == [True, True]
    assert not any(row.horizon for row in failed.rows[2:])
