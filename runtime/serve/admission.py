"""How much waits at once. What comes beyond that is told when to come again, at little cost to what is answered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Gauge

from headrace.runtime.serve.limits import Limits
from headrace.runtime.serve.refusals import Overloaded, Refusal

# How much the last answers count in what a text takes.
NEWEST = 0.1
# Refusals a second, and how many come at once before they are spaced out.
REFUSALS, AT_ONCE = 1000, 100
# Seconds that one waits at most.
PATIENCE = 5.0


class Admission:
    """The requests of one task that wait or run, and how fast they are answered. It is the event loop's alone."""

    def __init__(self, limits: Limits, gauge: Gauge | None = None) -> None:
        """Nothing waits. What does is set on a gauge, where it is not counted elsewhere."""
        self._limits, self._gauge = limits, gauge
        self._held, self._texts, self._pace = 0, 0, 0.0
        self._last: float | None = None

    @property
    def expected(self) -> float:
        """Seconds in which all that waits is answered."""
        return self._texts * self._pace

    def require_room(self) -> None:
        """Refuse one more where the queue is full, or where it would wait for too long.

        Raises:
            Overloaded: says in how many seconds to come again.
        """
        if self._held >= self._limits.queue or (self._held and self.expected > self._limits.longest_wait):
            raise Overloaded(self._held, self.expected)

    @contextmanager
    def entered(self, texts: int) -> Iterator[None]:
        """While it is entered, a request of so many texts waits or runs."""
        if not self._held and self._last is not None:
            self._last = time.monotonic()
        self._count(1, texts)
        try:
            yield
        finally:
            self._count(-1, -texts)

    def answered(self, texts: int) -> None:
        """So many texts were answered. The first are not measured: a model is compiled for them."""
        now = time.monotonic()
        if self._last is not None:
            self._pace += NEWEST * ((now - self._last) / max(1, texts) - self._pace)
        self._last = now

    def _count(self, requests: int, texts: int) -> None:
        self._held += requests
        self._texts += texts
        if self._gauge is not None:
            self._gauge.set(self._held)


class Spacing:
    """Refusals, spaced out: who comes again at once waits for the next, and takes no time from what is answered."""

    def __init__(self) -> None:
        """None so far."""
        self._next = 0.0

    def seconds(self) -> float:
        """Until one more may go out."""
        now = time.monotonic()
        self._next = max(self._next, now - AT_ONCE / REFUSALS) + 1 / REFUSALS
        return min(PATIENCE, max(0.0, self._next - now))


class Bodies:
    """Bytes of the bodies that are being read: clients that are slow to send must not fill the memory together."""

    def __init__(self, most: int) -> None:
        """At most so many."""
        self._most, self._held = most, 0

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """While it is entered, a body of at most so many bytes is read.

        Raises:
            Refusal: others take the room.
        """
        if self._held and self._held + size > self._most:
            words = f"The server is reading {self._held} bytes of other requests. Try again in 1 s."
            raise Refusal(429, words, "overloaded", {"retry-after": "1"})
        self._held += size
        try:
            yield
        finally:
            self._held -= size
