"""The checks can fail: each bug that others have shipped, put into our code on purpose, is caught by name."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from conformance import checks
from helpers import PlannedDrafter, hf_generate, prompt
from oneglance.accept import Greedy, walk
from oneglance.core import TokenTree, Verdict
from oneglance.drafters.block import BlockDrafter
from oneglance.targets import hf, passes
from oneglance.targets.base import Target
from oneglance.targets.mllama import Mllama
from oneglance.targets.qwen3_vl import Qwen3VL
from oneglance.testing import tiny_head, tiny_target
from oneglance.text import Piece, TextStream
from oneglance.tree import PackedTree, pack

Patch = pytest.MonkeyPatch


# The bugs --------------------------------------------------------------------------------------------------------


def causal_mask(patch: Patch) -> None:
    """Siblings see each other, as in a chain."""

    def packed(root: int, tree: TokenTree) -> PackedTree:
        right = pack(root, tree)
        return replace(right, visible=np.tril(np.ones_like(right.visible)))

    patch.setattr(passes, "pack", packed)


def mask_without_ancestors(patch: Patch) -> None:
    """A node sees the past and itself, not its parents."""

    def packed(root: int, tree: TokenTree) -> PackedTree:
        right = pack(root, tree)
        return replace(right, visible=np.eye(len(right.visible), dtype=bool))

    patch.setattr(passes, "pack", packed)


def positions_by_index(patch: Patch) -> None:
    """Siblings get consecutive positions."""

    def packed(root: int, tree: TokenTree) -> PackedTree:
        right = pack(root, tree)
        return replace(right, depths=np.arange(len(right.depths)))

    patch.setattr(passes, "pack", packed)


def positions_one_late(patch: Patch) -> None:
    def packed(root: int, tree: TokenTree) -> PackedTree:
        right = pack(root, tree)
        return replace(right, depths=right.depths + 1)

    patch.setattr(passes, "pack", packed)


def no_rope_delta(patch: Patch) -> None:
    """The token index is used as position after an image."""

    def arguments(self: Qwen3VL, state: Any, depths: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"position_ids": (depths + state.length).expand(3, 1, -1)}

    patch.setattr(Qwen3VL, "packed_arguments", arguments)


def stale_rope_delta(patch: Patch) -> None:
    """The delta of the first prompt is used for all that follow."""
    first: list[int] = []
    right = Qwen3VL.run_prefill

    def prefill(self: Qwen3VL, inputs: Any, cache: Any) -> Any:
        hidden, delta, extras = right(self, inputs, cache)
        first.append(delta)
        return hidden, first[0], extras

    patch.setattr(Qwen3VL, "run_prefill", prefill)


def keep(choose: Callable[[Sequence[int], int], Sequence[int]]) -> Callable[[Patch], None]:
    """Rows that are kept at commit, chosen wrongly from the path and the number of rows."""
    right = hf.keep_rows

    def patched(patch: Patch) -> None:
        def keep_rows(cache: Any, layers: Any, start: int, path: Sequence[int], num_rows: int) -> None:
            right(cache, layers, start, choose(path, num_rows), num_rows)

        patch.setattr(hf, "keep_rows", keep_rows)

    return patched


def features_by_slice(patch: Patch) -> None:
    """Features of rejected nodes: the first rows instead of the accepted ones."""
    right = Target.commit

    def commit(self: Target, state: Any, path: Sequence[int], token_ids: Sequence[int]) -> None:
        _, features = state.pending
        right(self, state, path, token_ids)
        if state.layer_ids:
            state.fresh[-1] = torch.cat([f[0] for f in features], -1)[: len(path)]

    patch.setattr(Target, "commit", commit)


def features_before_deepstack(patch: Patch) -> None:
    """The output of a layer, which lacks the DeepStack add."""

    def points(self: Target, layer_ids: Sequence[int]) -> Any:
        return [(self.layers[i], "output") for i in layer_ids]

    patch.setattr(Target, "feature_points", points)


def features_one_layer_early(patch: Patch) -> None:
    def points(self: Target, layer_ids: Sequence[int]) -> Any:
        return [(self.layers[i], "input") for i in layer_ids]

    patch.setattr(Target, "feature_points", points)


def features_sorted(patch: Patch) -> None:
    """Concatenated in layer order instead of listed order."""
    right = Target.feature_points
    patch.setattr(Target, "feature_points", lambda self, ids: right(self, sorted(ids)))


def blind_features(patch: Patch) -> None:
    """The prompt is run without its pixels (features of a text-only pass)."""
    right = Qwen3VL.run_prefill

    def prefill(self: Qwen3VL, inputs: Any, cache: Any) -> Any:
        pixels = torch.zeros_like(inputs.tensors["pixel_values"])
        return right(self, replace(inputs, tensors={**inputs.tensors, "pixel_values": pixels}), cache)

    patch.setattr(Qwen3VL, "run_prefill", prefill)


def vision_every_round(patch: Patch) -> None:
    right = Target.verify

    def verify(self: Target, state: Any, root: int, tree: TokenTree) -> torch.Tensor:
        self.model.model.visual(torch.zeros(4, 384), grid_thw=torch.tensor([[1, 2, 2]]))
        return right(self, state, root, tree)

    patch.setattr(Target, "verify", verify)


def long_cross_mask(patch: Patch) -> None:
    """The whole cross-attention mask instead of one row a packed node."""
    right = Mllama.packed_arguments

    def arguments(self: Mllama, state: Any, depths: torch.Tensor) -> dict[str, torch.Tensor]:
        given = right(self, state, depths)
        mask = given["cross_attention_mask"]
        return {**given, "cross_attention_mask": mask[:, :1].expand(-1, state.length + len(depths), -1, -1)}

    patch.setattr(Mllama, "packed_arguments", arguments)


def cropped_cross_attention(patch: Patch) -> None:
    """Commit treats the image rows as if they were tokens."""
    patch.setattr(Mllama, "self_attention_layers", property(lambda self: tuple(range(self.num_layers))))


def _walk_on(right: Callable[..., Verdict], tree: TokenTree, choose: Any, **_: Any) -> Verdict:
    return right(tree, choose)


def eos_missed_inside(patch: Patch) -> None:
    """Neither the walk nor the text looks for the end-of-sequence ids before the bonus token."""

    def push(self: TextStream, token_ids: Sequence[int]) -> list[Piece]:
        eos, self._eos_ids = self._eos_ids, frozenset()
        pieces = [Piece(token, self._push_one(token)) for token in token_ids[:-1] if not self.cut]
        self._eos_ids = eos
        if not self.cut:
            pieces.append(Piece(token_ids[-1], self._push_one(token_ids[-1])))
        return pieces

    patch.setattr(TextStream, "push", push)
    patch.setattr("oneglance.accept.walk", partial(_walk_on, walk))


def processors_without_path(patch: Patch) -> None:
    """Logits processors see the prefix only, whatever node they judge."""
    right = Greedy._choose
    prefixes: list[Sequence[int]] = []

    def call(self: Greedy, tree: TokenTree, rows: torch.Tensor, prefix: Sequence[int]) -> Verdict:
        prefixes[:] = [list(prefix)]
        return original(self, tree, rows, prefix)

    original = Greedy.__call__
    patch.setattr(Greedy, "__call__", call)
    patch.setattr(Greedy, "_choose", lambda self, row, prefix: right(self, row, prefixes[0] if prefixes else prefix))


def bonus_from_wrong_row(patch: Patch) -> None:
    """The bonus is read off the root's row."""
    right = Greedy.__call__

    def call(self: Greedy, tree: TokenTree, rows: torch.Tensor, prefix: Sequence[int]) -> Verdict:
        verdict = right(self, tree, rows, prefix)
        return replace(verdict, token_ids=(*verdict.token_ids[:-1], int(rows[0].argmax())))

    patch.setattr(Greedy, "__call__", call)


