"""SGLang's algorithm ``GLANCE``: what the engine asks about it, and the three places where it is told otherwise.

A checkpoint of a block head, a tree of N nodes and one verify pass of N+1 rows. The algorithm belongs to the DFLASH
family, so that the target's states are captured and the draft's cache is sized; block width and verify width differ,
which no stock algorithm has. This module imports nothing of SGLang until ``install`` has found every place in order.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

from oneglance.core import DEFAULT_BUDGET, InputError
from oneglance.engines.hooks import Hook

NAME = "GLANCE"
VERSIONS = ("0.5.23",)  # whose sources were read; for another one the places below would have to be read again
TREE_TOPK = 2  # above 1: attention may not assume a chain
BACKENDS = ("flashinfer", "triton")  # read a mask where one is given; FA3 wants one for the block as well
DRAFT_BACKEND = "speculative_draft_attention_backend"
MOST_REQUESTS = 48  # stock DFLASH's default

SPECULATIVE = "sglang.srt.speculative"
WORKER = f"{SPECULATIVE}.dflash_worker_v2:DFlashWorkerV2"
CAPTURE = "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner.get_spec_info"
WARM_UP = f"{SPECULATIVE}.spec_info:create_dummy_verify_input"
MASK_REQUEST = f"{SPECULATIVE}.spec_sampling_mask:validate_spec_sampling_mask_request"


def _hook(place: str, names: str) -> Hook:
    return Hook(place, tuple(names.split()))


HOOKS = (
    _hook(CAPTURE, "self num_tokens"),
    _hook(WARM_UP, "spec_algorithm custom_mask num_tokens_per_req is_draft_worker"),
    _hook(MASK_REQUEST, "req spec_algorithm"),
    _hook("sglang.srt.plugins.hook_registry:HookRegistry.register", "target hook hook_type source"),
    _hook(
        f"{SPECULATIVE}.spec_info:SpeculativeAlgorithm.register",
        "name supports_overlap validate_server_args spec_class",
    ),
    _hook(
        f"{SPECULATIVE}.spec_registry:CustomSpecAlgo.get_num_tokens_per_req_for_target_verify",
        "self num_draft_tokens is_draft_worker",
    ),
    _hook(f"{SPECULATIVE}.spec_registry:CustomSpecAlgo.handle_server_args", "self server_args"),
    _hook(
        "sglang.srt.managers.overlap_utils:FutureMap.__init__",
        "self device spec_algo req_to_token_pool needs_cpu_seq_lens needs_confidence_relay",
    ),
    _hook(f"{WORKER}.__init__", "self server_args gpu_id nccl_port target_worker"),
    _hook(f"{WORKER}.forward_batch_generation", "self batch on_publish grammar_barrier pp_proxy_tensors"),
    _hook(f"{WORKER}._maybe_build_draft_sampler", "self"),
    _hook(f"{WORKER}._defer_target_verify_gather", "self"),
    _hook(f"{WORKER}.init_attention_backends", "self"),
    _hook(f"{WORKER}.prewarm_sampling", "self"),
    _hook(f"{WORKER}._make_next_draft_input_decode", "self bonus_tokens new_seq_lens"),
    _hook(
        f"{WORKER}._append_target_hidden_to_draft_kv_by_loc",
        "self target_hidden cache_loc positions cache_loc_2d commit_lens extend_lens",
    ),
    _hook(f"{SPECULATIVE}.dflash_worker_v2:_resolve_dflash_embedding_module", "draft_model target_model"),
    _hook("sglang.srt.models.dflash:candidate_topk", "hidden lm_head k with_partition"),
    _hook("sglang.srt.models.dflash:DFlashDraftModel.set_block_size", "self block_size"),
    _hook(
        f"{SPECULATIVE}.dflash_info:DFlashVerifyInput.prepare_for_verify",
        "self batch target_worker defer_metadata_init",
    ),
    _hook(
        f"{SPECULATIVE}.dflash_utils:apply_dflash_verify_logits_adjustments",
        "next_token_logits sampling_info draft_token_num",
    ),
    _hook(
        f"{SPECULATIVE}.dflash_utils:build_speculative_verify_target_probs",
        "next_token_logits sampling_info draft_token_num bs max_top_k uniform_top_k_value use_sparse_topk",
    ),
    _hook(f"{SPECULATIVE}.draft_worker_common:build_block_pos_offsets", "length device"),
    _hook(f"{SPECULATIVE}.draft_worker_common:make_draft_block_spec_info", "draft_token_num device"),
    _hook(f"{SPECULATIVE}.spec_tp_sync:SpecTpSync.sync", "self site values"),
    _hook(f"{SPECULATIVE}.spec_utils:draft_tp_context", "layout"),
    _hook(f"{SPECULATIVE}.spec_utils:GrammarTree.from_device", "retrieve_next_token retrieve_next_sibling draft_token"),
    _hook(f"{SPECULATIVE}.spec_utils:build_grammar_vocab_mask", "reqs tree sampling_info device barrier"),
    _hook(
        "sglang.srt.layers.logprob_processor:compute_spec_logprobs",
        "batch logits_output predict accept_index chain_stride",
    ),
    _hook(
        "sglang.srt.managers.tp_worker:TpModelWorker.forward_batch_generation",
        "self batch forward_batch pp_proxy_tensors is_verify skip_attn_backend_init capture_hidden_mode"
        " return_kv_loc_plan",
    ),
    _hook(
        "sglang.srt.mem_cache.kv_index_translator:KVIndexTranslator.plan",
        "self req_pool_indices seq_lens seq_lens_cpu write_virtual read_extent write_slots translated_writes",
    ),
    _hook("sglang.srt.mem_cache.kv_loc_plan:KVLocPlan.bind", "self batch reader cols"),
    _hook("sglang.srt.mem_cache.kv_loc_plan:KVLocPlan.write_ids", "self reader kind cols"),
    _hook("sglang.srt.mem_cache.memory_pool:MHATokenToKVPool.move_kv_cache", "self tgt_loc src_loc"),
    _hook("sglang.srt.lora.layers:unwrap_lora_layer", "module"),
)


def version_problem(version: str | None = None) -> str | None:
    """Why the installed SGLang (or the one named) is none that this was written for, or None."""
    try:
        found = version or importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "no distribution named sglang is installed"
    if found.split("+")[0].split(".post")[0] in VERSIONS:
        return None
    return f"SGLang {found} is none of {', '.join(VERSIONS)}, whose sources the tree was written against"


def install() -> None:
    """Register the algorithm and its hooks; nothing before it has touched SGLang."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import get_spec

    if get_spec(NAME) is not None:
        return  # SGLang may call plugins more than once
    SpeculativeAlgorithm.register(NAME, supports_overlap=False, spec_class=algorithm_class())(_worker)
    for place, hook in ((CAPTURE, masked_capture), (WARM_UP, drafts_own_width), (MASK_REQUEST, no_sampling_mask)):
        HookRegistry.register(place.replace(":", "."), hook, HookType.AROUND)


