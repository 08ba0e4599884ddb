"""The worker's rounds on CPU tensors: SGLang's own types, and doubles where it would touch a device.

The double target knows nothing of trees. A row's logits follow from the tokens that the row can see: those in the
cache's slots, and those of its own pass that the mask lets through, in order of position. So a wrong mask, position,
slot, move or walk changes the text, which has to be that of decoding token by token.
"""

import random
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from sglang.srt.mem_cache.kv_loc_plan import IdSpace, KVLocPlan
from sglang.srt.models import dflash
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.draft_worker_common import make_draft_block_spec_info, make_draft_input_v2
from sglang.srt.speculative.spec_tp_sync import SpecTpSync

from oneglance import tree as host
from oneglance.core import BlockMarginals
from oneglance.engines import sglang_worker
from oneglance.engines.sglang_worker import GlanceWorker, Marginals

VOCAB, BLOCK, BUDGET, MASK = 13, 5, 11, 12
PROMPTS = ([3, 1, 4], [1, 5, 9, 2, 6], [5])
PAGE = 64  # slots of a request's row


def logits_of(seen: list[int]) -> torch.Tensor:
    """(V,) the target: any function of the text will do."""
    return torch.from_numpy(np.random.default_rng([len(seen), *seen]).normal(size=VOCAB)).float()


def plain(prompt: list[int], count: int) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        text.append(int(logits_of(text).argmax()))
    return text[len(prompt) :]


class Translator:
    """A static pool's: virtual slots are the physical ones."""

    def space(self, kind: Any) -> IdSpace:
        return IdSpace(key="pool")

    def plan(self, **fields: Any) -> KVLocPlan:
        return KVLocPlan(source=self, **fields)


