"""Tasks of pairs of texts on every backend: as the reference answers, compiled, exported, and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.conformance.conftest import GPUS
from tests.tiny import build
from tests.words import bert_like

NAMED = ["input_ids", "token_type_ids", "attention_mask"]  # given so that they are saved
NAMES = {0: "contradiction", 1: "entailment"}
LONG = " ".join(f"w{5 + 7 * place % 80}" for place in range(90))
# Of each: its head, what its configuration says besides, and what it is asked.
TASKS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "answer_question": (
        "AutoModelForQuestionAnswering",
        {},
        lambda model: [
            (one.answer, one.score)
            for found in model.answer_question([("w5", "w6 w7 w8"), ("w9 w10", LONG)], top_k=2)
            for one in found
        ],
    ),
    "zero_shot_classify": (
        "AutoModelForSequenceClassification",
        {"id2label": NAMES, "label2id": {name: place for place, name in NAMES.items()}},
        lambda model: [
            (one.label, one.score)
            for one in model.zero_shot_classify(["w5 w6", "w7"], ["w8", "w9 w10"], hypothesis_template="w11 {}")
        ],
    ),
    "multiple_choice": (
        "AutoModelForMultipleChoice",
        {},
        lambda model: [
            (one.choice, score)
            for one in model.multiple_choice([("w5 w6", ["w7", "w8 w9"]), ("w10", ["w11", "w12 w13 w14"])])
            for score in one.scores
        ],
    ),
}


@pytest.fixture(scope="module")
def made() -> Any:
    """`made(task)` is a model of that task in memory, and what the reference answers."""
    held = dict[str, Any]()

    def make(task: str) -> Any:
        if task not in held:
            head, config, ask = TASKS[task]
            eager = build("bert", head, num_hidden_layers=1, **config)
            reference = headrace.compile(eager, target="reference", tokenizer=bert_like(model_input_names=NAMED))
            held[task] = eager, ask(reference)
        return held[task]

    return make


CLASSIFIERS = pytest.mark.slow(reason="compiled classifiers: rxnfp_cls is compiled by default")
# Compiled, the graphs are those of tests/conformance/test_tasks.py but for the head's last product.
MARKS: dict[str, Any] = {"cpu": [CLASSIFIERS], "onnx": [], **GPUS}


@pytest.mark.parametrize(
    ("task", "target"),
    [pytest.param(task, target, marks=marks) for target, marks in MARKS.items() for task in TASKS],
)
def test_it_answers_as_the_reference_and_again_when_read_back(
    task: str, target: str, made: Any, tmp_path: Path
) -> None:
    eager, expected = made(task)
    ask, options = TASKS[task][2], {"tokenizer": bert_like(model_input_names=NAMED), "task": task}
    if target == "onnx":
        headrace.lower(eager, target="reference", **options).export_onnx(tmp_path / "out", profile="std")
        found = ask(headrace.load(tmp_path / "out"))
    else:
        model = headrace.compile(eager, target=target, **options)
        found = ask(model)
        model.save(tmp_path / "out")
        assert ask(headrace.load(tmp_path / "out")) == found
    assert [what for what, _ in found] == [what for what, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-5)
