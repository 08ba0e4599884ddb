"""A round as batched tensor arithmetic, for engines that keep many requests on a device: no loop over requests or
nodes, no value read back to the host, every shape fixed by batch size R, budget N, depth L and ranks K.

``tree.py`` and ``accept.py`` say the same for one sequence on the host; tests hold the two together. Node 0 of every
packed row is the root, as there. A tree with fewer than N nodes is padded at its end by nodes that nothing accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Trees:
    """One candidate tree a request, packed with its root.

    Attributes:
        token_ids: (R, N+1) int64, root first; padding holds 0.
        parents: (R, N+1) int64, packed indices; the root and padding point at 0.
        depths: (R, N+1) int64, 0 for the root and 1 for padding.
        is_node: (R, N+1) bool, false for padding.
        scores: (R, N+1) float64, 0 for the root and -inf for padding.
    """

    token_ids: Tensor
    parents: Tensor
    depths: Tensor
    is_node: Tensor
    scores: Tensor


@dataclass(frozen=True, slots=True)
class Links:
    """A tree as tree-verify kernels walk it; -1 is none.

    Attributes:
        index: (R, N+1) row of each node among all packed rows of the batch.
        first_child, next_sibling: (R, N+1) packed indices.
    """

    index: Tensor
    first_child: Tensor
    next_sibling: Tensor


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What the walk accepted.

    Attributes:
        path: (R, L+1) packed indices, root first; past the path it holds 0.
        num_accepted: (R,) accepted length a.
        bonus: (R,) the target's token after the last accepted node.
        is_kept: (R, L+1) bool, true for the a+1 entries of the path.
    """

    path: Tensor
    num_accepted: Tensor
    bonus: Tensor
    is_kept: Tensor


