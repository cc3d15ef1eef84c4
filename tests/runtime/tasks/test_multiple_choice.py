"""Multiple choice: each choice is a request of its own, and the model's own batch of choices says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import headrace
from headrace.errors import InputError, InputTooLongError
from headrace.ir import Head
from tests.tiny import build
from tests.words import bert_like

NAMED = ["input_ids", "token_type_ids", "attention_mask"]  # given so that they are saved
QUESTIONS = [
    ("w5 w6 w7", ["w8 w9", "w10 w11 w12 w13", "w14"]),
    ("w20", ["w21 w22", "w23"]),
    ("w30 w31", ["w32"]),
]


def wanted(eager: Any, text: str, choices: list[str]) -> list[float]:
    """By the model's own forward over all choices at once, padded."""
    read = bert_like()([text] * len(choices), choices, padding=True, return_tensors="pt")
    if getattr(eager.config, "type_vocab_size", 0) < 2:
        read.pop("token_type_ids")
    with torch.no_grad():
        logits: Any = eager(**{name: value[None] for name, value in read.items()}).logits
    return list(logits[0].softmax(-1).tolist())


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "modernbert"])
def test_choices_equal_the_models_own(name: str, tmp_path: Path) -> None:
    """DistilBERT takes positions apart otherwise than the rest of its inputs, so it is given none."""
    shrunk = {} if name in ("distilbert", "modernbert") else {"num_hidden_layers": 1}
    eager = build(name, "AutoModelForMultipleChoice", **shrunk)
    model = headrace.compile(eager, target="reference", tokenizer=bert_like(model_input_names=NAMED))
    assert model.program.signature.head is Head.CHOICE
    assert list(model.tasks) == ["multiple_choice"]
    found = model.multiple_choice(QUESTIONS)
    for (text, choices), one in zip(QUESTIONS, found, strict=True):
        assert list(one.scores) == pytest.approx(wanted(eager, text, choices), abs=1e-5)
        assert one.score == max(one.scores) == one.scores[one.index]
        assert one.choice == choices[one.index]
    (alone,) = model.multiple_choice(QUESTIONS[:1], batch_size=1)
    assert alone.scores == pytest.approx(found[0].scores, abs=1e-6)
    # Choices are requests of their own; messages number what the caller gave.
    with pytest.raises(InputTooLongError, match="Text 1 has "):
        model.multiple_choice([QUESTIONS[0], ("w5", ["w6 " * 600, "w7"])])
    if name == "bert":
        model.save(tmp_path / "saved")
        assert headrace.load(tmp_path / "saved").multiple_choice(QUESTIONS) == found


@pytest.mark.parametrize("given", ["w5", ("w5", "w6"), ("w5", []), ("w5", ["w6", 7]), (["w5"], ["w6"])])
def test_what_is_no_question_is_refused(given: Any) -> None:
    from headrace.runtime.tasks.multiple_choice import _require_question

    with pytest.raises(InputError, match=r"Request 3 is .* multiple_choice takes a text and the texts to choose from"):
        _require_question(given, 3)
