"""Train an EAGLE-3 head: training-time test, in which each step feeds on the head's own output of the step before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oneglance.core import Drafter, InputError
from oneglance.drafters.checkpoint import Checkpoint
from oneglance.drafters.eagle3 import Eagle3Drafter
from oneglance.drafters.eagle3_head import Eagle3Config, Eagle3Head, aux_layers, load_eagle3
from oneglance.targets.base import Target
from oneglance.train.blocks import Blocks
from oneglance.train.eagle import inherited, layer_layout, layer_shape, pairs_of, rolled_out
from oneglance.train.initial import warm_start
from oneglance.train.kinds import Kind
from oneglance.train.objectives import Objective
from oneglance.train.recipe import HeadRecipe
from oneglance.train.step import Sample, StepResult, accuracy, in_chunks, slot_nll, teacher_states
from oneglance.train.traces import Trace


class PackedEagle3(nn.Module):
    """The head's decoding forward over whole sequences: one causal pass, then a pass a step over the anchors."""

    def __init__(self, head: Eagle3Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor, following: Tensor, drafted: Tensor, anchors: Tensor) -> Tensor:
        """Outputs of every step at every anchor, (b, A, L, H); arguments as in ``Pairs``."""
        rows = torch.arange(features.shape[1], device=features.device)
        output, past = self.head(following, self.head.fuse(features), None, rows, rows <= rows[:, None])
        return rolled_out(self.head, output, past, drafted, anchors)


class Eagle3Kind(Kind):
    """EAGLE-3: ``block_size`` - 1 steps, the ``kl`` objective for soft labels weighted 0.8^step."""

    def initial(self, recipe: HeadRecipe, target: Target, rows: Sequence[Trace]) -> tuple[Any, list[str]]:
        torch.manual_seed(recipe.seed)
        size = recipe.head.draft_vocab_size or target.vocab_size
        if size > target.vocab_size:
            raise InputError(f"head.draft_vocab_size {size} is above the target's {target.vocab_size} ids; lower it")
        given = load_eagle3(recipe.init) if recipe.init else None
        config = Eagle3Config(
            **(layer_shape(recipe, target) | inherited(recipe, given.config if given else None)),
            draft_vocab_size=size,
            target_layer_ids=recipe.head.target_layer_ids or aux_layers(target.num_layers),
        ).for_target(target.num_layers)
        if len(config.target_layer_ids) != 3:
            raise InputError(
                f"an EAGLE-3 head reads three layers; head.target_layer_ids names {config.target_layer_ids}"
            )
        head = Eagle3Head(config)
        if config.maps_vocabulary:
            head.set_vocabulary(draft_vocabulary(rows, size, target.vocab_size))
        start = getattr(target.lm_head, "weight", None)
        if isinstance(start, Tensor) and start.is_floating_point():
            head.lm_head.weight.data.copy_(start.detach().float().cpu()[head.token_ids])
        anew = warm_start(head, given.tensors) if given else []
        return head.to(target.device), anew

    def pack(self, head: Any) -> nn.Module:
        return PackedEagle3(head)

    def loss(
        self, packed: nn.Module, target: Target, samples: Sequence[Sample], blocks: Blocks, objective: Objective
    ) -> StepResult:
        head: Any = getattr(packed, "module", packed).head  # distributed wrappers hold the module
        parameter = next(head.parameters())
        device = parameter.device
        pairs = pairs_of(target, samples, blocks, parameter)
        states = packed(pairs.features, pairs.following, pairs.drafted, pairs.anchors).flatten(0, 1)  # (b*A, L, H)
        labels = blocks.labels[:, :, 1:].flatten(0, 1).to(device)
        teacher = teacher_states(samples, blocks, target.lm_head_device) if objective.soft else None
        nll, predicted = self._slot_losses(head, target, states, labels, teacher)
        labelled = labels >= 0
        drafts = labelled & torch.isin(labels, head.token_ids)  # what the head cannot say teaches it nothing
        weights = objective.weigh(nll, drafts)
        return StepResult((nll * weights).sum(), weights.sum(), *accuracy(predicted, labels, labelled))

    def _slot_losses(
        self, head: Eagle3Head, target: Target, states: Tensor, labels: Tensor, teacher: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        token_ids = head.token_ids
        row_of = torch.full(
            (head.config.vocab_size + 1,), -100, device=token_ids.device
        )  # the last row is label -100's
        row_of[token_ids] = torch.arange(len(token_ids), device=token_ids.device)

        def chunk(states: Tensor, labels: Tensor, teacher: Tensor | None) -> tuple[Tensor, Tensor]:
            logits = head.logits(states).float()
            rows = row_of[labels.clamp(min=-1)]
            soft = None
            if teacher is not None:
                soft = target.lm_head(teacher).float().to(logits.device)[..., token_ids].softmax(-1)
            return slot_nll(logits, rows, soft), token_ids[logits.argmax(-1)]

        return in_chunks(chunk, states, labels, teacher)

    def load(self, name: str) -> Checkpoint[Any, Any]:
        return load_eagle3(name)

    def layout(self, recipe: HeadRecipe, target: Target, config: Any) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            **layer_layout(config),
            "draft_vocab_size": config.draft_vocab_size,
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": list(config.target_layer_ids),
                "use_aux_hidden_state": True,
            },
        }

    def drafter(self, head: Any, target: Target, *, budget: int) -> Drafter:
        return Eagle3Drafter(head, target, budget=budget)


def draft_vocabulary(rows: Sequence[Trace], size: int, vocab_size: int) -> Tensor:
    """(size,) the ids most often written in the answers, ascending; ids never written fill up, lowest first."""
    counts = Counter(token for row in rows for token in row.answer_ids)
    order = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    return torch.tensor(sorted(order[:size]))
