"""What workers ask and are told most often, as bytes: arrays as they lie in memory, so that no object is rebuilt."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.engine.engine import Array
from headrace.runtime.places import Numbers
from headrace.runtime.text.encoded import Tokens

# What lies in memory, and may be sent.
Parts = list[bytes | memoryview]
# What goes before the arrays of each kind of message.
RUN, ROWS = struct.Struct("<QQQQQ??6x"), struct.Struct("<QQQ")


class Run(NamedTuple):
    """Requests to run.

    Attributes:
        runner: of which task of which model, by the worker's number of it.
        first: the worker's number of the first; the others follow.
        counts: texts of each, int64 [requests].
        tokens: of all texts.
    """

    runner: int
    first: int
    counts: Numbers
    tokens: Tokens

    def parts(self) -> Parts:
        """As bytes."""
        ids, lengths, types, unseen = (getattr(self.tokens, name) for name in ("ids", "lengths", "types", "unseen"))
        sizes = (len(self.counts), len(lengths), len(ids), types is not None, unseen is not None)
        arrays = [self.counts, lengths, ids, *(one for one in (types, unseen) if one is not None)]
        return [RUN.pack(self.runner, self.first, *sizes), *map(_int64, arrays)]

    @classmethod
    def of(cls, body: memoryview) -> Self:
        """Of bytes, in which its arrays stay."""
        runner, first, requests, texts, count, typed, hides = RUN.unpack_from(body)
        taken = _Taken(body, RUN.size)
        counts, lengths, ids = taken.int64(requests), taken.int64(texts), taken.int64(count)
        types, unseen = taken.int64(count) if typed else None, taken.int64(texts) if hides else None
        return cls(runner, first, counts, Tokens(ids, lengths, types, unseen))


class Rows(NamedTuple):
    """Rows of one width of requests that are over.

    Attributes:
        numbers: the worker's, of each request, int64.
        counts: rows of each, int64.
        rows: one array or several, one after another's: float32 [rows, width].
    """

    numbers: Numbers
    counts: Numbers
    rows: Sequence[Array]

    def parts(self) -> Parts:
        """As bytes."""
        sizes = (len(self.numbers), sum(map(len, self.rows)), self.rows[0].shape[1])
        rows = [_bytes(np.ascontiguousarray(part, np.float32)) for part in self.rows]
        return [ROWS.pack(*sizes), _int64(self.numbers), _int64(self.counts), *rows]

    @classmethod
    def of(cls, body: memoryview) -> Self:
        """Of bytes, in which its arrays stay."""
        requests, count, width = ROWS.unpack_from(body)
        taken = _Taken(body, ROWS.size)
        numbers, counts = taken.int64(requests), taken.int64(requests)
        return cls(numbers, counts, [np.frombuffer(body, np.float32, count * width, taken.at).reshape(count, width)])

    def each(self) -> Iterator[tuple[int, Array]]:
        """Each request's number and its rows."""
        (rows,), begin = self.rows, 0
        for number, count in zip(self.numbers.tolist(), self.counts.tolist(), strict=True):
            yield number, rows[begin : (begin := begin + count)]


class _Taken:
    """Arrays that lie one after another."""

    def __init__(self, body: memoryview, at: int) -> None:
        self._body, self.at = body, at

    def int64(self, count: int) -> Numbers:
        begin, self.at = self.at, self.at + 8 * count
        return np.frombuffer(self._body, np.int64, count, begin)


def _int64(array: NDArray[np.integer]) -> memoryview:
    return _bytes(np.ascontiguousarray(array, np.int64))


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
