"""Draft-head checkpoints: strict loading, saving, and whether a head fits a target.

The layout is z-lab's DFlash: ``config.json`` and ``model.safetensors``, no embedding, no lm_head. What this package
adds stands under ``oneglance`` in the config, where other readers ignore it.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from oneglance.amounts import listed
from oneglance.core import HeadError, OneglanceWarning
from oneglance.drafters.head import BlockHead, DraftConfig, HeadConfig
from oneglance.drafters.layouts import RESCORER, SPOKEN, drafter_of
from oneglance.files import parse_json, write_atomically
from oneglance.hub import fetch_folder, has_owner

if TYPE_CHECKING:
    from oneglance.targets.base import Target

SCHEMA_VERSION = 1
BUILTIN = {"builtin:reader": Path(__file__).parent.parent / "assets" / "reader" / "head"}
LFS_POINTER = b"version https://git-lfs"
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # torch's zip, and bare ones


C = TypeVar("C", bound=DraftConfig)
Config = TypeVar("Config")
H = TypeVar("H", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Checkpoint(Generic[C, H]):
    """A head on disk, checked but not yet bound to a target.

    Attributes:
        name: what it was opened from.
        config: geometry.
        raw: the whole ``config.json``.
        tensors: state dict.
        module: makes the head from its config.
    """

    name: str
    config: C
    raw: dict[str, Any] = field(repr=False)
    tensors: dict[str, Tensor] = field(repr=False)
    module: Callable[[C], H] = field(repr=False)

    @property
    def card(self) -> dict[str, Any]:
        """Our own block of the config: target, feature point, training card."""
        return dict(self.raw.get("oneglance") or {})

    def build(self, *, dtype: torch.dtype, device: torch.device) -> H:
        """The head as a frozen module."""
        head = self.module(self.config)
        head.load_state_dict(self.tensors, strict=True)
        return head.to(device=device, dtype=dtype).eval().requires_grad_(False)


@dataclass(frozen=True, slots=True)
class HeadCheckpoint(Checkpoint[HeadConfig, BlockHead]):
    """A block head on disk."""

    module: Callable[[HeadConfig], BlockHead] = field(default=BlockHead, repr=False)


def load_checkpoint(name: str = "builtin:reader") -> HeadCheckpoint:
    """Open and check a head without touching its target.

    Args:
        name: ``builtin:reader``, a folder, or a hub id.

    Raises:
        HeadError: missing, unexpected, NaN or wrong-shape tensors, a pickle, a truncated file, a git-LFS pointer, a
            quantised head, a config that this head cannot compute, or another drafter's head.
    """
    folder, raw = read_config(name)
    refuse(drafter_of(raw, tensor_names(folder)), name, besides="block")
    config = HeadConfig.from_checkpoint(raw)
    tensors = read_tensors(folder)
    check_tensors(BlockHead, config, tensors)
    return HeadCheckpoint(name, config, raw, tensors)


def refuse(kind: str | None, name: str, *, besides: str) -> None:
    """Refuse a head of another kind than is read; where the kind is not known, its config and tensors judge.

    Raises:
        HeadError: it is another drafter's; the message names that.
    """
    if kind not in (None, besides):
        system = "tree" if kind == "block" else kind
        raise HeadError(
            f"{name} is {SPOKEN[kind]}, not {SPOKEN[besides]}: use it with --drafter {kind}, in bench as "
            f"{system}@FOLDER"
        )


def refuse_block(raw: dict[str, Any], name: str, *, read: str) -> None:
    """Refuse a block head where another drafter's head is read.

    Raises:
        HeadError: it is one.
    """
    if drafter_of(raw) == "block":
        refuse("block", name, besides=read)


def read_config(name: str) -> tuple[Path, dict[str, Any]]:
    """The folder of a head and its ``config.json``.

    Raises:
        HeadError: it does not exist, or is no JSON object.
    """
    folder = _locate(name)
    return folder, _read_config(folder)


def save_checkpoint(head: nn.Module, folder: Path, raw: dict[str, Any]) -> None:
    """Write a head's tensors and config (for a block head z-lab's layout); both files are replaced atomically."""
    write_module(head, folder / "model.safetensors")
    write_atomically(folder / "config.json", json.dumps(raw, indent=2) + "\n")


def write_module(module: nn.Module, path: Path) -> None:
    """Write a module's tensors as one safetensors file, replaced atomically; its folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
    scratch = path.with_name(path.name + ".partial")
    save_file(tensors, scratch, metadata={"format": "pt"})
    scratch.replace(path)


