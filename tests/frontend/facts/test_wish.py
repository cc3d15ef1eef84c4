"""Models whose head offers no vectors: their backbone embeds where that is asked for, as it does alone."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import HeadraceWarning, LoadError, TaskNotEnabledError
from tests.tiny import build
from tests.words import bert_like

TEXTS = ["w5 w6 w7", "w9", "w20 w21 w22 w23 w24 w25 w26"]
HEADS = {
    "masked-lm": ("bert", "AutoModelForMaskedLM"),
    "classifier": ("bert", "AutoModelForSequenceClassification"),
    "tagger": ("modernbert", "AutoModelForTokenClassification"),
    "question answering": ("roberta", "AutoModelForQuestionAnswering"),
    "pretraining": ("bert", "AutoModelForPreTraining"),
    "causal tagger": ("qwen3", "AutoModelForTokenClassification"),
    "classifier over a decoder": ("bart", "AutoModelForSequenceClassification"),
}


def quietly(*args: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HeadraceWarning)
        return headrace.compile(*args, target="reference", **options)


def pooled(model: Any, text: str, kind: str) -> Any:
    """The mean or the last of the backbone's rows, by transformers."""
    ids = torch.tensor([bert_like()(text)["input_ids"]])
    with torch.no_grad():
        out = model.base_model(input_ids=ids)
    rows = getattr(out, "encoder_last_hidden_state", None)
    rows = (out.last_hidden_state if rows is None else rows)[0]
    return rows.mean(0) if kind == "mean" else rows[-1]


@pytest.mark.parametrize("name", HEADS)
def test_the_backbone_embeds(tiny: Any, name: str) -> None:
    model = tiny(*HEADS[name])
    with pytest.warns(HeadraceWarning, match="The model's head does not offer embed and is left out: its backbone, "):
        ours = headrace.compile(model, target="reference", task="embed", tokenizer=bert_like())
    assert ours.task == "embed"
    assert {"embed"} <= set(ours.tasks) <= {"embed", "token_embed"}
    kind = "last" if name.startswith("causal") else "mean"
    expected = torch.stack([pooled(model, text, kind) for text in TEXTS])
    np.testing.assert_allclose(ours.embed(TEXTS), expected, atol=2e-5)


def test_every_tokens_row_too(tiny: Any) -> None:
    model = tiny("bert", "AutoModelForMaskedLM")
    ours = quietly(model, task="token_embed", tokenizer=bert_like())
    ids = torch.tensor([bert_like()(TEXTS[0])["input_ids"]])
    with torch.no_grad():
        expected = model.bert(input_ids=ids).last_hidden_state[0]
    np.testing.assert_allclose(ours.token_embed(TEXTS[0])[0], expected, atol=1e-5)
    first = quietly(model, task="embed", pooling="cls", tokenizer=bert_like()).embed(TEXTS[0])
    np.testing.assert_allclose(first[0], expected[0], atol=1e-5)


def test_a_folder_and_its_saved_and_exported_models(tmp_path: Path) -> None:
    build("bert", "AutoModelForMaskedLM", num_hidden_layers=1).save_pretrained(tmp_path / "bert")
    bert_like().save_pretrained(tmp_path / "bert")
    ours = quietly(tmp_path / "bert", task="embed")
    ours.save(tmp_path / "saved")
    np.testing.assert_array_equal(headrace.load(tmp_path / "saved").embed(TEXTS), ours.embed(TEXTS))
    headrace.trace(tmp_path / "bert", task="embed").lower("reference").export_onnx(tmp_path / "onnx", task="embed")
    np.testing.assert_allclose(headrace.load(tmp_path / "onnx").embed(TEXTS), ours.embed(TEXTS), atol=1e-5)


def test_who_asks_a_model_with_its_head_is_told_how(tiny: Any) -> None:
    model = headrace.compile(tiny("bert", "AutoModelForMaskedLM"), target="reference", tokenizer=bert_like())
    assert list(model.tasks) == ["fill_mask"]
    with pytest.raises(TaskNotEnabledError) as refused:
        model.embed(TEXTS)
    assert str(refused.value).endswith(
        'Choose one of: fill_mask, or compile with task="embed" to leave the head out and let the backbone answer.'
    )


def test_a_head_that_offers_vectors_stays(tiny: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = headrace.trace(tiny("qwen3", "AutoModelForCausalLM"), task="embed").program
    assert program.signature.head == "causal-lm"


def test_weights_that_the_backbone_lacks_are_still_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    build("bert", "AutoModelForMaskedLM", num_hidden_layers=1).save_pretrained(tmp_path)
    bert_like().save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    lost = "bert.encoder.layer.0.output.dense.weight"
    save_file(
        {name: tensor for name, tensor in held.items() if name != lost},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(LoadError, match=r"no weights for model\.encoder\.layer\.0\.output\.dense\.weight"):
        quietly(tmp_path, task="embed")
