"""Value types, seams and errors of oneglance: one page that the rest of the package stands on.

A round is draft, verify, accept, commit (Def. 1). The drafter proposes a candidate tree below the root, the target
verifies it in one packed pass, the accept rule walks it, and the target commits the accepted path.

Errors::

    OneglanceError
    ├── InputError            bad input or a mismatched checkpoint; commands exit with 2
    │   ├── ImageError        an image source that cannot become one RGB image
    │   ├── HeadError         a draft head that cannot be loaded or does not fit its target
    │   └── TargetError       a target that cannot be verified in packed passes
    └── DraftError            a drafter failed inside a round; decoding goes on without it
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch

    from oneglance.targets.state import TargetState

BLOCK_SIZE = 16
DEFAULT_BUDGET = 63
MIN_TEMPERATURE = 1e-3  # below it, logits / temperature leave float32's useful range

CutReason = Literal["eos", "stop", "cap", "context"]
FinishReason = Literal["stop", "length", "cancelled"]


class OneglanceError(Exception):
    """Base of every error that this package raises on purpose."""


class InputError(OneglanceError):
    """Bad input; the message is one line that names the fix."""


class ImageError(InputError):
    """An image source that cannot become one RGB image."""


class HeadError(InputError):
    """A draft head that cannot be loaded or does not fit its target."""


class TargetError(InputError):
    """A target that cannot be opened or cannot be verified in packed passes."""


class DraftError(OneglanceError):
    """A drafter failed inside a round; decoding goes on without it and loses nothing."""


class OneglanceWarning(UserWarning):
    """Something that costs speed or acceptance, never a token."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one generation chooses its tokens and how it stops.

    What is None is as in the target's generation config; its temperature and filters (top-k, top-p, …) are never used.

    Attributes:
        max_new_tokens: cap on generated tokens, at least 0.
        stop: strings that end the text; the text is cut before the first one, the token ids after the token that
            completed it.
        ignore_eos: go on after an end-of-sequence token (timing runs of equal length).
        temperature: 0 takes the largest logit; above, a token is drawn from softmax(logits / temperature).
        top_k, top_p, min_p: keep the k largest; the smallest set of mass p; what has at least this share of the
            largest probability. No effect at temperature 0.
        repetition_penalty: divides positive and multiplies negative logits of all tokens seen, prompt included.
        frequency_penalty, presence_penalty: subtracted from a logit per occurrence, and once, of the generated tokens
            only (OpenAI's definition); -2 to 2.
        logit_bias: token id → what is added to its logit.
        bad_words: never generated: strings (with and without a space before them) or sequences of token ids.
        min_new_tokens: no end-of-sequence token before as many.
        seed: of the draws, 0 to 2^64 - 1; drawn and reported where it is None.
        logits_processors: more of transformers' logits processors, after its own and before temperature.
        json_schema, regex: what the text must match; at most one of them.
        logprobs: report the log-probability of each token, and of as many of the likeliest; None reports none.
        gate: where a packed row's choice has a smaller margin over the second (logit units), the target's own single
            step chooses instead; 0 is off.
    """

    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    bad_words: tuple[str | tuple[int, ...], ...] | None = None
    min_new_tokens: int | None = None
    seed: int | None = None
    logits_processors: tuple[Any, ...] = ()
    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    logprobs: int | None = None
    gate: float = 0.0

    def __post_init__(self) -> None:
        for name, (allows, wanted) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and allows(value)):
                raise InputError(f"{name} must be {wanted}, got {value!r}")
        for name in ("stop", "bad_words", "logits_processors"):
            if isinstance(getattr(self, name), str) or callable(getattr(self, name)):
                raise InputError(f"{name} takes a sequence, got one value; write [{name}]")
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "logits_processors", tuple(self.logits_processors))
        if self.bad_words is not None:
            words = tuple(word if isinstance(word, str) else tuple(word) for word in self.bad_words)
            object.__setattr__(self, "bad_words", words)
        if not all(self.stop):
            raise InputError("a stop string is empty; leave it out")
        if not all(self.bad_words or (True,)):
            raise InputError("a bad word is empty; leave it out")
        if not all(math.isfinite(bias) for bias in (self.logit_bias or {}).values()):
            raise InputError("logit_bias must be finite; use bad_words for tokens that must never come")
        if self.json_schema is not None and self.regex is not None:
            raise InputError("give json_schema or regex, not both")
        if self.gate and self.logits_processors:
            raise InputError("the gate processes some rows twice, which logits_processors may not survive; drop one")
        if (self.min_new_tokens or 0) > self.max_new_tokens:
            raise InputError(
                f"min_new_tokens is {self.min_new_tokens} and max_new_tokens {self.max_new_tokens}; raise the latter"
            )


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": (lambda n: n >= 0 and n % 1 == 0, "at least 0"),
    "temperature": (lambda t: t == 0 or MIN_TEMPERATURE <= t < math.inf, f"0 (greedy) or at least {MIN_TEMPERATURE}"),
    "top_k": (lambda k: k >= 0 and k % 1 == 0, "a whole number, 0 for no limit"),
    "top_p": (lambda p: 0 < p <= 1, "above 0 and at most 1"),
    "min_p": (lambda p: 0 <= p <= 1, "between 0 and 1"),
    "repetition_penalty": (lambda r: 0 < r < math.inf, "above 0; 1 is none"),
    "frequency_penalty": (lambda f: -2 <= f <= 2, "between -2 and 2"),
    "presence_penalty": (lambda f: -2 <= f <= 2, "between -2 and 2"),
    "min_new_tokens": (lambda n: n >= 0 and n % 1 == 0, "at least 0"),
    "logprobs": (lambda n: n >= 0 and n % 1 == 0, "a whole number, 0 for the chosen token alone"),
    "gate": (lambda g: 0 <= g < math.inf, "at least 0"),
    "seed": (lambda s: isinstance(s, int) and 0 <= s < 1 << 64, "a whole number from 0 to 2^64 - 1"),
}


@dataclass(frozen=True, slots=True)
class BlockMarginals:
    """The best tokens of each offset-wise marginal q_1..q_L (Asm. 1).

    Attributes:
        token_ids: (L, K) int64, best first.
        log_q: (L, K) float64, log-probabilities under the full vocabulary, non-increasing along K. Ranks that can
            never be proposed hold -inf.
    """

    token_ids: np.ndarray
    log_q: np.ndarray


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
    """

    path: tuple[int, ...]
    token_ids: tuple[int, ...]
    is_gated: bool = False

    @property
    def num_accepted(self) -> int:
        """Accepted length a, without the bonus."""
        return len(self.token_ids) - (not self.is_gated)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one position, under the target's row after all processors (temperature and filters too).

    Attributes:
        token_id, log_p: the chosen token and its log-probability (nats).
        top: the likeliest tokens, best first, with theirs; those of probability 0 left out.
    """

    token_id: int
    log_p: float
    top: tuple[tuple[int, float], ...]


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
        t_draft_ms, t_verify_ms, t_host_ms: wall time of drafting (tree included), of verify, and of the rest.
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
    t_host_ms: float = 0.0

    @property
    def gated(self) -> bool:
        """Whether a row of this round was left to a single step."""
        return self.verdict.is_gated


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation.

    ``tau`` is kept tokens per round, bonus included (Eq. 1); the first token comes from prefill and belongs to no
    round. ``decode_ms_per_token`` is the decode window, from the end of the target's prefill, over the tokens after
    the first one. ``seed`` is that of the draws, None for greedy text.
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
    def accepted_histogram(self) -> dict[int, int]:
        """Accepted length a, before any cut → number of rounds."""
        return dict(sorted(Counter(r.verdict.num_accepted for r in self.rounds).items()))

    @property
    def gate_rate(self) -> float:
        """Rows left to a single step, per generated token."""
        return sum(r.gated for r in self.rounds) / max(self.num_tokens, 1)

    @property
    def draft_passes(self) -> int:
        return sum(r.num_draft_passes for r in self.rounds)

    @property
    def decode_ms_per_token(self) -> float | None:
        return self.decode_ms / (self.num_tokens - 1) if self.num_tokens > 1 else None

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of ``oneglance generate --json``."""
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "num_tokens": self.num_tokens,
            "rounds": len(self.rounds),
            "tau": self.tau,
            "accepted_histogram": self.accepted_histogram,
            "draft_passes": self.draft_passes,
            "prefill_ms": self.prefill_ms,
            "decode_ms_per_token": self.decode_ms_per_token,
            "fell_back": self.fell_back,
            "seed": self.seed,
            "gate_rate": self.gate_rate,
            "logprobs": None if self.logprobs is None else [asdict(entry) for entry in self.logprobs],
            "target": self.target,
            "head": self.head,
        }


