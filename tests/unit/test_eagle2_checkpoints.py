"""EAGLE-2 and ViSpec checkpoints: the published layouts, what is wrong with others, and ViSpec's trees."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from baselines import eagle2_raw, eagle3_raw, tiny_eagle2, tiny_eagle3, tiny_vispec
from oneglance.core import HeadError, InputError
from oneglance.drafters import prepare
from oneglance.drafters.eagle2 import Eagle2Drafter
from oneglance.drafters.eagle2_head import Eagle2Config, Eagle2Head, load_eagle2
from oneglance.drafters.vispec import TREES, VispecDrafter
from oneglance.drafters.vispec_head import VispecConfig, VispecHead, load_vispec
from oneglance.targets.base import Target
from oneglance.testing import tiny_target
from oneglance.train.kinds import load_any
from oneglance.tree import best_first, chain


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("qwen3")


def write(folder: Path, raw: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    return str(folder)


VISPEC = {  # the geometry of Qwen3-VL-8B, by which the paper's parameter counts can be checked
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
}


def counted(module: type[torch.nn.Module], config: Any) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in module(config).parameters())


def test_the_papers_parameter_counts_of_eagle2_and_vispec() -> None:
    """0.23 B and 0.31 B (Table 2)."""
    eagle2 = counted(Eagle2Head, Eagle2Config.from_checkpoint(VISPEC, {}).for_target(36))
    vispec = counted(VispecHead, VispecConfig.from_checkpoint(VISPEC, {}).for_target(36))
    assert (round(eagle2 / 1e9, 2), round(vispec / 1e9, 2)) == (0.23, 0.31)


EAGLE2_LAYOUTS = ["eagle", "with embedding", "with model.", "biased attention", "without bias"]


@pytest.mark.parametrize("layout", EAGLE2_LAYOUTS)
def test_eagle2_layouts(target: Target, tmp_path: Path, layout: str) -> None:
    raw = eagle2_raw(target, **({"bias": False} if layout == "without bias" else {}))
    head = tiny_eagle2(target, **({"bias": False} if layout == "without bias" else {}))
    assert set(head.state_dict()) == {
        *(f"layers.0.self_attn.{name}_proj.weight" for name in "qkvo"),
        *(f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
        "layers.0.post_attention_layernorm.weight",
        "fc.weight",
        *([] if layout == "without bias" else ["fc.bias"]),
    }
    tensors, bundled = dict(head.state_dict()), 0
    if layout == "with embedding":
        tensors["embed_tokens.weight"] = target.embedding.weight * 2
        bundled = target.embedding.weight.numel()
    elif layout == "with model.":
        tensors = {f"model.{key}": value for key, value in tensors.items()}
    elif layout == "biased attention":
        tensors |= {
            f"layers.0.self_attn.{name}_proj.bias": torch.randn(rows)
            for name, rows in zip("qkv", (32, 16, 16), strict=True)
        }
    drafter = prepare("eagle2", write(tmp_path / "head", raw, tensors))(target, budget=59)
    assert isinstance(drafter, Eagle2Drafter)
    assert (drafter.top_k, drafter.depth, drafter.budget) == (10, 6, 59)
    assert drafter.target_layer_ids == (-1, target.num_layers - 1)
    assert drafter.head.config.rope_theta == 1e4
    assert drafter.num_parameters == sum(value.numel() for value in tensors.values()) - bundled
    embedded = target.embedding(torch.tensor([[5]])) * (2 if bundled else 1)
    assert torch.equal(drafter.embed([5]), embedded)
    kind, stored = load_any(str(tmp_path / "head"))
    assert (type(kind).__name__, stored.config.has_qkv_bias) == ("Eagle2Kind", layout == "biased attention")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"fc.bias": None}, "lacks 1 tensors: fc.bias"),
        ({"layers.0.input_layernorm.weight": torch.ones(32)}, "1 unexpected tensors: layers.0.input_layernorm.weight"),
        ({"layers.1.mlp.up_proj.weight": torch.ones(48, 32)}, "1 unexpected tensors: layers.1.mlp"),
        (
            {"layers.0.self_attn.v_proj.weight": torch.ones(8, 32)},
            r"v_proj.weight has shape \[8, 32\]",
        ),
        ({"fc.bias": torch.full((32,), torch.nan)}, "fc.bias holds NaN"),
        ({"fc.weight": None}, "holds no EAGLE-2 head"),
        ({"imadpt.q": torch.ones(2, 4, 8)}, "holds a ViSpec head .*choose drafter vispec"),
    ],
)
def test_damage_of_an_eagle2_head_is_named(
    target: Target, tmp_path: Path, tensors: dict[str, Tensor | None], message: str
) -> None:
    merged = {**tiny_eagle2(target).state_dict(), **tensors}
    folder = write(tmp_path, eagle2_raw(target), {key: value for key, value in merged.items() if value is not None})
    with pytest.raises(HeadError, match=message):
        load_eagle2(folder)


def test_eagle2_refusals(target: Target, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'eagle2' needs an EAGLE-2 head.*recipes/reader-eagle2\.yaml"):
        prepare("eagle2", None)
    with pytest.raises(HeadError, match="holds no EAGLE-2 head"):
        load_eagle2(write(tmp_path / "three", eagle3_raw(target), dict(tiny_eagle3(target).state_dict())))
    folder = write(tmp_path / "head", eagle2_raw(target), dict(tiny_eagle2(target).state_dict()))
    with pytest.raises(HeadError, match="hidden size: the head has 32, the target 16"):
        prepare("eagle2", folder)(tiny_target("qwen3", hidden_size=16))
    for changes, message in (
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear'"),
        ({"num_hidden_layers": 2}, "num_hidden_layers"),
    ):
        changed = write(tmp_path / "changed", eagle2_raw(target, **changes), dict(tiny_eagle2(target).state_dict()))
        with pytest.raises(HeadError, match=message):
            load_eagle2(changed)
    (tmp_path / "head" / "model.safetensors").rename(tmp_path / "head" / "pytorch_model.bin")
    with pytest.raises(HeadError, match=r"pytorch_model\.bin is a pickle, which is never loaded"):
        load_eagle2(folder)
    kept = eagle3_raw(target, eagle_config={"eagle_aux_hidden_state_layer_ids": [-1, 1, 2]})
    folder = write(tmp_path / "e", kept, dict(tiny_eagle3(target).state_dict()))
    with pytest.raises(HeadError, match="go past the target's 5 layers"):  # these heads alone keep the embedding
        prepare("eagle3", folder)(target)


def test_vispec_layouts_and_trees(tmp_path: Path) -> None:
    target = tiny_target("qwen3_vl")
    head = tiny_vispec(target, num_queries=3)
    own = set(head.state_dict()) - set(tiny_eagle2(target).state_dict())
    assert own == {
        "imadpt.q",
        *(f"imadpt.{name}_proj.weight" for name in "kvo"),
        "img_fc.weight",
        "img_fc.bias",
    }
    folder = write(tmp_path / "head", eagle2_raw(target), dict(head.state_dict()))  # its config does not name queries
    bound = prepare("vispec", folder)(target, budget=63)
    assert isinstance(bound, VispecDrafter)
    assert bound.head.config.num_queries == 3
    assert (bound.depth, bound.top_k, bound.budget) == TREES["official"] == (4, 8, 29)
    for settings, budget, policy, shape in (
        ("tree=deep", 63, best_first, (6, 10, 59)),
        ("tree=deep", 7, best_first, (6, 10, 7)),
        ("tree=light", 63, best_first, (3, 4, 15)),
        ("num_passes=5:top_k=2", 63, best_first, (5, 2, 63)),
        ("num_passes=3", 63, chain, (3, 1, 63)),
    ):
        bound = prepare(f"vispec:{settings}", folder)(target, budget=budget, policy=policy)
        assert (bound.depth, bound.top_k, bound.budget) == shape  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="leave out num_passes and top_k, or tree"):
        prepare("vispec:tree=deep:top_k=3", folder)
    with pytest.raises(InputError, match="a chain has no width"):
        prepare("vispec:tree=deep", folder)(target, policy=chain)
    text = tiny_target("qwen3", vocab_size=target.vocab_size)
    with pytest.raises(HeadError, match="compresses image rows"):
        prepare("vispec", folder)(text)
    eagle2 = write(tmp_path / "two", eagle2_raw(target), dict(tiny_eagle2(target).state_dict()))
    with pytest.raises(HeadError, match=r"holds no ViSpec head: imadpt\.q is missing"):
        load_vispec(eagle2)
    short = {key: value for key, value in head.state_dict().items() if key != "img_fc.bias"}
    broken_head = write(tmp_path / "three", eagle2_raw(target), short)
    with pytest.raises(HeadError, match=r"lacks 1 tensors: img_fc\.bias"):
        load_vispec(broken_head)
