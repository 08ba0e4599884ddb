"""Keys and values of earlier prompts and answers, for later ones that begin alike.

A ``PrefixStore`` belongs to whoever wants reuse: ``Decoder.with_prefixes``, the server, ``oneglance chat``. It is a
tree of runs of rows: sequences that begin alike share those rows. Beyond a limit of memory, the ends that were not used
for the longest time are forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from oneglance.core import Drafter, InputError
from oneglance.targets import hf
from oneglance.targets.base import Target
from oneglance.targets.contents import Content, ImageRow, following
from oneglance.targets.loading import is_out_of_memory
from oneglance.targets.state import Inputs, TargetState


@dataclass(frozen=True, slots=True)
class Part:
    """What one owner, a target or a drafter's head, keeps of a sequence.

    Attributes:
        rows: (…, T, D) tensors, a row a token.
        fixed: tensors of the sequence as a whole, the same for all sequences that begin alike (keys and values of
            cross-attention).
    """

    rows: list[Tensor]
    fixed: list[Tensor] = field(default_factory=list)

    @property
    def bytes_a_row(self) -> int:
        return sum(t.element_size() * t.shape[:-2].numel() * t.shape[-1] for t in self.rows)

    @property
    def fixed_bytes(self) -> int:
        return sum(t.element_size() * t.numel() for t in self.fixed)

    def copy(self, start: int, end: int) -> Part:
        """A copy of some rows, without the rest of the memory that they lie in; ``fixed`` goes with the first row."""
        fixed = [] if start else [t.clone(memory_format=torch.contiguous_format) for t in self.fixed]
        rows = [t[..., start:end, :].clone(memory_format=torch.contiguous_format) for t in self.rows]
        return Part(rows, fixed)


@dataclass(eq=False, slots=True)
class _Run:
    """Rows between two forks of the tree. An owner that is here is in every run before it, too."""

    contents: tuple[Content, ...]
    parts: dict[Hashable, Part]
    parent: _Run | None
    used: int = 0
    children: dict[Content, _Run] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(part.bytes_a_row * len(self.contents) + part.fixed_bytes for part in self.parts.values())


class PrefixStore:
    """Rows of earlier sequences, the least recently used ones forgotten beyond a limit. May be used by many threads.

    Args:
        limit_bytes: of all tensors in it together, on whatever device the rows were made.

    Raises:
        InputError: the limit is not above 0.
    """

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes <= 0:
            raise InputError(f"the limit of a prefix store must be above 0, got {limit_bytes} bytes")
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._clock = 0
        self._root = _Run((), {}, None)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows in it."""
        with self._lock:
            return self._nbytes()

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._root.children.clear()

    @torch.inference_mode()
    def find(self, contents: Sequence[Content], owners: Sequence[Hashable]) -> tuple[int, dict[Hashable, Part]]:
        """The longest beginning of a prompt that is known to all ``owners``, from which the prompt can be continued.

        Args:
            contents: of the prompt's rows. At least one of them is left over, and no image is divided.
            owners: of the parts.

        Returns:
            Its length, 0 where there is none, and copies of its parts.
        """
        with self._lock:
            path = self._walk(contents[:-1], owners)
            length = sum(count for _, count in path)
            while length and isinstance(row := contents[length], ImageRow) and row.place:
                length -= 1
            if not length:
                return 0, {}
            self._touch(path)
            return length, {owner: _joined([run.parts[owner] for run, _ in path], length) for owner in owners}

    @torch.inference_mode()
    def keep(self, contents: Sequence[Content], parts: Mapping[Hashable, Part]) -> None:
        """Copy a sequence's rows, as far as they are not here. One that alone exceeds the limit is not kept.

        Args:
            contents: of its rows.
            parts: by owner, with as many rows.
        """
        contents = tuple(contents)
        with self._lock:
            path = self._walk(contents)
            known = sum(count for _, count in path)
            needed = sum(part.bytes_a_row for part in parts.values()) * (len(contents) - known)
            needed += 0 if path else sum(part.fixed_bytes for part in parts.values())
            for at, (run, count) in enumerate(path):
                missing = [part for owner, part in parts.items() if owner not in run.parts]
                needed += sum(part.bytes_a_row * count + part.fixed_bytes * (at == 0) for part in missing)
            if needed and self._make_room(needed, [run for run, _ in path]):
                path = self._add(contents, parts, path)
            self._touch(path)

    def _walk(self, contents: Sequence[Content], owners: Sequence[Hashable] = ()) -> list[tuple[_Run, int]]:
        """The runs that begin as ``contents`` do, with the number of rows that agree: all but in the last one."""
        path: list[tuple[_Run, int]] = []
        run, at = self._root, 0
        while at < len(contents):
            child = run.children.get(contents[at])
            if child is None or any(owner not in child.parts for owner in owners):
                break
            count = _num_common(child.contents, contents[at : at + len(child.contents)])
            path.append((child, count))
            if count < len(child.contents):
                break
            run, at = child, at + count
        return path

    def _touch(self, path: Sequence[tuple[_Run, int]]) -> None:
        self._clock += 1
        for run, _ in path:
            run.used = self._clock

    def _add(
        self, contents: tuple[Content, ...], parts: Mapping[Hashable, Part], path: list[tuple[_Run, int]]
    ) -> list[tuple[_Run, int]]:
        if path and path[-1][1] < len(path[-1][0].contents):
            path = [*path[:-1], (_divided(*path[-1]), path[-1][1])]
        at = 0
        for run, count in path:
            for owner, part in parts.items():
                if owner not in run.parts:
                    run.parts[owner] = part.copy(at, at + count)
            at += count
        if at < len(contents):
            parent = path[-1][0] if path else self._root
            copies = {owner: part.copy(at, len(contents)) for owner, part in parts.items()}
            run = parent.children[contents[at]] = _Run(contents[at:], copies, parent)
            path = [*path, (run, len(run.contents))]
        return path

    def _make_room(self, needed: int, spared: Sequence[_Run]) -> bool:
        """Forget the least recently used ends until ``needed`` bytes fit; nothing where that cannot be."""
        if needed + sum(run.nbytes for run in spared) > self.limit_bytes:
            return False
        excess = self._nbytes() + needed - self.limit_bytes
        while excess > 0:
            ends = [run for run in self._runs() if not run.children and run not in spared]
            oldest = min(ends, key=lambda run: run.used)
            assert oldest.parent is not None
            del oldest.parent.children[oldest.contents[0]]
            excess -= oldest.nbytes
        return True

    def _nbytes(self) -> int:
        return sum(run.nbytes for run in self._runs())

    def _runs(self) -> Iterator[_Run]:
        waiting = list(self._root.children.values())
        while waiting:
            run = waiting.pop()
            waiting += run.children.values()
            yield run


