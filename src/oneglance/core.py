"""Value types and seams of oneglance: one page that the rest of the package stands on.

A round is draft, verify, accept, commit (Def. 1). The drafter proposes a candidate tree below the root, the target
verifies it in one packed pass, the accept rule walks it, and the target commits the accepted path.

Errors (``errors.py``) and sampling parameters (``sampling.py``) are imported from here as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from oneglance.errors import (
    DraftError,
    FetchError,
    HeadError,
    ImageError,
    InputError,
    LargeImageError,
    OneglanceError,
    OneglanceWarning,
    PrivateUrlError,
    TargetError,
)
from oneglance.sampling import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    import torch

    from oneglance.targets.state import TargetState

__all__ = [
    "BLOCK_SIZE",
    "DEFAULT_BUDGET",
    "DEFAULT_PREFIX_MB",
    "EMPTY_TREE",
    "MAX_BUDGET",
    "AcceptRule",
    "AnyBudget",
    "BlockMarginals",
    "CutReason",
    "DraftError",
    "Drafter",
    "FetchError",
    "FinishReason",
    "Generation",
    "HeadError",
    "ImageError",
    "InputError",
    "Kept",
    "LargeImageError",
    "Observer",
    "OneglanceError",
    "OneglanceWarning",
    "PrivateUrlError",
    "Round",
    "SamplingParams",
    "TargetError",
    "TokenLogprobs",
    "TokenTree",
    "TreePolicy",
    "Verdict",
]

BLOCK_SIZE = 16
DEFAULT_BUDGET = 63
DEFAULT_PREFIX_MB = 256  # of a server and of a chat; elsewhere nothing is reused unless it is asked for
MAX_BUDGET = 4096  # far beyond what pays anywhere; a typing error would fill the memory

CutReason = Literal["eos", "stop", "cap", "context"]
AnyBudget = int | Literal["auto"]  # nodes of the candidate tree, or as many as pay
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class BlockMarginals:
    """The best tokens of each offset-wise marginal q_1..q_L (Asm. 1).

    Attributes:
        token_ids: (L, K) int64, best first.
        log_q: (L, K) float64, log-probabilities under the full vocabulary, non-increasing along K. Ranks that can
            never be proposed hold -inf.
        log_q_given: (L-1, K, K) float, where a rescorer ran: row i of entry j is log q at offset j+2 of that
            offset's K tokens, given rank i at offset j+1; else None, and offsets are independent.
        bias_earlier: (L-2, K, K) float, where it looked two tokens back: row i of entry j is added to log q at offset
            j+3, given rank i at offset j+1; and log_z: (L-2, K, K) float: [j, i, m] is taken off again, given ranks i
            at offset j+1 and m at j+2. Both or neither.
    """

    token_ids: np.ndarray
    log_q: np.ndarray
    log_q_given: np.ndarray | None = None
    bias_earlier: np.ndarray | None = None
    log_z: np.ndarray | None = None


@dataclass(frozen=True)
class TokenTree:
    """A candidate tree S: a prefix-closed set of strings below the root (Def. 1).

    Node ``i`` (1-based, the root is node 0 and not stored) has ``token_ids[i - 1]``; a parent always comes before its
    children.

    Attributes:
        token_ids: (N,) proposed tokens.
        parents: (N,) packed index of each node's parent, 0 is the root.
        depths: (N,) distance from the root, 1..L.
        scores: (N,) plug-in log scores, the sum of log q along the path; empty where a drafter has none.

    Raises:
        ValueError: this is no tree. Positions and masks follow from it, so a wrong one would change the text.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.parents) == len(self.depths):
            raise ValueError(
                f"a tree of {len(self.token_ids)} tokens has {len(self.parents)} parents and {len(self.depths)} depths"
            )
        if self.scores and len(self.scores) != len(self.token_ids):
            raise ValueError(f"a tree of {len(self.token_ids)} tokens has {len(self.scores)} scores")
        depths = (0, *self.depths)
        for index, parent in enumerate(self.parents, start=1):
            if not 0 <= parent < index:
                raise ValueError(f"node {index} has parent {parent}; a parent must come before its children")
            if depths[index] != depths[parent] + 1:
                raise ValueError(f"node {index} has depth {depths[index]}, its parent {depths[parent]}")

    def __len__(self) -> int:
        return len(self.token_ids)

    @cached_property
    def children(self) -> tuple[dict[int, int], ...]:
        """(N+1,) per packed node: token id → packed index of that child."""
        children: tuple[dict[int, int], ...] = tuple({} for _ in range(len(self) + 1))
        for index, (token, parent) in enumerate(zip(self.token_ids, self.parents, strict=True), start=1):
            children[parent][token] = index
        return children


