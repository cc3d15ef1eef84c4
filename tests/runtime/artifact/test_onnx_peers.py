"""Modules of sentence-transformers in an ONNX file: it answers as the model does, without torch's part in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace

pytest.importorskip("sentence_transformers")

from benchmarks.peers import cases

NAMES = [
    "module: CNN",
    "module: StaticEmbedding",
    "module: WordEmbeddings, LSTM",
    "score: LogitScore, gemma2, bare texts",
    "sparse: SpladePooling, sum, log1p_relu",
    "sparse: SparseStaticEmbedding",
    "sparse: SparseAutoEncoder",
    "many vectors: expansion, attended, query",
]
CASES = {f"{case.area}: {case.what}": case for case in cases()}


@pytest.mark.parametrize("name", NAMES)
def test_an_exported_model_answers_as_its_peer(tmp_path: Path, name: str) -> None:
    case: Any = CASES[name]
    model = case.make(tmp_path)
    model.save_pretrained(str(tmp_path / "saved"))
    headrace.trace(tmp_path / "saved").lower("reference").export_onnx(tmp_path / "onnx")
    expected = np.stack([np.asarray(case.theirs(model, one)) for one in case.asked])
    got = np.asarray(case.ours(headrace.load(tmp_path / "onnx"), case.asked))
    np.testing.assert_allclose(got, expected, atol=1e-4, rtol=1e-5)


def test_tokens_that_none_attends_to_have_no_place_by_a_mask(tmp_path: Path) -> None:
    model = CASES["many vectors: expansion, not attended, query"].make(tmp_path)
    with pytest.raises(headrace.ArtifactError, match="finds the places of tokens by the attention mask"):
        headrace.trace(model).lower("reference").export_onnx(tmp_path / "onnx")