def best_first(roots: Tensor, token_ids: Tensor, log_q: Tensor, budget: int) -> Trees:
    """The ``budget`` prefixes of highest score of each request, in the order of ``tree.best_first``.

    The best N of each level contain the level's share of the best N of all, since no prefix scores below its
    extensions. A level is kept in the order of its prefixes' ranks, so that stable sorts break ties by rank.

    Args:
        roots: (R,) pending tokens.
        token_ids: (R, L, K) best tokens of each offset.
        log_q: (R, L, K) float64, non-increasing along K; -inf is never proposed.
        budget: N, root excluded.
    """
    num_requests, depth, num_ranks = log_q.shape
    at = log_q.new_zeros(num_requests, 1)  # scores of the level above
    scores, tokens, parents, widths = [], [], [], []
    for level in range(depth):
        grown = (at[:, :, None] + log_q[:, level, None, :]).flatten(1)  # (R, width above × K), in order of ranks
        best = grown.sort(dim=1, descending=True, stable=True).indices[:, :budget].sort(dim=1).values
        at = grown.gather(1, best)
        scores.append(at)
        tokens.append(token_ids[:, level].gather(1, best % num_ranks))
        parents.append(best // num_ranks)
        widths.append(best.shape[1])
    starts = [1 + sum(widths[:level]) for level in range(depth)]  # of each level among all candidates; 0 is the root
    above = [0, *starts]
    absolute = [parents[level] + above[level] for level in range(depth)]
    order = _preorder(absolute, starts, widths)  # (R, C): where each candidate stands in order of ranks
    by_rank = order.argsort(dim=1)
    all_scores = torch.cat(scores, dim=1)
    chosen = by_rank.gather(1, all_scores.gather(1, by_rank).sort(dim=1, descending=True, stable=True).indices)
    chosen = chosen[:, :budget]
    place = torch.zeros(num_requests, all_scores.shape[1] + 1, dtype=torch.int64, device=log_q.device)
    place.scatter_(1, chosen + 1, torch.arange(1, chosen.shape[1] + 1, device=log_q.device).expand_as(chosen))
    own = all_scores.gather(1, chosen)
    is_node = own > -torch.inf
    levels = torch.cat([place.new_full((1, width), level) for level, width in enumerate(widths, start=1)], dim=1)
    return Trees(
        token_ids=_packed(roots[:, None], torch.cat(tokens, dim=1).gather(1, chosen), is_node, 0, budget),
        parents=_packed(0, place.gather(1, torch.cat(absolute, dim=1).gather(1, chosen)), is_node, 0, budget),
        depths=_packed(0, levels.expand_as(all_scores).gather(1, chosen), is_node, 1, budget),
        is_node=_packed(True, is_node, is_node, False, budget),
        scores=_packed(0.0, own, is_node, -torch.inf, budget),
    )


def _preorder(parents: Sequence[Tensor], starts: Sequence[int], widths: Sequence[int]) -> Tensor:
    """(R, C) place of each candidate when all levels are walked together in order of ranks, a parent first.

    Args:
        parents: a level each, (R, width) indices of the parents among all candidates, 0 the root; non-decreasing.
        starts, widths: of each level.
    """
    num_requests, device = parents[0].shape[0], parents[0].device
    total = starts[-1] + widths[-1]
    sizes = torch.ones(num_requests, total, dtype=torch.int64, device=device)
    for level in reversed(range(len(parents))):
        own = sizes[:, starts[level] : starts[level] + widths[level]]
        sizes.scatter_add_(1, parents[level], own.clone())
    places = torch.zeros_like(sizes)
    for level, above in enumerate(parents):
        own = sizes[:, starts[level] : starts[level] + widths[level]]
        before = own.cumsum(dim=1) - own  # subtrees of this level that come earlier
        ahead = torch.full_like(sizes, torch.iinfo(torch.int64).max)
        ahead.scatter_reduce_(1, above, before, reduce="amin")  # at each parent: those before its first child
        places[:, starts[level] : starts[level] + widths[level]] = (
            places.gather(1, above) + 1 + before - ahead.gather(1, above)
        )
    return places[:, 1:] - 1


def _packed(first: Tensor | float, rest: Tensor, is_node: Tensor, pad: float, budget: int) -> Tensor:
    """(R, N+1): the root's value, the nodes' and padding."""
    rest = torch.where(is_node, rest, torch.full_like(rest, pad))
    missing = rest.new_full((rest.shape[0], budget - rest.shape[1]), pad)
    head = first if isinstance(first, Tensor) else rest.new_full((rest.shape[0], 1), first)
    return torch.cat([head.to(rest.dtype), rest, missing], dim=1)


def visible(trees: Trees, depth: int) -> Tensor:
    """(R, N+1, N+1) bool: row i may see column j, the node itself and its ancestors; padding sees root and itself.

    Args:
        trees: packed.
        depth: L.
    """
    num_requests, size = trees.parents.shape
    seen = torch.eye(size, dtype=torch.bool, device=trees.parents.device).repeat(num_requests, 1, 1)
    node = trees.parents
    for _ in range(depth):
        seen.scatter_(2, node[:, :, None], True)
        node = trees.parents.gather(1, node)
    return seen


def flat_mask(seen: Tensor, lengths: Tensor, num_committed: int) -> Tensor:
    """The mask of a ragged batch as one row of bools: a request's (N+1, length + N+1) entries, one after another.

    Args:
        seen: (R, N+1, N+1) from ``visible``.
        lengths: (R,) committed tokens of each request.
        num_committed: their sum, which the host knows; more is safe and leaves unread entries at the end.
    """
    num_requests, size, _ = seen.shape
    mask = seen.new_ones(size * (num_committed + num_requests * size))
    widths = lengths + size
    starts = size * (widths.cumsum(0) - widths)
    own = torch.arange(size, device=seen.device)
    rows = starts[:, None] + own * widths[:, None] + lengths[:, None]  # (R, N+1): where each row's own columns begin
    return mask.scatter(0, (rows[:, :, None] + own).flatten(), seen.flatten())


def positions(trees: Trees, lengths: Tensor) -> Tensor:
    """(R, N+1) token index of each packed row: committed tokens (R,) and depth. M-RoPE deltas come on top."""
    return lengths[:, None] + trees.depths


def links(trees: Trees) -> Links:
    """What tree-verify kernels walk along. Padding hangs nowhere."""
    num_requests, size = trees.parents.shape
    device = trees.parents.device
    own = torch.arange(size, device=device)
    is_child = trees.is_node & (own > 0)
    index = torch.arange(num_requests * size, device=device).view(num_requests, size)
    below = is_child[:, None, :] & (trees.parents[:, None, :] == own[None, :, None])  # (R, node, child)
    beside = is_child[:, :, None] & is_child[:, None, :] & (own[None, None, :] > own[None, :, None])
    beside = beside & (trees.parents[:, :, None] == trees.parents[:, None, :])
    return Links(index, _first(below), _first(beside))


def _first(found: Tensor) -> Tensor:
    """Index of the first true entry of the last dimension, -1 where there is none."""
    return torch.where(found.any(dim=-1), found.to(torch.int8).argmax(dim=-1), -1)


def walk(trees: Trees, seen: Tensor, choices: Tensor, depth: int, eos_ids: Sequence[int] = ()) -> Verdicts:
    """Accept along the target's choices (Def. 1): a node is accepted if it and all above it are what was chosen.

    Args:
        trees: packed.
        seen: from ``visible``.
        choices: (R, N+1) the target's token after each packed row, greedy or drawn.
        depth: L.
        eos_ids: end the text: a proposed one is the bonus, never part of the path.
    """
    wanted = choices.gather(1, trees.parents)
    is_right = trees.is_node & (trees.token_ids == wanted)
    for eos in eos_ids:
        is_right &= trees.token_ids != eos
    is_right[:, 0] = True
    is_accepted = (is_right[:, None, :] | ~seen).all(dim=-1)  # (R, N+1), one node a depth at most: siblings differ
    num_accepted = torch.where(is_accepted, trees.depths, 0).amax(dim=1)
    path = trees.parents.new_zeros(trees.parents.shape[0], depth + 1)
    own = torch.arange(trees.parents.shape[1], device=path.device)
    path.scatter_add_(1, trees.depths, torch.where(is_accepted, own, 0))
    is_kept = torch.arange(depth + 1, device=path.device) <= num_accepted[:, None]
    last = path.gather(1, num_accepted[:, None])
    return Verdicts(path, num_accepted, choices.gather(1, last)[:, 0], is_kept)


def kept_tokens(trees: Trees, verdicts: Verdicts) -> Tensor:
    """(R, L+1) the accepted tokens and the bonus of each request; what comes after them is 0."""
    after = torch.roll(verdicts.path, -1, dims=1)
    tokens = torch.where(verdicts.is_kept, trees.token_ids.gather(1, after), 0)
    return tokens.scatter(1, verdicts.num_accepted[:, None], verdicts.bonus[:, None])


def moves(verdicts: Verdicts, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Where the accepted rows' keys and values are, and where they go: to the first a+1 slots of their request.

    Args:
        verdicts: of the round.
        slots: (R, N+1) cache slot of each packed row.

    Returns:
        (R × (L+1),) slots to read and to write; read all of them before writing any. The rest of a request's move is
        onto itself. A tree that is narrower than it is deep (N < L) has only N+1 slots to move.
    """
    depth = min(verdicts.path.shape[1], slots.shape[1])
    own = torch.arange(depth, device=slots.device)
    source = torch.where(verdicts.is_kept[:, :depth], verdicts.path[:, :depth], own)
    return slots.gather(1, source).flatten(), slots[:, :depth].flatten()


def compacted(verdicts: Verdicts, rows: Tensor) -> Tensor:
    """(R, L+1, F) what was captured at the accepted path, root first, out of (R, N+1, F); zero past it."""
    taken = rows.gather(1, verdicts.path[:, :, None].expand(-1, -1, rows.shape[-1]))
    return torch.where(verdicts.is_kept[:, :, None], taken, torch.zeros_like(taken))


def rows_kept(verdicts: Verdicts, size: int) -> Tensor:
    """(R, L+1) of each accepted row's index among all packed rows of the batch (R × size); -1 past the path."""
    first = size * torch.arange(verdicts.path.shape[0], device=verdicts.path.device)
    return torch.where(verdicts.is_kept, verdicts.path + first[:, None], -1)


def drawn(probabilities: Tensor, noise: Tensor) -> Tensor:
    """(R, N+1) draws from each packed row's distribution, whatever its total.

    A node's row is drawn once, so that the walk follows the target's own sample (Thm. 1).

    Args:
        probabilities: (R, N+1, V), not all 0 in a row.
        noise: (R, N+1, V) of standard exponentials; the first to arrive wins.
    """
    return (probabilities / noise).argmax(dim=-1)
