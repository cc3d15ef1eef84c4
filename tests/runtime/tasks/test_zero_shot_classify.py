"""Zero-shot classification equals transformers' pipeline, of any place of the entailment label."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from headrace.errors import InputError, InputTooLongError
from tests.tiny import build
from tests.words import bert_like

NAMES = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
TEXTS = ["w5 w6 w7 w8", "w9", "w20 w21 w22 w23 w24 w25"]
LABELS = ["w30 w31", "w40", "w50 w51 w52"]
TEMPLATE = "w60 {} w61"


def entailer(*names: str) -> Any:
    """A tiny model that names what follows from a text."""
    return build(
        "bert", "AutoModelForSequenceClassification", num_hidden_layers=1, id2label=dict(enumerate(names)),
        label2id={name: place for place, name in enumerate(names)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    return headrace.compile(entailer(*NAMES), target="reference", tokenizer=bert_like())


@pytest.mark.parametrize("names", [NAMES, ("entailment", "neutral", "contradiction"), ("x", "entail")])
@pytest.mark.parametrize("multi", [False, True])
def test_scores_equal_those_of_transformers(names: tuple[str, ...], multi: bool) -> None:
    from transformers import ZeroShotClassificationPipeline

    eager = entailer(*names)
    peer = ZeroShotClassificationPipeline(model=eager, tokenizer=bert_like())
    ours = headrace.compile(eager, target="reference", tokenizer=bert_like())
    for labels in (LABELS, LABELS[:1]):
        found = ours.zero_shot_classify(TEXTS, labels, hypothesis_template=TEMPLATE, multi_label=multi)
        for text, one in zip(TEXTS, found, strict=True):
            theirs = peer(text, labels, hypothesis_template=TEMPLATE, multi_label=multi)
            assert one.scores == pytest.approx(dict(zip(theirs["labels"], theirs["scores"], strict=True)), abs=1e-5)
            assert one.label == theirs["labels"][0]
            assert one.score == one.scores[one.label]


def test_it_is_offered_beside_classify_by_the_label_alone(model: Any) -> None:
    assert list(model.tasks) == ["classify", "zero_shot_classify"]
    assert model.task == "classify"
    assert "label of entailment" in model.tasks["zero_shot_classify"].reason
    bare = headrace.lower(build("bert", "AutoModelForSequenceClassification", num_hidden_layers=1), target="reference")
    assert list(bare.tasks) == ["classify"]


def test_a_long_text_gives_way_and_the_label_stays(model: Any) -> None:
    from transformers import ZeroShotClassificationPipeline

    long, labels = "w5 w6 w7 " * 40, ["w30 " * 20, "w40"]
    tokenizer = bert_like()
    tokenizer.model_max_length = 64
    peer = ZeroShotClassificationPipeline(model=entailer(*NAMES), tokenizer=tokenizer)
    theirs = peer(long, labels, hypothesis_template=TEMPLATE)
    (ours,) = model.zero_shot_classify(long, labels, hypothesis_template=TEMPLATE, truncate=True)
    assert ours.scores == pytest.approx(dict(zip(theirs["labels"], theirs["scores"], strict=True)), abs=1e-5)
    with pytest.raises(InputTooLongError, match=r"Text 1 has 145 tokens; at most 64 are accepted"):
        model.zero_shot_classify(["w5", long], labels, hypothesis_template=TEMPLATE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "labels is None; the labels to choose from are accepted by labels="),
        ({"labels": "w5"}, "labels is 'w5'"),
        ({"labels": ["a", "b", "a"]}, "labels holds a twice"),
        ({"labels": ["a"], "hypothesis_template": "no place"}, "hypothesis_template is 'no place'; a sentence with {}"),
        ({"labels": ["a"], "hypothesis_template": "{0} {1}"}, "hypothesis_template is '.0. .1.'"),
        ({"labels": ["a"], "multi_label": 3}, "multi_label is 3"),
    ],
)
def test_what_cannot_be_chosen_from_is_refused(model: Any, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model.answer("zero_shot_classify", ["w5"], **options)


def test_no_text_is_no_answer(model: Any) -> None:
    assert model.zero_shot_classify([], LABELS) == []
