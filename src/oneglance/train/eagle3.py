"""Train an EAGLE-3 head: training-time test, in which each step feeds on the head's own output of the step before.

A row of the packed pass is an anchor of the block head's: token t is the root, the row before it the last feature. Step
i reads the token i places after the root and the output of step i-1, and predicts the next one. It sees the features
before the root and its own earlier steps, which is what decoding sees: the two are the same forward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oneglance.core import Drafter, InputError
from oneglance.drafters.checkpoint import Checkpoint
from oneglance.drafters.eagle3 import Eagle3Drafter
from oneglance.drafters.eagle3_head import Eagle3Config, Eagle3Head, aux_layers, load_eagle3
from oneglance.targets.base import Target
from oneglance.train.blocks import Blocks
from oneglance.train.initial import warm_start
from oneglance.train.kinds import Kind
from oneglance.train.objectives import Objective
from oneglance.train.recipe import HeadRecipe
from oneglance.train.step import Sample, StepResult, accuracy, in_chunks, pad_rows, slot_nll, teacher_states
from oneglance.train.traces import Trace


class PackedEagle3(nn.Module):
    """The head's decoding forward over whole sequences: one causal pass, then a pass a step over the anchors."""

    def __init__(self, head: Eagle3Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor, following: Tensor, drafted: Tensor, anchors: Tensor) -> Tensor:
        """Outputs of every step at every anchor.

        Args:
            features: (b, T, 3H).
            following: (b, T, H) embeddings of the token after each row.
            drafted: (b, A, L, H) embeddings of the root and the L-1 tokens after it; the root's is not read.
            anchors: (b, A) positions of the roots; 0 for padding.

        Returns:
            (b, A, L, H).
        """
        rows = torch.arange(features.shape[1], device=features.device)
        output, past = self.head(following, self.head.fuse(features), None, rows, rows <= rows[:, None])
        before = (anchors - 1).clamp(min=0)  # (b, A) the row of the root's own pair
        states = [torch.gather(output, 1, before[..., None].expand(-1, -1, output.shape[-1]))]
        mask = (rows <= before[..., None])[:, None]  # (b, 1, A, T)
        own_row = torch.eye(anchors.shape[1], dtype=torch.bool, device=anchors.device).expand(len(anchors), 1, -1, -1)
        for step in range(1, drafted.shape[2]):
            mask = torch.cat([mask, own_row], dim=-1)
            output, own = self.head(drafted[:, :, step], states[-1], past, before + step, mask)
            past = torch.cat([past[0], own[0]], 2), torch.cat([past[1], own[1]], 2)
            states.append(output)
        return torch.stack(states, dim=2)


class Eagle3Kind(Kind):
    """EAGLE-3: ``block_size`` - 1 steps, the ``kl`` objective for soft labels weighted 0.8^step."""

    def initial(self, recipe: HeadRecipe, target: Target, rows: Sequence[Trace]) -> tuple[Any, list[str]]:
        torch.manual_seed(recipe.seed)
        shape, text = recipe.head, target.text_config
        default_dim = getattr(text, "head_dim", None) or target.hidden_size // text.num_attention_heads
        size = shape.draft_vocab_size or target.vocab_size
        if size > target.vocab_size:
            raise InputError(f"head.draft_vocab_size {size} is above the target's {target.vocab_size} ids")
        config = Eagle3Config(
            hidden_size=target.hidden_size,
            intermediate_size=shape.intermediate_size or text.intermediate_size,
            num_attention_heads=shape.num_attention_heads or text.num_attention_heads,
            num_key_value_heads=shape.num_key_value_heads or text.num_key_value_heads,
            head_dim=shape.head_dim or default_dim,
            rope_theta=shape.rope_theta,
            max_position_embeddings=target.context_length,
            vocab_size=target.vocab_size,
            draft_vocab_size=size,
            block_size=shape.block_size,
            num_target_layers=target.num_layers,
            target_layer_ids=shape.target_layer_ids or aux_layers(target.num_layers),
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
        anew = warm_start(head, load_eagle3(recipe.init).tensors) if recipe.init else []
        return head.to(target.device), anew

    def pack(self, head: Any) -> nn.Module:
        return PackedEagle3(head)

    def loss(
        self, packed: nn.Module, target: Target, samples: Sequence[Sample], blocks: Blocks, objective: Objective
    ) -> StepResult:
        head: Any = getattr(packed, "module", packed).head  # distributed wrappers hold the module
        parameter = next(head.parameters())
        device = parameter.device
        features = pad_rows([s.features for s in samples]).to(device, parameter.dtype)
        ids = torch.stack(
            [F.pad(torch.tensor(s.token_ids[1:]), (0, features.shape[1] - len(s.token_ids) + 1)) for s in samples]
        )
        shown = torch.cat([blocks.token_ids[..., :1], blocks.labels[..., 1:-1].clamp(min=0)], dim=-1)
        following, drafted = (target.embedding(x.to(target.device)).to(device, parameter.dtype) for x in (ids, shown))
        states = packed(features, following, drafted, blocks.anchors.to(device)).flatten(0, 1)  # (b*A, L, H)
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
        keys = (
            "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
            "vocab_size draft_vocab_size rms_norm_eps rope_theta max_position_embeddings block_size num_target_layers"
        )
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            **{key: getattr(config, key) for key in keys.split()},
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
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
