"""Heads that no task is of: their own tensors come back by their own names, as the eager model returns them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers.modeling_outputs import ModelOutput

import headrace
from headrace.errors import TaskNotEnabledError
from tests.tiny import arrays, build
from tests.words import bert_like

TEXTS = ([5, 6, 7, 8, 9], [11, 12, 13])
# A name, a class of transformers and its fields: of the text where the number after it is one less.
HEADS = {
    "pretraining": ("bert", "AutoModelForPreTraining", {"prediction_logits": 2, "seq_relationship_logits": 1}),
    "replaced tokens": ("electra", "ElectraForPreTraining", {"logits": 1}),
}


@pytest.mark.parametrize("name", HEADS)
def test_every_field_is_the_eager_models_own(tiny: Any, name: str) -> None:
    *model, fields = HEADS[name]
    ours = headrace.compile(tiny(*model), target="reference")
    assert (ours.task, list(ours.tasks)) == ("raw", ["raw"])
    for ids, answer in zip(TEXTS, ours([*TEXTS]), strict=True):
        with torch.no_grad():
            theirs = tiny(*model)(input_ids=torch.tensor([ids]))
        assert list(answer) == list(fields)
        for field, rank in fields.items():
            assert answer[field].ndim == rank
            np.testing.assert_allclose(answer[field], theirs[field][0], atol=1e-5)


def test_texts_by_name(tiny: Any) -> None:
    ours = headrace.compile(tiny(*HEADS["replaced tokens"][:2]), target="reference", tokenizer=bert_like())
    texts = ["w5 w6 w7", "w9"]
    ids = [bert_like()(text)["input_ids"] for text in texts]
    for answers in (ours.raw(texts), ours.answer(None, texts)):
        assert [list(answer) for answer in answers] == [["logits"]] * 2
        for answer, same in zip(answers, ours(ids), strict=True):
            np.testing.assert_array_equal(answer["logits"], same["logits"])


def test_a_speech_recognisers_rows() -> None:
    model = build("wav2vec2", "AutoModelForCTC")
    ours = headrace.compile(model, target="reference")
    waves = arrays(ours.program, 3)
    for wave, answer in zip(waves, ours.raw(waves), strict=True):
        with torch.no_grad():
            theirs = model(input_values=torch.as_tensor(wave)[None]).logits[0]
        np.testing.assert_allclose(answer["logits"], theirs, atol=1e-5)


def test_next_sentences_are_classes(tiny: Any) -> None:
    """Two logits of a text are a sequence head's, whatever it was trained for."""
    ours = headrace.compile(tiny("bert", "AutoModelForNextSentencePrediction"), target="reference")
    assert ours.task == "classify"


class Pairwise(nn.Module):
    """A head whose answer grows with the square of the text."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> ModelOutput:
        rows = self.inner(input_ids, attention_mask=attention_mask).last_hidden_state
        return ModelOutput(arcs=rows @ rows.transpose(1, 2))


def test_what_follows_no_text_is_not_offered(tiny: Any) -> None:
    """C4: an empty set and no exception from `.tasks` on any stage; asking says why."""
    traced = headrace.trace(Pairwise(tiny("bert")))
    assert len(traced.tasks) == 0
    lowered = traced.lower("reference")
    assert list(lowered.tasks) == []
    for task in (None, "embed", "raw"):
        with pytest.raises(
            TaskNotEnabledError, match=r"offers: nothing.*Nothing can be served: the model returns arcs"
        ):
            lowered.compile(task=task)