def fitted(checkpoint: Checkpoint[C, H], target: Target) -> Checkpoint[C, H]:
    """The checkpoint with whatever it leaves to its target filled in."""
    return replace(checkpoint, config=checkpoint.config.for_target(target.num_layers))


def check_fit(checkpoint: Checkpoint[Any, Any], target: Target) -> None:
    """Compare a head with the target it is to draft for.

    Raises:
        HeadError: it cannot work; the message names both values.

    Warns:
        OneglanceWarning: it only costs acceptance (another revision, fine-tune, quantisation, chat template or thinking
            flag). What the head's card does not say is not compared.
    """
    from oneglance.targets.base import FEATURE_POINT

    config = checkpoint.config
    made_for = checkpoint.card.get("target")
    for what, own, theirs in (
        ("hidden size", config.hidden_size, target.hidden_size),
        ("vocabulary rows", config.vocab_size, target.vocab_size),
        ("target layers", config.num_target_layers, target.num_layers),
    ):
        if own != theirs:
            known = f", or the target that its card names: {made_for}" if made_for else ""
            raise HeadError(f"{what}: the head has {own}, the target {theirs}; use a head made for this target{known}")
    ids = config.target_layer_ids
    if len(set(ids)) != len(ids):
        raise HeadError(f"kept layers {list(ids)} repeat a layer; each may be kept once")
    if min(ids) < config.first_layer or max(ids) >= target.num_layers:
        raise HeadError(
            f"kept layers {list(ids)} go past the target's {target.num_layers} layers (0-based): "
            "it is not this target's head"
        )
    if config.mask_token_id >= target.embedding.num_embeddings:
        raise HeadError(
            f"mask id {config.mask_token_id} lies outside the target's embedding table of "
            f"{target.embedding.num_embeddings} rows: it is not this target's head"
        )
    point = checkpoint.card.get("feature_point", FEATURE_POINT)
    if point != FEATURE_POINT:
        raise HeadError(
            f"the head was trained on features at {point!r} and this package reads {FEATURE_POINT!r}; retrain the head"
        )
    target.feature_points(ids)
    _warn_about_training(checkpoint, target.fingerprint())


def _warn_about_training(checkpoint: Checkpoint[Any, Any], target: dict[str, Any]) -> None:
    card = checkpoint.card
    labels = {
        "target_revision": "target revision",
        "target_geometry_sha256": "target config",
        "target_weights_sha256": "fine-tune of the target",
        "chat_template_sha256": "chat template",
        "thinking": "thinking flag",
        "quantisation": "quantisation",
    }
    unknown = [] if target["target_weights_sha256"] else ["target_weights_sha256"]  # an outline, or quantised
    known = [key for key in labels if card.get(key) is not None and key not in unknown]
    differing = [labels[key] for key in known if card[key] != target[key]]
    if differing:
        warnings.warn(
            f"the head {checkpoint.name} was trained with another {' and '.join(differing)}; output is unchanged, "
            "acceptance may drop",
            OneglanceWarning,
            stacklevel=3,
        )


