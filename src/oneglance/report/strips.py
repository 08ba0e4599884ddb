"""Texts as rounds: which tokens came in which round, how sure the target was, and what each round's tree held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oneglance.bench.cases import Case
from oneglance.bench.roundlog import record
from oneglance.core import Round, SamplingParams
from oneglance.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a candidate tree, root first.

    Attributes:
        text: of its token; children: indices into the tree's nodes.
        is_accepted: on the accepted path.
    """

    text: str
    children: tuple[int, ...]
    is_accepted: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """One round of a text.

    Attributes:
        index: of the round; -1 for the token that came from prefill.
        tokens: texts of its tokens, the bonus last unless the round was cut.
        h_nats, a: of the root's row; accepted length.
        nodes: the candidate tree, empty where there was none.
    """

    index: int
    tokens: tuple[str, ...]
    h_nats: float | None
    a: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """One decoded prompt."""

    task: str
    prompt: str
    tau: float | None
    pieces: tuple[Piece, ...]


def strip(decoder: Decoder, case: Case, *, max_new_tokens: int) -> Strip:
    """Decode a case and take its rounds apart."""
    inputs = case.encode(decoder.target)
    done = record(decoder, inputs, SamplingParams(max_new_tokens), run="report", task=case.task, prompt=case.id)
    tokenizer, generation = decoder.target.tokenizer, done.generation
    pieces = [Piece(-1, (_text(tokenizer, generation.token_ids[0]),), None, 0, ())] if generation.token_ids else []
    for own, row in zip(generation.rounds, done.rows, strict=True):
        tokens = tuple(_text(tokenizer, token) for token in own.token_ids)
        pieces.append(Piece(own.index, tokens, row.h_nats, row.a, _nodes(tokenizer, own)))
    return Strip(case.task, case.text, generation.tau, tuple(pieces))


def _nodes(tokenizer: Any, own: Round) -> tuple[Node, ...]:
    if not len(own.tree):
        return ()
    accepted, at = {0}, 0
    for token in own.token_ids:
        at = own.tree.children[at].get(token, -1)
        if at < 0:
            break
        accepted.add(at)
    texts = [_text(tokenizer, token) for token in (own.root, *own.tree.token_ids)]
    return tuple(
        Node(text, tuple(own.tree.children[index].values()), index in accepted) for index, text in enumerate(texts)
    )


def _text(tokenizer: Any, token: int) -> str:
    shown: str = tokenizer.decode([token])
    return shown.replace("\n", "⏎")
