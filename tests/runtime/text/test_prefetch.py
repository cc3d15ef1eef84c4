"""Work made ahead: in order, on another thread, errors and all."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.runtime.text.prefetch import AHEAD, PACKED, WHOLE, Sizes, in_parts, made_ahead, padded, parts_of

FIRST, LARGEST = int(PACKED.first), int(PACKED.largest)


@pytest.mark.parametrize("tokens", [[], [1], [FIRST], [FIRST + 1, 1], [100] * 5000, [LARGEST] * 9, [FIRST // 3] * 20])
@pytest.mark.parametrize("sizes", [PACKED, WHOLE, padded(512), padded(16384)])
def test_parts_come_in_order_and_hold_everything(tokens: list[int], sizes: Sizes) -> None:
    parts = list(in_parts(tokens, sizes))
    assert list(parts_of(np.array(tokens, np.int64), sizes)) == parts
    assert [place for part in parts for place in part] == list(range(len(tokens)))
    assert all(parts)
    assert sizes is not WHOLE or len(parts) == bool(tokens)


def test_the_first_part_is_small_and_the_others_grow() -> None:
    lengths = [10 * len(part) for part in in_parts([10] * 500_000, PACKED)]
    assert lengths[0] == FIRST
    assert FIRST < lengths[1] < 2 * FIRST
    assert lengths[:-1] == sorted(lengths[:-1])
    assert max(lengths) == LARGEST


@pytest.mark.parametrize("step_tokens", [512, 4096, 16384])
def test_parts_that_are_padded_hold_many_steps(step_tokens: int) -> None:
    assert all(10 * len(part) >= 8 * step_tokens for part in list(in_parts([10] * 500_000, padded(step_tokens)))[:-1])


def test_parts_are_cut_without_looking_at_what_comes_after() -> None:
    looked: list[int] = []

    def tokens() -> Iterator[int]:
        for place in range(10):
            looked.append(place)
            yield FIRST

    assert next(in_parts(tokens(), PACKED)) == range(1)
    assert looked == [0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 9])
def test_what_is_made_comes_in_order(count: int) -> None:
    assert list(made_ahead(range(count), str)) == [(item, str(item)) for item in range(count)]


def test_the_next_are_made_on_a_thread_while_the_last_is_used() -> None:
    """The second waits for the use of the first, which would never end the other way round."""
    used = threading.Event()

    def make(item: int) -> int:
        assert item == 0 or used.wait(10)
        return threading.get_ident()

    threads = set()
    for item, thread in made_ahead(range(9), make):
        threads.add(thread)
        if item == 0:
            used.set()
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_items_are_drawn_by_the_callers_thread_some_ahead() -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for item in range(9):
            drawn.append(threading.get_ident())
            yield item

    made = made_ahead(items(), str)
    next(made)
    assert len(drawn) == AHEAD
    next(made)
    assert len(drawn) == AHEAD + 1
    assert set(drawn) == {threading.get_ident()}


def test_an_error_reaches_the_caller_after_what_came_before() -> None:
    def make(item: int) -> int:
        if item == 3:
            raise ValueError("the fourth part")
        return item

    made = made_ahead(range(9), make)
    assert [next(made)[1] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the fourth part"):
        next(made)


def test_who_stops_asking_ends_the_work() -> None:
    begun: list[int] = []
    before = set(threading.enumerate())
    made = made_ahead(range(9), begun.append)
    next(made)
    assert set(threading.enumerate()) - before
    made.close()
    assert max(begun) < AHEAD
    assert not set(threading.enumerate()) - before
