"""Texts as rounds: which tokens came in which round, how sure the target was, and what each round's tree held."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oneglance.bench.cases import Case
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
class Branch:
    """A run of nodes without a fork, all accepted or none, and what forks from its end."""

    texts: tuple[str, ...]
    is_accepted: bool
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a text.

    Attributes:
        text: its spelling.
        h_nats: entropy of the target's row that it was read off.
        p: its probability there.
    """

    text: str
    h_nats: float
    p: float


@dataclass(frozen=True, slots=True)
class Piece:
    """One round of a text.

    Attributes:
        index: of the round; -1 for the token that came from prefill.
        tokens: kept, the bonus last unless the round was cut; the first one was read off the root's row.
        a: accepted tokens that were kept.
        nodes: the candidate tree, empty where there was none.
    """

    index: int
    tokens: tuple[Token, ...]
    a: int
    nodes: tuple[Node, ...]

    @property
    def tree(self) -> Branch:
        """The candidate tree, forks alone nested."""
        return _branch(self.nodes, 0)


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
    done = decoder.stream_inputs(inputs, SamplingParams(max_new_tokens, logprobs=0)).exhaust()
    tokenizer = decoder.target.tokenizer
    tokens = [Token(_text(tokenizer, e.token_id), e.entropy_nats, math.exp(e.log_p)) for e in done.logprobs or []]
    pieces = [Piece(-1, tuple(tokens[:1]), 0, ())] if tokens else []
    at = 1
    for own in done.rounds:
        kept = tuple(tokens[at : at + len(own.token_ids)])
        pieces.append(Piece(own.index, kept, own.num_accepted, _nodes(tokenizer, own)))
        at += len(own.token_ids)
    return Strip(case.task, case.text, done.tau, tuple(pieces))


def _branch(nodes: Sequence[Node], index: int) -> Branch:
    texts, own = [nodes[index].text], nodes[index]
    while len(own.children) == 1 and nodes[own.children[0]].is_accepted == own.is_accepted:
        own = nodes[own.children[0]]
        texts.append(own.text)
    return Branch(tuple(texts), own.is_accepted, tuple(_branch(nodes, child) for child in own.children))


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
