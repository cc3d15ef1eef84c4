"""The requests of one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.runtime.arrays import Given
from headrace.runtime.places import Places
from headrace.runtime.text.encoded import Encoded

Request = Encoded | Given
DONE = Encoded(np.empty(0, np.int64))


@dataclass(frozen=True)
class Asked:
    """The requests of one call, as far as they have come, and their lengths.

    Attributes:
        places: where they stand in the caller's list.
    """

    requests: list[Request]
    lengths: list[int]
    batch_size: int | None
    places: Places

    def take(self, part: Sequence[Request]) -> range:
        """Add the next part; returns its places."""
        begin = len(self.requests)
        self.requests.extend(part)
        self.lengths.extend(request.length for request in part)
        return range(begin, len(self.requests))

    def drop(self, places: Iterable[int]) -> None:
        """Let go of requests that the target has, so that their memory is freed while it works."""
        for place in places:
            self.requests[place] = DONE
