"""A head in the layouts of other programs, and back.

``dflash``, ``specforge``, ``vllm`` and ``sglang`` are one layout (z-lab's); the last two add what the engine checks and
the flags that start it. The last three take EAGLE-3 heads too, which all three read however they were written.
``speculators`` nests the transformer config and counts layer boundaries. ``transformers`` renames two tensors for the
class of its built-in block drafting.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from oneglance.core import HeadError, InputError
from oneglance.drafters.checkpoint import Checkpoint, HeadCheckpoint, load_checkpoint, read_config, tensor_names
from oneglance.drafters.eagle3 import Eagle3Drafter
from oneglance.drafters.eagle3_head import Eagle3Config, Eagle3Head, load_eagle3
from oneglance.drafters.head import HeadConfig
from oneglance.drafters.layouts import SPOKEN, drafter_of, of_eagle3
from oneglance.engines import Launch, command
from oneglance.files import parse_json
from oneglance.train.initial import llama3_scaling

Format = Literal["dflash", "specforge", "speculators", "vllm", "sglang", "transformers"]
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
RENAMED = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
SPECULATORS_VERSION = "0.5.0"
SPECULATORS = ("speculators_model_type", "speculators_version", "speculators_config", "transformer_layer_config")


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        folder: where.
        hint: how to use it there, one line.
    """

    folder: Path
    hint: str


def export(name: str, out: Path, format: str, *, dtype: str = "bfloat16", target: str | None = None) -> Exported:
    """Write a head in another layout.

    Args:
        name: head: a folder, a hub id or ``builtin:reader``.
        out: new folder.
        format: a key of ``FORMATS``.
        dtype: of the tensors.
        target: hub id or folder that the head drafts for; default what its card says.

    Raises:
        InputError: unknown format or dtype, a folder that is in use, or a head that the format cannot express.
    """
    if format not in FORMATS:
        raise InputError(f"unknown format {format!r}; choose one of {', '.join(FORMATS)}")
    if dtype not in DTYPES:
        raise InputError(f"unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty; choose another --out")
    folder, raw = read_config(name)
    kind = drafter_of(raw, tensor_names(folder))
    if kind not in (None, "block", "eagle3"):
        raise InputError(
            f"{name} is {SPOKEN[kind]}, and only block and EAGLE-3 heads have layouts of other programs: use it as it "
            f"is, with --drafter {kind}"
        )
    if kind == "eagle3":
        config, tensors, hint = _eagle3(load_eagle3(name), out, format, target)
    else:
        head = load_checkpoint(name)
        config, tensors, hint = FORMATS[format](head, out, target or str(head.card.get("target") or "TARGET"))
    scratch = out.with_name(out.name + ".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    converted = {
        key: (value.to(DTYPES[dtype]) if value.is_floating_point() else value).contiguous()
        for key, value in tensors.items()
    }
    save_file(converted, scratch / "model.safetensors", metadata={"format": "pt"})
    (scratch / "config.json").write_text(json.dumps({**config, "dtype": dtype}, indent=2) + "\n", encoding="utf-8")
    if out.exists():
        out.rmdir()
    scratch.rename(out)
    return Exported(out, hint)


def read_exported(folder: Path) -> tuple[HeadConfig, dict[str, Tensor]]:
    """Geometry and tensors of an exported head, whatever the layout: what a round trip must preserve.

    Raises:
        HeadError: it is none of the layouts.
    """
    raw = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "model.safetensors")
    if raw.get("model_type") == "muse_glimmer_assistant":
        back = {new: old for old, new in RENAMED.items()}
        rest = raw["oneglance"]
        return HeadConfig.from_checkpoint({**raw, **rest}), {back.get(k, k): v for k, v in tensors.items()}
    if "dflash_config" in raw or "speculators_model_type" in raw:
        return HeadConfig.from_checkpoint(raw), tensors
    raise HeadError(f"{folder} is not an exported head; write one with 'oneglance export'")


def plain_config(head: HeadCheckpoint) -> dict[str, Any]:
    """z-lab's ``config.json``, every key in its place, whatever the head was loaded from."""
    config, raw = head.config, head.raw
    kept = ("bos_token_id", "eos_token_id", "pad_token_id", "oneglance")
    types = config.layer_types or ("full_attention",) * config.num_hidden_layers
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": config.block_size,
        "num_target_layers": config.num_target_layers,
        "num_hidden_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": llama3_scaling(config),
        "max_position_embeddings": config.max_position_embeddings,
        "layer_types": list(types),
        "sliding_window": config.sliding_window,
        "use_sliding_window": "sliding_attention" in types,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": config.vocab_size,
        "dflash_config": {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.target_layer_ids),
        },
        **{key: raw[key] for key in kept if raw.get(key) is not None},
    }


Converted = tuple[dict[str, Any], dict[str, Tensor], str]


def _dflash(head: HeadCheckpoint, out: Path, target: str) -> Converted:
    return plain_config(head), head.tensors, f"oneglance generate PROMPT --target {target} --head {out}"


def _specforge(head: HeadCheckpoint, out: Path, target: str) -> Converted:
    """Its trainer starts from the folder; the same layout as z-lab's, layer ids too."""
    _mask_within(head, "SpecForge")
    return plain_config(head), head.tensors, _run_of_specforge(out, "dflash")


