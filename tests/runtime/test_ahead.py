"""Work made ahead: in order, on other threads, errors and all."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headrace.runtime.ahead import FIRST, LARGEST, in_parts, made_ahead

PARTS = [range(place, place + 1) for place in range(9)]


@pytest.mark.parametrize("sizes", [[], [1], [FIRST], [FIRST + 1, 1], [100] * 5000, [LARGEST] * 9, [FIRST // 3] * 20])
def test_parts_come_in_order_and_hold_everything(sizes: list[int]) -> None:
    parts = list(in_parts(sizes))
    assert [place for part in parts for place in part] == list(range(len(sizes)))
    assert all(parts)


def test_the_first_part_is_small_and_the_others_grow() -> None:
    lengths = [100 * len(part) for part in in_parts([100] * 50_000)]
    assert lengths[0] == FIRST
    assert FIRST < lengths[1] < 2 * FIRST
    assert lengths[:-1] == sorted(lengths[:-1])
    assert max(lengths) == LARGEST


def test_parts_are_cut_without_looking_at_what_comes_after() -> None:
    looked: list[int] = []

    def sizes() -> Iterator[int]:
        for place in range(10):
            looked.append(place)
            yield FIRST

    assert next(in_parts(sizes())) == range(1)
    assert looked == [0]


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_what_is_made_comes_in_order(count: int) -> None:
    assert list(made_ahead(PARTS[:count], lambda part: part.start)) == list(range(count))


def test_the_next_part_is_made_while_the_last_is_used() -> None:
    """The third part's making waits for the first's use, which would never end the other way round."""
    used = threading.Event()

    def make(part: range) -> int:
        assert part.start < 2 or used.wait(10)
        return part.start

    for begin in made_ahead(PARTS, make):
        if begin == 0:
            used.set()


def test_an_error_reaches_the_caller_after_what_came_before() -> None:
    def make(part: range) -> int:
        if part.start == 3:
            raise ValueError("the fourth part")
        return part.start

    made = made_ahead(PARTS, make)
    assert [next(made) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the fourth part"):
        next(made)


def test_who_stops_asking_ends_the_work() -> None:
    begun: list[int] = []
    made = made_ahead(PARTS, lambda part: begun.append(part.start))
    next(made)
    made.close()
    assert max(begun) <= 3
