"""Where requests stand in the caller's list: their numbers in messages, and those that are there more than once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.ragged import Ragged
from headrace.runtime.text.encoded import Encoded

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Places:
    """The places of requests that are computed.

    Attributes:
        first: the number of the caller's first request in messages.
        same: for each request every place that it answers, ascending; None where each answers its own.
        texts: for each place which of the caller's texts it is a part of, as a window of it or a choice; None where
            each is a text of its own.
    """

    first: int = 0
    same: tuple[tuple[int, ...], ...] | None = None
    texts: Sequence[int] | None = None

    def of(self, request: int) -> tuple[int, ...]:
        """The places that a request answers."""
        return (request,) if self.same is None else self.same[request]

    def number(self, request: int) -> int:
        """What messages call a request: where it first stands, in what the caller gave."""
        place = self.of(request)[0]
        return self.first + (place if self.texts is None else self.texts[place])

    def count(self, requests: Sequence[int] | Numbers) -> int:
        """How many places they answer."""
        return len(requests) if self.same is None else sum(len(self.of(request)) for request in requests)

    def count_texts(self, requests: Sequence[int] | Numbers) -> int:
        """How many of the caller's texts they are, or are parts of."""
        if self.texts is None:
            return self.count(requests)
        return len({self.texts[place] for request in requests for place in self.of(request)})

    def spread(self, answers: list[Any]) -> list[Any]:
        """The answers in the caller's list: arrays of each request, a copy where it stands again."""
        if self.same is None:
            return answers
        made: list[Any] = [None] * self.count(range(len(self.same)))
        for answer, places in zip(answers, self.same, strict=True):
            made[places[0]] = answer
            for place in places[1:]:
                made[place] = answer.copy()
        return made

    def step(self, requests: Numbers, rows: Any) -> tuple[Numbers, Any]:
        """Some requests and their rows, an array or a list, by the caller's places."""
        if self.same is None:
            return requests, rows
        order = [row for row, request in enumerate(requests) for _ in self.of(request)]
        places = [place for request in requests for place in self.of(request)]
        return np.array(places), rows[order] if isinstance(rows, np.ndarray) else [rows[row] for row in order]


# Each request answers its own place.
IN_ORDER = Places()


def once(requests: Sequence[Any], first: int = 0, texts: Sequence[int] | None = None) -> tuple[Sequence[Any], Places]:
    """Each request once, in the order in which they come first, and where it stands; of ids in one array, each.

    Args:
        texts: as of `Places`.
    """
    if isinstance(requests, Ragged):
        return requests, Places(first)
    keys = [one if isinstance(one, str) else _key(one) for one in requests]
    found: dict[Hashable, list[int]] = {}
    if len(set(keys)) == len(keys):
        return requests, Places(first, texts=texts)
    for place, key in enumerate(keys):
        found.setdefault(key, []).append(place)
    same = tuple(map(tuple, found.values()))
    return [requests[places[0]] for places in same], Places(first, same, texts)


def _key(request: Any) -> Hashable:
    """What two requests have in common where one answers for both; of what need not be a request, itself alone."""
    if isinstance(request, Encoded):
        types = None if request.types is None else request.types.tobytes()
        return request.ids.tobytes(), types, request.unseen
    if isinstance(request, (tuple, list)) and (_all_text(request) or _all_numbers(request)):
        return tuple(request)
    if isinstance(request, np.ndarray) and request.ndim == 1 and request.dtype.kind in "iu":
        return tuple(request.tolist())
    return "alone", id(request)


def _all_text(parts: Sequence[Any]) -> bool:
    return all(isinstance(part, str) for part in parts)


def _all_numbers(parts: Sequence[Any]) -> bool:
    # A bool is equal to a number, and is refused where that is not.
    return all(isinstance(part, int) and not isinstance(part, bool) for part in parts)
