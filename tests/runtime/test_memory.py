"""Models that are loaded, asked and deleted again and again leave nothing of their weights behind."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import pytest

import headrace
from tests.backends.inductor.test_packages import resident
from tests.tiny import build
from tests.words import bert_like


@pytest.mark.slow
@pytest.mark.parametrize("target", ["reference", "onnx", "cpu"])
def test_fifty_loads_are_as_one(target: str, tmp_path: Path) -> None:
    """Some 20 MB of weights; what torch remembers of a graph that it read is a tenth of a megabyte."""
    if target == "onnx":
        pytest.importorskip("onnxruntime")
    model = build("bert", hidden_size=320, intermediate_size=1280, num_hidden_layers=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", headrace.HeadraceWarning)
        folder = headrace.compile(model, target=target, tokenizer=bert_like()).save(tmp_path / "saved")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    after = []
    for _ in range(50):
        headrace.load(folder, trust=True).embed("w5 w6")
        gc.collect()
        after.append(resident())
    assert after[-1] - after[2] < 1.5 * size, after
