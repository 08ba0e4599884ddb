"""Rounds along a given text: the same roots whatever the image, so that two arms differ in the image alone (§6).

At each root the drafter drafts and the target accepts by its own rows, as in decoding; then the given tokens are
committed, not the accepted ones. Along the target's own greedy text, with the roots of its own rounds, this repeats
those rounds.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from PIL import Image

from oneglance.bench.cases import Case
from oneglance.bench.roundlog import figures_of, first_children
from oneglance.core import Generation, InputError, Round, SamplingParams, TokenTree
from oneglance.decoder import Decoder
from oneglance.stats.geometric import L
from oneglance.stats.rounds import RoundRow
from oneglance.targets.state import Inputs
from oneglance.tree import from_path


def roots_of(done: Generation) -> list[int]:
    """Index in the new tokens of each round's root."""
    roots = [0]
    for own in done.rounds:
        roots.append(roots[-1] + len(own.token_ids))
    return list(dict.fromkeys(root for root in roots if root < done.num_tokens - 1))


@torch.inference_mode()
def follow(
    decoder: Decoder,
    inputs: Inputs,
    params: SamplingParams,
    token_ids: Sequence[int],
    roots: Sequence[int],
    *,
    run: str,
    task: str,
    prompt: str,
) -> list[RoundRow]:
    """A row a root, along ``token_ids``.

    Args:
        decoder: target and drafter.
        inputs: the prompt, with whichever image.
        params: greedy.
        token_ids: the trajectory, first token included.
        roots: increasing indices into it, from 0, the last token excluded.
        run, task, prompt: names for the rows.

    Raises:
        DraftError: the drafter failed; half an arm would be no comparison.
    """
    target, drafter = decoder.target, decoder.drafter
    state = target.prefill(inputs, drafter.target_layer_ids)
    state.token_ids.append(token_ids[0])
    accept, draft_state = decoder.accept_rule(inputs, params), drafter.start(state)
    rows = []
    for index, (at, following) in enumerate(zip(roots, [*roots[1:], len(token_ids) - 1], strict=True)):
        position, root = len(state.token_ids) - 1, token_ids[at]
        depth = max(0, params.max_new_tokens - at - 2)  # the bonus takes one
        tree = drafter.draft(root, state, draft_state, max_depth=depth)
        logits = target.verify(state, root, tree)
        verdict = accept(tree, logits, state.token_ids)
        horizon = min(L, depth, len(token_ids) - 1 - at)
        kept = verdict.token_ids[: horizon + 1]
        done = Round(index, root, tree, verdict, kept, None, drafter.num_passes(tree))
        rows.append(_row(done, logits[0], position, horizon, getattr(drafter, "budget", 0), (run, task, prompt)))
        ahead = list(token_ids[at + 1 : following + 1])
        target.verify(state, root, from_path(ahead[:-1]))
        target.commit(state, range(len(ahead)), ahead)
    return rows


def derange(cases: Sequence[Case], *, seed: int = 0) -> list[Case]:
    """Each prompt with the images of another one of its task, no image with its own prompt.

    The other image is scaled to the size of the right one: then both give as many image rows, and places in the
    sequence agree.

    Args:
        cases: with images.
        seed: of the order that images move along.

    Raises:
        InputError: a prompt without an image, or a task in which every shift leaves some image in place.
    """
    partners: dict[tuple[str, str], Case] = {}
    for task in dict.fromkeys(case.task for case in cases):
        own = [case for case in cases if case.task == task]
        random.Random(f"{seed}/{task}").shuffle(own)
        looks = [_look(case) for case in own]
        fits = (s for s in range(1, len(own)) if all(a != b for a, b in zip(looks, looks[s:] + looks[:s], strict=True)))
        shift = next(fits, None)
        if shift is None:
            raise InputError(f"task {task} has no mismatched image for each prompt; give more prompts (--limit)")
        partners |= {(a.task, a.id): b for a, b in zip(own, own[shift:] + own[:shift], strict=True)}
    return [_swapped(case, partners[case.task, case.id]) for case in cases]


def _swapped(case: Case, other: Case) -> Case:
    def images() -> list[Image.Image]:
        pairs = zip(case.images(), other.images(), strict=True)
        return [b.resize(a.size, Image.Resampling.BICUBIC) if b.size != a.size else b for a, b in pairs]

    return replace(case, images=images)


def _look(case: Case) -> tuple[bytes, ...]:
    """What tells two prompts' images apart, and how many they are."""
    pictures = case.images()
    if not pictures:
        raise InputError(f"prompt {case.id} has no image; this command compares images")
    return tuple(_hash(picture) for picture in pictures)


def _hash(picture: Image.Image) -> bytes:
    """Of an image's pixels and size."""
    return hashlib.sha256(repr(picture.size).encode() + picture.convert("RGB").tobytes()).digest()


def _row(
    done: Round, root_row: torch.Tensor, position: int, horizon: int, budget: int, names: tuple[str, str, str]
) -> RoundRow:
    entropy, p_max, gap = figures_of(root_row)
    run, task, prompt = names
    tree: TokenTree = done.tree
    return RoundRow(
        run=run,
        task=task,
        prompt=prompt,
        round=done.index,
        position=position,
        h_nats=entropy,
        p_max=p_max,
        top2_gap=gap,
        a=min(done.verdict.num_accepted, horizon),
        a1=min(first_children(done), horizon),
        horizon=horizon,
        cut="none",
        budget=max(budget, len(tree)),
        nodes=len(tree),
    )