def _num_common(ours: Sequence[Content], theirs: Sequence[Content]) -> int:
    for index, (own, other) in enumerate(zip(ours, theirs, strict=False)):
        if own != other:
            return index
    return min(len(ours), len(theirs))


def _divided(run: _Run, at: int) -> _Run:
    """The first ``at`` rows of a run, as a run of their own that the rest follows."""
    assert run.parent is not None
    first = _Run(run.contents[:at], {o: p.copy(0, at) for o, p in run.parts.items()}, run.parent, run.used)
    run.parts = {owner: part.copy(at, len(run.contents)) for owner, part in run.parts.items()}
    run.contents, run.parent = run.contents[at:], first
    first.children[run.contents[0]] = run
    assert first.parent is not None
    first.parent.children[first.contents[0]] = first
    return first


def _joined(parts: Sequence[Part], length: int) -> Part:
    """A copy of the first ``length`` rows of parts that follow one another."""
    rows = [torch.cat(pieces, dim=-2)[..., :length, :] for pieces in zip(*(p.rows for p in parts), strict=True)]
    return Part(rows, [t.clone() for t in parts[0].fixed])


class Reuse:
    """What one generation takes from a store, and what it leaves there.

    Args:
        store: of the decoder.
        target: the frozen model.
        drafter: whose rows are kept with the target's where it has a ``row_owner``. One that reads features without
            having one needs those of the whole prompt: its prompts are prefilled from the start.
        inputs: the prompt.

    Attributes:
        num_rows: rows of the prompt that came from the store.
    """

    def __init__(self, store: PrefixStore, target: Target, drafter: Drafter, inputs: Inputs) -> None:
        self.num_rows = 0
        self._store = store
        self._target = target
        self._layer_ids = drafter.target_layer_ids
        self._inputs = inputs
        self._drafts_for: Hashable = getattr(drafter, "row_owner", None)
        self._contents = [] if inputs.encoded else target.contents(inputs)  # an encoded image has no pixels to compare
        self._others = target.fixed_layers

    def prefill(self) -> TargetState:
        """As ``Target.prefill``, without the rows that the store has. Forgets them all where memory is short."""
        try:
            return self._prefill()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or not self._store.nbytes:
                raise
        self._store.clear()
        self.num_rows = 0
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return self._target.prefill(self._inputs, self._layer_ids)

    def _prefill(self) -> TargetState:
        target, owners = self._target, [self._target.model]
        if self._drafts_for is not None:
            owners.append(self._drafts_for)
        elif self._layer_ids:
            return target.prefill(self._inputs, self._layer_ids)
        self.num_rows, parts = self._store.find(self._contents, owners)
        if not self.num_rows:
            return target.prefill(self._inputs, self._layer_ids)
        own = parts[target.model]
        layers = [*target.self_attention_layers, *self._others[: len(own.fixed) // 2]]
        cache = hf.filled(target.empty_cache(), layers, [*own.rows, *own.fixed])
        state = target.prefill(self._inputs, self._layer_ids, cache)
        if self._drafts_for is not None:
            state.draft_rows = parts[self._drafts_for].rows
        return state

    def keep(self, state: TargetState, draft_rows: list[Tensor] | None) -> None:
        """Leave the committed rows in the store.

        Args:
            state: after the last whole round.
            draft_rows: the drafter's own, as many, or None.
        """
        if not self._contents:
            return
        target, length = self._target, state.length
        answer = state.token_ids[len(self._contents) : length]
        filled = [i for i in self._others if hf.cached_length(state.cache, i)]
        rows = hf.cached_rows(state.cache, target.self_attention_layers, length)
        parts = {target.model: Part(rows, hf.cached_rows(state.cache, filled))}
        if draft_rows is not None and self._drafts_for is not None:
            parts[self._drafts_for] = Part(draft_rows)
        self._store.keep([*self._contents, *following(self._contents, answer)], parts)
