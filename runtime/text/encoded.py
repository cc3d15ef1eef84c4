"""One tokenised request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.ir import Expansion, Filling
from headrace.runtime.text.spans import Spans


@dataclass(frozen=True, eq=False)
class Encoded:
    """One request.

    Attributes:
        ids: int64 [t].
        types: token types, int64 [t], or None for zeros.
        spans: where they were asked for.
        lost: how many tokens truncation took away.
        unseen: how many tokens at the end none attends to; below zero, at the beginning.
    """

    ids: NDArray[np.int64]
    types: NDArray[np.int64] | None = None
    spans: Spans | None = None
    lost: int = 0
    unseen: int = 0

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return len(self.ids)

    @property
    def whole(self) -> int:
        """How many tokens it had before truncation."""
        return len(self.ids) + self.lost

    def filled(self, filling: Filling) -> Encoded:
        """The request at the length that the model was trained on, without spans."""
        more = max(0, filling.length - len(self.ids))
        sides = (more, 0) if filling.left else (0, more)
        types = None if self.types is None else np.pad(self.types, sides)
        return Encoded(np.pad(self.ids, sides, constant_values=filling.token), types, None, self.lost)

    def expanded(self, expansion: Expansion) -> Encoded:
        """The request as a query that is filled up with tokens that score too."""
        more = max(0, expansion.length - len(self.ids))
        sides = (more, 0) if expansion.left else (0, more)
        types = None if self.types is None else np.pad(self.types, sides)
        ids = np.pad(self.ids, sides, constant_values=expansion.token)
        unseen = 0 if expansion.attends else -more if expansion.left else more
        return Encoded(ids, types, None, self.lost, unseen)

    def only(self, places: list[int]) -> Encoded:
        """The request truncated to those of its tokens."""
        types = None if self.types is None else self.types[places]
        spans = self.spans.only(places) if self.spans else None
        return Encoded(self.ids[places], types, spans, len(self.ids) - len(places))
