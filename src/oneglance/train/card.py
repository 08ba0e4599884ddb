"""The model card of a head: what it drafts for, how it was trained, what it does, per task with n and interval."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from oneglance.amounts import parameters, plural
from oneglance.core import InputError
from oneglance.drafters.checkpoint import HeadCheckpoint, load_checkpoint
from oneglance.drafters.head import num_parameters
from oneglance.files import parse_json, reason, write_atomically
from oneglance.hub import no_answer

T = TypeVar("T")
CARD = "README.md"
FILES = ("config.json", "model.safetensors", "rescorer.json", "rescorer.safetensors", CARD)
TARGET = ("target_geometry_sha256", "target_weights_sha256")  # where both sides know it


def model_card(head: HeadCheckpoint, *, licence: str, tasks: list[dict[str, Any]], budget: int | None = None) -> str:
    """The text of ``README.md``.

    Args:
        head: on disk.
        licence: of the weights, as the hub names it (``apache-2.0``).
        tasks: rows of ``oneglance eval-head --json``; may be empty, and the card then says that τ is unknown.
        budget: nodes of the tree with which they were measured.
    """
    card, config = head.card, head.config
    training = card.get("training") or {}
    recipe = training.get("recipe") or {}
    target = card.get("target") or "unknown"
    front: dict[str, Any] = {
        "license": licence,
        "library_name": "oneglance",
        "tags": ["speculative-decoding", "dflash"],
    }
    if "/" in target and not target.startswith((".", "/")):
        front["base_model"] = target
    facts = {
        "target": target,
        "target revision": card.get("target_revision") or "unknown",
        "target config": (card.get("target_geometry_sha256") or "unknown")[:16],
        "chat template": (card.get("chat_template_sha256") or "unknown")[:16],
        "features": card.get("feature_point") or "unknown",
        "kept layers": ", ".join(map(str, config.target_layer_ids)),
        "head": f"{parameters(num_parameters(config))}, {plural(config.num_hidden_layers, 'layer')}, "
        f"block {config.block_size}; embedding and lm_head are the target's",
        "licence": licence,
    }
    parts = [
        "---\n" + yaml.safe_dump(front, sort_keys=False) + "---",
        f"# A draft head for {target}",
        "Drafts a block of tokens in one pass; the target verifies them, so its text does not change.",
        _table(["", ""], [[key, str(value)] for key, value in facts.items()]),
        "## Acceptance",
        _acceptance(tasks, budget),
        "## Training",
        _training(recipe, training),
        "## Use",
        f"```\noneglance generate PROMPT --image PAGE --target {target} --head THIS_REPOSITORY\n```",
    ]
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True, slots=True)
class Training:
    """What the card in a head's config says of its training; None where it says nothing.

    Attributes:
        steps: of the optimiser.
        samples: answers seen, repeats included, by one process.
        recipe, objective, init: names; ``init`` is what it started from.
        heldout_top1: share of held-out tokens that offset 1 names first.
    """

    steps: int | None = None
    samples: int | None = None
    recipe: str | None = None
    objective: str | None = None
    init: str | None = None
    heldout_top1: float | None = None

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> Training:
        """Read a card, which may be anybody's."""
        training = _object(card.get("training"))
        recipe = _object(training.get("recipe"))
        optimiser, top1 = _object(recipe.get("optimiser")), training.get("heldout_top1")
        steps = _as(training.get("step"), int)
        batch, times = (_as(optimiser.get(key), int) for key in ("batch_size", "accumulate"))
        return cls(
            steps=steps,
            samples=steps * batch * times if steps is not None and batch and times else None,
            recipe=_as(recipe.get("name"), str),
            objective=_as(_object(recipe.get("objective")).get("name"), str),
            init=_as(recipe.get("init"), str),
            heldout_top1=_as(top1[0], float) if isinstance(top1, list) and top1 else None,
        )

    @property
    def amount(self) -> str | None:
        """Steps and samples in words."""
        if self.steps is None:
            return None
        seen = "" if self.samples is None else f", {self.samples:,} answers seen"
        return f"{self.steps:,} steps{seen}"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as(value: Any, kind: type[T]) -> T | None:
    return value if type(value) is kind else None


def write_card(folder: Path, text: str) -> None:
    """Put the card beside the head."""
    write_atomically(folder / CARD, text)


