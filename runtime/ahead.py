"""Make the next parts of some work on threads while the last is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
# Tokens in a part. The first is small, so that its use begins soon: one full row of a GPU's and a little. Each next one
# is larger by so much as making is surely faster than use, up to where sorting by length gains no more.
FIRST, GROWTH, LARGEST = 20_000, 1.25, 320_000
# While one thread waits for work without Python's lock, as tokenizers' libraries do theirs, the other uses it.
THREADS = 2


def in_parts(sizes: Iterable[int]) -> Iterator[range]:
    """The places of each part's items.

    Args:
        sizes: about how many tokens each item has.
    """
    begin, held, most, place = 0, 0, FIRST, -1
    for place, size in enumerate(sizes):
        held += size
        if held >= most:
            yield range(begin, place + 1)
            begin, held, most = place + 1, 0, min(int(GROWTH * most), LARGEST)
    if begin <= place:
        yield range(begin, place + 1)


def made_ahead(parts: Iterable[range], make: Callable[[range], T]) -> Iterator[T]:
    """What `make` gives for each part, in order, some parts ahead of what is asked for.

    A single part is made by the caller's thread. What was not begun when the caller stops is not made.
    """
    coming = iter(parts)
    first = list(islice(coming, 2))
    if len(first) < 2:
        yield from map(make, first)
        return
    threads = ThreadPoolExecutor(THREADS)
    try:
        waiting: deque[Future[T]] = deque(threads.submit(make, part) for part in first)
        while waiting:
            made = waiting.popleft().result()
            waiting.extend(threads.submit(make, part) for part in islice(coming, 1))
            yield made
    finally:
        threads.shutdown(cancel_futures=True)
