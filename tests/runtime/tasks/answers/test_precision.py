"""Vectors in fewer bits: bit for bit as sentence-transformers makes them of the same floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace import ranges_of
from headrace.errors import HeadraceWarning, InputError
from headrace.runtime.model import CompiledModel
from headrace.runtime.tasks.answers.precision import Precision, quantised, read_precision
from tests.tiny import build
from tests.words import bert_like

st = pytest.importorskip("sentence_transformers")

STEPPED = ("int8", "uint8")
SIGNS = ("binary", "ubinary")
# A dimension that never changes, one of zeros, one far larger than the others, and no multiple of eight of them.
DRAWN = np.random.default_rng(0).standard_normal((200, 21)).astype(np.float32) * np.r_[0, [1] * 19, 1e4].astype("f4")
OTHERS = np.random.default_rng(1).standard_normal((30, 21)).astype(np.float32)


def theirs(vectors: Any, precision: str, **options: Any) -> Any:
    return st.quantize_embeddings(vectors, precision=precision, **options)


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("count", [200, 2, 0])
def test_equals_sentence_transformers(precision: Precision, count: int) -> None:
    with pytest.warns(HeadraceWarning) if count == 2 and precision in STEPPED else _nothing():
        got = quantised(DRAWN[:count], precision)
    expected = theirs(DRAWN[:count], precision)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("precision", STEPPED)
def test_ranges_are_those_of_a_calibration_set(precision: str) -> None:
    """What lies outside of them is the least or the greatest value."""
    kind, ranges = read_precision(precision, ranges_of(OTHERS), 21)
    got = quantised(DRAWN, kind, ranges)
    np.testing.assert_array_equal(got, theirs(DRAWN, precision, calibration_embeddings=OTHERS))
    np.testing.assert_array_equal(got, theirs(DRAWN, precision, ranges=ranges_of(OTHERS)))
    assert {got.min(), got.max()} == ({-128, 127} if precision == "int8" else {0, 255})


@pytest.mark.parametrize("precision", SIGNS)
def test_signs_of_one_vector(precision: str) -> None:
    np.testing.assert_array_equal(quantised(OTHERS[:1], Precision(precision)), theirs(OTHERS[:1], precision))


def test_ranges_of_one_vector_are_refused() -> None:
    with pytest.raises(InputError, match="at least two of them are needed"):
        quantised(OTHERS[:1], Precision.INT8)
    with pytest.raises(InputError, match="at least two of them are needed"):
        ranges_of(OTHERS[0])


@pytest.mark.parametrize(
    ("precision", "ranges", "says"),
    [
        ("int4", None, "precision is 'int4'; choose from float32, int8, uint8, binary, ubinary."),
        ("binary", np.zeros((2, 21)), "ranges are those of int8 and uint8, and precision is binary."),
        (None, np.zeros((2, 21)), "ranges are those of int8 and uint8, and precision is float32."),
        ("int8", np.zeros((2, 20)), "an array [2, 21] of each dimension's least and greatest value is accepted"),
        ("int8", "some", "an array [2, 21] of each dimension's least and greatest value is accepted"),
    ],
)
def test_what_is_refused(precision: Any, ranges: Any, says: str) -> None:
    with pytest.raises(InputError) as refused:
        read_precision(precision, ranges, 21)
    assert says in str(refused.value)


@pytest.fixture(scope="module")
def tiny_bert() -> CompiledModel:
    import headrace

    return headrace.compile(build("bert", num_hidden_layers=1), tokenizer=bert_like(), target="reference")


def test_of_a_models_vectors(tiny_bert: CompiledModel) -> None:
    texts = ["w5 w6", "w7 w8 w9 w10", "w11"]
    vectors = tiny_bert.embed(texts)
    ranges = ranges_of(vectors)
    for precision in STEPPED:
        got = tiny_bert.embed(texts, precision=precision, ranges=ranges)
        np.testing.assert_array_equal(got, theirs(vectors, precision, ranges=ranges))
    for precision in SIGNS:
        got = tiny_bert.embed(texts, precision=precision, dimensions=20)
        np.testing.assert_array_equal(got, theirs(vectors[:, :20], precision))
        streamed = np.stack(list(tiny_bert.embed_iter(iter(texts), precision=precision)))
        np.testing.assert_array_equal(streamed, theirs(vectors, precision))


def test_an_iterator_needs_ranges(tiny_bert: CompiledModel) -> None:
    with pytest.raises(InputError, match="counts between ranges of all vectors"):
        next(tiny_bert.embed_iter(["a"], precision="int8"))


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()
