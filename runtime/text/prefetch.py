"""Make the next parts of some work on a thread while the last is used."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
U = TypeVar("U")
# Parts that are on their way at once: one is being made, one waits for the thread, one is about to be used.
AHEAD = 3


@dataclass(frozen=True)
class Sizes:
    """Tokens in a part.

    Attributes:
        first: in the first, which is small where its use should begin soon.
        growth: by what each next one is larger: by no more than making is surely faster than use.
        largest: at most; beyond, sorting by length gains nothing.
    """

    first: float
    growth: float = 1.25
    largest: float = 320_000


# Packed rows are full whichever requests they hold: one full row of a GPU's, and a little.
PACKED = Sizes(18_000)
WHOLE = Sizes(math.inf)


def padded(step_tokens: int) -> Sizes:
    """Parts of requests that are padded: of many steps, so that requests of like length meet in each."""
    return Sizes(max(PACKED.first, 8 * step_tokens), 2, max(PACKED.largest, 32 * step_tokens))


def in_parts(tokens: Iterable[int], sizes: Sizes) -> Iterator[range]:
    """The places of each part's items.

    Args:
        tokens: about how many each item has.
    """
    begin, held, most, place = 0, 0, sizes.first, -1
    for place, count in enumerate(tokens):
        held += count
        if held >= most:
            yield range(begin, place + 1)
            begin, held, most = place + 1, 0, min(sizes.growth * most, sizes.largest)
    if begin <= place:
        yield range(begin, place + 1)


def parts_of(lengths: NDArray[np.int64], sizes: Sizes) -> Iterator[range]:
    """`in_parts` of items whose tokens are known: no step an item."""
    if len(lengths) == 1:
        yield range(1)
        return
    ends, begin, held, most = lengths.cumsum(), 0, 0, sizes.first
    while begin < len(lengths):
        end = min(len(lengths), int(np.searchsorted(ends, held + most)) + 1)
        yield range(begin, end)
        begin, held, most = end, int(ends[end - 1]), min(sizes.growth * most, sizes.largest)


def made_ahead(items: Iterable[T], make: Callable[[T], U]) -> Iterator[tuple[T, U]]:
    """Each item and what `make` gives for it on a thread, in order, some items ahead of what is asked for.

    The caller's thread draws the items; it makes a single one itself. When the caller stops, so does the thread. In a
    forked child, which has no such thread, it makes what is left.
    """
    coming = iter(items)
    first = list(islice(coming, 2))
    if len(first) < 2:
        yield from ((item, make(item)) for item in first)
        return
    thread, maker = ThreadPoolExecutor(1), os.getpid()
    try:
        waiting = deque((item, thread.submit(make, item)) for item in first)
        while waiting:
            if os.getpid() != maker:
                yield from ((item, make(item)) for item in chain((item for item, _ in waiting), coming))
                return
            waiting.extend((item, thread.submit(make, item)) for item in islice(coming, AHEAD - len(waiting)))
            item, made = waiting.popleft()
            yield item, made.result()
    finally:
        if os.getpid() == maker:
            thread.shutdown(cancel_futures=True)
