"""One tokenised request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.text.spans import Spans


@dataclass(frozen=True, eq=False)
class Encoded:
    """One request: token ids int64 [t], token types int64 [t] or None for zeros, spans where they were asked for."""

    ids: NDArray[np.int64]
    types: NDArray[np.int64] | None = None
    spans: Spans | None = None

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return len(self.ids)

    def only(self, places: list[int]) -> Encoded:
        """The request with those of its tokens alone."""
        types = None if self.types is None else self.types[places]
        return Encoded(self.ids[places], types, self.spans.only(places) if self.spans else None)
