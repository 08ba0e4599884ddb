"""``oneglance inspect``: what a target or a draft head is, and whether two fit."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from oneglance.commands import options, terminal
from oneglance.core import HeadError, InputError, OneglanceWarning
from oneglance.errors import first_line
from oneglance.files import parse_json
from oneglance.hub import answers, fetch_config, has_owner, no_answer

if TYPE_CHECKING:
    from oneglance.drafters.checkpoint import Checkpoint
    from oneglance.targets.base import Target

Kind = Literal["target", "head"]
Facts = dict[str, Any]
Names = Annotated[
    list[str],
    typer.Argument(metavar="TARGET_OR_HEAD", help="builtin:reader, a folder, or a hub id; one, or one of each."),
]


# drafter → what loads its heads, and what compares one with a target
HEADS = {
    "block": ("oneglance.drafters.checkpoint:load_checkpoint", "oneglance.drafters.checkpoint:check_fit"),
    "eagle2": ("oneglance.drafters.eagle2_head:load_eagle2", "oneglance.drafters.eagle2:Eagle2Drafter.check"),
    "eagle3": ("oneglance.drafters.eagle3_head:load_eagle3", "oneglance.drafters.eagle3:Eagle3Drafter.check"),
    "medusa": ("oneglance.drafters.medusa:load_medusa", "oneglance.drafters.checkpoint:check_fit"),
    "vispec": ("oneglance.drafters.vispec_head:load_vispec", "oneglance.drafters.vispec:VispecDrafter.check"),
}


def inspect(names: Names, json: options.Json = False) -> None:
    """Show a target or a draft head, and whether two fit.

    Of a target the config and the processor are read, and beside a head a row of each of its weights, where they are
    here: the rows tell one fine-tune from another. Of a head everything is read. Exits with 1 if the two cannot work
    together.
    """
    found = choose(names)
    head = target = fit = None
    drafter = "block"
    if "head" in found:
        drafter = drafter_for(found["head"]) or drafter
        head = named(HEADS[drafter][0])(found["head"])
    if "target" in found:
        from oneglance.targets.outline import outline_target

        target = outline_target(found["target"], with_rows="head" in found)
    if head and target:
        fit = compatibility(head, target, drafter)
    report = {
        "target": target_facts(target) if target else None,
        "head": head_facts(head, drafter) if head else None,
        "compatibility": fit,
    }
    if json:
        terminal.write_json(report)
    else:
        show(Console(highlight=False), report)
    if fit and not fit["fits"]:
        raise typer.Exit(1)


def choose(names: list[str]) -> dict[Kind, str]:
    """Which name is the target and which the head.

    Raises:
        InputError: more than two names, two of a kind, or one that is neither.
    """
    if len(names) > 2:
        raise InputError(f"give one target and one head at most, got {len(names)} names")
    kinds = [kinds_of(name) for name in names]
    if len(names) == 1:
        return dict.fromkeys(kinds[0], names[0])
    for first, second in ((0, 1), (1, 0)):
        if "target" in kinds[first] and "head" in kinds[second]:
            return {"target": names[first], "head": names[second]}
    raise InputError(f"{names[0]} and {names[1]} are both {kinds[0][0]}s; give one target and one head")


def kinds_of(name: str) -> tuple[Kind, ...]:
    """What a name stands for; a built-in one may be both.

    Raises:
        InputError: neither.
    """
    if name.startswith("builtin:"):
        return ("target", "head")
    return ("head",) if drafter_for(name) else ("target",)


def drafter_for(name: str) -> str | None:
    """The drafter that a name is a head for; None for a target.

    Raises:
        InputError: neither.
    """
    from oneglance.drafters.checkpoint import tensor_names
    from oneglance.drafters.layouts import drafter_of

    if name.startswith("builtin:"):
        return "block"
    path = config_of(name)
    config = parse_config(path)
    found = drafter_of(config, tensor_names(path.parent))
    if found is None and config.get("num_hidden_layers") == 1:  # as EAGLE's heads have, and no target
        names = None if path.parent.joinpath("model.safetensors").exists() else published_tensors(name, path.parent)
        found = drafter_of(config, names or ())
    return found


def published_tensors(name: str, folder: Path) -> frozenset[str]:
    """Tensors of a hub id whose config alone lies in the cache; only headers are read.

    Raises:
        InputError: it has weights as pickles alone, or they cannot be looked at.
    """
    from huggingface_hub import constants, get_safetensors_metadata
    from huggingface_hub.errors import NotASafetensorsRepoError, OfflineModeIsEnabled

    pickles = InputError(
        f"{name} has one layer, as a draft head has, and its weights are pickles, which are never loaded; "
        "convert them to model.safetensors"
    )
    if any(folder.glob("*.bin")):
        raise pickles
    if os.path.isdir(os.path.expanduser(name)):
        return frozenset()
    try:
        if not constants.HF_HUB_OFFLINE and not answers():
            raise OfflineModeIsEnabled(f"{constants.ENDPOINT} does not answer")
        return frozenset(get_safetensors_metadata(name).weight_map)
    except NotASafetensorsRepoError as error:
        raise pickles from error
    except (no_answer(), OfflineModeIsEnabled, OSError) as error:
        raise InputError(
            f"{name} has one layer, as a draft head has, and its tensors cannot be listed ({first_line(error)}); "
            "download it first"
        ) from error


def named(place: str) -> Any:
    """What ``module:name`` names."""
    module, _, name = place.partition(":")
    return attrgetter(name)(import_module(module))


def config_of(name: str) -> Path:
    """Where the ``config.json`` of a folder or of a hub id lies.

    Raises:
        InputError: there is none.
    """
    path = Path(os.path.expanduser(name))  # pathlib's raises for an unknown user
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            alone = " but a rescorer, which works beside a block head" if is_rescorer(path.parent) else ""
            raise InputError(f"{name} has no config.json{alone}; give the folder of a target or of a draft head")
    elif path.exists():
        raise InputError(f"{name} is a file; give the folder that holds config.json")
    elif not has_owner(name):
        raise InputError(f"there is no {name}; give a folder, a hub id (owner/name) or {options.BUILTIN}")
    else:
        path = fetch_config(name, "target or head")
    return path


def parse_config(path: Path) -> Mapping[str, Any]:
    """A ``config.json``.

    Raises:
        InputError: it is no JSON object.
    """
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not valid JSON: {error}; download it again") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} must hold a JSON object; download it again")
    return config


def is_rescorer(folder: Path) -> bool:
    """Whether a rescorer lies there."""
    from oneglance.drafters.rescorer import CONFIG

    return (folder / CONFIG).is_file()


def target_facts(target: Target) -> Facts:
    """Geometry of a target and where its parameters are."""
    config, fingerprint = target.text_config, target.fingerprint()
    total = sum(parameter.numel() for parameter in target.model.parameters())
    embedding, lm_head = target.embedding.weight, next(target.lm_head.parameters())
    tables = embedding.numel() + (0 if lm_head is embedding else lm_head.numel())
    decoder = sum(p.numel() for p in target.text_model.parameters() if p is not embedding and p is not lm_head)
    return {
        "name": target.name,
        "model_type": target.model.config.model_type,
        "class": type(target.model).__name__,
        "takes_images": target.takes_images,
        "parameters": total,
        "parameters_without_embeddings": total - tables,
        "decoder_parameters": decoder,
        "layers": target.num_layers,
        "self_attention_layers": len(target.self_attention_layers),
        "hidden_size": target.hidden_size,
        "attention_heads": config.num_attention_heads,
        "key_value_heads": getattr(config, "num_key_value_heads", config.num_attention_heads),
        "vocabulary_rows": target.vocab_size,
        "context_length": target.context_length,
        "stored_dtype": str(target.dtype).removeprefix("torch."),
        "quantisation": fingerprint["quantisation"],
        "eos_ids": list(target.eos_ids),
        "never_proposed_ids": list(target.banned_ids),
        "revision": fingerprint["target_revision"],
        "geometry_sha256": fingerprint["target_geometry_sha256"],
        "chat_template_sha256": fingerprint["chat_template_sha256"],
        "thinking": fingerprint["thinking"],
    }


def head_facts(head: Checkpoint[Any, Any], drafter: str) -> Facts:
    """Geometry of a head, what it reads, and how it says it was trained; None for what its kind does not have."""
    from oneglance.drafters.eagle_head import EagleConfig
    from oneglance.drafters.head import HeadConfig, LayerConfig

    config, is_block = head.config, isinstance(head.config, HeadConfig)
    layer = config if isinstance(config, LayerConfig) else None
    windows = {i: config.window(i) for i in range(config.num_hidden_layers)} if is_block else {}
    weights = [tensor for tensor in head.tensors.values() if tensor.is_floating_point()]  # the others map ids
    return {
        "name": head.name,
        "drafter": drafter,
        "parameters": sum(tensor.numel() for tensor in weights),
        "draft_layers": layer and layer.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": layer and layer.intermediate_size,
        "attention_heads": layer and layer.num_attention_heads,
        "key_value_heads": layer and layer.num_key_value_heads,
        "head_dim": layer and layer.head_dim,
        "block_size": config.block_size if is_block else None,
        "offsets": None if isinstance(config, EagleConfig) else config.num_offsets,
        "mask_token_id": config.mask_token_id if is_block else None,
        "kept_layers": list(config.target_layer_ids),
        "target_layers": config.num_target_layers or None,
        "feature_point": head.card.get("feature_point"),
        "vocabulary_rows": config.vocab_size,
        "draft_vocabulary_rows": getattr(config, "draft_vocab_size", None),
        "context_length": layer and layer.max_position_embeddings,
        "rope_theta": layer and layer.rope_theta,
        "sliding_windows": {str(layer): window for layer, window in windows.items() if window is not None},
        "stored_dtype": ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in weights})),
        "tensors": len(head.tensors),
        "rescorer": rescorer_facts(head) if is_block else None,
        "card": head.card,
    }


def training_facts(card: Mapping[str, Any]) -> Facts:
    """What a head's card says of its training, in short."""
    from oneglance.train.card import Training

    said = Training.of(card)
    facts = {
        "made_for": card.get("target"),
        "training": said.amount,
        "recipe": said.recipe,
        "objective": said.objective,
        "started_from": said.init or (said.steps and "scratch"),
        "held-out top-1, offset 1": said.heldout_top1 and f"{said.heldout_top1:.3f}",
    }
    return {**{key: value for key, value in facts.items() if value}, "its whole card": "in --json"}


