"""The vLLM plugin on doubles of what it mends: same names, same signatures, the same slips."""

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from oneglance.engines import vllm
from oneglance.engines.hooks import Hook

BLOCK = 4
TABLE = torch.tensor([7, 2, 9, 5, 0, 3])  # block table of one request


class DFlashProposer:
    """Addresses its cache by the first row of what it gets, as the kernel does that reads one pointer."""

    def set_inputs_first_pass(
        self,
        target_token_ids: Any,
        next_token_ids: Any,
        target_positions: torch.Tensor,
        target_hidden_states: Any,
        token_indices_to_sample: Any,
        cad: Any,
        num_rejected_tokens_gpu: Any,
    ) -> list[int]:
        row = target_positions.reshape(-1)[: target_positions.shape[-1]]
        return (TABLE[row // BLOCK] * BLOCK + row % BLOCK).tolist()


class OtherProposer(DFlashProposer):
    """A drafter of the same shape that has M-RoPE rows of its own."""


def runner_class() -> type:
    """A class a test, so that no test sees what another one patched."""

    class GPUModelRunner:
        uses_mrope = True

        def __init__(self, temporal: list[int], drafter: Any, requests: int = 1) -> None:
            rows = torch.tensor(temporal)
            self.mrope_positions = SimpleNamespace(gpu=torch.stack([rows, rows + 1, rows + 2]))
            self.positions: Any = torch.arange(len(temporal))
            self.drafter = drafter
            self.input_batch = SimpleNamespace(num_reqs=requests)

        def _get_positions(self, num_tokens: Any) -> torch.Tensor:
            if not self.uses_mrope:
                return self.positions[:num_tokens]
            taken = slice(num_tokens) if isinstance(num_tokens, int) else num_tokens
            return self.mrope_positions.gpu[:, taken]

        def slots(self, num_tokens: Any) -> list[int]:
            return self.drafter.set_inputs_first_pass(None, None, self._get_positions(num_tokens), *[None] * 4)

    return GPUModelRunner


def model_classes() -> dict[str, type]:
    class DFlashQwen3Model:
        """Its kernel on a CPU knows one row of weights."""

        _rms_norm_eps = 1e-6

        def __init__(self, weights: torch.Tensor) -> None:
            self._k_norm_weights = weights

        def _normalize_context_k(self, all_k: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.rms_norm(all_k, all_k.shape[-1:], self._k_norm_weights[0], self._rms_norm_eps)

    class DFlashQwen3ForCausalLM:
        def load_weights(self, weights: Any) -> list[str]:
            return [name for name, _ in weights]

    return {one.__name__: one for one in (DFlashQwen3Model, DFlashQwen3ForCausalLM)}


IMAGE_PROMPT = [0, 1, 2, *[3] * 12, 7, 8, 9]  # twelve image tokens share a temporal position


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The runner class of an installed vLLM."""
    return install(monkeypatch)


def install(monkeypatch: pytest.MonkeyPatch, **replaced: Any) -> Any:
    places = {
        "vllm.v1.spec_decode.dflash": {"DFlashProposer": DFlashProposer},
        "vllm.v1.worker.gpu_model_runner": {"GPUModelRunner": runner_class()},
        vllm.MODELS: model_classes(),
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: True)},
    }
    parents = "vllm vllm.v1 vllm.v1.spec_decode vllm.v1.worker vllm.model_executor vllm.model_executor.models"
    for parent in parents.split():
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    for place, names in places.items():
        module = ModuleType(place)
        for name, value in {**names, **replaced}.items():
            if name in names:
                setattr(module, name, value)
        monkeypatch.setitem(sys.modules, place, module)
    return sys.modules["vllm.v1.worker.gpu_model_runner"].GPUModelRunner


def test_tokens_of_an_image_get_slots_of_their_own(runner: Any, caplog: pytest.LogCaptureFixture) -> None:
    made = runner(IMAGE_PROMPT, DFlashProposer())
    assert len(set(made.slots(18))) < 18, "the double must have the defect, or this test shows nothing"
    vllm.register()
    assert made._get_positions(18).tolist() == list(range(18))
    assert made.slots(18) == [int(TABLE[i // BLOCK] * BLOCK + i % BLOCK) for i in range(18)]
    assert made._get_positions(torch.tensor([2, 3, 4])).tolist() == [2, 3, 4]
    assert not caplog.records


def test_a_buffer_that_also_lives_on_the_host(runner: Any) -> None:
    vllm.register()
    made = runner(IMAGE_PROMPT, DFlashProposer())
    made.positions = SimpleNamespace(gpu=made.positions)
    assert made._get_positions(18).tolist() == list(range(18))


def test_several_requests_count_up_each(runner: Any, caplog: pytest.LogCaptureFixture) -> None:
    vllm.register()
    made = runner([0, 1, 1, 1, 5, 0, 1, 1, 4], DFlashProposer(), requests=2)
    made.positions = torch.tensor([0, 1, 2, 3, 4, 10, 11, 12, 13])
    assert made._get_positions(9).tolist() == made.positions.tolist()
    assert not caplog.records


def test_other_drafters_and_text_models_are_left_alone(runner: Any, caplog: pytest.LogCaptureFixture) -> None:
    vllm.register()

    class Unrelated:
        pass

    assert runner(IMAGE_PROMPT, Unrelated())._get_positions(18).shape == (3, 18)
    text = runner(IMAGE_PROMPT, DFlashProposer())
    text.uses_mrope = False
    assert text._get_positions(5).tolist() == [0, 1, 2, 3, 4]
    assert not caplog.records


def methods() -> list[Any]:
    return [mend.method.find() for mend in vllm.MENDS]


def test_each_layers_keys_are_scaled_by_its_own_weights(runner: Any, caplog: pytest.LogCaptureFixture) -> None:
    keys, weights = torch.randn(3, 5, 2, 8), torch.rand(3, 8)
    model = Hook(f"{vllm.MODELS}:DFlashQwen3Model").find()(weights)
    right = torch.stack([torch.nn.functional.rms_norm(k, (8,), w, 1e-6) for k, w in zip(keys, weights, strict=True)])
    assert not torch.allclose(model._normalize_context_k(keys), right), "the double must have the defect"
    vllm.register()
    torch.testing.assert_close(model._normalize_context_k(keys), right)
    half = model._normalize_context_k(keys.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), right, rtol=0.02, atol=0.02)
    assert not caplog.records
    del model._k_norm_weights
    for _ in range(2):
        with pytest.raises(AttributeError):  # vLLM's own, as without the plugin
            model._normalize_context_k(keys)
    assert ["_k_norm_weights" in record.getMessage() for record in caplog.records] == [True]


def test_only_a_cpu_has_the_norms_mended(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["vllm.platforms"], "current_platform", SimpleNamespace(is_cpu=lambda: False))
    before = methods()
    vllm.register()
    assert [old is new for old, new in zip(before, methods(), strict=True)] == [False, True, False]


def test_a_rescorer_in_the_heads_folder_is_not_read_as_the_head(runner: Any) -> None:
    """A real head's names all pass, a real rescorer's do not."""
    from oneglance.drafters.checkpoint import BUILTIN, read_tensors
    from oneglance.drafters.rescorer import WEIGHTS

    folder = BUILTIN["builtin:reader"]
    head, rescorer = read_tensors(folder), read_tensors(folder, WEIGHTS)
    vllm.register()
    model = vllm.MODEL.find()()
    assert model.load_weights({**head, **rescorer}.items()) == list(head)


def test_calling_it_twice_patches_once(runner: Any) -> None:
    original = methods()
    vllm.register()
    patched = methods()
    assert not set(map(id, original)) & set(map(id, patched))
    vllm.register()
    assert methods() == patched


def test_without_this_drafter_it_is_silent(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    runner = install(monkeypatch)
    original = runner._get_positions
    monkeypatch.delitem(sys.modules, "vllm.v1.spec_decode.dflash")
    monkeypatch.delitem(sys.modules, vllm.MODELS)
    vllm.register()
    assert runner._get_positions is original
    assert not caplog.records


def moved_positions() -> type:
    made = runner_class()
    made._get_positions = lambda self, num_tokens, kind: None  # type: ignore[attr-defined]
    return made


def lost_positions() -> type:
    made = runner_class()
    del made._get_positions  # type: ignore[attr-defined]
    return made


class MovedProposer:
    def set_inputs_first_pass(self, target_token_ids: Any, positions: Any) -> None: ...


@pytest.mark.parametrize(
    ("replaced", "named"),
    [
        ({"GPUModelRunner": moved_positions()}, "takes (self, num_tokens, kind), expected (self, num_tokens)"),
        ({"GPUModelRunner": lost_positions()}, "GPUModelRunner._get_positions is gone"),
        ({"DFlashProposer": MovedProposer}, "set_inputs_first_pass takes (self, target_token_ids, positions)"),
    ],
)
def test_moved_hooks_are_named_and_nothing_is_touched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, replaced: dict[str, Any], named: str
) -> None:
    runner = install(monkeypatch, **replaced)
    before = dict(vars(runner))
    vllm.register()
    assert dict(vars(runner)) == before
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert named in caplog.text


@pytest.mark.parametrize("broken", ["stale", "no drafter", "no positions"])
def test_what_only_a_run_shows_is_said_once_and_left_as_it_was(
    runner: Any, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """A buffer that the runner fills no more, or attributes under other names."""
    vllm.register()
    made = runner(IMAGE_PROMPT, DFlashProposer())
    if broken == "stale":
        made.positions = torch.zeros(18, dtype=torch.int64)
    else:
        delattr(made, {"no drafter": "drafter", "no positions": "positions"}[broken])
    for _ in range(3):
        assert torch.equal(made._get_positions(18), made.mrope_positions.gpu[:, :18])
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "oneglance leaves vLLM as it is" in caplog.text
    assert "after images drafts are worse" in caplog.text
