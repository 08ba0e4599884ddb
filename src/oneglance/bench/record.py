"""What a benchmark keeps of one generation of one system."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from oneglance.core import InputError


@dataclass(frozen=True, slots=True)
class Record:
    """One generation of one system.

    Attributes:
        system, task, prompt: what and which; replicate: 0-based.
        token_ids: new tokens.
        kept: tokens kept in each round, bonus included; accepted: a of each round, among those kept.
        decode_ms: from the end of the target's prefill.
        prefill_ms: the target's prefill; vision_ms: the vision encoder's part of it, None where there is none.
        identical: equal to the independent reference, token for token.
        right, total, char_errors, num_chars: task score, where the task has a grader; metric: what it measures.
        wording: of a caption, with what it names blanked out.
        entropy_nats: mean next-token entropy of the reference.
        round_ms: wall time of each round; passes, nodes: of each round.
        draft_ms, build_ms, verify_ms, commit_ms, host_ms: sums over rounds; draft excludes build where that is known,
            and host is what is left of ``decode_ms``.
        first_draft_ms: the first draft, prompt ingestion included: what the paper's window leaves out.
        context: tokens of the prompt, image rows included.
        weights, num_parameters: the drafter's card (``systems.Card``).
        is_outside: not decoded by our loop: ``prefill_ms`` ends with the first token, and there are no rounds.
        drafts, drafted: an outside system's own count of rounds and of accepted draft tokens, 0 where it has none.
        failure: why there is no answer.
        extra_input: what the system was given besides the prompt.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    system: str
    task: str
    prompt: str
    token_ids: tuple[int, ...]
    kept: tuple[int, ...]
    decode_ms: float
    prefill_ms: float
    identical: bool
    entropy_nats: float
    right: float = 0
    total: int = 0
    char_errors: int = 0
    num_chars: int = 0
    wording: str = ""
    metric: str | None = None
    replicate: int = 0
    accepted: tuple[int, ...] = ()
    round_ms: tuple[float, ...] = ()
    passes: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    draft_ms: float = 0.0
    build_ms: float | None = None
    verify_ms: float = 0.0
    commit_ms: float = 0.0
    host_ms: float = 0.0
    first_draft_ms: float = 0.0
    vision_ms: float | None = None
    context: int = 0
    weights: str | None = None
    num_parameters: int | None = None
    is_outside: bool = False
    drafts: int = 0
    drafted: int = 0
    failure: str | None = None
    extra_input: str | None = None

    @property
    def decoded(self) -> int:
        """Tokens after the first, which belongs to prefill."""
        return max(0, len(self.token_ids) - 1)

    @property
    def end_to_end_ms(self) -> float:
        return self.prefill_ms + self.decode_ms

    def ms_until(self, num_tokens: int) -> float:
        """Decode time of the first ``num_tokens`` decoded tokens; the round in which they end counts by its share."""
        if num_tokens >= self.decoded or not self.round_ms:
            return self.decode_ms * min(1.0, num_tokens / max(1, self.decoded))
        passed, scale = 0.0, self.decode_ms / max(sum(self.round_ms), 1e-12)
        for kept, took in zip(self.kept, self.round_ms, strict=True):
            if num_tokens <= kept:
                return (passed + took * num_tokens / max(1, kept)) * scale
            num_tokens -= kept
            passed += took
        return self.decode_ms

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_RECORD = TypeAdapter(Record)


def record_of(data: object) -> Record:
    """A record from its JSON object.

    Raises:
        InputError: it is none.
    """
    try:
        return _RECORD.validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(f"not a record of this version of oneglance bench ({what}); measure anew") from error