def subject(folder: Path, target: dict[str, Any]) -> dict[str, Any]:
    """What scores are of: the head's weights, and the target's fingerprint or the head's card, as far as they say."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return {"head_sha256": digest.hexdigest(), **{key: target.get(key) for key in TARGET}}


def check_subject(scores: dict[str, Any], folder: Path, card: dict[str, Any]) -> None:
    """Refuse scores of another head, or on another target.

    Raises:
        InputError: they are.
    """
    own = subject(folder, card)
    for key, what in (("head_sha256", "head"), *((key, "target") for key in TARGET)):
        if own[key] is not None and scores.get(key) is not None and scores[key] != own[key]:
            raise InputError(
                f"the scores are of another {what} ({scores.get(what)}) than {folder}; write them anew with "
                f"'oneglance eval-head --head {folder} --json'"
            )


def read_scores(path: Path | None, head: str) -> tuple[list[dict[str, Any]], int | None]:
    """Tasks and budget of a file that ``eval-head --json`` wrote of the head in the folder ``head``.

    Raises:
        InputError: it cannot be read, holds something else, or is of another head or target.
    """
    if path is None:
        return [], None
    try:
        raw = parse_json(path.read_text(encoding="utf-8"))
        tasks, budget = raw["tasks"], raw["budget"]
        for row in tasks:
            row["task"], row["n"], row["tau"]
        raw["head_sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not a file of scores; write it with 'oneglance eval-head --head {head} --json'"
        ) from error
    check_subject(raw, Path(head), load_checkpoint(head).card)
    return tasks, budget


def check_repository(name: str) -> None:
    """Refuse what is no name of a repository: OWNER/NAME, or a bare NAME, which is among one's own.

    Raises:
        InputError: the hub would not take it.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented, not in __all__

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise InputError(f"{name!r} is no name of a repository ({reason(error)}); write OWNER/NAME") from error


def files_of(folder: Path, card: str) -> dict[str, int]:
    """What an upload holds: names and bytes, the card as it would be written."""
    there = {name: (folder / name).stat().st_size for name in FILES if (folder / name).is_file()}
    return {**there, CARD: len(card.encode())}


def upload(folder: Path, repository: str, *, private: bool, revision: str | None) -> str:
    """Upload a head and its card; the address of the commit.

    Raises:
        InputError: the hub refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi()
    try:
        made = api.create_repo(repository, private=private, exist_ok=True)  # a bare name gets its owner
        done = api.upload_folder(
            repo_id=made.repo_id, folder_path=str(folder), allow_patterns=list(FILES), revision=revision
        )
    except (HfHubHTTPError, HFValidationError) as error:
        raise InputError(f"cannot upload to {repository}: {reason(error)}; log in with 'hf auth login'") from error
    except (no_answer(), OSError) as error:
        raise InputError(f"cannot reach the hub to upload to {repository} ({error}); push again online") from error
    return str(done)


def open_head(folder: Path) -> HeadCheckpoint:
    """A head that lies in a folder.

    Raises:
        InputError: it does not, or is damaged.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; give the head folder of a run, such as runs/NAME/head")
    return load_checkpoint(str(folder))


def _acceptance(tasks: list[dict[str, Any]], budget: int | None) -> str:
    if not tasks:
        return "τ unknown: not measured."
    rows = []
    for row in tasks:
        has_interval = row.get("ci_low") is not None
        interval = f"[{row['ci_low']:.2f}, {row['ci_high']:.2f}]" if has_interval else "–"
        tau = "–" if row["tau"] is None else f"{row['tau']:.2f}"
        rows.append([row["task"], str(row["n"]), tau, interval, f"{row['top1'][0]:.3f}"])
    note = (
        f"τ is kept tokens a round, bonus included; greedy, batch one, tree of {budget} nodes; bootstrap over prompts."
    )
    return _table(["task", "n", "τ", "95 % interval", "top-1 @1"], rows) + "\n\n" + note


def _training(recipe: dict[str, Any], training: dict[str, Any]) -> str:
    if not recipe:
        return "Unknown: the head carries no training card."
    data = dict(recipe.get("data") or {})
    for key in ("train", "heldout"):  # folder names of the machine that trained it
        folders = [data[key]] if isinstance(data.get(key), str) else data.get(key) or []
        data[key] = ", ".join(Path(folder).name for folder in folders) or None
    shown = {**recipe, "data": data}
    ours = ", ".join(recipe.get("ours") or ()) or "none named"
    named = {"train": "Learned from", "heldout": "judged by"}
    parts = [f"{named[key]} {_rows(part)}" for key, part in (training.get("data") or {}).items() if part["rows"]]
    learned = "; ".join(parts) + ".\n\n" if parts else ""
    return learned + (
        f"{training.get('step', 'unknown')} steps of this recipe. Values that are this project's choice and not the "
        f"paper's: {ours}.\n\n```yaml\n{yaml.safe_dump(shown, sort_keys=False)}```"
    )


def _rows(part: dict[str, Any]) -> str:
    tasks = ", ".join(f"{task} {count}" for task, count in part["tasks"].items())
    return f"{part['rows']} of the target's own answers ({tasks})"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