def _locate(name: str) -> Path:
    if name in BUILTIN:
        return BUILTIN[name]
    if name.startswith("builtin:"):
        raise HeadError(f"there is no {name!r}; built-in heads: {', '.join(BUILTIN)}")
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path):  # unlike Path.is_dir, false for names that are too long
        return path
    if os.path.exists(path):
        raise HeadError(f"{name} is a file; give the folder that holds config.json and model.safetensors")
    if not has_owner(name):
        raise HeadError(f"no head at {name}; give a folder, a hub id (owner/name) or builtin:reader")
    return fetch_folder(name, "head", ["*.json", "*.safetensors"])


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        if (folder / RESCORER).is_file():
            raise HeadError(
                f"{folder} is a rescorer, not a head: add --drafter block:rescorer={folder} to a block head"
            )
        raise HeadError(f"{folder} has no config.json; it is not a head checkpoint")
    try:
        raw = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HeadError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise HeadError(f"{path} must hold a JSON object")
    return raw


def read_tensors(folder: Path, file: str | None = None) -> dict[str, Tensor]:
    """All tensors of a head's safetensors files, or of one that is named; pickles are never loaded."""
    tensors: dict[str, Tensor] = {}
    for name in [file] if file else _shards(folder):
        path = folder / name
        if path.parent.resolve() != folder.resolve():
            raise HeadError(f"the index of {folder} points outside its folder: {name}")
        if not path.is_file():
            pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"))
            convert = f"{pickles[0]} is a pickle, which is never loaded: convert it to safetensors" if pickles else ""
            raise HeadError(f"{folder} has no {name}; {convert or 'download it again'}")
        tensors.update(_read_shard(path))
    return tensors


def tensor_names(folder: Path) -> frozenset[str]:
    """Of a checkpoint's safetensors files, of which only the headers are read; none where they cannot be."""
    names: set[str] = set()
    try:
        for shard in _shards(folder):
            with safe_open(folder / shard, "pt") as file:
                names |= set(file.keys())
    except (HeadError, SafetensorError, OSError):
        return frozenset()
    return frozenset(names)


def _shards(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    try:
        return sorted({str(name) for name in parse_json(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise HeadError(f"{index} is damaged; download it again") from error


def _read_shard(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file:
        start = file.read(len(LFS_POINTER))
    if start == LFS_POINTER:
        raise HeadError(f"{path} is a git-LFS pointer, not the weights; run 'git lfs pull' in its repository")
    try:
        return load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        if start.startswith(PICKLES):  # asked now only: the length of a sound header may begin with the same bytes
            raise HeadError(f"{path} is a pickle, which is never loaded; convert it to safetensors") from error
        raise HeadError(f"{path} is truncated or not a safetensors file ({error}); download it again") from error


def check_tensors(module: Callable[[Config], nn.Module], config: Config, tensors: dict[str, Tensor]) -> None:
    """Compare tensors with those that a head of this config has.

    Raises:
        HeadError: missing, unexpected, quantised or damaged ones, or other shapes.
    """
    with torch.device("meta"):
        wanted = module(config).state_dict()
    expected = {key: value.shape for key, value in wanted.items()}
    missing, unexpected = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    packed = [key for key in unexpected if key.endswith(("qweight", "weight_scale", "weight_packed", "scales"))]
    numbers = {key: value for key, value in tensors.items() if key not in wanted or wanted[key].is_floating_point()}
    integers = [key for key, value in numbers.items() if not value.is_floating_point() or value.element_size() < 2]
    if packed or integers:
        raise HeadError(f"the head is quantised ({(packed + integers)[0]}); use its bf16 or fp32 checkpoint")
    if missing:
        raise HeadError(f"the head lacks {len(missing)} tensors: {listed(missing)}")
    if unexpected:
        raise HeadError(f"the head has {len(unexpected)} unexpected tensors: {listed(unexpected)}")
    for key, shape in expected.items():
        if tensors[key].shape != shape:
            why = ", the width of its target_layer_ids" if key == "fc.weight" else ""
            raise HeadError(
                f"{key} has shape {list(tensors[key].shape)}, its config asks for {list(shape)}{why}; "
                "the two do not belong together"
            )
    bad = [key for key, value in tensors.items() if not bool(torch.isfinite(value).all())]
    if bad:
        raise HeadError(f"{bad[0]} holds NaN or infinite values; the checkpoint is damaged")
