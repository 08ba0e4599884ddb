"""Write the trained target as plain Hugging Face files.

`python -m oneglance.train.reader.export run/a/checkpoint.pt out/reader-target`
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from transformers import Qwen3VLForConditionalGeneration

from oneglance.files import parse_json
from oneglance.train.reader.model import config
from oneglance.train.reader.recipe import Shape
from oneglance.train.reader.tokens import CHAT_TEMPLATE, SPECIAL, Encoder

PROCESSOR: Final = "Qwen3VLProcessor"
"""Does for images what `Qwen3VLProcessor` does, which loads only where torchvision is (for videos)."""
MIN_PIXELS: Final = 64 * 64
MAX_PIXELS: Final = 512 * 512

PREPROCESSOR: Final[dict[str, Any]] = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "rescale_factor": 1 / 255,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "resample": 3,
    "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
    "processor_class": PROCESSOR,
}


def target_of(checkpoint: Path, shape: Shape) -> tuple[Qwen3VLForConditionalGeneration, Encoder]:
    """The target and its encoder from a run's checkpoint."""
    encoder = Encoder(Tokenizer.from_file(str(checkpoint.parent / "tokenizer.json")))
    target = Qwen3VLForConditionalGeneration(config(shape, encoder))
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)["trainee"]
    prefix = "target."
    weights = {name[len(prefix) :]: value for name, value in saved.items() if name.startswith(prefix)}
    target.load_state_dict(weights)
    return target.eval(), encoder


def export(checkpoint: Path, out: Path, shape: Shape | None = None) -> None:
    """Write config, weights in bf16, tokenizer and processor files."""
    target, encoder = target_of(checkpoint, shape or Shape())
    end, pad = encoder.end_id, encoder.id("<|endoftext|>")
    target.generation_config.update(eos_token_id=[end, pad], pad_token_id=pad, bos_token_id=None, do_sample=False)
    out.mkdir(parents=True, exist_ok=True)
    target.to(torch.bfloat16).save_pretrained(out)
    settings = parse_json((out / "config.json").read_text())
    _write(
        out / "config.json", {**settings, "dtype": "float32"}
    )  # stored in bf16, computed in fp32: exact, and faster here
    encoder.tokenizer.save(str(out / "tokenizer.json"))
    _write(out / "tokenizer_config.json", _tokenizer_config(encoder))
    _write(out / "preprocessor_config.json", PREPROCESSOR)
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _tokenizer_config(encoder: Encoder) -> dict[str, Any]:
    added = {
        str(encoder.id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for token in SPECIAL
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": PROCESSOR,
        "added_tokens_decoder": added,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "extra_special_tokens": {
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_start_token": "<|vision_start|>",
            "vision_end_token": "<|vision_end|>",
        },
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "chat_template": CHAT_TEMPLATE,
    }


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n")


def main() -> None:
    """Parse the arguments and export."""
    parser = argparse.ArgumentParser(description="Write a trained target as Hugging Face files.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    export(args.checkpoint, args.out)


if __name__ == "__main__":
    main()
