"""Path-conditioned scores: each offset's candidates rescored given the tokens before them (beyond the paper).

The marginals of one pass know nothing of one another (Asm. 1). A rescorer adds to the logits of offset j a bias that
depends on its parent's token, log q_j(y | y', h_j) = log q_j(y) + b(y', y, h_j) - log Z, for the candidates of all
offsets at once: K x K numbers an offset, one batched product, no second pass. What the candidates leave of the
marginal's mass keeps bias 0 in Z. Nearby ideas: the Markov bias of DSpark, Domino, DFlash 2, JetSpec.
Other kinds than the one here: ``two_tokens.py``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from oneglance.core import HeadError
from oneglance.drafters.checkpoint import check_tensors, read_tensors, write_module
from oneglance.drafters.layouts import RESCORER
from oneglance.files import write_atomically

if TYPE_CHECKING:
    from oneglance.drafters.head import BlockHead
    from oneglance.targets.base import Target

SCHEMA_VERSION = 1
WITHOUT = "use --drafter block:rescorer=none"
WEIGHTS, CONFIG = "rescorer.safetensors", RESCORER
PARTS = ("before", "after", "gate", "earlier", "earlier_gate")  # what tensor names begin with; no head has one of these


class RescorerConfig(BaseModel):
    """Geometry of a rescorer, and the head that it was trained for.

    Attributes:
        kind: a name in ``RESCORERS``.
        rank: R, width of the bias's factors.
        factors: tables of the rescorer's own (2 V R parameters), or two projections of the target's embedding
            (2 H R: the choice for large vocabularies).
        is_gated: whether the slot's state scales each of the R terms.
        head_sha256: of the head's tensors; another head's states mean something else.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    kind: str = "previous_token"
    rank: int = Field(default=64, gt=0)
    factors: Literal["own", "embedding"] = "own"
    is_gated: bool = True
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    head_sha256: str | None = None
    training: dict[str, Any] = {}


class Rescorer(Protocol):
    """Conditions the candidates of each offset on those of the offsets before it."""

    config: RescorerConfig

    def parameters(self) -> Iterator[nn.Parameter]:
        """What it has learnt."""

    def along(self, states: Tensor, before: Tensor, embedding: nn.Embedding) -> Tensor:
        """What is added to the logits of each slot, where the tokens before it are known: what is trained.

        Args:
            states: (M, L, H) of the blocks' mask slots.
            before: (M, L) ids of the token before each slot.
            embedding: the target's.

        Returns:
            (M, L, V); zeros at offset 1, whose parent is the root that the head has read.
        """

    def rescore(self, states: Tensor, token_ids: Tensor, log_q: Tensor, embedding: nn.Embedding) -> tuple[Tensor, ...]:
        """Log q of each candidate given each candidate before it.

        Args:
            states: (L, H) of the block's mask slots.
            token_ids: (L, K) candidates of each offset.
            log_q: (L, K) their marginals.
            embedding: the target's.

        Returns:
            The tables of ``core.BlockMarginals`` after ``log_q``, as many as this kind has.
        """


class PreviousTokenBias(nn.Module):
    """b(y', y, h) = <U(y') * sigmoid(G h), W(y)>, of rank R."""

    def __init__(self, config: RescorerConfig) -> None:
        super().__init__()
        self.config = config
        self.before, self.after = self._table(), self._table()
        self.gate = self._gate()
        nn.init.zeros_(self.after.weight)  # training starts from the marginals

    def along(self, states: Tensor, before: Tensor, embedding: nn.Embedding) -> Tensor:
        later = self._known(states, before, embedding) @ self._right(None, embedding).T
        return F.pad(later.float(), (0, 0, 1, 0))

    def rescore(self, states: Tensor, token_ids: Tensor, log_q: Tensor, embedding: nn.Embedding) -> tuple[Tensor, ...]:
        left = self._left(self.before, self.gate, states[1:], token_ids[:-1], embedding)
        right = self._right(token_ids[1:], embedding)
        return (normalised(log_q[1:], left @ right.transpose(-1, -2))[0],)

    def _known(self, states: Tensor, before: Tensor, embedding: nn.Embedding) -> Tensor:
        """(M, L-1, R) left factors of slots 2.. given the tokens before them."""
        return self._left(self.before, self.gate, states[:, 1:], before[:, 1:, None], embedding)[:, :, 0]

    def _left(
        self, table: nn.Module, gate: nn.Module | None, states: Tensor, ids: Tensor, embedding: nn.Embedding
    ) -> Tensor:
        """(..., P, R) of the ids (..., P) before slots (..., H)."""
        left = self._factor(table, ids, embedding)
        return left if gate is None else left * torch.sigmoid(gate(states.to(self.after.weight.dtype)))[..., None, :]

    def _right(self, ids: Tensor | None, embedding: nn.Embedding) -> Tensor:
        """(..., K, R) of the ids (..., K), or (V, R)."""
        if ids is not None:
            return self._factor(self.after, ids, embedding)
        weight = self.after.weight
        return weight if self.config.factors == "own" else self.after(embedding.weight.to(weight.dtype))

    def _factor(self, table: nn.Module, ids: Tensor, embedding: nn.Embedding) -> Tensor:
        given = ids if self.config.factors == "own" else embedding(ids).to(self.after.weight.dtype)
        out: Tensor = table(given)
        return out

    def _table(self) -> nn.Embedding | nn.Linear:
        """A factor of each token: of unit size at the start."""
        config = self.config
        if config.factors == "own":
            return nn.Embedding(config.vocab_size, config.rank)
        table = nn.Linear(config.hidden_size, config.rank, bias=False)
        nn.init.normal_(table.weight, std=config.hidden_size**-0.5)
        return table

    def _gate(self) -> nn.Linear | None:
        return nn.Linear(self.config.hidden_size, self.config.rank) if self.config.is_gated else None