def drafter_is_believed(patch: Patch) -> None:
    """The first drafted token is taken without looking at the target."""

    def call(self: Greedy, tree: TokenTree, rows: torch.Tensor, prefix: Sequence[int]) -> Verdict:
        path = (0, 1) if len(tree) else (0,)
        return Verdict(path, (*tree.token_ids[:1], int(rows[path[-1]].argmax())))

    patch.setattr(Greedy, "__call__", call)


# The checks ------------------------------------------------------------------------------------------------------


def packed_rows(family: str, num_images: int = 0) -> None:
    target = tiny_target(family)
    checks.check_packed_rows(target, prompt(target, num_images))


def cache(family: str, num_images: int = 0) -> None:
    target = tiny_target(family)
    checks.check_cache_after_commit(target, prompt(target, num_images))


def features(family: str, num_images: int = 0) -> None:
    target = tiny_target(family)
    checks.check_features(target, prompt(target, num_images), (2, 1, 0))


def image_changes_features(family: str) -> None:
    checks.check_image_changes_features(tiny_target(family), (2, 1))


def vision_once(family: str) -> None:
    target = tiny_target(family)
    checks.check_vision_runs_once(target, BlockDrafter(tiny_head(target), target), prompt(target, 1))


def cross_attention(family: str) -> None:
    target = tiny_target(family)
    checks.check_cross_attention(target, prompt(target, 1), target.cross_attention_layers)  # type: ignore[attr-defined]


