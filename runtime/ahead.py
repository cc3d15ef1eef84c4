"""Make the next part of some work on a thread while the last is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
# The first part is small, so that its use begins soon; each next one is twice as large, for its making to keep up.
FIRST, LARGEST = 256, 2048


def in_parts(items: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
    """Each part and the place where it begins."""
    begin, size = 0, FIRST
    while begin < len(items):
        yield begin, items[begin : begin + size]
        begin, size = begin + size, min(2 * size, LARGEST)


def made_ahead(items: Sequence[Any], make: Callable[[int, Sequence[Any]], T]) -> Iterator[T]:
    """What `make(begin, part)` gives for each part, in order, one part ahead of what is asked for."""
    if len(items) <= FIRST:
        yield make(0, items)
        return
    with ThreadPoolExecutor(1) as thread:
        waiting = None
        for begin, part in in_parts(items):
            following = thread.submit(make, begin, part)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        assert waiting is not None
        yield waiting.result()
