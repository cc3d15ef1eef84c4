"""The requests of one call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from headrace.runtime.arrays import Given
from headrace.runtime.places import Numbers, Places
from headrace.runtime.text.encoded import Encoded, Tokens

Request = Encoded | Given
# Some requests as a batcher takes them.
Requests = Tokens | list[Given]
NONE: Numbers = np.empty(0, np.int64)
DONE = Given(np.empty(0, np.float32), 0)


class Asked:
    """The requests of one call, as far as they have come, and what is left of them for the target.

    Attributes:
        batch_size: requests in a step at most.
        places: where they stand in the caller's list.
        lengths: of those that have come, int64 [count].
    """

    def __init__(self, count: int, batch_size: int | None, places: Places) -> None:
        """Nothing has come yet.

        Args:
            count: the requests of the call.
        """
        self.batch_size, self.places = batch_size, places
        self.lengths = np.zeros(count, np.int64)
        self._come = 0
        self._parts = list[Requests | None]()
        self._begins = list[int]()  # of each part
        self._left = list[int]()  # of each part, how many the target has yet to get

    def take(self, part: Sequence[Request]) -> Numbers:
        """Add the next part; returns the places of its requests."""
        begin, end = self._come, self._come + len(part)
        if not len(part):
            return NONE
        held = gathered(part)
        self.lengths[begin:end] = held.lengths if isinstance(held, Tokens) else [one.length for one in held]
        self._parts.append(held)
        self._begins.append(begin)
        self._come = end
        self._left.append(len(part))
        return np.arange(begin, end)

    def of(self, places: Numbers) -> Requests:
        """The requests at those places, in that order."""
        if len(self._parts) == 1:
            return _taken(self._parts[0], places)
        parts = np.searchsorted(self._begins, places, "right") - 1
        rows = [np.flatnonzero(parts == part) for part in np.unique(parts)]
        found = [_taken(self._parts[parts[own[0]]], places[own] - self._begins[parts[own[0]]]) for own in rows]
        if len(found) == 1:
            return found[0]
        # Requests that were left over, and some of those that came after them.
        return _taken(_joined(found), np.argsort(np.concatenate(rows)))

    def drop(self, places: Numbers) -> None:
        """Let go of requests that the target has, so that their memory is freed while it works."""
        if len(self._parts) == 1:
            self._let_go(0, places)
            return
        parts = np.searchsorted(self._begins, places, "right") - 1
        for part in np.unique(parts).tolist():
            self._let_go(part, places[parts == part] - self._begins[part])

    def _let_go(self, part: int, places: Numbers) -> None:
        held = self._parts[part]
        self._left[part] -= len(places)
        if not self._left[part]:
            self._parts[part] = None
        elif isinstance(held, list):  # arrays are large
            for place in places:
                held[place] = DONE


def gathered(requests: Sequence[Request]) -> Requests:
    """Requests of one kind as a batcher takes them."""
    if isinstance(requests, Tokens):
        return requests
    arrays = [one for one in requests if isinstance(one, Given)]
    return arrays or Tokens.of([one for one in requests if isinstance(one, Encoded)])


def _taken(held: Requests | None, places: Numbers) -> Requests:
    assert held is not None, "the target has them"
    return held.take(places) if isinstance(held, Tokens) else [held[place] for place in places]


def _joined(parts: list[Requests]) -> Requests:
    tokens = [part for part in parts if isinstance(part, Tokens)]
    return Tokens.joined(tokens) if tokens else list(chain.from_iterable(parts))  # type: ignore[arg-type]
