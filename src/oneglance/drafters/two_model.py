"""Classic two-model speculation: a small model of the same tokenizer drafts a chain, a pass a token.

The draft model is itself a target: its own prefill, cache and rollback. It sees the images, where it is a model of the
same image geometry, or the text alone, the placeholders of images left out. A speech model hears what the target hears.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import torch
from pydantic import Field

from oneglance.accept import argmax
from oneglance.core import DEFAULT_BUDGET, EMPTY_TREE, Drafter, DraftError, InputError, TokenTree
from oneglance.drafters.settings import Settings, check_budget, read_settings
from oneglance.drafters.taken import binds
from oneglance.targets import open_target
from oneglance.targets.base import Target
from oneglance.targets.state import Inputs, TargetState
from oneglance.tree import from_path

PROBE = "Total: $1,234.50 – naïve café\n\tdef f(x): return x  # 東京 🙂"


class TwoModelSettings(Settings):
    """How far the draft model runs ahead, and what it sees.

    Attributes:
        num_draft: tokens of the chain, a pass each (the paper's comparison has 8).
        images: show it the images; a text-only model never sees them.
    """

    num_draft: int = Field(default=8, gt=0)
    images: bool = True


@dataclass(slots=True)
class DraftModelState:
    """Where the draft model stands in a sequence.

    Attributes:
        own: its state; may run ahead of what the target has committed.
        prompt: the prompt as the draft model sees it.
        prompt_length: tokens of the target's prompt.
        agreed: leading tokens of ``own`` that are known to be committed.
    """

    own: TargetState
    prompt: list[int]
    prompt_length: int
    agreed: int


class TwoModelDrafter:
    """Greedy continuations of a second model.

    Args:
        model: the draft model, opened as a target.
        target: the model that verifies.
        settings: chain length and images.
        budget: nodes of the chain, at most.

    Raises:
        InputError: another tokenizer, or images that the draft model cannot take as they are.
    """

    target_layer_ids: tuple[int, ...] = ()

    def __init__(
        self, model: Target, target: Target, settings: TwoModelSettings, *, budget: int = DEFAULT_BUDGET
    ) -> None:
        check_tokenizers(model, target)
        self.model = model
        self.name: str | None = model.name
        self.num_draft = min(settings.num_draft, budget)
        self.sees_images = settings.images and model.takes_images and target.takes_images
        if self.sees_images:
            check_images(model, target)
        self.hears = model.takes_audio and target.takes_audio
        if self.hears:
            check_audio(model, target)
        self._placeholders = frozenset({*target.placeholder_ids, *model.placeholder_ids})
        self._num_shared = min(model.vocab_size, target.vocab_size)
        banned = [i for i in self._placeholders if i < self._num_shared]
        self._banned = torch.tensor(sorted(banned), dtype=torch.long, device=model.lm_head_device)

    @classmethod
    def bind(
        cls,
        name: str,
        settings: TwoModelSettings,
        target: Target,
        *,
        budget: int = DEFAULT_BUDGET,
    ) -> TwoModelDrafter:
        """Open the draft model beside the target, in its precision. One continuation is a chain, without a policy."""
        check_budget(budget)
        model = open_target(name, dtype=str(target.dtype).removeprefix("torch."), device=str(target.device))
        return cls(model, target, settings, budget=budget)

    @property
    def num_parameters(self) -> int:
        """Of the draft model, its vision part included, without embedding and lm_head."""
        tables = {id(p) for module in (self.model.embedding, self.model.lm_head) for p in module.parameters()}
        return sum(p.numel() for p in self.model.model.parameters() if id(p) not in tables)

    def start(self, state: TargetState) -> DraftModelState:
        """The draft model's prefill, images included where it sees them."""
        inputs = self._prompt(state.inputs)
        return DraftModelState(self.model.prefill(inputs), inputs.token_ids, len(state.inputs.token_ids), 0)

    def num_passes(self, tree: TokenTree) -> int:
        return len(tree)

    def draft(self, root: int, state: TargetState, draft_state: DraftModelState, *, max_depth: int) -> TokenTree:
        """A chain; the first pass also takes in the committed tokens that the draft model has not seen.

        Raises:
            DraftError: the draft model's context is full, or it does not know a token.
        """
        num_tokens = min(self.num_draft, max_depth)
        if num_tokens < 1:
            return EMPTY_TREE
        fed = self._rewind(state, draft_state)
        if draft_state.own.length + len(fed) + num_tokens > self.model.context_length:
            raise DraftError(f"the draft model's context of {self.model.context_length} positions is full")
        tokens: list[int] = []
        for _ in range(num_tokens):
            tokens.append(self._next(draft_state.own, fed))
            fed = tokens[-1:]
        return from_path(tokens)

    def _rewind(self, state: TargetState, draft_state: DraftModelState) -> list[int]:
        """Take back what was not accepted. Returns the committed tokens that are not in the cache, root last."""
        own = draft_state.own
        committed = [*draft_state.prompt, *state.token_ids[draft_state.prompt_length :]]
        ahead = zip(own.token_ids[draft_state.agreed : own.length], committed[draft_state.agreed : -1], strict=False)
        agreed = draft_state.agreed + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ahead))
        self.model.truncate(own, agreed)
        own.token_ids.append(committed[agreed])
        draft_state.agreed = agreed
        unknown = [token for token in committed[agreed:] if token >= self.model.embedding.num_embeddings]
        if unknown:
            raise DraftError(f"the draft model has no embedding of token {unknown[0]}")
        return committed[agreed:]

    @torch.inference_mode()
    def _next(self, own: TargetState, fed: list[int]) -> int:
        row = self.model.verify(own, fed[0], from_path(fed[1:]))[-1, : self._num_shared].clone()
        row[self._banned] = -torch.inf
        token = int(argmax(row))
        self.model.commit(own, range(len(fed)), [*fed[1:], token])
        return token

    def _prompt(self, inputs: Inputs) -> Inputs:
        """The target's prompt for the draft model; without images their placeholders go too."""
        if self.sees_images or self.hears:
            return Inputs({k: t.to(self.model.device) for k, t in inputs.tensors.items()}, inputs.num_images)
        ids = [token for token in inputs.token_ids if token not in self._placeholders]
        return self.model.wrap({"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))})


def check_tokenizers(model: Target, target: Target) -> None:
    """Refuse a draft model that numbers or splits text differently. Padded vocabularies may differ in size.

    Raises:
        InputError: a token with two ids, or a text with two splits.
    """
    own, other = model.tokenizer.get_vocab(), target.tokenizer.get_vocab()
    special = set(target.tokenizer.get_added_vocab())  # which a text-only relative may lack
    differing = [token for token, i in other.items() if own.get(token, i if token in special else None) != i]
    if differing:
        token = differing[0]
        raise InputError(
            f"the draft model {model.name!r} has another tokenizer: {token!r} is {own.get(token)} there and "
            f"{other[token]} in {target.name!r}; use a draft model of the same tokenizer"
        )
    splits = [m.tokenizer.encode(PROBE, add_special_tokens=False) for m in (model, target)]
    if splits[0] != splits[1]:
        raise InputError(
            f"the tokenizers of {model.name!r} and {target.name!r} split the same text differently; use a draft model "
            "of the same tokenizer"
        )


def check_images(model: Target, target: Target) -> None:
    """Refuse a draft model that would see the target's image tensors as other images.

    Raises:
        InputError: another family, patch size or normalisation.
    """
    ours, theirs = _image_geometry(model), _image_geometry(target)
    for name, value in theirs.items():
        if ours[name] != value:
            raise InputError(
                f"the draft model {model.name!r} takes images with {name} {ours[name]}, the target with {value}; "
                "use two_model:images=false, which shows it the text alone"
            )


def check_audio(model: Target, target: Target) -> None:
    """Refuse a draft model that takes other spectrograms.

    Raises:
        InputError: other mel bins, or another window.
    """
    for name in ("num_mel_bins", "max_source_positions"):
        ours, theirs = (getattr(m.model.config, name) for m in (model, target))
        if ours != theirs:
            raise InputError(
                f"the draft model {model.name!r} takes audio with {name} {ours}, the target with {theirs}; use a draft "
                "model of the same features"
            )


def _image_geometry(model: Target) -> dict[str, object]:
    config, images = model.model.config, getattr(model.processor, "image_processor", None)
    names = ("patch_size", "spatial_merge_size", "temporal_patch_size", "image_size", "max_num_tiles")
    return {
        "model_type": config.model_type,
        "placeholders": model.banned_ids,
        **{name: getattr(config.vision_config, name, None) for name in names},
        **{name: list(getattr(images, name, None) or ()) for name in ("image_mean", "image_std")},
    }


@binds(TwoModelDrafter.bind)
def prepare(head: str | None, **settings: object) -> Callable[..., Drafter]:
    """Registry entry: the draft model is opened with its target, whose precision and device it gets.

    Raises:
        InputError: no draft model was named, or a bad setting.
    """
    chosen = read_settings(TwoModelSettings, "two_model", settings)
    if head is None:
        raise InputError(
            "drafter 'two_model' needs a draft model of the target's tokenizer: give --head FOLDER or a hub id"
        )
    return partial(TwoModelDrafter.bind, head, chosen)
