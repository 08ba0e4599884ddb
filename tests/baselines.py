"""Small random weights of every baseline drafter that fit a tiny target, and the drafters that they make."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from oneglance.core import Drafter
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.eagle2 import Eagle2Drafter
from oneglance.drafters.eagle2_head import Eagle2Config, Eagle2Head
from oneglance.drafters.eagle3 import Eagle3Drafter
from oneglance.drafters.eagle3_head import Eagle3Config, Eagle3Head
from oneglance.drafters.medusa import MedusaConfig, MedusaDrafter, MedusaHead
from oneglance.drafters.ngram import NgramDrafter, NgramSettings
from oneglance.drafters.plain import NoDrafter
from oneglance.drafters.two_model import TwoModelDrafter, TwoModelSettings
from oneglance.drafters.vispec import VispecDrafter
from oneglance.drafters.vispec_head import VispecConfig, VispecHead
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


def eagle2_raw(target: Target, **changes: Any) -> dict[str, Any]:
    """``config.json`` of a small EAGLE-2 head as EAGLE writes it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": target.hidden_size,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "max_position_embeddings": target.context_length,
        "vocab_size": target.vocab_size,
        **changes,
    }


def random_layer(kind: type[Any], target: Target, config: Any, seed: int) -> Any:
    """A head of random weights that are far enough apart that trees are not all ties."""
    torch.manual_seed(seed)
    head = kind(config.for_target(target.num_layers))
    for parameter in head.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
        else:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
    return head.to(device=target.device, dtype=target.dtype).eval().requires_grad_(False)


def tiny_eagle2(target: Target, *, seed: int = 0, **changes: Any) -> Eagle2Head:
    """A small random EAGLE-2 head."""
    head: Eagle2Head = random_layer(
        Eagle2Head, target, Eagle2Config.from_checkpoint(eagle2_raw(target, **changes), {}), seed
    )
    return head


def tiny_vispec(target: Target, *, seed: int = 0, num_queries: int = 2, **changes: Any) -> VispecHead:
    """A small random ViSpec head."""
    raw = eagle2_raw(target, num_queries=num_queries, **changes)
    head: VispecHead = random_layer(VispecHead, target, VispecConfig.from_checkpoint(raw, {}), seed)
    return head


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


