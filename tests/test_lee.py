"""MiniLM's vectors of 50 news texts beside what people say: as sentence-transformers', in every precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")

from benchmarks import lee
from benchmarks.lee import PRECISIONS, Row, corpus, correlation, rows, vectors_of
from headrace.errors import LoadError


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three texts, of which people find the first two alike."""
    alike = np.array([[1, 0.9, 0.1], [0, 1, 0.2], [0, 0, 1]])
    monkeypatch.setattr(lee, "corpus", lambda: (["a", "b", "c"], alike))


def test_the_correlation_is_of_each_two_texts(judged: None) -> None:
    vectors = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    cosines = [(1 / np.sqrt(1.01)), 0, 0.1 / np.sqrt(1.01)]
    assert correlation(vectors, "float32") == pytest.approx(np.corrcoef(cosines, [0.9, 0.1, 0.2])[0, 1])


def test_bits_are_compared_as_signs() -> None:
    from sentence_transformers import quantize_embeddings

    vectors = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    for precision in ("binary", "ubinary"):
        stored = quantize_embeddings(vectors, precision=precision)
        np.testing.assert_array_equal(vectors_of(stored, precision), np.where(vectors > 0, 1, -1))


def test_rows_that_differ_in_a_digit_do_not_hold() -> None:
    assert Row("int8", 0.65671, 0.65674).holds
    assert not Row("int8", 0.6567, 0.6568).holds
    assert "DIFFERENT" in str(Row("int8", 0.6567, 0.6568))


def test_other_files_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "lee").mkdir()
    for name in lee.FILES:
        (tmp_path / "lee" / name).write_text("other")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    corpus.cache_clear()
    with pytest.raises(LoadError, match=r"lee\.cor is not that of gensim==4\.4\.0"):
        corpus()


@pytest.mark.slow(reason="fetches gensim's wheel, 28 MB; benchmarks/parity_peers.py's rows of real weights")
@pytest.mark.filterwarnings("ignore")
def test_minilm_is_as_near_to_people_as_sentence_transformers_is() -> None:
    found = rows("reference")
    assert [row.precision for row in found] == list(PRECISIONS)
    assert all(row.holds for row in found), [str(row) for row in found]
    assert round(found[0].ours, 3) == 0.656