EMPTY_TREE = TokenTree()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the accept rule read off one verified tree.

    Attributes:
        path: packed indices whose rows gave a token, root first: (a+1,).
        token_ids: the a accepted tokens and the bonus: (a+1,).
        is_gated: the walk left the choice after the last token to a single step: there is no bonus, path and tokens
            have length a, which may be 0, and the next round has the empty tree.
        is_ended: the last token ends the text and was proposed: it is accepted, and no bonus follows.
    """

    path: tuple[int, ...]
    token_ids: tuple[int, ...]
    is_gated: bool = False
    is_ended: bool = False

    @property
    def num_accepted(self) -> int:
        """Accepted length a, without the bonus."""
        return len(self.token_ids) - (not (self.is_gated or self.is_ended))


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one position, under the target's row after all processors (temperature and filters too).

    Attributes:
        token_id, log_p: the chosen token and its log-probability (nats).
        top: the likeliest tokens, best first, with theirs; those of probability 0 left out.
        entropy_nats: of the whole row.
    """

    token_id: int
    log_p: float
    top: tuple[tuple[int, float], ...]
    entropy_nats: float


@dataclass(frozen=True, slots=True)
class Round:
    """One round, as the loop yields it.

    Attributes:
        index: 0-based.
        root: the pending token that the round started from.
        tree: what was verified.
        verdict: what was accepted, before any cut.
        token_ids: tokens kept: accepted ones and the bonus, cut at EOS, stop string, cap and context limit.
        cut: why tokens were dropped or decoding ends here, else None.
        num_draft_passes: passes of the drafter, 1 for a block head, 0 when nothing was drafted.
        t_draft_ms, t_verify_ms, t_host_ms: wall time of drafting (tree included), of verify, and of the rest;
            t_commit_ms: of the rest, the commit.
    """

    index: int
    root: int
    tree: TokenTree
    verdict: Verdict
    token_ids: tuple[int, ...]
    cut: CutReason | None
    num_draft_passes: int
    t_draft_ms: float = 0.0
    t_verify_ms: float = 0.0
    t_commit_ms: float = 0.0
    t_host_ms: float = 0.0

    @property
    def num_accepted(self) -> int:
        """Accepted tokens that were kept; the accepted length a where nothing was cut."""
        return min(self.verdict.num_accepted, len(self.token_ids))

    @property
    def gated(self) -> bool:
        """Whether a row of this round was left to a single step."""
        return self.verdict.is_gated