def layer_outputs(
    head: Any, rows: Sequence[tuple[Tensor, int]], more: Callable[[Tensor, int], Tensor | None]
) -> Tensor:
    """(H,) the last output of EAGLE's layer, by running rows one after the other over nothing but lists.

    Args:
        head: an EAGLE-2 or ViSpec head of four heads on two key heads, eight wide.
        rows: input and position of the committed rows.
        more: (last output, index) → the input of the next drafted row, None at the end; positions go on.
    """
    layer, attention = head.layers[0], head.layers[0].self_attn
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def run(x: Tensor, position: int) -> Tensor:
        angles = position * head.rope.inv_freq.repeat(2)

        def turn(parts: Tensor) -> Tensor:
            first, second = parts.chunk(2, -1)
            return parts * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

        queries = turn(attention.q_proj(x).view(4, 8))
        keys.append(turn(attention.k_proj(x).view(2, 8)))
        values.append(attention.v_proj(x).view(2, 8))
        mixed = []
        for index in range(4):
            scores = torch.stack([key[index // 2] @ queries[index] for key in keys]) / 8**0.5
            mixed.append(scores.softmax(0) @ torch.stack([value[index // 2] for value in values]))
        x = x + attention.o_proj(torch.cat(mixed))
        out: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
        return out

    output = torch.empty(0)
    for x, position in rows:
        output = run(x, position)
    position, index = rows[-1][1], 0
    while (following := more(output, index)) is not None:
        output = run(following, position + 1 + index)
        index += 1
    return output


def log_q_of(target: Target, output: Tensor, *, banned: bool) -> Tensor:
    """(V,) what the target's lm_head makes of a predicted feature."""
    rows: Tensor = target.lm_head(output)
    if banned:
        rows = rows.index_fill(0, torch.tensor(target.banned_ids), -torch.inf)
    return rows.log_softmax(-1)


def eagle2_log_q(
    target: Target,
    head: Eagle2Head,
    streams: Tensor,
    hidden: Tensor,
    token_ids: Sequence[int],
    path: Sequence[int],
    *,
    banned: bool = True,
) -> Tensor:
    """(V,) log q after root and ``path``, row by row.

    Args:
        target: embeds, and reads outputs.
        head: under test.
        streams: (T, H) embeddings of the committed rows, images' own among them.
        hidden: (T, H) last hidden states, normed.
        token_ids: (T+1,) root last.
        path: drafted tokens.
        banned: leave out the ids that are never proposed.
    """

    def embedded(token: int) -> Tensor:
        return target.embedding(torch.tensor(token))

    following = [*streams[1:], embedded(token_ids[-1])]
    rows = [(head.fc(torch.cat([e, f])), place) for place, (e, f) in enumerate(zip(following, hidden, strict=True))]

    def more(output: Tensor, index: int) -> Tensor | None:
        return head.fc(torch.cat([embedded(path[index]), output])) if index < len(path) else None

    return log_q_of(target, layer_outputs(head, rows, more), banned=banned)


def vispec_log_q(
    target: Target,
    head: VispecHead,
    streams: Tensor,
    hidden: Tensor,
    token_ids: Sequence[int],
    path: Sequence[int],
    *,
    banned: bool = True,
) -> Tensor:
    """(V,) as ``eagle2_log_q``, with every image compressed by its definition: a token at a time, a query at a time."""
    following = [*streams[1:], target.embedding(torch.tensor(token_ids[-1]))]
    vector = torch.zeros(target.hidden_size)
    rows: list[tuple[Tensor, int]] = []
    seen: list[Tensor] = []

    def fused(embedded: Tensor, feature: Tensor) -> Tensor:
        return head.fc(torch.cat([embedded, head.img_fc(torch.cat([feature, vector]))]))

    for place, (embedded, feature) in enumerate(zip(following, hidden, strict=True)):
        if token_ids[place + 1] in target.placeholder_ids:
            seen.append(embedded)
            if token_ids[place + 2] in target.placeholder_ids:
                continue
            outputs = []
            for query in head.imadpt.q:
                mixed = []
                for index in range(4):
                    keys = [head.imadpt.k_proj(x).view(4, 8)[index] for x in seen]
                    values = [head.imadpt.v_proj(x).view(4, 8)[index] for x in seen]
                    weights = torch.stack([key @ query[index] / 8**0.5 for key in keys]).softmax(0)
                    mixed.append(sum(w * v for w, v in zip(weights, values, strict=True)))
                outputs.append(head.imadpt.o_proj(torch.cat(mixed)))
            rows += [(x, place - len(outputs) + 2 + i) for i, x in enumerate(outputs[:-1])]
            vector, seen = outputs[-1], []
        else:
            rows.append((fused(embedded, feature), place))

    def more(output: Tensor, index: int) -> Tensor | None:
        return fused(target.embedding(torch.tensor(path[index])), output) if index < len(path) else None

    return log_q_of(target, layer_outputs(head, rows, more), banned=banned)


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
    "eagle2": {
        "eagle2 chain": lambda target, budget: Eagle2Drafter(
            tiny_eagle2(target), target, num_passes=5, top_k=1, budget=budget
        ),
        "eagle2 tree": lambda target, budget: Eagle2Drafter(
            tiny_eagle2(target), target, num_passes=4, top_k=4, budget=budget
        ),
    },
    "vispec": {
        "vispec": lambda target, budget: VispecDrafter(tiny_vispec(target), target, top_k=3, budget=budget),
        "vispec of four queries": lambda target, budget: VispecDrafter(
            tiny_vispec(target, num_queries=4), target, num_passes=2, top_k=1, budget=budget
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
