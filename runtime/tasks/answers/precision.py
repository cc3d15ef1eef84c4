"""Vectors in fewer bits, bit for bit as sentence-transformers' `quantize_embeddings`. Numpy in, numpy out."""

from __future__ import annotations

import reprlib
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError, warn
from headrace.runtime.text.validate import read_array

Floats = NDArray[np.float32]
STEPS = 255
# From fewer vectors than these, the least and the greatest value of a dimension say little of the next vector's.
FEW = 100


class Precision(StrEnum):
    """What the numbers of a vector are kept in; binary ones are a bit each, eight in a number."""

    FLOAT32 = "float32"
    INT8 = "int8"
    UINT8 = "uint8"
    BINARY = "binary"
    UBINARY = "ubinary"


# What is counted in steps from a dimension's least value to its greatest.
STEPPED = (Precision.INT8, Precision.UINT8)


def read_precision(precision: str | None, ranges: Any, width: int) -> tuple[Precision, Floats | None]:
    """The precision of a name, float32 if None, and the ranges [2, width] as an array.

    Raises:
        InputError: no such precision, ranges of another shape, or ranges of a precision that has no steps.
    """
    if precision is not None and precision not in list(Precision):
        raise InputError(f"precision is {precision!r}; choose from {', '.join(Precision)}.")
    chosen = Precision(precision or Precision.FLOAT32)
    if ranges is None:
        return chosen, None
    if chosen not in STEPPED:
        raise InputError(f"ranges are those of {' and '.join(STEPPED)}, and precision is {chosen}. Leave one out.")
    array, why = read_array(ranges)
    if array is None or array.shape != (2, width) or array.dtype.kind not in "fiu":
        met = why or f"{reprlib.repr(ranges)} of shape {np.shape(ranges)}"
        raise InputError(
            f"ranges is {met}; an array [2, {width}] of each dimension's least and greatest value is accepted, as "
            "`ranges_of(vectors)` gives it."
        )
    return chosen, array.astype(np.float32)


def ranges_of(vectors: Any) -> Floats:
    """Each dimension's least and greatest value in vectors [n, d]: float32 [2, d], what int8 and uint8 count between.

    Raises:
        InputError: they are no vectors, or only one.
    """
    array, why = read_array(vectors)
    if array is None or array.ndim != 2 or len(array) < 2:
        met = why or f"an array of shape {array.shape}" if array is not None else why
        raise InputError(
            f"The vectors to take ranges from are {met}; at least two of them are needed, [n, d]. Pass the ranges of a "
            "representative set."
        )
    found: Floats = np.vstack((array.min(0), array.max(0))).astype(np.float32)
    return found


def require_ranges(precision: str | None, ranges: Any) -> None:
    """Refuse to take ranges from a part of the texts.

    Raises:
        InputError: there are none, and the precision needs them.
    """
    if precision in STEPPED and ranges is None:
        raise InputError(
            f"{precision} counts between ranges of all vectors, which an iterator does not have. Pass "
            "the ranges of a representative set."
        )


def quantised(vectors: Floats, precision: Precision, ranges: Floats | None = None) -> NDArray[Any]:
    """Vectors [n, d] in that precision: int8 or uint8 [n, d], or eight bits a number [n, ceil(d / 8)].

    Args:
        ranges: [2, d]; None takes those of the vectors themselves.

    Raises:
        InputError: ranges are to be taken from a single vector.
    """
    if precision is Precision.FLOAT32:
        return vectors
    if precision in STEPPED:
        return _stepped(vectors, precision, ranges)
    packed = np.packbits(vectors > 0, axis=-1)
    return packed if precision is Precision.UBINARY else (packed - 128).astype(np.int8)


def _stepped(vectors: Floats, precision: Precision, ranges: Floats | None) -> NDArray[Any]:
    kind = np.int8 if precision is Precision.INT8 else np.uint8
    if not len(vectors):
        return vectors.astype(kind)
    if ranges is None:
        ranges = ranges_of(vectors)
        if len(vectors) < FEW:
            warn(
                f"The {precision} vectors count between the least and greatest values of {len(vectors)} vectors, so "
                "that those of another call are not comparable. Pass the ranges of a representative set."
            )
    steps = (ranges[1] - ranges[0]) / STEPS
    counted = np.clip(np.floor((vectors - ranges[0]) / np.where(steps == 0, 1, steps)), 0, STEPS)
    made: NDArray[Any] = (counted - 128 if precision is Precision.INT8 else counted).astype(kind)
    return made