def rescorer_facts(head: Checkpoint[Any, Any]) -> str:
    """The rescorer beside a head, in words."""
    from oneglance.drafters.checkpoint import read_config as folder_of
    from oneglance.drafters.rescorer import find_rescorer

    try:
        found = find_rescorer("auto", folder_of(head.name)[0])
    except HeadError as error:
        return str(error)
    return f"{found.config.kind}, rank {found.config.rank}" if found else "none"


def compatibility(head: Checkpoint[Any, Any], target: Target, drafter: str = "block") -> Facts:
    """Whether a head can draft for a target, why not, and what will cost acceptance."""
    from oneglance.drafters.checkpoint import fitted

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OneglanceWarning)
        try:
            named(HEADS[drafter][1])(fitted(head, target), target)
        except HeadError as error:
            return {"fits": False, "reason": str(error), "notes": []}
    notes = [str(warning.message) for warning in caught]
    found = target.fingerprint()
    if head.card.get("target_weights_sha256") and not (found["target_weights_sha256"] or found["quantisation"]):
        notes.append(
            "whether it was trained with another fine-tune was not compared: the target's weights are not here"
        )
    return {"fits": True, "reason": None, "notes": notes}


# Text ---------------------------------------------------------------------------------------------------------------


def show(console: Console, report: Mapping[str, Any]) -> None:
    """The report as text."""
    fit = report["compatibility"]
    if fit and fit["fits"]:
        console.print(Text("The head fits this target.", "bold green"))
        for note in fit["notes"]:
            console.print(Text(f"But: {terminal.visible(note)}."))
    elif fit:
        console.print(Text(f"The head does not fit this target: {terminal.visible(fit['reason'])}.", "bold red"))
    else:
        other = "head" if report["target"] else "target"
        console.print(Text(f"Name a {other} as well to see whether the two fit.", style="dim"))
    for kind in ("target", "head"):
        if report[kind]:
            facts = {key: value for key, value in report[kind].items() if value not in (None, {}, [])}
            if card := facts.pop("card", None):
                facts |= training_facts(card)
            console.print()
            console.print(section(kind, facts), soft_wrap=True)


def section(title: str, facts: Facts) -> Text:
    """Facts a line each, which only the terminal wraps: hashes stay whole, to copy and to find."""
    width = max(map(len, facts))
    lines = [Text(title, "bold")]
    for key, value in facts.items():
        name = Text(terminal.visible(key.replace("_", " ")).ljust(width + 2), "dim")
        lines.append(name + Text(terminal.visible(readable(value)), "not dim"))
    return Text("\n").join(lines)


def readable(value: object) -> str:
    """A value for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if value >= 100_000 else str(value)
    if isinstance(value, list):
        return ", ".join(map(readable, value))
    return str(value)
