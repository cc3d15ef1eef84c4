"""SigLIP's text tower reads the last position of texts that were filled up to one length, their padding unmasked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import InputError, TraceError
from headrace.frontend.capture.attention import evaluating
from headrace.frontend.eager.model import EagerModel
from headrace.frontend.eager.run import look
from headrace.frontend.facts.filling import read_filling, reads_last_position
from headrace.ir import Filling, Limits
from tests.tiny import PAD, build
from tests.words import bert_like

# SigLIP's own: no mask, padding on the right to the length of its table.
NAMES = ["input_ids"]
TEXTS = ["w5 w6 w7", "w8", "", " ".join(f"w{n}" for n in range(9, 30)), "w5 w6 w7 w8"]


def tower() -> Any:
    return build("siglip-text", "SiglipTextModel")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return bert_like(model_input_names=NAMES, model_max_length=64)


@pytest.fixture(scope="module")
def lowered(tokenizer: Any) -> Any:
    return headrace.lower(tower(), target="reference", tokenizer=tokenizer)


@pytest.fixture(scope="module")
def model(lowered: Any) -> Any:
    with pytest.warns(headrace.HeadraceWarning, match="Pooling is own .*returns pooler_output"):
        return lowered.compile()


def wanted(eager: Any, tokenizer: Any, **options: Any) -> Any:
    """As the processor's documentation calls it."""
    inputs = tokenizer(TEXTS, padding="max_length", truncation=True, return_tensors="pt", **options)
    assert list(inputs) == NAMES
    with torch.no_grad():
        return eager(**inputs)


def test_texts_are_filled_up_as_the_processor_does(model: Any, tokenizer: Any) -> None:
    assert model.program.facts.filling == Filling(64, PAD, False, model.program.facts.filling.why)
    output = wanted(tower(), tokenizer)
    np.testing.assert_allclose(model.embed(TEXTS), output.pooler_output.numpy(), atol=1e-5)
    np.testing.assert_allclose(model.embed(TEXTS[1]), output.pooler_output[1:2].numpy(), atol=1e-5)
    np.testing.assert_allclose(model.token_embed(TEXTS[:1])[0], output.last_hidden_state[0].numpy(), atol=1e-5)
    with pytest.raises(headrace.InputTooLongError, match="at most 64"):
        model.embed("w5 " * 70)
    long = tokenizer("w5 " * 70, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        vector = tower()(**long).pooler_output.numpy()
    np.testing.assert_allclose(model.embed("w5 " * 70, truncate=True), vector, atol=1e-5)


def test_ids_are_taken_as_they_are(model: Any) -> None:
    ids = [[5, 6, 7], [5] * 64]
    with torch.no_grad():
        vectors = [tower()(torch.tensor([row])).pooler_output[0].numpy() for row in ids]
    for one, other in zip(model(ids, task="embed"), vectors, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_it_is_said_and_kept(model: Any, lowered: Any, tmp_path: Path) -> None:
    said = "to 64 tokens with token 1 on the right (pooler_output is of the last position"
    assert said in lowered.as_text()
    assert said in " ".join(model.explain().split())
    model.save(tmp_path / "saved")
    np.testing.assert_array_equal(headrace.load(tmp_path / "saved").embed(TEXTS), model.embed(TEXTS))


def test_an_export_fills_up_too(model: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")
    model.export_onnx(tmp_path / "out")
    np.testing.assert_allclose(headrace.load(tmp_path / "out").embed(TEXTS), model.embed(TEXTS), atol=1e-5)


def test_a_budget_below_the_length_of_every_text(lowered: Any) -> None:
    with pytest.raises(InputError, match="token_budget is 63, but every text is filled up to 64 tokens"):
        lowered.compile(token_budget=63)


def test_a_limit_of_texts_is_no_limit_of_the_filling(lowered: Any, tokenizer: Any) -> None:
    cut = [tokenizer(text, truncation=True, max_length=6)["input_ids"] for text in TEXTS]
    ids = torch.tensor([[*row, *[PAD] * (64 - len(row))] for row in cut])
    with torch.no_grad():
        vectors = tower()(ids).pooler_output.numpy()
    np.testing.assert_allclose(lowered.compile(max_length=6).embed(TEXTS, truncate=True), vectors, atol=1e-5)


def test_a_tokenizer_that_does_not_say_how() -> None:
    with pytest.raises(TraceError, match=r"pooler_output, is of the last.*gives an attention mask.*another pooling="):
        headrace.trace(tower(), tokenizer=bert_like())
    # Where its own vector is not served, or no text is read, that is no matter.
    assert headrace.trace(tower(), tokenizer=bert_like(), pooling="mean").program.facts.filling is None
    assert read_filling(None, Limits(64, "why"), "pooler_output") is None


@pytest.mark.parametrize(
    ("changes", "longest", "said"),
    [
        ({"pad_token": None}, 64, "it has no pad_token"),
        ({"model_max_length": int(1e30)}, None, "it states no model_max_length"),
    ],
)
def test_what_a_tokenizer_may_lack(changes: dict[str, Any], longest: int | None, said: str) -> None:
    made = bert_like(model_input_names=NAMES, model_max_length=64)
    for name, value in changes.items():
        setattr(made, name, value)
    with pytest.raises(TraceError, match=said):
        read_filling(made, Limits(longest, "why"), "pooler_output")


def test_the_shorter_of_two_lengths_and_the_tokenizers_side() -> None:
    made = bert_like(model_input_names=NAMES, model_max_length=16, padding_side="left")
    found = read_filling(made, Limits(64, "why"), "pooler_output")
    assert found is not None
    assert (found.length, found.left) == (16, True)


@pytest.mark.parametrize(
    ("name", "head", "last"),
    [
        ("siglip-text", "SiglipTextModel", True),
        ("bert", "AutoModel", False),
        ("clip-text", "CLIPTextModelWithProjection", False),
        ("distilbert", "AutoModel", False),
    ],
)
def test_which_vectors_are_of_the_last_position(name: str, head: str, last: bool) -> None:
    module = build(name, head)
    with evaluating(module):
        assert reads_last_position(look(EagerModel.of(module, module.config))) is last
