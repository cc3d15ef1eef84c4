"""What a program of the cached form keeps between steps: which caches, of what, and how long each is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Any, NamedTuple

from headrace.ir.attention import MaskKind

# What a number of each dtype takes, by torch's names.
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1}
# The dtype of keys and values in eight bits, as codes: what moves a cache need not know what they stand for.
CODES = "uint8"


class CacheKind(StrEnum):
    """How a cache lies.

    PAGED has a row a token, in blocks that sequences are given as they grow: [blocks, block size, *sizes].
    ROW has one state a sequence: [rows, *sizes].
    """

    PAGED = "paged"
    ROW = "row"


class CacheGroup(NamedTuple):
    """The paged caches that are read alike: one block table serves all. CROSS holds an encoder's rows, all seen.

    Attributes:
        left: keys that a query sees before itself, of a chunk its length less one; -1 without bound.
    """

    name: str
    kind: MaskKind
    left: int = -1

    def first_key(self, context: int) -> int:
        """The first key that any token from `context` on sees: no later step asks for those before it."""
        if self.left < 0:
            return 0
        chunk = self.left + 1
        return context // chunk * chunk if self.kind is MaskKind.CHUNKED else max(0, context - self.left)


CROSS = CacheGroup("cross", MaskKind.BIDIRECTIONAL)


class CacheDtype(StrEnum):
    """In what keys and values are kept, where it is not the program's dtype.

    FP8: float8_e4m3fn, each token's head with a scale of its own (`headrace.ops.cached`).
    """

    FP8 = "fp8"


@dataclass(frozen=True)
class QuantizedCaches:
    """Keys and values that are kept in fewer bits, and what that costs the program's answers.

    Attributes:
        before: bytes that a token's keys and values took in the program's dtype, of all layers.
        after: bytes that they take, their scales with them.
        tokens: answers that were held against those of the program that keeps them whole, of sample texts.
        worst: the least cosine between the two; `mean` of all of them.
        same: how many of those tokens are most likely followed by the same token; None where the program makes none.
    """

    dtype: CacheDtype
    before: int
    after: int
    tokens: int
    worst: float
    mean: float
    same: int | None = None


@dataclass(frozen=True)
class Cache:
    """One cache, an input that the program writes in place.

    Attributes:
        sizes: heads and width of a paged one's rows, or heads alone of their scales; those of a state.
        group: the group of a paged one.
    """

    name: str
    kind: CacheKind
    sizes: tuple[int, ...]
    dtype: str
    group: str | None = None


def cross_parts(caches: Sequence[Cache], rows: Any) -> Iterator[tuple[str, Any]]:
    """What each cache of an encoder's rows holds of them: [S, W], side by side in the caches' order, to [S, *sizes]."""
    begin = 0
    for cache in caches:
        if cache.group == CROSS.name:
            width = prod(cache.sizes)
            yield cache.name, rows[:, begin : begin + width].reshape(len(rows), *cache.sizes)
            begin += width
