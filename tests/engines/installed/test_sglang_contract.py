"""The plugin against a real SGLang, imported without a GPU: hooks by name and signature, setters, and the algorithm."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from oneglance.drafters.checkpoint import BUILTIN
from oneglance.engines import sglang, sglang_tree
from oneglance.engines.hooks import Hook, problems

KEPT = [1, 9, 17, 25, 33]
HEAD = str(BUILTIN["builtin:reader"])


def test_the_plugins_hooks_are_there() -> None:
    assert problems(sglang.HOOKS) == []


@pytest.mark.parametrize("place", sglang.MODELS)
def test_models_capture_what_the_head_reads(place: str) -> None:
    """The class is real, its modules are not made: a setter only writes two attributes."""
    sglang.register()
    model: Any = object.__new__(Hook(place).find())
    stack = SimpleNamespace(layers_to_capture=[])
    vars(model).update(model=stack, pp_group=SimpleNamespace(is_last_rank=True), config=SimpleNamespace())
    model.set_dflash_layers_to_capture(KEPT)
    assert stack.layers_to_capture == [layer + 1 for layer in KEPT]
    assert model.capture_aux_hidden_states


def test_the_trees_hooks_are_there() -> None:
    assert sglang_tree.version_problem() is None
    assert problems(sglang_tree.HOOKS) == []


@pytest.fixture
def algorithm(caplog: pytest.LogCaptureFixture) -> Any:
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    sglang.register()
    sglang.register()
    HookRegistry.apply_hooks()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    return SpeculativeAlgorithm.from_string("glance")


def test_the_algorithm_answers_all_that_stock_asks(algorithm: Any) -> None:
    """Every method of the enum, since callers do not tell the two apart."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    asked = {name for name, value in vars(SpeculativeAlgorithm).items() if callable(value) and not name.startswith("_")}
    assert asked - set(dir(algorithm)) <= {"get_platform_worker_cls", "register", "from_string"}
    assert algorithm.is_dflash_family()
    assert not algorithm.is_dflash()
    assert not algorithm.need_topk()
    assert not algorithm.carries_draft_hidden_states()


def test_its_worker_is_ours(algorithm: Any) -> None:
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    worker = algorithm.factory(None)
    assert worker.__name__ == "GlanceWorker"
    assert issubclass(worker, DFlashWorkerV2)


def settings(**given: Any) -> SimpleNamespace:
    """ServerArgs' own fields and defaults, as far as the algorithm looks at them."""
    from sglang.srt.arg_groups.arg_utils import field_names
    from sglang.srt.server_args import ServerArgs

    values = {
        "speculative_draft_model_path": HEAD,
        "device": "cuda",
        "pp_size": 1,
        "enable_dp_attention": False,
        "disaggregation_mode": "null",
        "speculative_adaptive": False,
        "speculative_draft_window_size": None,
        "enable_deterministic_inference": False,
        "page_size": 1,
        "attention_backend": "flashinfer",
        "prefill_attention_backend": None,
        "decode_attention_backend": None,
        "speculative_draft_attention_backend": None,
        "speculative_num_draft_tokens": None,
        "max_running_requests": None,
        **given,
    }
    assert set(values) <= field_names(ServerArgs)
    return SimpleNamespace(**values)


def test_settings_are_filled_in(algorithm: Any) -> None:
    from sglang.srt.arg_groups.arg_utils import field_names
    from sglang.srt.server_args import ServerArgs

    args = settings(speculative_num_draft_tokens=32)
    algorithm.handle_server_args(args)
    assert (args.speculative_dflash_block_size, args.speculative_num_draft_tokens) == (16, 32)
    assert (args.speculative_eagle_topk, args.disable_overlap_schedule, args.page_size) == (2, True, 1)
    assert args.speculative_draft_attention_backend == "flashinfer"
    assert set(vars(args)) <= field_names(ServerArgs)
    args = settings()
    algorithm.handle_server_args(args)
    assert args.speculative_num_draft_tokens == 64


def test_what_a_tree_cannot_run_with_is_refused_in_one_list(algorithm: Any) -> None:
    args = settings(device="cpu", page_size=16, attention_backend="fa3", pp_size=2)
    with pytest.raises(ValueError, match="CUDA device; --pp-size must be 1; --page-size must be 1; --att"):
        algorithm.handle_server_args(args)
    with pytest.raises(ValueError, match="at least 16 for this head, got 8"):
        algorithm.handle_server_args(settings(speculative_num_draft_tokens=8))
    with pytest.raises(ValueError, match="no head at"):
        algorithm.handle_server_args(settings(speculative_draft_model_path="/none"))


def test_the_targets_graph_is_captured_with_the_mask(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's own ``get_spec_info`` on a runner's attributes."""
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    def captured(spec: Any, is_draft: bool) -> Any:
        runner: Any = object.__new__(DecodeCudaGraphRunner)
        model = SimpleNamespace(spec_algorithm=spec, is_draft_worker=is_draft, attn_backend=TritonAttnBackend())
        vars(runner).update(model_runner=model, captured_req_width=7, buffers=SimpleNamespace(custom_mask="the mask"))
        monkeypatch.setattr(DecodeCudaGraphRunner, "_capture_ragged_verify_layout", lambda self, n: None)
        return runner.get_spec_info(7)

    class TritonAttnBackend:
        """Expresses a chain without a mask, so that stock captures none."""

    assert captured(algorithm, False).custom_mask == "the mask"
    assert captured(algorithm, False).topk == 2
    assert captured(algorithm, True).custom_mask is None
    assert captured(SpeculativeAlgorithm.DFLASH, False).custom_mask is None


def test_requests_that_only_a_chain_can_answer_are_refused(algorithm: Any) -> None:
    from sglang.srt.managers import scheduler

    req = SimpleNamespace(sampling_params=SimpleNamespace(min_p=0, top_k=1))
    assert "not supported with GLANCE" in scheduler.validate_spec_sampling_mask_request(req, algorithm)


def test_block_and_verify_pass_have_widths_of_their_own(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt import runtime_context
    from sglang.srt.speculative import spec_info

    bag = SimpleNamespace(speculative_dflash_block_size=16, speculative_num_draft_tokens=64)
    monkeypatch.setattr(runtime_context, "get_spec", lambda: bag)
    monkeypatch.setattr(spec_info, "get_spec_config", lambda: bag)
    assert algorithm.get_num_tokens_per_req_for_target_verify(64, True) == 16
    assert algorithm.get_num_tokens_per_req_for_target_verify(64, False) == 64
    assert spec_info.create_dummy_verify_input(algorithm, "mask", 16, True).draft_token_num == 16
    assert spec_info.create_dummy_verify_input(algorithm, "mask", 64, False).custom_mask == "mask"
