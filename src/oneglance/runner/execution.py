"""Executions of a pass: one signature, three ways."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from oneglance.core import OneglanceWarning
from oneglance.targets.kv import RoomyLayer
from oneglance.targets.static import Given, Outputs, Rooms, StaticPass


class Direct:
    """As it is: for tests of static shapes, and what the others fall back to."""

    name = "static"

    def adopt(self, owner: object, layers: Sequence[RoomyLayer]) -> None: ...

    def __call__(self, run: StaticPass, given: Given, rooms: Rooms) -> Outputs:
        return run(given, rooms)


class Compiled:
    """By ``torch.compile``: one program a width, with the capacity left open, so that growing recompiles nothing."""

    name = "compile"

    def __init__(self) -> None:
        self._programs: dict[StaticPass, Any] = {}

    def adopt(self, owner: object, layers: Sequence[RoomyLayer]) -> None: ...

    def __call__(self, run: StaticPass, given: Given, rooms: Rooms) -> Outputs:
        if run not in self._programs:
            self._programs[run] = torch.compile(run, dynamic=False, fullgraph=True)
        for tensor, axis in [*given.growing, *((part, 2) for pair in rooms for part in pair)]:
            torch._dynamo.maybe_mark_dynamic(tensor, axis)
        with torch._dynamo.config.patch(recompile_limit=64):
            outputs: Outputs = self._programs[run](given, rooms)
        return outputs


class Recorder(Protocol):
    """Records work on a device so that it can be done again without starting each kernel."""

    def record(self, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        """What does the work again, and the tensors that then hold its results.

        Raises:
            RuntimeError: this work cannot be recorded.
        """


class CudaGraphs:
    """CUDA graphs of one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def record(self, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        if self._device.type != "cuda":
            raise RuntimeError(f"there are no CUDA graphs on {self._device.type}")
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):  # kernels and workspaces are chosen before anything is recorded
            for _ in range(2):
                work()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = work()
        self._pool = graph.pool()
        return graph.replay, outputs


class Captured:
    """Recorded once a shape, then replayed. A graph knows addresses, so keys and values lie in one place for all.

    Args:
        recorder: CUDA's, or a stub of it.

    Attributes:
        fell_back: passes that run as they are instead, and why.
    """

    name = "graphs"

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recorded: dict[tuple[Any, ...], tuple[Callable[[], None], Outputs]] = {}
        self._places: dict[tuple[object, int], Rooms] = {}
        self._layers: dict[int, weakref.ref[RoomyLayer]] = {}
        self.fell_back: dict[StaticPass, str] = {}

    def adopt(self, owner: object, layers: Sequence[RoomyLayer]) -> None:
        """Move a sequence's rows to where the graphs look for them; whoever was there gets a copy of its own."""
        place = self._places.setdefault((owner, layers[0].capacity), [])
        while len(place) < len(layers):
            like = layers[len(place)].room
            assert like is not None
            place.append((torch.zeros_like(like[0]), torch.zeros_like(like[1])))
        for layer, pair in zip(layers, place, strict=True):
            assert layer.room is not None
            if layer.room[0] is pair[0]:
                continue
            before = self._layers.get(id(pair[0]), lambda: None)()
            if before is not None and before.room is not None and before.room[0] is pair[0]:
                before.move((pair[0].clone(), pair[1].clone()))
            for new, old in zip(pair, layer.room, strict=True):
                new.copy_(old)
            layer.move(pair)
            self._layers[id(pair[0])] = weakref.ref(layer)

    def __call__(self, run: StaticPass, given: Given, rooms: Rooms) -> Outputs:
        if run in self.fell_back:
            return run(given, rooms)
        key = (run, *(tensor.data_ptr() for tensor in given.tensors), rooms[0][0].data_ptr())
        if key not in self._recorded:
            try:
                self._recorded[key] = self._recorder.record(lambda: run(given, rooms))
            except RuntimeError as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                if reason not in self.fell_back.values():
                    message = f"passes are not recorded as graphs, they run one kernel at a time: {reason}"
                    warnings.warn(message, OneglanceWarning, stacklevel=2)
                self.fell_back[run] = reason
                return run(given, rooms)
        replay, (rows, features) = self._recorded[key]
        replay()
        return rows.clone(), [feature.clone() for feature in features]
