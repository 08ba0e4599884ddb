"""SGLang's worker for a tree: the head's block as stock DFLASH runs it, then one masked verify pass over N+1 rows.

Stock ``DFlashWorkerV2`` keeps one width for the block and for the verify pass. Here the block has B slots and the
verify pass N+1 rows; prefill, the draft cache and the scheduler's side stay stock. This module imports SGLang, and is
imported only after ``sglang_tree`` has checked every place that it relies on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
    enable_num_token_non_padded,
)
from sglang.srt.models.dflash import candidate_topk
from sglang.srt.runtime_context import get_exec, get_spec
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.dflash_utils import (
    apply_dflash_verify_logits_adjustments,
    build_speculative_verify_target_probs,
)
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2, _resolve_dflash_embedding_module
from sglang.srt.speculative.draft_worker_common import build_block_pos_offsets, make_draft_block_spec_info
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_tp_sync import SpecTpSyncSite
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask, draft_tp_context
from torch import Tensor

from oneglance.engines import tensors
from oneglance.engines.sglang_tree import TREE_TOPK

Barrier = Callable[[], None] | None


@dataclass
class Marginals:
    """The best tokens of each offset, read off a block's hidden states; captured into the draft's CUDA graph.

    Every rank of a tensor-parallel group gets the same tokens: the K best of each shard are gathered.

    Attributes:
        lm_head: the target's.
        block_size: B.
        num_ranks: K.
        token_ids, log_q: (capacity, L, K) of the last captured block, int64 and float64.
    """

    lm_head: Any
    block_size: int
    num_ranks: int
    token_ids: Tensor
    log_q: Tensor

    @classmethod
    def empty(cls, lm_head: Any, block_size: int, num_ranks: int, capacity: int, device: Any) -> Marginals:
        shape = (capacity, block_size - 1, num_ranks)
        ids = torch.zeros(shape, dtype=torch.int64, device=device)
        return cls(lm_head, block_size, num_ranks, ids, torch.zeros(shape, dtype=torch.float64, device=device))

    def read(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """(R, L, K) tokens and their log-probabilities under the full vocabulary, from (R × B, H)."""
        rows = hidden_states.view(-1, self.block_size, hidden_states.shape[-1])[:, 1:]
        ids, logits, partition = candidate_topk(
            rows.reshape(-1, rows.shape[-1]), self.lm_head, self.num_ranks, with_partition=True
        )
        # rounding may leave more than 0, and a child would outscore its parent
        log_q = (logits.double() - partition.double()[:, None]).clamp(max=0.0)
        shape = (*rows.shape[:2], self.num_ranks)
        return ids.view(shape), log_q.view(shape)

    def __call__(self, hidden_states: Tensor, input_ids: Tensor | None = None) -> None:
        """As SGLang captures it, after the draft model."""
        ids, log_q = self.read(hidden_states)
        self.token_ids[: len(ids)].copy_(ids)
        self.log_q[: len(ids)].copy_(log_q)


class GlanceWorker(DFlashWorkerV2):
    """``DFlashWorkerV2`` with a tree between draft and verify.

    Attributes:
        block_size: B, the head's.
        num_rows: N+1, rows of a verify pass.
    """

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self.num_rows = int(get_spec().speculative_num_draft_tokens)
        self.block_size = int(get_spec().speculative_dflash_block_size)  # stock takes N+1 for it
        self.draft_model.set_block_size(self.block_size)
        self._block_pos_offsets = build_block_pos_offsets(length=self.block_size, device=self.device)
        self._draft_block_spec_info = make_draft_block_spec_info(draft_token_num=self.block_size, device=self.device)
        self._marginals: Marginals | None = None
        if self.selector is not None or self.lilicorr is not None or self._is_domino:
            raise ValueError("GLANCE draws its tree from a plain block head; this checkpoint has a selector of its own")

    @property
    def depth(self) -> int:
        """L."""
        return self.block_size - 1

    @property
    def num_ranks(self) -> int:
        """K: no tree of N nodes reaches a rank past N; a power of two for the kernel that selects."""
        wanted = 1 << (self.num_rows - 2).bit_length()
        return min(wanted, int(self.model_runner.model_config.vocab_size))

    @property
    def marginals(self) -> Marginals:
        """Made once the target is loaded, since its lm_head is read."""
        if self._marginals is None:
            lm_head = unwrap_lora_layer(self.target_worker.model_runner.model.lm_head)
            sizes = get_exec().graph.cuda_graph_config.decode.bs or [1]
            self._marginals = Marginals.empty(lm_head, self.block_size, self.num_ranks, max(sizes), self.device)
        return self._marginals

    def init_attention_backends(self) -> None:
        super().init_attention_backends()
        if self._need_mamba_verify_commit:
            raise ValueError("GLANCE cannot verify a tree on a target with recurrent layers")

    def _maybe_build_draft_sampler(self) -> Marginals:
        return self.marginals

    def _defer_target_verify_gather(self) -> None:
        """Every row's logits are needed whole."""

    def prewarm_sampling(self) -> Any:
        """Stock rehearses a chain's kernels, which are not used here."""
        return self.model_runner.prewarm_sampling()

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, grammar_barrier: Barrier = None, pp_proxy_tensors: Any = None
    ) -> Any:
        mode = batch.forward_mode
        if mode.is_extend() or batch.is_extend_in_batch or mode.is_idle() or batch.spec_info is None:
            return super().forward_batch_generation(batch, on_publish, grammar_barrier, pp_proxy_tensors)
        return self.round(batch, on_publish, grammar_barrier)

    def round(self, batch: Any, on_publish: Any, grammar_barrier: Barrier) -> Any:
        """Draft, verify, accept and commit one round of every request."""
        state, lengths = batch.spec_info, batch.seq_lens  # the verify pass puts another spec_info in its place
        roots = state.bonus_tokens.view(-1)
        slots = self._window(batch)
        token_ids, log_q = self._draft(batch, roots, slots)
        trees = tensors.best_first(roots, token_ids, log_q, self.num_rows - 1)
        seen = tensors.visible(trees, self.depth)
        grammar_tree = self._grammar_tree(trees) if batch.has_grammar else None
        plan = self._plan(batch, slots)
        done = self._verify(batch, trees, seen, slots, plan)
        grammar = self._grammar_mask(batch, grammar_tree, grammar_barrier)
        choices = self._choose(batch, done.logits_output.next_token_logits, grammar, state.max_top_k)
        verdicts = tensors.walk(trees, seen, choices, self.depth)
        if batch.return_logprob:
            kept = tensors.rows_kept(verdicts, self.num_rows)
            compute_spec_logprobs(batch, done.logits_output, choices.flatten(), accept_index=kept)
        new_lengths = lengths + verdicts.num_accepted + 1
        if on_publish is not None:
            on_publish(new_lengths)
        self._commit(verdicts, slots, lengths, plan, done.logits_output)
        following = self._make_next_draft_input_decode(bonus_tokens=verdicts.bonus, new_seq_lens=new_lengths)
        return GenerationBatchResult(
            logits_output=done.logits_output,
            next_token_ids=tensors.kept_tokens(trees, verdicts).flatten(),
            accept_lens=(verdicts.num_accepted + 1).to(torch.int32),
            can_run_cuda_graph=done.can_run_cuda_graph,
            next_draft_input=following,
            speculative_num_draft_tokens=self.num_rows,
            speculative_output_stride=self.block_size,
            new_seq_lens=new_lengths,
            routed_experts_output=done.routed_experts_output,
            indexer_topk_output=done.indexer_topk_output,
        )

    def _window(self, batch: Any) -> Tensor:
        """(R, N+1) cache slots after the committed tokens, which the scheduler has reserved."""
        columns = batch.seq_lens[:, None] + torch.arange(self.num_rows, device=batch.seq_lens.device)
        table = self.model_runner.req_to_token_pool.req_to_token
        slots: Tensor = table[batch.req_pool_indices[:, None], columns].to(torch.int64)
        return slots

    def _plan(self, batch: Any, slots: Tensor) -> Any:
        return self.target_worker.model_runner.kv_index_translator.plan(
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            seq_lens_cpu=batch.seq_lens_cpu,
            write_virtual=slots.flatten(),
            read_extent=slots.shape[1],
        )

    def _draft(self, batch: Any, roots: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """(R, L, K) best tokens of each offset, from one pass over [root, mask × L]."""
        num_requests, block = len(roots), self.block_size
        ids = torch.full((num_requests, block), int(self._mask_token_id), dtype=torch.int64, device=roots.device)
        ids[:, 0] = roots
        positions = (batch.seq_lens[:, None] + self._block_pos_offsets).flatten()  # plain token indices, no M-RoPE
        bound = (batch.seq_lens_cpu + block).to(torch.int32)
        num_tokens = num_requests * block
        forward = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=num_requests,
            input_ids=ids.flatten(),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            out_cache_loc=slots[:, :block].flatten(),
            seq_lens_sum=int(bound.sum()),
            seq_lens_cpu=bound,
            positions=positions,
            input_embeds=self._embedded(ids),
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            num_token_non_padded=(
                torch.full((), num_tokens, dtype=torch.int32, device=roots.device)
                if enable_num_token_non_padded()
                else None
            ),
            global_num_token_non_padded_cpu=num_tokens,
            can_run_decode_cuda_graph=batch.can_run_decode_cuda_graph,
        )
        self._plan(batch, slots[:, :block]).bind(forward, self.draft_model_runner.kv_index_translator)
        with torch.inference_mode(), draft_tp_context(self.draft_parallel_layout):
            done = self.draft_model_runner.forward(forward)
            if done.can_run_graph and self._draft_sampler is not None:
                return self.marginals.token_ids[:num_requests], self.marginals.log_q[:num_requests]
            return self.marginals.read(done.logits_output.hidden_states)

    def _embedded(self, ids: Tensor) -> Tensor:
        """(R × B, H) inputs of the block: the target's embedding."""
        if self._full_embed_gpu is not None:
            rows = torch.nn.functional.embedding(ids, self._full_embed_gpu)
        else:
            target = self.target_worker.model_runner.model
            rows = unwrap_lora_layer(_resolve_dflash_embedding_module(self.draft_model, target))(ids)
        scaled: Tensor = rows * self._noise_embed_scale
        return scaled.view(-1, rows.shape[-1])

    def _verify(self, batch: Any, trees: tensors.Trees, seen: Tensor, slots: Tensor, plan: Any) -> Any:
        """One packed pass of the target, each row seeing its ancestors alone."""
        committed, total = batch.seq_lens_cpu, batch.seq_lens_sum
        num_committed = int(committed.sum())
        verify = DFlashVerifyInput(
            draft_token=trees.token_ids.flatten(),
            positions=tensors.positions(trees, batch.seq_lens).flatten(),
            draft_token_num=self.num_rows,
            topk=TREE_TOPK,
            custom_mask=tensors.flat_mask(seen, batch.seq_lens, num_committed),
            capture_hidden_mode=CaptureHiddenMode.FULL,
            kv_loc_plan=plan,
        )
        batch.out_cache_loc = slots.flatten()
        batch.seq_lens_cpu = committed + self.num_rows  # attention plans for the rows as well
        batch.seq_lens_sum = num_committed + len(committed) * self.num_rows
        forward, _ = verify.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = committed, total
        return self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward, is_verify=True, skip_attn_backend_init=True
        )

    @staticmethod
    def _grammar_tree(trees: tensors.Trees) -> Any:
        kernel = tensors.links(trees)
        return GrammarTree.from_device(kernel.first_child, kernel.next_sibling, trees.token_ids)

    def _grammar_mask(self, batch: Any, tree: Any, barrier: Barrier) -> Any:
        if tree is None:
            return None
        return build_grammar_vocab_mask(
            reqs=batch.reqs, tree=tree, sampling_info=batch.sampling_info, device=self.device, barrier=barrier
        )

    def _choose(self, batch: Any, logits: Tensor, grammar: Any, max_top_k: int | None) -> Tensor:
        """(R, N+1) the target's own token after each row, greedy or drawn, the same on every rank."""
        info, num_requests = batch.sampling_info, len(batch.seq_lens)
        if info is not None:
            apply_dflash_verify_logits_adjustments(
                next_token_logits=logits, sampling_info=info, draft_token_num=self.num_rows
            )
        if grammar is not None:
            grammar.apply(logits)
        if info is None or info.is_all_greedy:
            choices = logits.argmax(dim=-1).view(num_requests, self.num_rows)
            self._tp_sync.sync(SpecTpSyncSite.DFLASH_ACCEPT_GREEDY, choices)  # in place
            return choices
        p = build_speculative_verify_target_probs(
            next_token_logits=logits,
            sampling_info=info,
            draft_token_num=self.num_rows,
            bs=num_requests,
            max_top_k=max_top_k,
        )
        if info.need_min_p_sampling:
            floor = info.min_ps[:, None, None] * p.amax(dim=-1, keepdim=True)
            p = torch.where(p < floor, 0.0, p)
        choices = tensors.drawn(p, torch.empty_like(p).exponential_())
        self._tp_sync.sync(SpecTpSyncSite.DFLASH_ACCEPT_SAMPLE, choices)
        return choices

    def _commit(self, verdicts: tensors.Verdicts, slots: Tensor, lengths: Tensor, plan: Any, output: Any) -> None:
        """Keep the accepted path: the target's keys and values, and the head's, made from the captured states."""
        read, write = tensors.moves(verdicts, slots)
        self.model_runner.token_to_kv_pool_allocator.get_kvcache().move_kv_cache(write, read)
        hidden = output.hidden_states
        if hidden is None:
            raise RuntimeError("GLANCE needs the target's captured states, and the verify pass gave none")
        num_requests, block = len(lengths), self.block_size
        rows = tensors.compacted(verdicts, hidden[: slots.numel()].view(num_requests, self.num_rows, -1))
        into = plan.write_ids(self.draft_model_runner.kv_index_translator).view_as(slots)[:, :block].contiguous()
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=rows.flatten(0, 1),
            cache_loc=into.flatten(),
            cache_loc_2d=into,
            positions=(lengths[:, None] + self._block_pos_offsets).flatten(),
            commit_lens=(verdicts.num_accepted + 1).to(torch.int32),
        )
        output.hidden_states = None  # large, and the scheduler would copy it
