"""One call's requests to the devices, and their answers back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.backends.several import Parallel
from headrace.runtime.devices.messages import Answer, Done, End, Part, Rows, Share, Taken, lengths_of, taken, whole
from headrace.runtime.devices.pool import Pool, Told
from headrace.runtime.devices.shares import dealt
from headrace.runtime.devices.unread import Unread
from headrace.runtime.engine.padded_batch import Rows as Raw
from headrace.runtime.places import Numbers, Places

# Parts that a device is given before it has begun with the first of them.
AHEAD = 4
Answers = tuple[Numbers, list[Raw]]
Asked = tuple[tuple[str, ...], int, int | None]


def answers(pool: Pool, parallel: Parallel, asked: Asked, parts: Iterable[Any], places: Places) -> Iterator[Answers]:
    """The answers to some requests at a time, by their places; what comes is good until the next is asked for.

    Args:
        asked: the tasks, how many requests there are at most, and how many go in a step at most.
    """
    with pool.call() as (number, queue):
        call = Dealing(pool, parallel, number, asked, places)
        try:
            for part in parts:
                call.give(whole(part))
                while call.full or not queue.empty():
                    yield from call.heard(queue.get())
            call.end()
            while call.waits:
                yield from call.heard(queue.get())
        finally:
            call.close()
    call.warn()


class Dealing:
    """What each device has been given of a call and has answered."""

    def __init__(self, pool: Pool, parallel: Parallel, number: int, asked: Asked, places: Places) -> None:
        """Nothing yet."""
        self._pool, self._parallel, self._number, self._asked, self._places = pool, parallel, number, asked, places
        devices = len(pool.processes)
        self._count = 0  # the requests of all parts so far
        self._given = [np.empty(0, np.int64) for _ in range(devices)]  # the numbers of each device's, in their order
        self._lengths = [np.empty(0, np.int64) for _ in range(devices)]
        self._left = np.zeros(devices, np.int64)  # tokens that each has not answered
        self._unbegun = [0] * devices  # parts that each has not begun with
        self._answering = set[int]()
        self._lost: list[int] = []
        self._last: Share | None = None

    @property
    def full(self) -> bool:
        """Whether every device has enough before it."""
        return min(self._unbegun) >= AHEAD

    @property
    def waits(self) -> bool:
        """Whether a device is yet to say that it is done."""
        return bool(self._answering)

    def give(self, part: Share) -> None:
        """Deal a part out."""
        lengths = lengths_of(part)
        shares = self._shares(lengths)
        with self._pool.order:
            for device in [one for one, own in enumerate(shares) if len(own) and one not in self._answering]:
                self._answering.add(device)
                self._send(device, Answer(self._number, *self._asked))
        for device, own in enumerate(shares):
            if not len(own):
                continue
            numbers = own + self._count
            self._given[device] = np.concatenate([self._given[device], numbers])
            self._lengths[device] = np.concatenate([self._lengths[device], lengths[own]])
            self._load(device, int(lengths[own].sum()))
            self._unbegun[device] += 1
            self._send(device, Part(self._number, taken(part, own), self._numbers(numbers)))
        self._count += len(part)
        self._last = part

    def heard(self, told: Told) -> Iterator[Answers]:
        """Take what was told; the answers that are in it."""
        if (message := self._pool.heard(told)) is None:
            return
        value, device = message.value, told.device
        match value:
            case Taken():
                self._unbegun[device] -= 1
            case Done():
                self._answering.remove(device)
                if device == 0 or self._parallel is Parallel.DATA:
                    self._lost += self._given[device][list(value.lost)].tolist()
            case Rows():
                self._load(device, -int(self._lengths[device][value.requests].sum()))
                yield self._given[device][value.requests], value.rows
                message.release()

    def end(self) -> None:
        """There are no more parts."""
        for device in sorted(self._answering):
            self._send(device, End(self._number))

    def close(self) -> None:
        """Nobody waits for what is not answered. Devices that sum together finish what they all were given."""
        for device in sorted(self._answering):
            self._send(device, End(self._number, aborted=self._parallel is Parallel.DATA))
        for device, left in enumerate(self._left):
            self._load(device, -int(left))

    def warn(self) -> None:
        """Say which texts were truncated though nobody asked for it."""
        if self._lost and isinstance(self._last, Unread) and self._last.told is not None:
            self._last.told(sorted(self._lost))

    def _shares(self, lengths: NDArray[np.int64]) -> list[Numbers]:
        if self._parallel is Parallel.TENSOR:
            return [np.arange(len(lengths))] * len(self._given)
        return dealt(lengths, self._pool.loads)

    def _numbers(self, requests: Numbers) -> Numbers:
        """What messages call each of them."""
        if self._places.same is None and self._places.texts is None:
            return requests + self._places.first
        return np.array([self._places.number(request) for request in requests.tolist()], np.int64)

    def _load(self, device: int, tokens: int) -> None:
        self._left[device] += tokens
        self._pool.load(device, tokens)

    def _send(self, device: int, message: Any) -> None:
        self._pool.send(self._pool.processes[device], message)
