"""Train an EAGLE-2 head: regress the target's next top feature, and what the lm_head makes of it.

With objective ``feature`` a slot reads the target's own features, as EAGLE trains: the slots of an anchor are L rows of
one causal pass. With any other objective, and in evaluation, each step feeds on the one before, as in decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oneglance.core import Drafter, InputError
from oneglance.drafters.checkpoint import Checkpoint
from oneglance.drafters.eagle2 import Eagle2Drafter, top_features, with_images
from oneglance.drafters.eagle2_head import Eagle2Config, Eagle2Head, load_eagle2
from oneglance.drafters.head import KeysValues
from oneglance.targets.base import Target
from oneglance.train.blocks import Blocks
from oneglance.train.eagle import Step, at_rows, inherited, layer_layout, layer_shape, pairs_of, rolled_out
from oneglance.train.initial import warm_start
from oneglance.train.kinds import Kind
from oneglance.train.objectives import Objective
from oneglance.train.recipe import HeadRecipe
from oneglance.train.step import Sample, StepResult, accuracy, slot_losses, teacher_states
from oneglance.train.traces import Trace


class FirstPass(NamedTuple):
    """What the steps after it go on from.

    Attributes:
        output, past: (b, T, H) and (b, KV, T, D) each.
        step: the head.
        visible: (b, T) False where nobody may look at a row; None: everybody at every one.
    """

    output: Tensor
    past: KeysValues
    step: Step
    visible: Tensor | None = None


class PackedEagle2(nn.Module):
    """The head's decoding forward over whole sequences."""

    def __init__(self, head: Eagle2Head) -> None:
        super().__init__()
        self.head = head

    def forward(
        self,
        hidden: Tensor,
        following: Tensor,
        is_image: Tensor,
        drafted: Tensor,
        anchors: Tensor,
        is_given: bool,
    ) -> Tensor:
        """Predicted features.

        Args:
            hidden: (b, T, H) the target's features.
            following: (b, T, H) embeddings of the token after each row, images' own.
            is_image: (b, T) True where that is a row of an image, for heads that compress those.
            drafted: (b, A, L, H) embeddings of the root and the L-1 tokens after it.
            anchors: (b, A) positions of the roots; 0 for padding.
            is_given: every slot reads the target's features; else each step the output of the one before.

        Returns:
            (b, A, L, H).
        """
        first = self.first_pass(hidden, following, is_image)
        if is_given:
            return windows(first.output, anchors, drafted.shape[2])
        return rolled_out(first.step, first.output, first.past, drafted, anchors, visible=first.visible)

    def first_pass(self, hidden: Tensor, following: Tensor, is_image: Tensor) -> FirstPass:
        """The causal pass over all rows; arguments as of ``forward``."""
        rows = torch.arange(hidden.shape[1], device=hidden.device)
        output, past = self.head(following, hidden, None, rows, rows <= rows[:, None])
        return FirstPass(output, past, self.head)


class Eagle2Kind(Kind):
    """EAGLE-2: ``block_size`` - 1 slots an anchor, the ``feature`` objective (1.0 smooth L1 and 0.1 soft labels)."""

    architecture = "LlamaForCausalLMEagle"

    def initial(self, recipe: HeadRecipe, target: Target, rows: Sequence[Trace]) -> tuple[Any, list[str]]:
        torch.manual_seed(recipe.seed)
        if recipe.head.target_layer_ids is not None:
            raise InputError(f"kind {recipe.kind} reads the top layer alone; leave out head.target_layer_ids")
        head = self.new(recipe, target)
        anew = warm_start(head, self.start(recipe.init).tensors) if recipe.init else []
        return head.to(target.device), anew

    def new(self, recipe: HeadRecipe, target: Target) -> Eagle2Head:
        """A random head."""
        return Eagle2Head(Eagle2Config(**self.shape(recipe, target)).for_target(target.num_layers))

    def shape(self, recipe: HeadRecipe, target: Target) -> dict[str, Any]:
        """Geometry; a warm start brings whatever decides what its weights compute."""
        return layer_shape(recipe, target) | inherited(recipe, self.start(recipe.init).config if recipe.init else None)

    def pack(self, head: Any) -> nn.Module:
        return PackedEagle2(head)

    def loss(
        self, packed: nn.Module, target: Target, samples: Sequence[Sample], blocks: Blocks, objective: Objective
    ) -> StepResult:
        pairs = pairs_of(target, samples, blocks, next(packed.parameters()))
        is_image = image_rows(target, samples, pairs.token_ids)
        streams, hidden = top_features(target, pairs.features)
        following = with_images(pairs.following, streams, is_image)
        is_given = objective.regression > 0
        states = packed(hidden, following, is_image, pairs.drafted, pairs.anchors, is_given)
        states = states.flatten(0, 1).to(target.lm_head_device)  # (b*A, L, H)
        labels = blocks.labels[:, :, 1:].flatten(0, 1).to(states.device)
        teacher = teacher_states(samples, blocks, states.device) if objective.soft else None
        nll, predicted = slot_losses(states, labels, target.lm_head, teacher)
        labelled = labels >= 0
        weights = objective.weigh(nll, labelled)
        losses = objective.label * nll
        if is_given:
            assert teacher is not None
            distance = F.smooth_l1_loss(states.float(), teacher.float(), reduction="none").mean(-1)
            losses = losses + objective.regression * distance
        return StepResult((losses * weights).sum(), weights.sum(), *accuracy(predicted, labels, labelled))

    def load(self, name: str) -> Checkpoint[Any, Any]:
        return load_eagle2(name)

    def start(self, name: str) -> Checkpoint[Any, Any]:
        """The head that training starts from."""
        return self.load(name)

    def layout(self, recipe: HeadRecipe, target: Target, config: Any) -> dict[str, Any]:
        return {"architectures": [self.architecture], **layer_layout(config), "bias": config.has_bias}

    def drafter(self, head: Any, target: Target, *, budget: int) -> Drafter:
        return Eagle2Drafter(head, target, budget=budget)


def image_rows(target: Target, samples: Sequence[Sample], following: Tensor) -> Tensor:
    """(b, T) True where the token after a row is one of an image; an answer has none, whatever it says."""
    ends = torch.tensor([s.prompt_length - 1 for s in samples], device=following.device)
    in_prompt = torch.arange(following.shape[1], device=following.device) < ends[:, None]
    return target.is_image(following) & in_prompt


def windows(output: Tensor, anchors: Tensor, size: int) -> Tensor:
    """(b, T, H) outputs → (b, A, size, H) those of the rows from the root's own pair on."""
    rows = (anchors[..., None] - 1 + torch.arange(size, device=anchors.device)).clamp(0, output.shape[1] - 1)
    return at_rows(output, rows.flatten(1)).view(*rows.shape, -1)
