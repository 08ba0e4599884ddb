"""Small random weights of every baseline drafter that fit a tiny target, and the drafters that they make."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from oneglance.core import Drafter
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.eagle3 import Eagle3Drafter
from oneglance.drafters.eagle3_head import Eagle3Config, Eagle3Head
from oneglance.drafters.medusa import MedusaConfig, MedusaDrafter, MedusaHead
from oneglance.drafters.ngram import NgramDrafter, NgramSettings
from oneglance.drafters.plain import NoDrafter
from oneglance.drafters.two_model import TwoModelDrafter, TwoModelSettings
from oneglance.targets.base import Target
from oneglance.testing import tiny_head, tiny_target


def eagle3_raw(target: Target, **changes: Any) -> dict[str, Any]:
    """``config.json`` of a small EAGLE-3 head as SpecForge writes it."""
    layers = [i for i in target.self_attention_layers if i < target.num_layers - 1][-3:]
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": target.hidden_size,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "max_position_embeddings": target.context_length,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": target.vocab_size - 40,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": layers, "use_aux_hidden_state": True},
        **changes,
    }


def tiny_eagle3(target: Target, *, seed: int = 0, **changes: Any) -> Eagle3Head:
    """A small random EAGLE-3 head that drafts over every id but 40."""
    torch.manual_seed(seed)
    config = Eagle3Config.from_checkpoint(eagle3_raw(target, **changes)).for_target(target.num_layers)
    head = Eagle3Head(config)
    for parameter in head.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3)  # far enough apart that trees are not all ties
    if config.maps_vocabulary:
        kept = torch.randperm(target.vocab_size)[: config.draft_vocab_size].sort().values
        head.set_vocabulary(kept)
    return head.to(device=target.device, dtype=target.dtype).eval().requires_grad_(False)


def tiny_medusa(target: Target, *, seed: int = 0, shares_lm_head: bool = False, num_heads: int = 5) -> MedusaHead:
    """Small random Medusa heads on the target's last layer."""
    torch.manual_seed(seed)
    config = MedusaConfig(
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        max_position_embeddings=target.context_length,
        block_size=num_heads + 1,
        shares_lm_head=shares_lm_head,
    ).for_target(target.num_layers)
    head = MedusaHead(config)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return head.to(device=target.device, dtype=target.dtype).eval().requires_grad_(False)


def relative(target: Target, *, seed: int = 3) -> Target:
    """Another model of the target's family and tokenizer."""
    return tiny_target(target.model.config.model_type, seed=seed, dtype=target.dtype)


def eagle3_log_q(
    target: Target,
    head: Eagle3Head,
    features: Tensor,
    token_ids: Sequence[int],
    path: Sequence[int],
    *,
    banned: bool = True,
) -> Tensor:
    """(V,) log q after root and ``path``, by running every row anew, one query at a time, over nothing but lists.

    Args:
        target: embeds.
        head: under test.
        features: (T, 3H).
        token_ids: (T+1,) root last.
        path: drafted tokens.
        banned: leave out the ids that are never proposed, as decoding does and training does not.
    """
    layer, attention = head.midlayer, head.midlayer.self_attn
    sequence = [*token_ids, *path]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    output = torch.empty(0)
    for position in range(len(sequence) - 1):
        hidden = head.fc(features[position]) if position < len(features) else output
        embedded = target.embedding(torch.tensor(sequence[position + 1]))
        x = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(hidden)])
        angles = position * head.rope.inv_freq.repeat(2)

        def turn(rows: Tensor, angles: Tensor = angles) -> Tensor:
            first, second = rows.chunk(2, -1)
            return rows * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

        queries = turn(attention.q_proj(x).view(4, 8))
        keys.append(turn(attention.k_proj(x).view(2, 8)))
        values.append(attention.v_proj(x).view(2, 8))
        mixed = []
        for index in range(4):  # two query heads a key head
            scores = torch.stack([key[index // 2] @ queries[index] for key in keys]) / 8**0.5
            mixed.append(scores.softmax(0) @ torch.stack([value[index // 2] for value in values]))
        hidden = hidden + attention.o_proj(torch.cat(mixed))
        output = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    rows = torch.full((target.vocab_size,), -torch.inf)
    rows[head.token_ids] = head.lm_head(head.norm(output))
    if banned:
        rows[list(target.banned_ids)] = -torch.inf
    return rows.log_softmax(-1)


# name in the drafter registry → ways to make one, by a name for tests: (target, budget) → drafter
MAKERS: dict[str, dict[str, Callable[[Target, int], Drafter]]] = {
    "none": {"none": lambda target, budget: NoDrafter()},
    "block": {"block": lambda target, budget: BlockDrafter(tiny_head(target), target, budget=budget)},
    "ngram": {
        "ngram": lambda target, budget: NgramDrafter(target, NgramSettings(), budget=budget),
        "bigram": lambda target, budget: NgramDrafter(
            target, NgramSettings(min_ngram=2, max_ngram=2, num_draft=40), budget=budget
        ),
    },
    "two_model": {
        "itself": lambda target, budget: TwoModelDrafter(
            relative(target, seed=0), target, TwoModelSettings(), budget=budget
        ),
        "relative": lambda target, budget: TwoModelDrafter(
            relative(target), target, TwoModelSettings(num_draft=3), budget=budget
        ),
        "blind": lambda target, budget: TwoModelDrafter(
            relative(target, seed=0), target, TwoModelSettings(images=False), budget=budget
        ),
    },
    "eagle3": {
        "eagle3 chain": lambda target, budget: Eagle3Drafter(
            tiny_eagle3(target), target, num_passes=5, top_k=1, budget=budget
        ),
        "eagle3 tree": lambda target, budget: Eagle3Drafter(
            tiny_eagle3(target), target, num_passes=6, top_k=4, budget=budget
        ),
        "eagle3 whole vocabulary": lambda target, budget: Eagle3Drafter(
            tiny_eagle3(target, draft_vocab_size=target.vocab_size), target, num_passes=2, top_k=99, budget=budget
        ),
    },
    "medusa": {
        "medusa": lambda target, budget: MedusaDrafter(tiny_medusa(target), target, budget=budget),
        "medusa, shared lm_head": lambda target, budget: MedusaDrafter(
            tiny_medusa(target, shares_lm_head=True), target, budget=budget
        ),
    },
}
EVERY = {label: make for makers in MAKERS.values() for label, make in makers.items()}