def identity(family: str, num_images: int = 0) -> None:
    """Greedy identity with a drafter whose second rank is right at every other offset."""
    target = tiny_target(family)
    inputs = prompt(target, num_images)
    reference = hf_generate(target, inputs, 16)
    drafter = PlannedDrafter(reference, len(inputs.token_ids), target.vocab_size, budget=31, ranks=(1, 0))
    checks.check_identity(target, drafter, inputs, reference)


def eos_anywhere(family: str) -> None:
    target = tiny_target(family)
    checks.check_eos_anywhere(target, prompt(target))


def no_repeats(family: str) -> None:
    target = tiny_target(family, initializer_range=0.02)  # says one token over and over, if it may
    checks.check_generation_config(target, prompt(target), no_repeat_ngram_size=1)


def in_a_row(family: str) -> None:
    target = tiny_target(family)
    prompts = [prompt(target, 1, seed=1), prompt(target), prompt(target, 2, seed=2)]
    drafter = BlockDrafter(tiny_head(target), target)
    checks.check_nothing_left_over(target, drafter, prompts, [tiny_target(family) for _ in prompts])


CASES: dict[str, tuple[Callable[[Patch], None], Callable[..., None], tuple[Any, ...]]] = {
    "causal mask": (causal_mask, packed_rows, ("qwen3",)),
    "mask without ancestors": (mask_without_ancestors, packed_rows, ("llama",)),
    "positions by packed index": (positions_by_index, packed_rows, ("qwen2_5_vl", 1)),
    "positions one late": (positions_one_late, packed_rows, ("mllama", 1)),
    "no rope delta, rows": (no_rope_delta, packed_rows, ("qwen3_vl", 1)),
    "no rope delta, text": (no_rope_delta, identity, ("qwen2_5_vl", 2)),
    "stale rope delta": (stale_rope_delta, in_a_row, ("qwen3_vl",)),
    "crop instead of gather, cache": (keep(lambda path, _: range(len(path))), cache, ("qwen3",)),
    "crop instead of gather, text": (keep(lambda path, _: range(len(path))), identity, ("qwen3_vl", 1)),
    "the last row is a sibling's": (keep(lambda path, _: [*path[:-1], max(path[-1] - 1, 0)]), cache, ("qwen3",)),
    "one row too few": (keep(lambda path, _: path[:-1] or path), cache, ("llama",)),
    "one row too many": (keep(lambda path, n: [*path, n - 1][: len(path) + (n > 1)]), cache, ("mllama",)),
    "nothing dropped": (keep(lambda _, n: range(n)), identity, ("qwen3",)),
    "features of rejected nodes": (features_by_slice, features, ("qwen3",)),
    "features before the DeepStack add": (features_before_deepstack, features, ("qwen3_vl", 1)),
    "features one layer early": (features_one_layer_early, features, ("llama",)),
    "features in layer order": (features_sorted, features, ("qwen3",)),
    "features without pixels": (blind_features, image_changes_features, ("qwen2_5_vl",)),
    "vision in every round": (vision_every_round, vision_once, ("qwen3_vl",)),
    "long cross-attention mask": (long_cross_mask, cross_attention, ("mllama",)),
    "cropped cross-attention": (cropped_cross_attention, cross_attention, ("mllama",)),
    "EOS missed inside a block": (eos_missed_inside, eos_anywhere, ("qwen3",)),
    "processors without the path": (processors_without_path, no_repeats, ("qwen3",)),
    "bonus from the root's row": (bonus_from_wrong_row, identity, ("llama",)),
    "drafter is believed": (drafter_is_believed, identity, ("qwen3",)),
}


@pytest.mark.filterwarnings("ignore:the target's generation config")
@pytest.mark.parametrize("name", CASES)
def test_seeded_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug, check, arguments = CASES[name]
    check(*arguments)
    bug(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError)):  # a crash of the model is caught as well
        check(*arguments)