def by_length(counts: Counter[int]) -> list[int]:
    """Counts of accepted lengths as JSON has them: of 0, of 1, … up to the longest."""
    return [counts[length] for length in range(max(counts, default=-1) + 1)]


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation.

    ``tau`` is kept tokens per round, bonus included (Eq. 1); the first token comes from prefill and belongs to no
    round. ``ms_per_token`` is the decode window, from the end of the target's prefill, over the tokens after
    the first one. ``seed`` is that of the draws, None for greedy text. ``num_reused`` prompt rows came from a
    prefix store.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prefill_ms: float
    decode_ms: float
    target: str
    head: str | None
    rounds: list[Round] = field(repr=False)
    fell_back: str | None = None
    seed: int | None = None
    num_reused: int = 0
    logprobs: list[TokenLogprobs] | None = field(default=None, repr=False)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def tau(self) -> float | None:
        if not self.rounds:
            return None
        return sum(len(r.token_ids) for r in self.rounds) / len(self.rounds)

    @property
    def acceptance_histogram(self) -> list[int]:
        """Rounds with a tree that kept 0, 1, … accepted tokens; what a cut dropped counts no more than in ``tau``."""
        return by_length(Counter(r.num_accepted for r in self.rounds if len(r.tree)))

    @property
    def gate_rate(self) -> float:
        """Rows left to a single step, per generated token."""
        return sum(r.gated for r in self.rounds) / max(self.num_tokens, 1)

    @property
    def num_draft_passes(self) -> int:
        return sum(r.num_draft_passes for r in self.rounds)

    @property
    def ms_per_token(self) -> float | None:
        return self.decode_ms / (self.num_tokens - 1) if self.num_tokens > 1 else None

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of ``oneglance generate --json``."""
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "num_tokens": self.num_tokens,
            "num_rounds": len(self.rounds),
            "tau": self.tau,
            "acceptance_histogram": self.acceptance_histogram,
            "num_draft_passes": self.num_draft_passes,
            "num_reused": self.num_reused,
            "prefill_ms": self.prefill_ms,
            "ms_per_token": self.ms_per_token,
            "fell_back": self.fell_back,
            "seed": self.seed,
            "gate_rate": self.gate_rate,
            "logprobs": None if self.logprobs is None else [asdict(entry) for entry in self.logprobs],
            "target": self.target,
            "head": self.head,
        }


class Drafter(Protocol):
    """Proposes candidate trees. Holds no sequence state: that lives in the object ``start`` returns.

    A drafter that breaks its word is dropped for the rest of the generation (``guard.Guarded``). One with an attribute
    ``budget``, the most nodes of its trees, is held to that too.
    """

    @property
    def name(self) -> str | None:
        """Where the drafter comes from, for reports; None for plain decoding."""

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Kept layers whose features the drafter reads; empty when it reads none."""

    def start(self, state: TargetState) -> Any:
        """A fresh DraftState for a prefilled target state."""

    def draft(self, root: int, state: TargetState, draft_state: Any, *, max_depth: int) -> TokenTree:
        """One candidate tree below ``root``, at most ``max_depth`` deep, siblings distinct; empty when there is none.

        ``state`` is to be read, and changed by nobody but the loop.

        Raises:
            DraftError: the drafter cannot go on with this sequence.
        """

    def num_passes(self, tree: TokenTree) -> int:
        """How many drafter passes made ``tree``."""


@runtime_checkable
class Observer(Protocol):
    """A DraftState that learns from rounds: the loop shows it each one, committed and before it is yielded."""

    def observe(self, done: Round) -> None: ...


@runtime_checkable
class Kept(Protocol):
    """A DraftState whose rows can be kept, for a later sequence that begins alike (``prefixes``).

    Its drafter has an attribute ``row_owner``: equal for drafters whose rows are the same, None for none. Its ``start``
    goes on from ``state.draft_rows``.
    """

    def rows(self, state: TargetState) -> list[torch.Tensor] | None:
        """(…, T, D) tensors, a row a committed token; takes in fresh features. None where there are not as many."""


class TreePolicy(Protocol):
    """Turns marginals into a candidate tree."""

    def __call__(self, marginals: BlockMarginals, budget: int) -> TokenTree: ...


class AcceptRule(Protocol):
    """Reads the target's own choice off verified rows. Owns the rng, where there is one."""

    def first(self, row: torch.Tensor, prefix: Sequence[int]) -> int:
        """The first token, from the last prefill row (V,); ``prefix`` is the prompt."""

    def __call__(self, tree: TokenTree, rows: torch.Tensor, prefix: Sequence[int]) -> Verdict:
        """The verdict on a tree, from its rows (N+1, V); ``prefix`` ends with the root."""
