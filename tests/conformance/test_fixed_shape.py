"""Passes of a fixed shape: plain and drafted text are equal in bfloat16 too, and a kernel that spoils it is named."""

import os
from functools import partial

import pytest
import torch

from helpers import prompt
from oneglance.audit import Case, audit, first_difference
from oneglance.core import InputError, SamplingParams, TargetError, TokenTree
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.plain import NoDrafter
from oneglance.reference import reference
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.targets.passes import FixedShape, FreeShape, Passes
from oneglance.targets.probe import check_slot_independence, slot_dependence
from oneglance.targets.state import Inputs
from oneglance.testing import FAMILIES, VISION_FAMILIES, lucky_drafter, tiny_head, tiny_target

BF16 = torch.bfloat16
WIDE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 32,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "initializer_range": 0.1,
}


def decoded(target: Target, inputs: Inputs, drafter: object = None, **options: object) -> list[int]:
    params = SamplingParams(**{"max_new_tokens": 40, "ignore_eos": True, **options})  # type: ignore[arg-type]
    stream = Decoder(target, drafter or NoDrafter()).stream_inputs(inputs, params)  # type: ignore[arg-type]
    for _ in stream:
        pass
    return stream.generation.token_ids


def share_identical(target: Target, num_prompts: int) -> float:
    """Outputs with a lucky drafter that equal plain decoding's, by the same loop."""
    same = 0
    for seed in range(num_prompts):
        inputs = encode(target, f"prompt {seed} of some")
        plain = decoded(target, inputs)
        budget = (63, 31, 7)[seed % 3]
        lucky = lucky_drafter(plain, len(inputs.token_ids), seed=seed, budget=budget, vocab_size=target.vocab_size)
        same += decoded(target, inputs, lucky) == plain
    return same / num_prompts


def test_bfloat16_text_is_equal_where_ordinary_passes_differ() -> None:
    """A wide target with random weights: the control is clearly below 100 %, the fixed shape is not."""
    target = tiny_target("qwen3", dtype=BF16, **WIDE)
    assert share_identical(target, 6) < 0.8, "ordinary passes agree: this test shows nothing"
    assert share_identical(target.with_passes(FixedShape(64)), 6) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=["bfloat16", "float16"])
def test_many_prompts(dtype: torch.dtype) -> None:
    """The same over as many prompts as ``FIXED_PROMPTS`` says (``make audit-shaped``: 200)."""
    target = tiny_target("qwen3", dtype=dtype, **WIDE)
    count = int(os.environ.get("FIXED_PROMPTS", "24"))
    ordinary, fixed = share_identical(target, count), share_identical(target.with_passes(FixedShape(64)), count)
    print(f"{dtype}: ordinary passes {ordinary:.3f}, fixed shape {fixed:.3f} of {count} prompts identical")
    assert fixed == 1.0
    assert ordinary < 1.0 or dtype == torch.float16


@pytest.mark.filterwarnings("ignore:drafting ended")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes_the_audit_of_the_mode(family: str) -> None:
    """Images, a random head and lucky trees of several budgets, in bfloat16, against single rows in the same shape."""
    target = tiny_target(family, dtype=BF16).with_passes(FixedShape.for_budget(31))
    inputs = prompt(target, 1 if family in VISION_FAMILIES else 0)
    truth = reference(target, inputs, max_new_tokens=20)
    lucky = partial(lucky_drafter, truth.token_ids, len(inputs.token_ids), seed=2, vocab_size=target.vocab_size)
    arms = {
        "head": lambda t: BlockDrafter(tiny_head(t), t, budget=31),
        "lucky/31": lambda t: lucky(budget=31),
        "lucky/9": lambda t: lucky(budget=9),
    }
    (report,) = list(audit(target, arms, [Case("a", "text", inputs)], max_new_tokens=20))
    assert (report.overall.identical, report.overall.total, report.hf.total) == (3, 3, 0)
    assert report.max_logit_perturbation == 0.0, "the rows are equal to the bit"
    assert slot_dependence(target) is None


