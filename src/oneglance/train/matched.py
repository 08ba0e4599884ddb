"""Matched training (app. D): an EAGLE-3 head on a block head's traces, schedule and batch, and one probe for both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from oneglance.core import Drafter, Generation, InputError, SamplingParams
from oneglance.decoder import Decoder
from oneglance.drafters import prepare
from oneglance.drafters.plain import NoDrafter
from oneglance.stats.bootstrap import Interval, Totals, resample_lift, resample_ratio
from oneglance.targets.base import Target
from oneglance.train.recipe import HeadRecipe, ObjectiveChoice, RevealChoice
from oneglance.train.traces import Trace
from oneglance.tree import best_first, chain

STEPS = 7  # of EAGLE-3's training-time test
SIZES = (16, 32, 64, 128, 256)
PROBE_TOKENS = 64
PLAIN, TREE = "plain", "tree"


def matched_recipe(
    recipe: HeadRecipe, *, layer_ids: tuple[int, ...] | None = None, draft_vocab_size: int | None = None
) -> HeadRecipe:
    """The EAGLE-3 recipe that differs from a block head's in the head and its objective alone.

    Args:
        recipe: of a block head.
        layer_ids: three kept layers; None applies EAGLE-3's own rule.
        draft_vocab_size: None drafts over the whole vocabulary.

    Raises:
        InputError: the recipe is of another kind, or starts warm: matched heads start from scratch.
    """
    if recipe.kind != "head":
        raise InputError(f"recipe {recipe.name!r} is of kind {recipe.kind}; give the recipe of a block head")
    if recipe.init is not None:
        raise InputError(
            f"recipe {recipe.name!r} starts from {recipe.init}; matched heads start from scratch: init=null"
        )
    shape = recipe.head.model_copy(
        update={
            "num_layers": 1,
            "block_size": STEPS + 1,
            "target_layer_ids": layer_ids,
            "mask_token_id": None,
            "draft_vocab_size": draft_vocab_size,
        }
    )
    changes = {
        "name": f"{recipe.name}-eagle3",
        "kind": "eagle3",
        "head": shape,
        "objective": ObjectiveChoice(name="kl", params={"decay": 0.8}),
        "reveal": RevealChoice(enabled=False),
    }
    return HeadRecipe(**{**{key: getattr(recipe, key) for key in type(recipe).model_fields}, **changes})


def arms(block: Path, eagle3: Path, target: Target, *, budget: int, depths: Sequence[int]) -> dict[str, Drafter]:
    """What is compared: plain decoding, our head as a tree and as a chain, EAGLE-3 as chains of several depths."""
    ours, theirs = prepare("block", str(block)), {d: prepare(f"eagle3:num_passes={d}", str(eagle3)) for d in depths}
    return {
        PLAIN: NoDrafter(),
        TREE: ours(target, policy=best_first, budget=budget),
        "chain": ours(target, policy=chain, budget=budget),
        **{f"eagle3 chain {d}": bind(target, policy=chain, budget=budget) for d, bind in theirs.items()},
    }


@dataclass(frozen=True, slots=True)
class Answered:
    """One prompt under every arm.

    Attributes:
        task: of the prompt.
        done: arm → generation.
        identical: all arms wrote the same tokens.
    """

    task: str
    done: dict[str, Generation]
    identical: bool


def by_turns(rows: Sequence[Trace]) -> list[Trace]:
    """Rows of all tasks in turn, so that a small probe has some of each."""
    tasks: dict[str, list[Trace]] = {}
    for row in rows:
        tasks.setdefault(row.task, []).append(row)
    return [row for turn in zip_longest(*tasks.values()) for row in turn if row is not None]


def probe(
    target: Target,
    drafters: Mapping[str, Drafter],
    rows: Sequence[Trace],
    *,
    long_side: int | None,
    max_new_tokens: int = PROBE_TOKENS,
) -> Iterator[Answered]:
    """Decode held-out prompts greedily under every arm, interleaved; the order of arms rotates."""
    decoders = {name: Decoder(target, drafter) for name, drafter in drafters.items()}
    names, params = list(decoders), SamplingParams(max_new_tokens=max_new_tokens)
    for index, row in enumerate(rows):
        inputs = row.encode(target, long_side=long_side)
        turn = index % len(names)
        done: dict[str, Generation] = {}
        for name in names[turn:] + names[:turn]:
            done[name] = decoders[name].stream_inputs(inputs, params).exhaust()
        texts = {tuple(generation.token_ids) for generation in done.values()}
        yield Answered(row.task, {name: done[name] for name in names}, len(texts) == 1)


@dataclass(frozen=True, slots=True)
class Score:
    """An arm on the first n prompts of a corpus, or on all of a task.

    Attributes:
        task: None for all tasks together.
        tau: kept tokens a round, bonus included, pooled over rounds.
        ms_per_token: decode time over the tokens after the first.
        passes: draft passes a round.
        tau_ratio: the tree's τ over this arm's, 95 % bootstrap over prompts; None for the tree itself.
        time_ratio: this arm's decode time over the tree's; None for the tree itself.
        speedup: plain decoding's time over this arm's; None for plain decoding itself.
        identical: prompts on which all arms wrote the same tokens.
    """

    corpus: str
    task: str | None
    arm: str
    n: int
    tau: float
    ms_per_token: float
    passes: float
    tau_ratio: Interval | None
    time_ratio: Interval | None
    speedup: Interval | None
    identical: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def scores(corpus: str, answered: Sequence[Answered], sizes: Sequence[int]) -> list[Score]:
    """Every arm at every probe size, then on each task; prompts of no round, ended by their first token, are left out.

    Raises:
        InputError: no prompt has a round.
    """
    usable = [one for one in answered if all(g.rounds for g in one.done.values())]
    if not usable:
        raise InputError(f"no answer of {corpus} is longer than a token; nothing can be compared")
    parts: list[tuple[str | None, list[Answered]]] = [(None, usable[:size]) for size in sizes]
    tasks = dict.fromkeys(one.task for one in usable)
    if len(tasks) > 1:
        parts += [(task, [one for one in usable if one.task == task]) for task in tasks]
    return [_score(corpus, task, arm, part) for task, part in parts for arm in part[0].done]


def _score(corpus: str, task: str | None, arm: str, part: Sequence[Answered]) -> Score:
    own, ours, plain = ([one.done[name] for one in part] for name in (arm, TREE, PLAIN))
    return Score(
        corpus=corpus,
        task=task,
        arm=arm,
        n=len(part),
        tau=_totals(own).mean,
        ms_per_token=sum(g.decode_ms for g in own) / sum(g.num_tokens - 1 for g in own),
        passes=sum(g.num_draft_passes for g in own) / sum(len(g.rounds) for g in own),
        tau_ratio=None if arm == TREE else _plus_one(resample_lift(_totals(ours), _totals(own))),
        time_ratio=None if arm == TREE else _times(own, ours),
        speedup=None if arm == PLAIN else _times(plain, own),
        identical=sum(one.identical for one in part),
    )


def probe_sizes(asked: Sequence[int] | None, available: int) -> list[int]:
    """The sizes asked for, or those of the paper that there are prompts for, and all prompts.

    Raises:
        InputError: more prompts were asked for than there are.
    """
    if asked is None:
        most = min(available, SIZES[-1])
        return [*(size for size in SIZES if size < most), most]
    if max(asked) > available:
        raise InputError(f"a probe of {max(asked)} prompts was asked for and the traces hold {available}; collect more")
    return sorted(asked)


def _totals(generations: Sequence[Generation]) -> Totals:
    kept = [sum(len(r.token_ids) for r in g.rounds) for g in generations]
    return Totals(np.array(kept, float), np.array([len(g.rounds) for g in generations], float))


def _times(one: Sequence[Generation], other: Sequence[Generation]) -> Interval:
    return resample_ratio([g.decode_ms for g in one], [g.decode_ms for g in other])


def _plus_one(lift: Interval) -> Interval:
    return Interval(lift.value + 1, lift.low + 1, lift.high + 1, lift.level)