def _run_of_specforge(out: Path, strategy: str) -> str:
    return f"in SpecForge's run: model.draft_checkpoint_path: {out}, training.strategy: {strategy}"


def _vllm(head: HeadCheckpoint, out: Path, target: str) -> Converted:
    return plain_config(head), head.tensors, _start("vllm", head, out, target)


def _sglang(head: HeadCheckpoint, out: Path, target: str) -> Converted:
    _mask_within(head, "SGLang")
    return plain_config(head), head.tensors, _start("sglang", head, out, target)


def _mask_within(head: HeadCheckpoint, program: str) -> None:
    """SGLang stops at a mask id past the vocabulary, and SpecForge silently takes another."""
    if head.config.mask_token_id >= head.config.vocab_size:
        raise HeadError(f"{program} wants a mask id below the target's vocabulary; this head's lies past it")


def _eagle3(head: Checkpoint[Eagle3Config, Eagle3Head], out: Path, format: str, target: str | None) -> Converted:
    """SGLang and SpecForge read layer outputs inside ``eagle_config``, vLLM layer inputs beside it: one more."""
    if format not in ("specforge", "vllm", "sglang"):
        raise HeadError(f"an EAGLE-3 head has no {format} layout; choose specforge, vllm or sglang")
    if not head.config.target_layer_ids:
        raise HeadError("this EAGLE-3 head names no layers; write eagle_config.eagle_aux_hidden_state_layer_ids")
    outputs = list(head.config.target_layer_ids)
    config = {
        **{key: value for key, value in of_eagle3(head.raw).items() if key not in ("target_layer_ids", *SPECULATORS)},
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "draft_vocab_size": head.config.draft_vocab_size,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": outputs, "use_aux_hidden_state": True},
        "eagle_aux_hidden_state_layer_ids": [i + 1 for i in outputs],
    }
    if format == "specforge":
        return config, {**_identity(head.config), **head.tensors}, _run_of_specforge(out, "eagle3")
    own = target or str(head.card.get("target") or "TARGET")
    launch = Launch(own, str(out), Eagle3Drafter.chain_passes, drafter="eagle3")
    return config, head.tensors, shlex.join(command(format, launch))


def _identity(config: Eagle3Config) -> dict[str, Tensor]:
    """The map of draft to target ids that SpecForge asks for even where the head drafts over all of them."""
    return {
        "d2t": torch.zeros(config.draft_vocab_size, dtype=torch.long),
        "t2d": torch.ones(config.vocab_size, dtype=torch.bool),
    }


def _start(engine: str, head: HeadCheckpoint, out: Path, target: str) -> str:
    return shlex.join(command(engine, Launch(target, str(out), head.config.num_offsets)))


def _speculators(head: HeadCheckpoint, out: Path, target: str) -> Converted:
    """Embedding and lm_head stay out, as speculators itself leaves them out for full vocabularies."""
    plain, config = plain_config(head), head.config
    outside = ("architectures", "block_size", "num_target_layers", "dflash_config", "oneglance")
    proposal = {"proposal_type": "greedy", "speculative_tokens": config.num_offsets}
    nested = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": SPECULATORS_VERSION,
        "block_size": config.block_size,
        "draft_vocab_size": config.vocab_size,
        "mask_token_id": config.mask_token_id,
        # boundaries: 0 is the embedding's output, so a kept layer i is i + 1
        "aux_hidden_state_layer_ids": [i + 1 for i in config.target_layer_ids],
        "transformer_layer_config": {key: value for key, value in plain.items() if key not in outside},
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": target, "architectures": []},
        },
        "oneglance": {**head.card, "num_target_layers": config.num_target_layers},
    }
    return nested, head.tensors, f"vllm serve {out}"


def _transformers(head: HeadCheckpoint, out: Path, target: str) -> Converted:
    """transformers reads ``hidden_states[i + 1]``, before a DeepStack add: right for text targets, an approximation at
    image rows of the first levels of Qwen3-VL. Its sliding layers are bidirectional, ours are not."""
    config = head.config
    if "sliding_attention" in config.layer_types:
        raise HeadError(
            "transformers' block drafting has bidirectional sliding layers, this head has causal ones; "
            "choose another --format"
        )
    rope = {"rope_type": "default", **(llama3_scaling(config) or {}), "rope_theta": config.rope_theta}
    named = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    flat = {
        "architectures": ["MuseGlimmerAssistantModel"],
        "model_type": "muse_glimmer_assistant",
        **{key: getattr(config, key) for key in named},
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": "silu",
        "rope_parameters": rope,
        "max_position_embeddings": config.max_position_embeddings,
        "layer_types": ["full_attention"] * config.num_hidden_layers,
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
        **{key: head.raw.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        "oneglance": {
            **head.card,
            "num_target_layers": config.num_target_layers,
            "vocab_size": config.vocab_size,
        },
    }
    loaded = f"AutoModel.from_pretrained({str(out)!r})"
    hint = f"target.generate(..., assistant_model={loaded}, speculation_type='dflash')"
    return flat, {RENAMED.get(key, key): value for key, value in head.tensors.items()}, hint


FORMATS: dict[str, Callable[[HeadCheckpoint, Path, str], Converted]] = {
    "dflash": _dflash,
    "specforge": _specforge,
    "speculators": _speculators,
    "vllm": _vllm,
    "sglang": _sglang,
    "transformers": _transformers,
}