def normalised(log_q: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The candidates' log q after a bias, and that of all other tokens together, whose bias is 0.

    Args:
        log_q: (L, K) marginals.
        bias: (L, P, K).

    Returns:
        (L, P, K) and (L, P, 1): together a distribution.
    """
    biased = log_q[:, None, :] + bias.float()
    rest = torch.log1p(-log_q.exp().sum(-1).clamp(max=1 - 1e-7))[:, None, None]
    log_z = torch.logaddexp(biased.logsumexp(-1, keepdim=True), rest)
    return biased - log_z, rest - log_z


RESCORERS = {
    "previous_token": "oneglance.drafters.rescorer:PreviousTokenBias",
    "two_tokens": "oneglance.drafters.two_tokens:TwoTokenBias",
}


def class_of(config: RescorerConfig) -> Any:
    """The class of the kind that the configuration names.

    Raises:
        HeadError: there is none of that kind.
    """
    if config.kind not in RESCORERS:
        raise HeadError(f"unknown rescorer {config.kind!r}; choose one of {', '.join(RESCORERS)}")
    module, _, name = RESCORERS[config.kind].partition(":")
    return getattr(import_module(module), name)


def build(config: RescorerConfig) -> Any:
    """A fresh rescorer.

    Raises:
        HeadError: there is none of that kind.
    """
    return class_of(config)(config)


def fingerprint(head: BlockHead) -> str:
    """SHA-256 of a head's tensors in bfloat16, as heads are shipped."""
    digest = hashlib.sha256()
    for key, value in sorted(head.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().cpu().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def save_rescorer(
    rescorer: Any, folder: Path, *, head: BlockHead | None = None, training: dict[str, Any] | None = None
) -> None:
    """Write the two files beside a head, each replaced atomically.

    Args:
        rescorer: trained.
        folder: the head's.
        head: the one that it was trained for, which its config then names.
        training: how.
    """
    given = {"head_sha256": fingerprint(head) if head else rescorer.config.head_sha256, "training": training or {}}
    config = rescorer.config.model_copy(update=given)
    write_module(rescorer, folder / WEIGHTS)
    write_atomically(folder / CONFIG, config.model_dump_json(indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class RescorerCheckpoint:
    """A rescorer on disk, read and checked, not yet on a device."""

    folder: Path
    config: RescorerConfig
    tensors: dict[str, Tensor]

    def build(self, head: BlockHead, target: Target) -> Any:
        """The rescorer beside the target's lm_head.

        Raises:
            HeadError: it was made for another head or another target.
        """
        config = self.config
        for what, own, other in (
            ("hidden size", config.hidden_size, target.hidden_size),
            ("vocabulary rows", config.vocab_size, target.vocab_size),
        ):
            if own != other:
                raise HeadError(f"{what}: the rescorer in {self.folder} has {own}, the target {other}; {WITHOUT}")
        if config.head_sha256 is not None and config.head_sha256 != fingerprint(head):
            raise HeadError(
                f"the rescorer in {self.folder} was trained for another head; train one for this head, or {WITHOUT}"
            )
        return self.build_module().to(target.lm_head_device)

    def build_module(self) -> Any:
        """The rescorer as a frozen module in float32, bound to nothing yet."""
        rescorer = build(self.config)
        rescorer.load_state_dict(self.tensors)
        return rescorer.float().eval().requires_grad_(False)


def find_rescorer(choice: str, head_folder: Path) -> RescorerCheckpoint | None:
    """The rescorer that a head is to be used with.

    Args:
        choice: ``auto`` (the one beside the head, where there is one), ``none``, or a folder.
        head_folder: the head's.

    Raises:
        HeadError: the folder has none, or it is damaged.
    """
    if choice == "none" or (choice == "auto" and not (head_folder / CONFIG).is_file()):
        return None
    folder = head_folder if choice == "auto" else Path(os.path.expanduser(choice))
    if not os.path.isfile(folder / CONFIG):
        raise HeadError(f"no {CONFIG} in {folder}; give the folder of a rescorer, auto or none")
    try:
        config = RescorerConfig.model_validate_json((folder / CONFIG).read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise HeadError(f"{folder / CONFIG}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except OSError as error:
        raise HeadError(f"cannot read {folder / CONFIG} ({error.strerror}); {WITHOUT}") from error
    try:
        tensors = read_tensors(folder, WEIGHTS)
    except (HeadError, OSError) as error:
        raise HeadError(f"{folder / WEIGHTS} is missing or damaged ({error}); {WITHOUT}") from error
    kind = class_of(config)
    try:
        check_tensors(kind, config, tensors)
    except HeadError as error:
        raise HeadError(f"{folder / WEIGHTS} does not fit its config ({error}); {WITHOUT}") from error
    return RescorerCheckpoint(folder, config, tensors)