def _worker(server_args: Any) -> type:
    from oneglance.engines.sglang_worker import GlanceWorker

    return GlanceWorker


def algorithm_class() -> type:
    """A ``CustomSpecAlgo`` of the DFLASH family, with the three methods that stock's own lacks and its callers need."""
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    answers = {name: value for name, value in vars(Answers).items() if not name.startswith("__")}
    return type("GlanceAlgorithm", (CustomSpecAlgo,), answers)


class Answers:
    """What SGLang asks of an algorithm, where the answer is not the default one."""

    def is_dflash_family(self) -> bool:
        """The target captures states, the draft's cache is sized, and the draft has a graph."""
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def create_future_map(
        self, device: Any, req_to_token_pool: Any, needs_cpu_seq_lens: bool = True, needs_confidence_relay: bool = False
    ) -> Any:
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)

    def get_num_tokens_per_req_for_target_verify(self, num_draft_tokens: int, is_draft_worker: bool) -> int:
        """B slots for the head, N+1 rows for the target."""
        from sglang.srt.runtime_context import get_spec

        return int(get_spec().speculative_dflash_block_size) if is_draft_worker else num_draft_tokens

    def handle_server_args(self, server_args: Any) -> None:
        settle(server_args)


def settle(args: Any) -> None:
    """Check a server's settings and fill in what the tree fixes.

    Raises:
        ValueError: a setting that the tree cannot run with; the message names the flag.
    """
    refused = {
        "--speculative-draft-model-path, the head, is missing": not args.speculative_draft_model_path,
        "a tree needs a CUDA device": not str(args.device).startswith("cuda"),
        "--pp-size must be 1": args.pp_size != 1,
        "--enable-dp-attention is not supported": bool(args.enable_dp_attention),
        "--disaggregation-mode is not supported": args.disaggregation_mode not in (None, "null"),
        "--speculative-adaptive is not supported": bool(args.speculative_adaptive),
        "--speculative-draft-window-size is not supported": args.speculative_draft_window_size is not None,
        "--enable-deterministic-inference is not supported": bool(args.enable_deterministic_inference),
        "--page-size must be 1": args.page_size not in (None, 1),
        f"--attention-backend must be one of {', '.join(BACKENDS)}": args.attention_backend not in BACKENDS,
        **{
            f"--{name.replace('_', '-')} must be one of {', '.join(BACKENDS)}": (
                getattr(args, name) not in (None, *BACKENDS)
            )
            for name in ("prefill_attention_backend", "decode_attention_backend", DRAFT_BACKEND)
        },
    }
    found = [message for message, is_so in refused.items() if is_so]
    if found:
        raise ValueError(f"{NAME} cannot start: {'; '.join(found)}")
    block, rows = _block_size(args.speculative_draft_model_path), args.speculative_num_draft_tokens
    rows = DEFAULT_BUDGET + 1 if rows is None else int(rows)
    if rows < block:
        raise ValueError(
            f"--speculative-num-draft-tokens counts the root and the tree's nodes: at least {block} for this head, "
            f"got {rows}"
        )
    args.speculative_dflash_block_size, args.speculative_num_draft_tokens = block, rows
    args.speculative_num_steps, args.speculative_eagle_topk = 1, TREE_TOPK
    args.page_size, args.disable_overlap_schedule = 1, True
    setattr(args, DRAFT_BACKEND, getattr(args, DRAFT_BACKEND) or args.attention_backend)
    if args.max_running_requests is None:
        args.max_running_requests = MOST_REQUESTS


