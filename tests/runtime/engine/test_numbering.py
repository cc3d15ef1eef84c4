"""Messages number a text by its place in all that the caller handed over, in however many pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.runtime.methods import iterating
from headrace.runtime.places import Places
from headrace.runtime.text.encoded import Encoded
from tests.tiny import build
from tests.words import bert_like

ASK: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "embed": ("AutoModel", lambda model: model.embed(["w5", 5]), "Text 1001 is 5"),
    "token_embed": ("AutoModel", lambda model: model.token_embed(["w5", "w5 " * 99]), "Text 1001 has 10.* tokens"),
    "classify": ("AutoModelForSequenceClassification", lambda model: model.classify(["w5", 5]), "Text 1001 is 5"),
    "token_classify": ("AutoModelForTokenClassification", lambda model: model.token_classify(["w5", 5]), "Text 1001"),
    "fill_mask": ("AutoModelForMaskedLM", lambda model: model.fill_mask(["[MASK]", "w5"]), "Text 1001 holds no mask"),
}


@pytest.mark.parametrize("task", ASK)
def test_a_model_that_counts_from_a_number(task: str) -> None:
    head, ask, met = ASK[task]
    model = headrace.compile(build("bert", head), target="reference", tokenizer=bert_like(), pooling="mean")
    with pytest.raises(headrace.InputError, match=met):
        ask(model.counting_from(1000))
    with pytest.raises(headrace.InputError, match=met.replace("1001", "1")):
        ask(model)


def test_an_iterator_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterating, "AHEAD", 2)
    model = headrace.compile(build("bert"), target="reference", tokenizer=bert_like(), pooling="mean")
    texts: Any = ["w5", "w6", "w7", 5]
    coming = model.embed_iter(texts)
    assert len([next(coming), next(coming)]) == 2
    with pytest.raises(headrace.InputError, match="Text 3 is 5"):
        next(coming)


def test_an_answer_that_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = headrace.compile(build("bert"), target="reference", pooling="mean").engine
    broken = np.full((2, 32), np.nan, np.float32)
    broken[0] = 1
    monkeypatch.setattr(engine.backend, "fetch", lambda output: broken)
    requests = [Encoded(np.arange(4)), Encoded(np.arange(3))]
    with pytest.raises(headrace.NonFiniteError, match="request 1001 "):
        engine.run_parts("embed", [requests], 2, places=Places(1000))


def test_pairs_that_are_none() -> None:
    odd: Any = [("a", "b"), "b"]
    model = headrace.compile(build("bert", "AutoModelForSequenceClassification"), target="reference")
    with pytest.raises(headrace.InputError, match="Request 1001 is 'b'"):
        model.counting_from(1000).score(odd)
