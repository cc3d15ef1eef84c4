"""Requests by their places in the caller's list, and by the texts that they are parts of."""

from __future__ import annotations

from headrace.runtime.places import once


def test_requests_are_numbered_by_what_the_caller_gave() -> None:
    """Two texts in two windows each, of which the second of either are the same."""
    kept, places = once(["a", "b", "c", "b"], 7, [0, 0, 1, 1])
    assert kept == ["a", "b", "c"]
    assert [places.number(request) for request in range(3)] == [7, 7, 8]
    assert (places.count([1, 2]), places.count_texts([1, 2]), places.count_texts([0, 1])) == (3, 2, 2)
    assert places.count_texts([0]) == 1


def test_requests_that_are_texts_are_numbered_by_their_places() -> None:
    kept, places = once(["a", "b", "a"], 2)
    assert kept == ["a", "b"]
    assert [places.number(request) for request in range(2)] == [2, 3]
    assert places.count_texts([0, 1]) == 3
