"""Vectors: at unit length, and how near they are. Numpy in, numpy out."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import InputError
from headrace.ir import OutputKind, Program, Similarity
from headrace.runtime.tasks.sparse_embed import SparseVectors
from headrace.runtime.text.validate import read_array

Floats = NDArray[np.float32]
NOWHERE = -1e9
# What compares texts of many vectors.
MANY = (Similarity.MAXSIM, Similarity.MEANMAXSIM)
Doubles = NDArray[np.float64]


def normalise(vectors: ArrayLike) -> Floats:
    """Vectors [..., d] at unit length; a zero vector stays zero."""
    values = np.asarray(vectors, np.float64)  # squares of large float32 values overflow
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    unit: Floats = (values / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit


def similarity(a: ArrayLike, b: ArrayLike, by: Similarity = Similarity.COSINE) -> Floats:
    """How near vectors [n, d] and [m, d] are, [n, m]; a single vector [d] counts as one row.

    Args:
        by: what compares them; distances come negated, so that more is nearer.

    Raises:
        InputError: vectors of different widths.
    """
    if by in MANY:
        return interactions(_several(a), _several(b), by is Similarity.MEANMAXSIM)
    compared: Floats = COMPARED[by](*_compared(a, b)).astype(np.float32)
    return compared


def compared_by(program: Program, given: Any) -> Similarity:
    """What compares a model's answers of that form.

    Where a model makes a vector of a text, and others beside it, those of its tokens are compared by what the facts say
    of them, and their weights by the products of those of one token.
    """
    facts = program.facts
    if facts.similarity in MANY:
        return facts.similarity
    if isinstance(given, SparseVectors) and program.signature.output(OutputKind.LEXICAL_WEIGHTS) is not None:
        return Similarity.DOT
    many = isinstance(given, (list, tuple)) and bool(given) and getattr(given[0], "ndim", 0) == 2
    return facts.interaction.similarity if many and facts.interaction is not None else facts.similarity


def maxsim(query: Floats, document: Floats) -> float:
    """For each vector of the query [q, d] the nearest of the document's [t, d], and their sum.

    A document without a vector is behind every other, as far as sentence-transformers puts it.
    """
    if not len(document):
        return NOWHERE
    if not len(query):
        return 0.0
    return float((query.astype(np.float32) @ document.astype(np.float32).T).max(1).sum(dtype=np.float32))


def interactions(a: Sequence[Floats], b: Sequence[Floats], by_mean: bool) -> Floats:
    """How near each text of `a` is to each of `b`, [n, m]: sums over a text's vectors, or their mean."""
    found = np.array([[maxsim(query, document) for document in b] for query in a], np.float32)
    found = found.reshape(len(a), len(b))
    counts = np.array([max(1, len(query)) for query in a], np.float32)
    return found / counts[:, None] if by_mean else found


def _several(given: Any) -> list[Floats]:
    """Texts of many vectors [t, d] each; one alone as a list of one."""
    listed = [given] if getattr(given, "ndim", 0) == 2 else list(given)
    return [_numbers(one).astype(np.float32) for one in listed]


def similarity_pairwise(a: ArrayLike, b: ArrayLike, by: Similarity = Similarity.COSINE) -> Floats:
    """How near each of vectors [n, d] is to the one in its place, [n]; else as `similarity`.

    Raises:
        InputError: vectors of different widths, or another number of them.
    """
    many = by in MANY
    left, right = (_several(a), _several(b)) if many else _compared(a, b)
    if len(left) != len(right):
        raise InputError(f"{len(left)} vectors and {len(right)} make no pairs; as many of each are accepted.")
    if many:
        pairs = zip(left, right, strict=True)
        return np.array(
            [interactions([one], [two], by is Similarity.MEANMAXSIM)[0, 0] for one, two in pairs], np.float32
        )
    paired = [COMPARED[by](one[None], two[None])[0, 0] for one, two in zip(left, right, strict=True)]
    return np.array(paired, np.float32)


def _compared(a: ArrayLike, b: ArrayLike) -> tuple[Doubles, Doubles]:
    try:
        left, right = (np.atleast_2d(_numbers(given)).astype(np.float64) for given in (a, b))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # a tensor refuses by the last
        raise InputError(
            f"{reprlib.repr(a)} and {reprlib.repr(b)} cannot be compared as vectors ({error}); arrays [n, d] of "
            "numbers are accepted, as embed returns them."
        ) from error
    if left.shape[-1] != right.shape[-1] or left.ndim != 2 or right.ndim != 2:
        raise InputError(
            f"Vectors of shape {np.shape(a)} and {np.shape(b)} cannot be compared; [n, d] and [m, d] of one width "
            "are accepted."
        )
    return left, right


def _cosines(left: Doubles, right: Doubles) -> Doubles:
    return _dots(*(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12) for rows in (left, right)))


def _dots(left: Doubles, right: Doubles) -> Doubles:
    dots: Doubles = left @ right.T
    return dots


def _distances(order: int, left: Doubles, right: Doubles) -> Doubles:
    """Negated, a row at a time: the differences of all with all take a width's times more memory."""
    rows = [-np.linalg.norm(row - right, ord=order, axis=-1) for row in left]
    return np.stack(rows) if rows else np.empty((0, len(right)))


COMPARED: dict[Similarity, Callable[[Doubles, Doubles], Doubles]] = {
    Similarity.COSINE: _cosines,
    Similarity.DOT: _dots,
    Similarity.EUCLIDEAN: partial(_distances, 2),
    Similarity.MANHATTAN: partial(_distances, 1),
}


def _numbers(given: Any) -> NDArray[Any]:
    array, why = read_array(given.to_pylist() if hasattr(given, "to_pylist") else given)  # a column of Arrow's
    if array is None:
        raise TypeError(why)
    if array.ndim == 1 and not array.size:
        return array.reshape(0, 0)  # no vectors, not one of no width
    if not array.ndim:
        raise TypeError("a vector has an axis")
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{array.dtype} values are no real numbers")
    return array
