"""Things that are no texts and no ids, in every task and option: an answer or an error of ours, whatever they are."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest

import headrace
from tests.fuzz.inputs import call
from tests.tiny import build
from tests.words import bert_like

HEADS = ("AutoModel", "AutoModelForTokenClassification", "AutoModelForSequenceClassification", "AutoModelForMaskedLM")


def models(target: str, heads: tuple[str, ...]) -> list[Any]:
    if target == "onnx":
        pytest.importorskip("onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", headrace.HeadraceWarning)
        return [headrace.compile(build("bert", head), target=target, tokenizer=bert_like()) for head in heads]


def endured(asked: list[Any], seed: int) -> None:
    draw = random.Random(seed)
    what, made = call(draw.choice(asked), draw)
    try:
        made()
    except headrace.HeadraceError:
        return
    except Exception as error:
        raise AssertionError(f"{seed}: {what}") from error


@pytest.mark.filterwarnings("ignore")
def test_bad_inputs_end_in_an_error_of_ours() -> None:
    asked = models("reference", HEADS[:2])
    for seed in range(300):
        endured(asked, seed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", ["reference", "onnx", "cpu"])
def test_so_do_many(target: str) -> None:
    asked = models(target, HEADS)
    for seed in range(1000, 2400):
        endured(asked, seed)
