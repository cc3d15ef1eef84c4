"""Make the next parts of some work on a thread while the last is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")
# Tokens in a part. The first is small, so that its use begins soon: one full row of a GPU's and a little. Each next one
# is larger by so much as making is surely faster than use, up to where sorting by length gains no more.
FIRST, GROWTH, LARGEST = 18_000, 1.25, 320_000
# Parts that are on their way at once: one is being made, one waits for the thread, one is about to be used.
AHEAD = 3


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


def made_ahead(items: Iterable[T], make: Callable[[T], U]) -> Iterator[tuple[T, U]]:
    """Each item and what `make` gives for it on a thread, in order, some items ahead of what is asked for.

    The caller's thread draws the items; it makes a single one itself. When the caller stops, so does the thread.
    """
    coming = iter(items)
    first = list(islice(coming, 2))
    if len(first) < 2:
        yield from ((item, make(item)) for item in first)
        return
    thread = ThreadPoolExecutor(1)
    try:
        waiting = deque((item, thread.submit(make, item)) for item in first)
        while waiting:
            waiting.extend((item, thread.submit(make, item)) for item in islice(coming, AHEAD - len(waiting)))
            item, made = waiting.popleft()
            yield item, made.result()
    finally:
        thread.shutdown(cancel_futures=True)