def test_float32_text_is_the_targets_own() -> None:
    target = tiny_target("qwen3_vl")
    inputs = prompt(target, 2)
    fixed = target.with_passes(FixedShape(32))
    assert (
        first_difference(
            reference(fixed, inputs, max_new_tokens=24).token_ids,
            reference(target, inputs, max_new_tokens=24).token_ids,
        )
        is None
    )


def test_seeded_draws_are_equal_in_bfloat16() -> None:
    target = tiny_target("qwen3", dtype=BF16, **WIDE).with_passes(FixedShape(32))
    inputs = encode(target, "draw")
    for seed in range(3):
        options = {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.1, "seed": seed}
        plain = decoded(target, inputs, **options)
        lucky = lucky_drafter(plain, len(inputs.token_ids), seed=seed, budget=31, vocab_size=target.vocab_size)
        assert decoded(target, inputs, lucky, **options) == plain


# The layout -------------------------------------------------------------------------------------------------------


def test_padding_sees_itself_and_nothing_sees_it() -> None:
    tree = TokenTree((4, 5, 6), (0, 1, 0), (1, 2, 1))
    packed = FixedShape(8).lay_out(3, tree)
    assert packed.token_ids.tolist() == [3, 4, 5, 6, 3, 3, 3, 3]
    assert packed.depths.tolist() == [0, 1, 2, 1, 0, 0, 0, 0]
    assert (packed.visible[:4, :4] == FreeShape().lay_out(3, tree).visible).all()
    assert not packed.visible[:4, 4:].any()
    assert (packed.visible[4:] == torch.eye(8, dtype=torch.bool)[4:].numpy()).all()


@pytest.mark.parametrize(("budget", "rows"), [(1, 16), (15, 16), (16, 32), (63, 64), (127, 128)])
def test_the_shape_is_the_smallest_that_the_budget_needs(budget: int, rows: int) -> None:
    assert FixedShape.for_budget(budget).num_rows == rows


def test_a_tree_that_does_not_fit_is_refused() -> None:
    chain = TokenTree(tuple(range(16)), tuple(range(16)), tuple(range(1, 17)))
    with pytest.raises(InputError, match="16 nodes does not fit into fixed passes of 16 rows"):
        FixedShape(16).lay_out(0, chain)


def test_settings_are_put_back_after_a_pass_that_fails() -> None:
    target = tiny_target("qwen3")

    def settings() -> tuple[int, str]:
        return torch.get_num_threads(), target.text_config._attn_implementation

    def fail() -> None:
        with FixedShape(16, threads=2).running(target.text_config):
            assert settings() == (2, "oneglance_float64")
            raise RuntimeError("inside")

    before = settings()
    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert settings() == before


# The probe --------------------------------------------------------------------------------------------------------


def slot_noise(target: Target, name: str, size: float) -> None:
    """A kernel whose rows depend on the slot, as one would that reduces over all rows."""

    def spoil(_: object, given: object, output: torch.Tensor) -> torch.Tensor:
        return output + size * torch.arange(output.shape[1])[None, :, None]

    dict(target.text_model.named_modules())[name].register_forward_hook(spoil)


def test_a_kernel_that_depends_on_the_slot_is_named_with_its_figure() -> None:
    target = tiny_target("llama").with_passes(FixedShape(32))
    check_slot_independence(target)
    slot_noise(target, "layers.2.mlp.up_proj", 1e-3)
    name, difference = slot_dependence(target) or ("", 0.0)
    assert name == "layers.2.mlp.up_proj"
    assert difference == pytest.approx(31e-3, rel=0.02)
    with pytest.raises(TargetError, match=r"a row of layers\.2\.mlp\.up_proj changes by up to 0\.031 with its slot"):
        check_slot_independence(target)


def test_the_probe_sees_what_the_fixed_shape_removes() -> None:
    """Without float64, attention depends on where the ancestors are: that is what enters the output projection."""

    class OwnAttention(FixedShape):
        running = FreeShape.running  # type: ignore[assignment]

    shape: Passes = OwnAttention(64)
    target = tiny_target("qwen3", dtype=BF16, **WIDE).with_passes(shape)
    name, _ = slot_dependence(target) or ("nothing", 0.0)
    assert name.startswith("what enters layers.")
    assert name.endswith("self_attn.o_proj")
