"""One round as the page shows it: its tokens with their figures, and its candidate tree."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oneglance.stream import Step
    from oneglance.text import Piece


def describe(step: Step, tokenizer: Any) -> dict[str, Any]:
    """A step with ``logprobs`` of at least two, spelt out.

    Args:
        step: of a stream.
        tokenizer: spells the nodes of the tree.

    Returns:
        ``index`` (None for prefill), times in ms, ``tokens`` (id, released text, its own spelling, kind, probability,
        entropy in nats, gap of the two likeliest in nats) and ``tree`` (spellings, parents, log scores, accepted path;
        node 0 is the root).
    """
    done = step.round
    if done is None:
        return {"index": None, "tokens": [_token(piece, "first", tokenizer) for piece in step.pieces]}
    accepted, path = done.verdict.num_accepted, list(done.verdict.path)
    if done.verdict.is_ended:  # the proposed end is accepted, and has no row of its own
        path.append(done.tree.children[path[-1]][done.verdict.token_ids[-1]])
    kinds = ["accepted" if place < accepted else "bonus" for place in range(len(step.pieces))]
    if not len(done.tree):
        kinds = ["plain"] * len(kinds)
    return {
        "index": done.index,
        "t_draft_ms": done.t_draft_ms,
        "t_verify_ms": done.t_verify_ms,
        "t_host_ms": done.t_host_ms,
        "gated": done.gated,
        "cut": done.cut,
        "tokens": [_token(piece, kind, tokenizer) for piece, kind in zip(step.pieces, kinds, strict=True)],
        "tree": {
            "root": tokenizer.decode([done.root]),
            "texts": [tokenizer.decode([token]) for token in done.tree.token_ids],
            "parents": list(done.tree.parents),
            "scores": [score if math.isfinite(score) else None for score in done.tree.scores],
            "path": path,
        },
    }


def _token(piece: Piece, kind: str, tokenizer: Any) -> dict[str, Any]:
    entry = piece.logprobs
    top = [log_p for _, log_p in entry.top] if entry is not None else []
    return {
        "id": piece.token_id,
        "text": piece.text,
        "token": tokenizer.decode([piece.token_id]),
        "kind": kind,
        "p": math.exp(entry.log_p) if entry is not None else None,
        "entropy_nats": entry.entropy_nats if entry is not None else None,
        "gap_nats": top[0] - top[1] if len(top) > 1 else None,
    }
