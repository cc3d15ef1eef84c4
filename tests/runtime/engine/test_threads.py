"""Models made, compiled, loaded and asked on several threads at once answer as on one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from typing import Any, TypeVar

import numpy as np
import pytest

import headrace
from tests.tiny import build
from tests.words import bert_like

T = TypeVar("T")
TEXTS = ["w5 w6 w7", "w8", "w9 w10 w11 w12 w13 w14"]
HEADS = ["AutoModelForSequenceClassification", "AutoModelForTokenClassification", "AutoModelForMaskedLM"]


def at_once(work: Callable[[int], T], count: int = 3) -> list[T]:
    together = Barrier(count)

    def one(number: int) -> T:
        together.wait()
        return work(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


def compiled(target: str = "reference", head: str = "AutoModel") -> Any:
    return headrace.compile(build("bert", head), target=target, tokenizer=bert_like())


def test_models_are_compiled_at_once() -> None:
    # Alone first: torch 2.11 built for CUDA crashes where no GPU is and the first thread that exported has ended.
    wanted = [compiled(head=head)([[0, 5, 2]])[0] for head in HEADS]
    for row, other in zip(at_once(lambda number: compiled(head=HEADS[number])([[0, 5, 2]])[0]), wanted, strict=True):
        np.testing.assert_array_equal(row, other)


@pytest.mark.parametrize("target", ["reference", "onnx"])
def test_the_first_calls_for_a_task_come_at_once(target: str) -> None:
    if target == "onnx":
        pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")
    model = compiled(target)
    made: list[Any] = []
    compile_ = model.engine.backend.compile

    def counted(program: Any) -> Any:
        made.append(program)
        return compile_(program)

    model.engine.backend.compile = counted
    wanted = compiled().token_embed(TEXTS)
    for rows in at_once(lambda _: model.token_embed(TEXTS)):
        for row, other in zip(rows, wanted, strict=True):
            np.testing.assert_allclose(row, other, atol=1e-5)
    assert len(made) == 1


def test_a_model_is_loaded_at_once(tmp_path: Path) -> None:
    model = compiled()
    model.save(tmp_path / "saved")
    for vectors in at_once(lambda _: headrace.load(tmp_path / "saved").embed(TEXTS)):
        np.testing.assert_array_equal(vectors, model.embed(TEXTS))


def test_a_model_answers_while_another_is_compiled() -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")
    model, done = compiled(), Event()
    wanted = model.embed(TEXTS)

    def serve() -> int:
        count = 0
        while not done.is_set():
            np.testing.assert_array_equal(model.embed(TEXTS), wanted)
            count += 1
        return count

    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(serve)
        try:
            for head in HEADS:
                compiled("onnx", head)
        finally:
            done.set()
        assert served.result() > 0