class Drafter(Protocol):
    """Proposes candidate trees. Holds no sequence state: that lives in the object ``start`` returns."""

    @property
    def name(self) -> str | None:
        """Where the drafter comes from, for reports; None for plain decoding."""

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Kept layers whose features the drafter reads; empty when it reads none."""

    def start(self, state: TargetState) -> Any:
        """A fresh DraftState for a prefilled target state."""

    def draft(self, root: int, state: TargetState, draft_state: Any, *, max_depth: int) -> TokenTree:
        """One candidate tree below ``root``, at most ``max_depth`` deep; the empty tree when there is none.

        Raises:
            DraftError: the drafter cannot go on with this sequence.
        """

    def num_passes(self, tree: TokenTree) -> int:
        """How many drafter passes made ``tree``."""


class TreePolicy(Protocol):
    """Turns marginals into a candidate tree."""

    def __call__(self, marginals: BlockMarginals, budget: int) -> TokenTree: ...


class AcceptRule(Protocol):
    """Reads the target's own choice off verified rows. Owns the rng, where there is one."""

    def first(self, row: torch.Tensor, prefix: Sequence[int]) -> int:
        """The first token, from the last prefill row (V,); ``prefix`` is the prompt."""

    def __call__(self, tree: TokenTree, rows: torch.Tensor, prefix: Sequence[int]) -> Verdict:
        """The verdict on a tree, from its rows (N+1, V); ``prefix`` ends with the root."""
