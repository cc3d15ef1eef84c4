"""The requests of a call: held by their places, over parts, until the target has them."""

from __future__ import annotations

import numpy as np

from headrace.runtime.arrays import Given
from headrace.runtime.engine.request import Asked
from headrace.runtime.places import IN_ORDER
from headrace.runtime.text.encoded import Encoded, Tokens


def test_requests_of_several_parts_come_in_the_order_that_is_asked_for() -> None:
    asked = Asked(5, None, IN_ORDER)
    assert asked.take([Encoded(np.array([1, 2])), Encoded(np.array([3]))]).tolist() == [0, 1]
    typed = Encoded(np.array([4, 5, 6]), np.array([0, 1, 1]), unseen=2)
    assert asked.take(Tokens.of([typed, Encoded(np.array([7]))])).tolist() == [2, 3]
    assert asked.take([]).tolist() == []
    assert asked.take([Encoded(np.array([8, 9]))]).tolist() == [4]
    assert asked.lengths.tolist() == [2, 1, 3, 1, 2]
    found = asked.of(np.array([4, 2, 0, 1]))
    assert isinstance(found, Tokens)
    assert [one.ids.tolist() for one in found] == [[8, 9], [4, 5, 6], [1, 2], [3]]
    assert [one.types.tolist() for one in found if one.types is not None] == [[0, 0], [0, 1, 1], [0, 0], [0]]
    assert [one.unseen for one in found] == [0, 2, 0, 0]
    asked.drop(np.array([1, 0, 3]))
    assert [one.ids.tolist() for one in asked.of(np.array([2, 4]))] == [[4, 5, 6], [8, 9]]


def test_arrays_are_let_go_one_by_one() -> None:
    asked = Asked(3, None, IN_ORDER)
    arrays = [Given(np.full((2, 2), place, np.float32), 2) for place in range(3)]
    asked.take(arrays)
    assert asked.of(np.array([2, 0])) == [arrays[2], arrays[0]]
    asked.drop(np.array([0]))
    assert asked._parts[0][0].length == 0
    asked.drop(np.array([1, 2]))
    assert asked._parts == [None]


def test_some_of_many_and_one() -> None:
    many = Tokens.of([Encoded(np.array([1, 2])), Encoded(np.array([3, 4, 5], np.int64))])
    assert len(many) == 2
    assert [one.ids.tolist() for one in many[1:]] == [[3, 4, 5]]
    assert many[-1].ids.tolist() == [3, 4, 5]
    assert Tokens.of(many) is many
    assert Tokens.of([]).lengths.tolist() == []
