"""A request's texts on their way to rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from headrace.runtime.engine.engine import Array
from headrace.runtime.text.encoded import Encoded

NO_ROW: Array = np.empty(0, np.float32)  # until it is there


class Reading(NamedTuple):
    """How texts are read: those that are read alike are read together."""

    pairs: bool = False
    prompt: str | None = None
    truncate: bool = False
    offsets: bool = False
    ids: bool = False


@dataclass(eq=False)
class Job:
    """One request.

    Attributes:
        texts: texts, pairs or lists of ids, as `reading` says.
        arrived: by the monotonic clock.
        encoded: the texts as tokens, of which there are `tokens`.
        rows: the raw output of each.
        begun: how many of them the target was given.
        left: how many of them have no row.
        gone: whether nobody waits for it any more.
    """

    texts: Sequence[Any]
    reading: Reading
    arrived: float = field(default_factory=time.monotonic)
    encoded: list[Encoded] = field(default_factory=list)
    rows: list[Array] = field(default_factory=list)
    begun: int = 0
    left: int = 0
    gone: bool = False
    tokens: int = 0

    def read(self, encoded: list[Encoded]) -> None:
        """Take the texts as tokens."""
        self.encoded, self.rows, self.left = encoded, [NO_ROW] * len(encoded), len(encoded)
        self.tokens = sum(one.length for one in encoded)
