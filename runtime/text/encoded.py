"""Tokenised requests: one, and many in whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

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


@dataclass(frozen=True, eq=False)
class Tokens(Sequence[Encoded]):
    """Many requests in whole arrays: what is done with them takes no step a request.

    Attributes:
        ids: integers [tokens], of one request after another.
        lengths: how many each has, int64 [requests].
        types: token types, integers [tokens], or None for zeros.
        unseen: as of `Encoded`, int64 [requests], or None where each token is attended to.
    """

    ids: NDArray[np.integer[Any]]
    lengths: NDArray[np.int64]
    types: NDArray[np.integer[Any]] | None = None
    unseen: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, requests: Sequence[Encoded]) -> Tokens:
        """Those requests, without their spans."""
        if isinstance(requests, Tokens):
            return requests
        ids, types = [one.ids for one in requests], [one.types for one in requests]
        unseen = [one.unseen for one in requests]
        typed = any(own is not None for own in types)
        return cls(
            np.concatenate(ids) if ids else np.empty(0, np.int64),
            np.fromiter(map(len, ids), np.int64, len(ids)),
            np.concatenate([_or_zeros(own, len(one)) for own, one in zip(types, ids, strict=True)]) if typed else None,
            np.array(unseen, np.int64) if any(unseen) else None,
        )

    @classmethod
    def joined(cls, parts: Sequence[Tokens]) -> Tokens:
        """The requests of one after those of another."""
        typed = any(part.types is not None for part in parts)
        hides = any(part.unseen is not None for part in parts)
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([_or_zeros(part.types, len(part.ids)) for part in parts]) if typed else None,
            np.concatenate([_or_zeros(part.unseen, len(part)) for part in parts]) if hides else None,
        )

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """Where each request begins in `ids`, int64 [requests]."""
        return self.lengths.cumsum() - self.lengths

    def take(self, places: NDArray[np.int64]) -> Tokens:
        """The requests at those places, in that order."""
        if len(self) == len(places) == 1:
            return self
        lengths = self.lengths[places]
        ends = lengths.cumsum()
        total = int(ends[-1]) if len(ends) else 0
        token = np.arange(total) + (self.begins[places] - ends + lengths).repeat(lengths)
        types = None if self.types is None else self.types.take(token)
        return Tokens(self.ids.take(token), lengths, types, None if self.unseen is None else self.unseen[places])

    def __len__(self) -> int:
        """How many requests."""
        return len(self.lengths)

    @overload
    def __getitem__(self, place: int) -> Encoded: ...
    @overload
    def __getitem__(self, place: slice) -> Tokens: ...
    def __getitem__(self, place: int | slice) -> Encoded | Tokens:
        """One request, or some."""
        if isinstance(place, slice):
            return self.take(np.arange(len(self))[place])
        begin, length = int(self.begins[place]), int(self.lengths[place])
        own = slice(begin, begin + length)
        types = None if self.types is None else self.types[own].astype(np.int64, copy=False)
        unseen = 0 if self.unseen is None else int(self.unseen[place])
        return Encoded(self.ids[own].astype(np.int64, copy=False), types, unseen=unseen)


def _or_zeros(values: NDArray[Any] | None, count: int) -> NDArray[Any]:
    return np.zeros(count, np.int64) if values is None else values
