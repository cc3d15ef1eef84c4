"""What a server counts, for Prometheus."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST
# A folder in which the processes of one server count together; the library reads it when it is imported.
SHARED = "PROMETHEUS_MULTIPROC_DIR"
SECONDS: tuple[float, ...] = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
COUNTS: tuple[float, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
BY_TASK, ROUTE, ROUTE_STATUS = ("model", "task"), ("route",), ("route", "status")
FILLS: tuple[float, ...] = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5)


@dataclass(frozen=True)
class TaskMetrics:
    """Those of one task of one model.

    Attributes:
        queue: requests that wait or run.
        texts: texts of a batch, or sequences of a step.
        fill: the share of a batch's room that they take.
        tokens: tokens that were read.
        made: tokens that were made.
        first: seconds up to a request's first token.
        cache_used: bytes of caches that texts hold.
        cache_bytes: bytes of all caches.
    """

    queue: Gauge
    texts: Histogram
    fill: Histogram
    tokens: Counter
    made: Counter
    first: Histogram
    cache_used: Gauge
    cache_bytes: Gauge

    def batch(self, texts: int, fill: float) -> None:
        """Count a batch."""
        self.texts.observe(texts)
        self.fill.observe(fill)


class Metrics:
    """Those of one server."""

    def __init__(self) -> None:
        """Count nothing yet."""
        self.registry = CollectorRegistry()
        self._queue = self._gauge("headrace_queue_requests", "Requests that wait or run.")
        self._texts = self._histogram("headrace_batch_texts", "Texts of a batch, or of a step.", COUNTS)
        self._fill = self._histogram("headrace_batch_fill", "Share of a batch's room that they take.", FILLS)
        self._tokens = self._counter("headrace_tokens_read", "Tokens of texts and prompts.")
        self._made = self._counter("headrace_tokens_made", "Tokens that were generated.")
        self._first = self._histogram("headrace_first_token_seconds", "Up to the first token.", SECONDS)
        self._used = self._gauge("headrace_cache_used_bytes", "Bytes of caches that texts hold.")
        self._bytes = self._gauge("headrace_cache_bytes", "Bytes of all caches.")
        self._requests = self._counter("headrace_requests", "Requests by their answers.", ROUTE_STATUS)
        self._seconds = self._histogram("headrace_request_seconds", "Up to an answer's end.", SECONDS, ROUTE)

    def _gauge(self, name: str, says: str) -> Gauge:
        return Gauge(name, says, BY_TASK, registry=self.registry, multiprocess_mode="livesum")

    def _counter(self, name: str, says: str, labels: tuple[str, ...] = BY_TASK) -> Counter:
        return Counter(name, says, labels, registry=self.registry)

    def _histogram(
        self, name: str, says: str, buckets: tuple[float, ...], labels: tuple[str, ...] = BY_TASK
    ) -> Histogram:
        return Histogram(name, says, labels, registry=self.registry, buckets=buckets)

    def task(self, model: str, task: str) -> TaskMetrics:
        """Those of one task of one model."""
        by = (model, task)
        return TaskMetrics(
            self._queue.labels(*by), self._texts.labels(*by), self._fill.labels(*by), self._tokens.labels(*by),
            self._made.labels(*by), self._first.labels(*by), self._used.labels(*by), self._bytes.labels(*by),
        )  # fmt: skip

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that is over."""
        counter, histogram = self._of(route, status)
        counter.inc()
        histogram.observe(seconds)

    @cache  # noqa: B019 - finding them takes longer than counting, and they live as long as the server
    def _of(self, route: str, status: int) -> tuple[Counter, Histogram]:
        return self._requests.labels(route, str(status)), self._seconds.labels(route)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them: where several processes count, their sums."""
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        summed = CollectorRegistry()
        multiprocess.MultiProcessCollector(summed)  # type: ignore[no-untyped-call]
        return generate_latest(summed)


def forget(process: int) -> None:
    """A process that counted is gone: what it held is held no more, and what it did counts on."""
    multiprocess.mark_process_dead(process)  # type: ignore[no-untyped-call]
