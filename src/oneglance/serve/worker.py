"""One decoding thread with a bounded, fair queue in front of it.

One request decodes at a time: what this method saves is latency, and a second sequence in the same pass would cost it.
The thread also loads the model, so that the server answers ``/health`` while that takes its time.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oneglance.core import InputError, OneglanceError
from oneglance.serve.metrics import Metrics
from oneglance.serve.reading import Question

if TYPE_CHECKING:
    from oneglance.decoder import Decoder

log = logging.getLogger("oneglance.serve")


class NotReady(OneglanceError):
    """The model is loading, or the server is shutting down."""


class QueueFull(OneglanceError):
    """As many requests wait as may."""


class Job:
    """One request, from its arrival to the end of its answer. To be made in the request's own context.

    Args:
        client: whose turn this takes.
        loop: of the coroutine that reads ``events``.

    Attributes:
        context: of the request, which its logs carry.
        events: the number of prompt tokens, then ``Step``s, then the ``Generation``; or an exception.
        question: what to decode, once it has been read.
        ended: why nobody waits for the answer any more: ``abort`` or ``timeout``; None while somebody does.
    """

    def __init__(self, client: str, loop: asyncio.AbstractEventLoop) -> None:
        self.client = client
        self.arrived = time.perf_counter()
        self.context = contextvars.copy_context()
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.question: Question | None = None
        self.ended: str | None = None
        self._loop = loop

    def emit(self, event: object) -> None:
        """Hand an event to the coroutine; from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.events.put_nowait, event)

    def end(self, reason: str) -> None:
        """Nobody waits any more: decoding stops after the round in progress."""
        self.ended = self.ended or reason


class FairQueue:
    """Jobs of several clients, served in turn; jobs of one client in order."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[Job]] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, job: Job) -> None:
        """Append a job to its client's lane."""
        with self._changed:
            self._lanes.setdefault(job.client, deque()).append(job)
            self._changed.notify()

    def get(self) -> Job | None:
        """The next job; None once the queue is closed and empty."""
        with self._changed:
            while not self._lanes and not self._is_closed:
                self._changed.wait()
            if not self._lanes:
                return None
            client = next(iter(self._lanes))
            lane = self._lanes.pop(client)
            job = lane.popleft()
            if lane:
                self._lanes[client] = lane  # to the back
            return job

    def remove(self, job: Job) -> bool:
        """Take a job out before its turn; whether it was there."""
        with self._changed:
            lane = self._lanes.get(job.client)
            if lane is None or job not in lane:
                return False
            lane.remove(job)
            if not lane:
                del self._lanes[job.client]
            return True

    def close(self) -> list[Job]:
        """Take no more; the jobs that never had their turn."""
        with self._changed:
            self._is_closed = True
            left = [job for lane in self._lanes.values() for job in lane]
            self._lanes.clear()
            self._changed.notify_all()
            return left


class Worker:
    """Loads a decoder and serves the queue, in a thread of its own.

    Args:
        load: makes the decoder.
        metrics: counts.
        max_queue: jobs that may wait besides the one that runs.
        prefix_cache_mb: MiB for rows that later requests reuse; 0 for none.

    Attributes:
        decoder: once it is loaded.
        failure: why it could not be loaded.
    """

    def __init__(self, load: Callable[[], Decoder], metrics: Metrics, *, max_queue: int, prefix_cache_mb: int) -> None:
        self.decoder: Decoder | None = None
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._load = load
        self._metrics = metrics
        self._max_queue = max_queue
        self._prefix_cache_mb = prefix_cache_mb
        self._queue = FairQueue()
        self._inside: set[Job] = set()
        self._running: Job | None = None
        self._is_draining = False
        self._thread = threading.Thread(target=self._serve, name="decode", daemon=True)
        metrics.waiting.set_function(lambda: self.num_waiting)
        metrics.running.set_function(lambda: int(self._running is not None))

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        return self.decoder is not None and not self._is_draining

    @property
    def num_waiting(self) -> int:
        return sum(job is not self._running for job in tuple(self._inside))

    def admit(self, client: str) -> Job:
        """A place in the queue, before the request's images are read. To be called from the event loop.

        Raises:
            NotReady: the model is loading, or the server shuts down.
            QueueFull: there is no place.
        """
        if self._is_draining:
            raise NotReady("the server is shutting down")
        if self.decoder is None:
            raise NotReady("the model is still loading")
        if len(self._inside) > self._max_queue:
            raise QueueFull(f"{self._max_queue} requests are waiting already; try again later")
        job = Job(client, asyncio.get_running_loop())
        self._inside.add(job)
        return job

    def submit(self, job: Job, question: Question) -> None:
        """Queue an admitted job."""
        if self._is_draining:
            raise NotReady("the server is shutting down")
        job.question = question
        self._queue.put(job)

    def leave(self, job: Job) -> None:
        """Give the place back; whoever leaves before their turn leaves nothing in the queue."""
        job.end("abort")
        self._inside.discard(job)
        if self._queue.remove(job):
            self._metrics.never_started(job.ended or "abort")

    def drain(self) -> None:
        """Let what runs finish, and turn away what waits."""
        self._is_draining = True
        for job in self._queue.close():
            job.emit(NotReady("the server is shutting down"))

    def stop(self, timeout_s: float = 10.0) -> None:
        """End after the round in progress."""
        self.drain()
        for job in list(self._inside):
            job.end("abort")
        self._thread.join(timeout_s)

    # In the thread ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        started = time.perf_counter()
        try:
            self.decoder = decoder = self._load().with_prefixes(self._prefix_cache_mb)
        except Exception as error:
            self.failure = error
            self.on_failure()
            return
        store = decoder.prefixes
        self._metrics.prefix_bytes.set_function(lambda: 0 if store is None else store.nbytes)
        log.info("ready", extra={"fields": {"load_s": round(time.perf_counter() - started, 3)}})
        while (job := self._queue.get()) is not None:
            self._running = job
            job.context.run(self._answer, job, decoder)
            self._inside.discard(job)  # however slowly its answer is read
            self._running = None

    def _answer(self, job: Job, decoder: Decoder) -> None:
        try:
            self._decode(job, decoder)
        except InputError as error:
            job.emit(error)
        except Exception as error:
            log.exception("decoding failed")
            self._metrics.never_started("error")
            job.emit(error)

    def _decode(self, job: Job, decoder: Decoder) -> None:
        question = job.question
        assert question is not None
        if job.ended:
            self._metrics.never_started(job.ended)
            return
        self._metrics.queue_time.observe(time.perf_counter() - job.arrived)
        if not question.speculation:
            decoder = decoder.plain()
        elif question.budget is not None:
            decoder = decoder.with_budget(question.budget)
        inputs = question.encode(decoder.target)
        num_prompt = len(inputs.token_ids)
        first_at: float | None = None
        with decoder.stream_inputs(inputs, question.params) as stream:
            for step in stream:
                if first_at is None:
                    first_at = time.perf_counter()
                    job.emit(num_prompt)
                job.emit(step)
                if job.ended:
                    break
            generation = stream.generation
        self._metrics.count(
            generation,
            reason=job.ended or generation.finish_reason,
            num_prompt=num_prompt,
            looks_up=decoder.prefixes is not None,
            first_s=None if first_at is None else first_at - job.arrived,
            whole_s=time.perf_counter() - job.arrived,
        )
        job.emit(generation)
