"""Make a smaller model of a target's tokenizer, for two-model drafts: some layers of its text stack, trained on traces.

    python scripts/draft_model.py builtin:reader --layers 2 --out runs/draft-2 --traces runs/reader-traces/caption,…
    oneglance bench --systems plain,conditioned,two_model@runs/draft-2

The vision encoder is the target's own and stays as it is; embedding, kept layers and norm are trained on the target's
answers by cross-entropy, each answer after its own prompt and image.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel, get_cosine_schedule_with_warmup

from oneglance.bench.manifest import manifest
from oneglance.files import write_atomically
from oneglance.targets import hf, open_target
from oneglance.targets.base import Target
from oneglance.train.traces import Trace, read_mixed

CLIP = 1.0


def shortened(target: Target, num_layers: int) -> PreTrainedModel:
    """A copy with so many text layers, spread over the target's, the first and the last among them."""
    model = copy.deepcopy(target.model)
    text: Any = model.get_decoder()
    last = len(text.layers) - 1
    kept = sorted({round(i * last / (num_layers - 1)) for i in range(num_layers)})
    text.layers = torch.nn.ModuleList(text.layers[index] for index in kept)
    for place, layer in enumerate(text.layers):
        layer.self_attn.layer_idx = place
    for config in (model.config.get_text_config(), text.config):
        types = getattr(config, "layer_types", None)
        if types is not None and len(types) > last:  # the two may be one object, which is changed once
            config.layer_types = [types[index] for index in kept]
        config.num_hidden_layers = len(kept)
    return model


def loss_of(small: Target, row: Trace) -> torch.Tensor:
    """Mean cross-entropy of an answer after its prompt."""
    whole = small.extend(row.encode(small), row.answer_ids[:-1])
    hidden, _, _ = small.run_prefill(whole, hf.new_cache(small.model.config))
    logits = small.lm_head(hidden[0, -len(row.answer_ids) :])
    return F.cross_entropy(logits.float(), torch.tensor(row.answer_ids, device=logits.device))


def train(small: Target, rows: list[Trace], options: argparse.Namespace) -> float:
    """Steps of AdamW; returns the mean loss of the last tenth."""
    weights = list(small.text_model.requires_grad_(True).parameters())
    optimiser = torch.optim.AdamW(weights, lr=options.lr, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = get_cosine_schedule_with_warmup(optimiser, options.steps // 20, options.steps)
    order, losses = random.Random(options.seed), []
    for step in range(1, options.steps + 1):
        batch = [loss_of(small, row) for row in order.sample(rows, options.batch)]
        loss = torch.stack(batch).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
        if step % 25 == 0:
            print(f"step {step}/{options.steps}  loss {sum(losses[-25:]) / 25:.3f}", flush=True)
    last = losses[-max(1, options.steps // 10) :]
    return sum(last) / len(last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--layers", type=int, required=True, help="of the text stack, at least 2")
    parser.add_argument("--traces", required=True, help="folders, comma-separated")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    target = open_target(options.target, dtype="float32")
    if target.fixed_layers:
        parser.error(f"{options.target} has cross-attention layers, which this does not shorten; choose another target")
    if not 2 <= options.layers <= target.num_layers:
        parser.error(f"--layers must be from 2 to {target.num_layers}, got {options.layers}")
    model, begun = shortened(target, options.layers), time.perf_counter()
    small = type(target)(model, target.processor, name=str(options.out))
    loss = train(small, read_mixed(options.traces.split(",")), options)
    model.save_pretrained(options.out)
    target.processor.save_pretrained(options.out)
    given = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    minutes = round((time.perf_counter() - begun) / 60, 1)
    report = {**given, "loss": loss, "minutes": minutes, "manifest": manifest()}
    write_atomically(options.out / "draft_model.json", json.dumps(report, indent=1) + "\n")
    print(
        f"{options.out}: {model.config.get_text_config().num_hidden_layers} layers, loss {loss:.3f}, {minutes} minutes"
    )


if __name__ == "__main__":
    main()