class World:
    """A target, a head and their caches, with every slot's token in the open."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        slots = torch.randperm(len(PROMPTS) * PAGE, generator=torch.Generator().manual_seed(seed)) + 1
        self.table = slots.view(len(PROMPTS), PAGE)
        self.cache = torch.full((len(slots) + 1,), -1)  # the target's token at each slot
        self.draft_cache = torch.full((len(slots) + 1, 2), -1)  # the head's: token and position that made it
        self.texts = [list(prompt) for prompt in PROMPTS]
        for row, prompt in enumerate(PROMPTS):
            self.cache[self.table[row, : len(prompt)]] = torch.tensor(prompt)
            self.texts[row].append(int(logits_of(prompt).argmax()))
        self.hits: list[int] = []

    def move_kv_cache(self, tgt_loc: torch.Tensor, src_loc: torch.Tensor) -> None:
        self.cache[tgt_loc] = self.cache[src_loc]

    def verify(self, forward: Any) -> Any:
        """Rows of the packed pass, each from what it may see."""
        info, batch = forward.spec_info, forward.batch
        rows = info.draft_token_num
        tokens, slots = info.draft_token.view(-1, rows), batch.out_cache_loc.view(-1, rows)
        positions = info.positions.view(-1, rows)
        self.cache[slots.flatten()] = tokens.flatten()
        logits, start = [], 0
        for request, length in enumerate(batch.seq_lens.tolist()):
            mask = info.custom_mask[start : start + rows * (length + rows)].view(rows, length + rows)
            start += mask.numel()
            keys = torch.cat([self.table[request, :length], slots[request]])
            places = torch.cat([torch.arange(length), positions[request]])
            for row in range(rows):
                seen = mask[row].nonzero()[:, 0]
                order = places[seen].argsort()
                assert places[seen][order].tolist() == list(range(len(seen)))
                logits.append(logits_of(self.cache[keys[seen[order]]].tolist()))
        hidden = torch.stack([tokens.flatten(), positions.flatten()], dim=1).float()
        output = SimpleNamespace(next_token_logits=torch.stack(logits), hidden_states=hidden)
        nothing = {"routed_experts_output": None, "indexer_topk_output": None}
        return SimpleNamespace(logits_output=output, can_run_cuda_graph=False, **nothing)

    def draft(self, forward: Any) -> Any:
        """Hidden states whose logits put the right token at rank 0, 1, 2 or nowhere near."""
        ids = forward.input_ids.view(-1, BLOCK)
        hidden = torch.randn(*ids.shape, VOCAB, generator=torch.Generator().manual_seed(self.rng.randrange(2**31)))
        for request, text in enumerate(self.texts):
            assert ids[request].tolist() == [text[-1], *[MASK] * (BLOCK - 1)]
            for offset, token in enumerate(plain(text, BLOCK - 1), start=1):
                if (rank := self.rng.choice([0, 0, 1, 2, 9])) < 9:
                    hidden[request, offset, token] = hidden[request, offset].topk(rank + 1).values[-1] + 1e-3
        flat = hidden.view(-1, VOCAB)
        return SimpleNamespace(logits_output=SimpleNamespace(hidden_states=flat), can_run_graph=False)


class Worker(GlanceWorker):
    """Made without SGLang's start, which loads weights."""

    def __init__(self, world: World) -> None:
        self.world = world
        translator = Translator()
        embedding = torch.nn.Embedding(VOCAB, 2)
        model = SimpleNamespace(lm_head=SimpleNamespace(weight=torch.eye(VOCAB), org_vocab_size=VOCAB))
        model.get_input_embeddings = lambda: embedding
        runner = SimpleNamespace(
            model=model,
            kv_index_translator=translator,
            req_to_token_pool=SimpleNamespace(req_to_token=world.table),
            model_config=SimpleNamespace(vocab_size=VOCAB),
            token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: world),
        )
        self._target_worker = SimpleNamespace(
            model_runner=runner,
            forward_batch_generation=lambda batch, forward_batch, is_verify, skip_attn_backend_init: world.verify(
                forward_batch
            ),
        )
        self.model_runner = runner
        self.draft_model_runner = SimpleNamespace(kv_index_translator=translator, forward=world.draft)
        self.draft_model = SimpleNamespace()
        self.device = "cpu"
        self.num_rows, self.block_size = BUDGET + 1, BLOCK
        self._block_pos_offsets = torch.arange(BLOCK)
        self._draft_block_spec_info = make_draft_block_spec_info(draft_token_num=BLOCK, device=torch.device("cpu"))
        self._mask_token_id, self._full_embed_gpu, self._noise_embed_scale = MASK, None, 1.0
        self._draft_sampler, self.draft_parallel_layout = None, None
        self._tp_sync = SpecTpSync(SimpleNamespace(world_size=1, rank_in_group=0))
        self._marginals = Marginals.empty(model.lm_head, BLOCK, self.num_ranks, 1, "cpu")

    def _append_target_hidden_to_draft_kv_by_loc(self, **given: Any) -> None:
        rows = given["target_hidden"].view(len(PROMPTS), BLOCK, -1).long()
        positions = given["positions"].view(len(PROMPTS), BLOCK)
        for request, count in enumerate(given["commit_lens"].tolist()):
            assert positions[request, :count].tolist() == rows[request, :count, 1].tolist()
            self.world.draft_cache[given["cache_loc_2d"][request, :count]] = rows[request, :count]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, request: Any) -> Worker:
    monkeypatch.setattr(dflash, "get_parallel", lambda: SimpleNamespace(tp_size=1))
    monkeypatch.setattr(sglang_worker, "draft_tp_context", lambda layout: nullcontext())
    monkeypatch.setattr(sglang_worker, "enable_num_token_non_padded", lambda: False)

    def prepared(self: Any, batch: Any, target_worker: Any, **_: Any) -> tuple[Any, bool]:
        assert batch.seq_lens_cpu.tolist() == (batch.seq_lens + self.draft_token_num).tolist()
        batch.spec_info = self
        return SimpleNamespace(spec_info=self, batch=batch), False

    monkeypatch.setattr(DFlashVerifyInput, "prepare_for_verify", prepared)
    return Worker(World(getattr(request, "param", 0)))


def a_batch(world: World, state: DFlashDraftInputV2, info: Any = None) -> SimpleNamespace:
    lengths = torch.tensor([len(text) - 1 for text in world.texts])  # the root is not in the cache
    return SimpleNamespace(
        seq_lens=lengths,
        seq_lens_cpu=lengths.clone(),
        seq_lens_sum=int(lengths.sum()),
        req_pool_indices=torch.arange(len(PROMPTS)),
        spec_info=state,
        sampling_info=info,
        reqs=[],
        has_grammar=False,
        return_logprob=False,
        can_run_decode_cuda_graph=False,
        out_cache_loc=None,
    )


