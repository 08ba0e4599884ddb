"""The bundled reader opens with plain transformers and reads the bundled pages; the head is a DFlash checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForImageTextToText, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from oneglance.images import image_sha256, load_image
from oneglance.tasks import Example, draw

ASSETS = Path(__file__).parents[2] / "src" / "oneglance" / "assets"
TARGET, HEAD = ASSETS / "reader" / "target", ASSETS / "reader" / "head"
PAGES = {"demo_page.png": ("docvqa", 5), "demo_chart.png": ("chartqa", 3)}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TARGET)


def drawn(name: str) -> Example:
    task, seed = PAGES[name]
    return draw(task, seed, split="eval")


@pytest.mark.parametrize("name", PAGES)
def test_page_is_a_held_out_example(name: str) -> None:
    assert image_sha256(load_image(ASSETS / name)) == image_sha256(drawn(name).image)


@pytest.mark.parametrize("name", PAGES)
def test_reader_reads_the_page_with_plain_transformers(name: str, tokenizer: Any) -> None:
    model, loading = AutoModelForImageTextToText.from_pretrained(TARGET, dtype=torch.float32, output_loading_info=True)
    assert not any(loading.values())
    image_inputs = Qwen2VLImageProcessorPil.from_pretrained(TARGET)(
        images=[load_image(ASSETS / name)], return_tensors="pt"
    )
    width, height = load_image(ASSETS / name).size
    assert image_inputs["image_grid_thw"].tolist() == [[1, height // 16, width // 16]]  # not resized
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": drawn(name).prompt}]}],
        add_generation_prompt=True,
        tokenize=False,
    )
    prompt = prompt.replace("<|image_pad|>", "<|image_pad|>" * (width * height // 1024))  # 32 px cells
    inputs = tokenizer(prompt, return_tensors="pt")
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == model.config.image_token_id).int()
    output = model.generate(**inputs, **image_inputs, max_new_tokens=160, do_sample=False)
    new_ids = output[0, inputs["input_ids"].shape[1] :]
    assert new_ids[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.decode(new_ids, skip_special_tokens=True) == drawn(name).answer


def test_chat_template(tokenizer: Any) -> None:
    image = {"type": "image"}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [image, {"type": "text", "text": "Compare"}, image]},
        {"role": "assistant", "content": [{"type": "text", "text": "Equal."}]},
        {"role": "user", "content": "Sure?"},
    ]
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        f"<|im_start|>user\n{picture}Compare{picture}<|im_end|>\n"
        "<|im_start|>assistant\nEqual.<|im_end|>\n"
        "<|im_start|>user\nSure?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("text", ["Total 89\n", "a\tb  c", "naïve café — 你好 🙂", "<|im_end|>"])
def test_tokenizer_round_trip(text: str, tokenizer: Any) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_head_has_the_dflash_layout(tokenizer: Any) -> None:
    config = json.loads((HEAD / "config.json").read_text())
    target = json.loads((TARGET / "config.json").read_text())["text_config"]
    with safe_open(HEAD / "model.safetensors", "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        kinds = {file.get_slice(name).get_dtype() for name in shapes}
    layer = {
        "input_layernorm": (192,),
        "post_attention_layernorm": (192,),
        "self_attn.q_proj": (192, 192),
        "self_attn.k_proj": (64, 192),
        "self_attn.v_proj": (64, 192),
        "self_attn.o_proj": (192, 192),
        "self_attn.q_norm": (32,),
        "self_attn.k_norm": (32,),
        "mlp.gate_proj": (512, 192),
        "mlp.up_proj": (512, 192),
        "mlp.down_proj": (192, 512),
    }
    expected = {f"layers.{i}.{name}.weight": shape for i in range(3) for name, shape in layer.items()}
    assert shapes == expected | {"fc.weight": (192, 5 * 192), "hidden_norm.weight": (192,), "norm.weight": (192,)}
    assert kinds == {"BF16"}
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["dflash_config"]["mask_token_id"] == tokenizer.convert_tokens_to_ids("<|mask|>")
    assert (config["hidden_size"], config["vocab_size"]) == (target["hidden_size"], target["vocab_size"])
    assert config["num_target_layers"] == target["num_hidden_layers"]


def test_assets_are_small() -> None:
    assert sum(path.stat().st_size for path in ASSETS.rglob("*") if path.is_file()) < 30e6
