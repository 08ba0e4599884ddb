"""A drafter under a grammar: what cannot be accepted is not verified."""

from __future__ import annotations

from typing import Any

from oneglance.core import Drafter, TokenTree
from oneglance.targets.grammar import GrammarMask
from oneglance.targets.state import TargetState


class Pruned:
    """Another drafter's trees without the nodes that the grammar refuses. Costs microseconds a path.

    Args:
        drafter: proposes.
        grammar: of this generation, and not the one that the accept rule's processors hold.
    """

    def __init__(self, drafter: Drafter, grammar: GrammarMask) -> None:
        self._drafter = drafter
        self._grammar = grammar
        self._num_passes = 0
        self.name = drafter.name
        self.target_layer_ids = drafter.target_layer_ids
        self.row_owner = getattr(drafter, "row_owner", None)

    def start(self, state: TargetState) -> Any:
        return self._drafter.start(state)

    def draft(self, root: int, state: TargetState, draft_state: Any, *, max_depth: int) -> TokenTree:
        tree = self._drafter.draft(root, state, draft_state, max_depth=max_depth)
        self._num_passes = self._drafter.num_passes(tree)
        return self.prune(tree, state.token_ids)

    def num_passes(self, tree: TokenTree) -> int:
        """Passes of the last draft, however little of its tree is left."""
        return self._num_passes

    def prune(self, tree: TokenTree, token_ids: list[int]) -> TokenTree:
        """``tree`` without the nodes that cannot continue a match after ``token_ids`` (root last)."""
        paths: list[list[int]] = [[]]  # tokens from the root to each packed node
        for token, parent in zip(tree.token_ids, tree.parents, strict=True):
            paths.append([*paths[parent], token])
        inner = set(tree.parents)
        allowed = [True] + [False] * len(tree)
        for node in range(1, len(tree) + 1):
            if node in inner:
                continue
            valid = self._grammar.num_valid(token_ids, paths[node])
            at = node
            while at:
                allowed[at] = allowed[at] or tree.depths[at - 1] <= valid
                at = tree.parents[at - 1]
        kept = [node for node in range(1, len(tree) + 1) if allowed[node]]
        if len(kept) == len(tree):
            return tree
        new = {0: 0} | {node: index for index, node in enumerate(kept, start=1)}
        return TokenTree(
            tuple(tree.token_ids[node - 1] for node in kept),
            tuple(new[tree.parents[node - 1]] for node in kept),
            tuple(tree.depths[node - 1] for node in kept),
            tuple(tree.scores[node - 1] for node in kept) if tree.scores else (),
        )
