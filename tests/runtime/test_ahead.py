"""Work made ahead: in order, on another thread, errors and all."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace.runtime.ahead import FIRST, LARGEST, in_parts, made_ahead


@pytest.mark.parametrize("count", [0, 1, FIRST, FIRST + 1, 3 * FIRST, 3 * FIRST + 1, 4 * LARGEST + 7])
def test_parts_come_in_order_and_hold_everything(count: int) -> None:
    made = list(made_ahead(range(count), lambda begin, part: (begin, list(part))))
    assert [item for _, part in made for item in part] == list(range(count))
    assert [begin for begin, _ in made] == ([begin for begin, _ in in_parts(range(count))] or [0])


def test_the_next_part_is_made_while_the_last_is_used() -> None:
    """The second part's making waits for the first's use, which would never end the other way round."""
    used = threading.Event()

    def make(begin: int, part: Any) -> int:
        assert begin == 0 or used.wait(10)
        return begin

    for begin in made_ahead(range(FIRST + 1), make):
        if begin == 0:
            used.set()


def test_an_error_reaches_the_caller() -> None:
    def make(begin: int, part: Any) -> None:
        if begin:
            raise ValueError("the second part")

    with pytest.raises(ValueError, match="the second part"):
        list(made_ahead(range(FIRST + 1), make))