def _block_size(head: str) -> int:
    from oneglance.engines import depth_of

    try:
        return depth_of(head, None) + 1
    except InputError as error:
        raise ValueError(f"--speculative-draft-model-path: {error}") from error


def _is_ours(algorithm: Any) -> bool:
    return getattr(algorithm, "name", None) == NAME


def masked_capture(original: Any, runner: Any, num_tokens: int) -> Any:
    """Around ``get_spec_info``: the target's graph is captured with the mask that each round fills."""
    info = original(runner, num_tokens)
    model = runner.model_runner
    if info is not None and _is_ours(model.spec_algorithm) and not model.is_draft_worker:
        info.custom_mask, info.topk = runner.buffers.custom_mask, TREE_TOPK
    return info


def drafts_own_width(
    original: Any, spec_algorithm: Any, custom_mask: Any, num_tokens_per_req: int, is_draft_worker: bool
) -> Any:
    """Around ``create_dummy_verify_input``: stock gives block and verify pass one width when it warms up."""
    info = original(spec_algorithm, custom_mask, num_tokens_per_req, is_draft_worker)
    if info is not None and _is_ours(spec_algorithm):
        info.draft_token_num = info.num_tokens_per_req = num_tokens_per_req
        info.custom_mask = None if is_draft_worker else custom_mask
    return info


def no_sampling_mask(original: Any, req: Any, spec_algorithm: Any) -> Any:
    """Around ``validate_spec_sampling_mask_request``: stock captures a chain's."""
    if _is_ours(spec_algorithm):
        return f"return_sampling_mask is not supported with {NAME}."
    return original(req, spec_algorithm)
