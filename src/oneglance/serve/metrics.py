"""Prometheus metrics: vLLM's names under our prefix, and what vLLM has no name for.

A dashboard made for vLLM needs only ``vllm:`` replaced by ``oneglance:``. Counters grow once a request, when its answer
ends (or its client leaves), by exactly the figures that the answer reports.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from oneglance.acceptance import Acceptance
from oneglance.core import BLOCK_SIZE, Generation

PREFIX = "oneglance:"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class Metrics:
    """The metrics of one server.

    Args:
        model_name: value of the label that all of them carry.
    """

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._model_name = model_name
        self.running = self._gauge("num_requests_running", "Requests that are decoded now: 0 or 1.")
        self.waiting = self._gauge("num_requests_waiting", "Requests that wait, or whose images are being read.")
        self.queue_time = self._seconds("request_queue_time_seconds", "From arrival to decoding.")
        self._first = self._seconds("time_to_first_token_seconds", "From arrival to the first token.")
        self._whole = self._seconds("e2e_request_latency_seconds", "From arrival to the end of the answer.")
        self._prefill = self._seconds("request_prefill_time_seconds", "The target's pass over the prompt.")
        self._decode = self._seconds("request_decode_time_seconds", "The rounds of an answer.")
        self._per_token = self._seconds("request_time_per_output_token_seconds", "Decode time over tokens after one.")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens.")
        self.prefix_bytes = self._gauge("prefix_cache_bytes", "Memory of the rows kept for later requests.")
        self._looked_up = self._counter("prefix_cache_queries", "Prompt tokens that were looked for in the store.")
        self._reused = self._counter("prefix_cache_hits", "Prompt tokens whose rows were there.")
        self._generated = self._counter("generation_tokens", "Generated tokens, the first of each answer included.")
        self._success = self._counter("request_success", "Answers, by how they ended.", "finished_reason")
        self._turned_away = self._counter("requests_turned_away", "Requests without a place in the queue.")
        self._drafts = self._counter("spec_decode_num_drafts", "Rounds with a candidate tree.")
        self._proposed = self._counter("spec_decode_num_draft_tokens", "Nodes of the candidate trees.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Accepted tokens that were kept.")
        self._per_position = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens, by offset after the root.", "position"
        )
        self._rounds = self._counter("rounds", "Verify passes of the target.")
        self._draft_passes = self._counter("draft_passes", "Passes of the drafter.")
        self._gated = self._counter("gated", "Choices that were left to a single step.")
        self._fell_back = self._counter("fell_back", "Answers whose drafting ended early.")
        self._lengths = self._histogram("accepted_length", "Accepted tokens a round with a tree.", range(BLOCK_SIZE))
        self._sizes = self._histogram("request_generation_tokens", "Tokens of an answer.", TOKENS)

    def turned_away(self) -> None:
        """A request found the queue full."""
        self._turned_away.labels(self._model_name).inc()

    def never_started(self, reason: str) -> None:
        """A request left the queue before its turn."""
        self._success.labels(self._model_name, reason).inc()

    def count(
        self,
        generation: Generation,
        *,
        reason: str,
        num_prompt: int,
        looks_up: bool,
        first_s: float | None,
        whole_s: float,
    ) -> None:
        """Add a generation that has ended.

        Args:
            generation: it.
            reason: ``stop``, ``length``, ``abort`` or ``timeout``.
            num_prompt: tokens of the prompt.
            looks_up: whether there is a prefix store.
            first_s, whole_s: from arrival to the first token, and to the end.
        """
        name, drafted = self._model_name, Acceptance.of(generation)
        for counter, amount in (
            (self._prompt, num_prompt),
            (self._looked_up, num_prompt if looks_up else 0),
            (self._reused, generation.num_reused),
            (self._generated, generation.num_tokens),
            (self._drafts, drafted.num_drafted),
            (self._proposed, drafted.num_proposed),
            (self._accepted, drafted.num_accepted),
            (self._rounds, drafted.num_rounds),
            (self._draft_passes, drafted.num_draft_passes),
            (self._gated, drafted.num_gated),
            (self._fell_back, drafted.fell_back),
        ):
            counter.labels(name).inc(amount)
        for position, count in enumerate(drafted.per_position):
            self._per_position.labels(name, str(position)).inc(count)
        for length, count in drafted.histogram.items():
            for _ in range(count):
                self._lengths.observe(length)
        self._success.labels(name, reason).inc()
        self._sizes.observe(generation.num_tokens)
        self._whole.observe(whole_s)
        self._prefill.observe(generation.prefill_ms / 1e3)
        self._decode.observe(generation.decode_ms / 1e3)
        if first_s is not None:
            self._first.observe(first_s)
        if generation.ms_per_token is not None:
            self._per_token.observe(generation.ms_per_token / 1e3)

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        counter = Counter(PREFIX + name, text, ["model_name", *labels], registry=self.registry)
        if not labels:
            counter.labels(self._model_name)  # there from the start, at 0
        return counter

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(PREFIX + name, text, ["model_name"], registry=self.registry).labels(self._model_name)

    def _seconds(self, name: str, text: str) -> Histogram:
        return self._histogram(name, text, SECONDS)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] | range) -> Histogram:
        histogram = Histogram(PREFIX + name, text, ["model_name"], buckets=tuple(buckets), registry=self.registry)
        return histogram.labels(self._model_name)