@pytest.mark.parametrize("worker", range(6), indirect=True)
def test_rounds_give_the_text_of_single_steps(worker: Worker) -> None:
    world = worker.world
    roots = torch.tensor([text[-1] for text in world.texts])
    state = make_draft_input_v2(bonus_tokens=roots, new_seq_lens=torch.tensor([len(t) - 1 for t in world.texts]))
    accepted = 0
    for _ in range(6):
        published: list[torch.Tensor] = []
        batch = a_batch(world, state)
        done = worker.round(batch, published.append, None)
        stride, counts = done.speculative_output_stride, done.accept_lens.tolist()
        tokens = done.next_token_ids.view(-1, stride)
        for request, count in enumerate(counts):
            world.texts[request].extend(tokens[request, :count].tolist())
        assert published[0].tolist() == done.new_seq_lens.tolist() == [len(text) - 1 for text in world.texts]
        accepted += sum(counts) - len(counts)
        state = done.next_draft_input
        assert state.bonus_tokens.tolist() == [text[-1] for text in world.texts]
    assert accepted > 0, "no proposed token was accepted: the test shows nothing"
    for request, (prompt, text) in enumerate(zip(PROMPTS, world.texts, strict=True)):
        assert text == [*prompt, *plain(prompt, len(text) - len(prompt))]
        slots = world.table[request, : len(text) - 1]
        assert world.cache[slots].tolist() == text[:-1]
        new = slice(len(prompt), len(text) - 1)
        expected = [[token, position] for position, token in enumerate(text[:-1])][new]
        assert world.draft_cache[slots[new]].tolist() == expected


def test_marginals_are_the_full_vocabularys(worker: Worker) -> None:
    hidden = 3 * torch.randn(2 * BLOCK, VOCAB, generator=torch.Generator().manual_seed(1))
    ids, log_q = worker.marginals.read(hidden)
    wanted = hidden.view(2, BLOCK, VOCAB)[:, 1:].double().log_softmax(-1)
    assert torch.allclose(log_q, wanted.gather(2, ids), atol=1e-5)
    assert (log_q[..., :-1] >= log_q[..., 1:]).all()
    worker.marginals(hidden[:BLOCK])  # as the draft's graph records it
    assert torch.equal(worker.marginals.token_ids[0], ids[0])
    assert torch.equal(worker.marginals.log_q[0], log_q[0])
    oracle = host.best_first(BlockMarginals(ids[0].numpy(), log_q[0].numpy()), BUDGET)
    whole = wanted[0].sort(dim=-1, descending=True)
    full = host.best_first(BlockMarginals(whole.indices.numpy(), whole.values.numpy()), BUDGET)
    assert oracle.token_ids == full.token_ids, "the ranks that were left out would have been in the tree"


def test_draws_are_the_targets_own(worker: Worker) -> None:
    """Temperature, top-p and min-p, against the distribution worked out by hand."""
    count, temperature, top_p, min_p = 3000, 0.8, 0.9, 0.1
    row = logits_of([7, 7])
    info = SamplingBatchInfo(
        temperatures=torch.full((count, 1), temperature),
        top_ps=torch.full((count,), top_p),
        top_ks=torch.full((count,), VOCAB, dtype=torch.int32),
        min_ps=torch.full((count,), min_p),
        is_all_greedy=False,
        is_any_greedy=False,
        need_top_p_sampling=True,
        need_top_k_sampling=False,
        need_min_p_sampling=True,
        vocab_size=VOCAB,
    )
    batch = SimpleNamespace(sampling_info=info, seq_lens=torch.zeros(count))
    torch.manual_seed(5)
    choices = worker._choose(batch, row.repeat(count * worker.num_rows, 1), None, None)
    assert choices.shape == (count, worker.num_rows)
    p = (row.double() / temperature).softmax(0).numpy()
    order = np.argsort(-p)
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p]] = 0
    p[p < min_p * p.max()] = 0
    found = np.bincount(choices.flatten().numpy(), minlength=VOCAB)
    assert not found[p == 0].any()
    assert chisquare(found[p > 0], found.sum() * p[p > 0] / p.sum()).pvalue > 1e-3
