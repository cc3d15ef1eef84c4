"""Requests on their way to rows: one as its route waits for it, and those that were read together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.engine.engine import Array
from headrace.runtime.engine.padded_batch import Rows
from headrace.runtime.places import Numbers
from headrace.runtime.text.encoded import Encoded, Tokens

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
        encoded: the texts as tokens.
        rows: the raw output of each.
        gone: whether nobody waits for it any more.
        lot: those that it was read with, None before; it has the place `place` there.
    """

    texts: Sequence[Any]
    reading: Reading
    arrived: float = field(default_factory=time.monotonic)
    encoded: Sequence[Encoded] = ()
    rows: Rows = ()
    gone: bool = False
    lot: Lot | None = None
    place: int = 0

    @cached_property
    def tokens(self) -> int:
        """How many tokens its texts have, once they are read."""
        return sum(one.length for one in self.encoded)


@dataclass(eq=False)
class Lot:
    """Requests that were read together, in whole arrays: what runs them takes no step a request.

    Attributes:
        tokens: of all texts, those of one request after those of another.
        counts: texts of each request, int64 [requests].
        arrived: when the oldest of them came to the process that runs them, by the monotonic clock.
        gone: the places of those for which nobody waits any more: what of them has not begun does not begin.
        whole: whether all were answered at once.
    """

    tokens: Tokens
    counts: Numbers
    arrived: float
    gone: set[int] = field(default_factory=set)
    whole: bool = False

    @cached_property
    def ends(self) -> Numbers:
        """Behind the last text of each request, int64 [requests]."""
        return self.counts.cumsum()

    @cached_property
    def requests(self) -> Numbers:
        """Whose each text is, int64 [texts]."""
        return np.arange(len(self.counts)).repeat(self.counts)

    @cached_property
    def answered(self) -> NDArray[np.bool_]:
        """Whether each text has its row, bool [texts]; kept where rows come in parts."""
        return np.zeros(len(self.tokens), np.bool_)

    @cached_property
    def _left(self) -> Numbers:
        """How many texts of each request have no row, int64 [requests]."""
        return self.counts.copy()

    @cached_property
    def _rows(self) -> list[Array]:
        """Of each text, where they come in parts."""
        return [NO_ROW] * len(self.tokens)

    def put(self, texts: Numbers, rows: Rows) -> Done | None:
        """Take the rows of some texts, by their places in order; what is whole by that."""
        if len(texts) == len(self.tokens):
            self.whole = True
            return Done(self, np.arange(len(self.counts)), rows)
        for text, row in zip(texts.tolist(), rows, strict=True):
            self._rows[text] = row
        self.answered[texts] = True
        of = self.requests[texts]
        np.subtract.at(self._left, of, 1)
        whole = np.unique(of[self._left[of] == 0])
        if not len(whole):
            return None
        return Done(self, whole, [self._rows[text] for text in np.flatnonzero(np.isin(self.requests, whole)).tolist()])


class Done(NamedTuple):
    """Requests of a lot that are over, by their places, and the rows of their texts or what went wrong."""

    lot: Lot
    places: Numbers
    rows: Rows = ()
    error: Exception | None = None
