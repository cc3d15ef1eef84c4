"""Damaged saved models: loading, asking and inspecting one ends in an answer or in an error of ours."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.runtime.tools.cli.commands.onnx import describe
from tests.fuzz.damage import damage
from tests.tiny import build
from tests.words import bert_like

TEXTS = ["w5 w6", "w7"]


class Saved:
    """A saved model, and what it answers whole."""

    def __init__(self, target: str, head: str, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", headrace.HeadraceWarning)
            model = headrace.compile(build("bert", head), target=target, tokenizer=bert_like())
        self.folder = model.save(folder / "saved")
        self.whole = self.answer(self.folder)

    @staticmethod
    def answer(folder: Path) -> str:
        model = headrace.load(folder, trust=True)
        tasks: dict[str, Callable[[list[str]], Any]] = {
            "embed": model.embed,
            "classify": model.classify,
            "token_classify": model.token_classify,
        }
        return repr(tasks[model.task or "embed"](TEXTS))


@pytest.fixture(scope="module")
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    target, head = request.param
    if target == "onnx":
        pytest.importorskip("onnxruntime")
    return Saved(target, head, tmp_path_factory.mktemp("damage"))


def endured(saved: Saved, seed: int, tmp_path: Path) -> None:
    """One copy, damaged in one way. Bytes that the manifest vouches for change no answer; its facts may."""
    folder = Path(shutil.copytree(saved.folder, tmp_path / "copy"))
    what = damage(folder, random.Random(seed))
    try:
        for work in (Saved.answer, describe):
            try:
                found = work(folder)
            except headrace.HeadraceError:
                continue
            facts = any(f"{how} /" in what for how in ("value", "near", "drop", "add", "swap"))
            assert work is describe or facts or found == saved.whole, (seed, what)
    except Exception as error:
        raise AssertionError(f"{seed}: {what}") from error
    finally:
        shutil.rmtree(folder)


FEW = [("reference", "AutoModel"), ("onnx", "AutoModelForTokenClassification")]
ALL = [
    (target, head)
    for target in ("reference", "onnx", "cpu")
    for head in ("AutoModel", "AutoModelForTokenClassification", "AutoModelForSequenceClassification")
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("saved", FEW, indirect=True)
def test_damage_ends_in_an_answer_or_an_error_of_ours(saved: Saved, tmp_path: Path) -> None:
    for seed in range(40):
        endured(saved, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("saved", ALL, indirect=True)
def test_so_does_much_damage(saved: Saved, tmp_path: Path) -> None:
    for seed in range(1000, 1225):
        endured(saved, seed, tmp_path)
