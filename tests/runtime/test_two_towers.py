"""Two towers of one model, traced one by one: their answer is the whole model's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import ArtifactError, InputError, LoadError
from tests.tiny import build
from tests.words import bert_like

TEXTS = ["w5 w6 w7", "w9", "w20 w21"]
# SigLIP's texts are filled up, their padding read as text, which its tokenizer says by giving no mask.
NAMED = {"clip": ["input_ids", "attention_mask"], "siglip": ["input_ids"]}
FILLED = 16


def tokenizer(name: str) -> Any:
    return bert_like(model_input_names=NAMED[name], **({"model_max_length": FILLED} if name == "siglip" else {}))


@pytest.fixture(scope="module", params=["clip", "siglip"])
def both(request: pytest.FixtureRequest) -> Any:
    """The whole model, and its towers."""
    whole = build(request.param, "AutoModel")
    return whole, headrace.compile_towers(whole, target="reference", tokenizer=tokenizer(request.param))


def images(count: int) -> Any:
    return np.random.default_rng(3).normal(size=(count, 3, 24, 24)).astype(np.float32)


def wanted(whole: Any) -> Any:
    """The whole model's logits of each image with each text alone; unpadded, but where it was trained on padding."""
    name, rows = whole.config.model_type, []
    filled = {"padding": "max_length", "max_length": FILLED} if name == "siglip" else {}
    read = [tokenizer(name)(text, **filled)["input_ids"] for text in TEXTS]
    for image in images(2):
        with torch.no_grad():
            found = [whole(input_ids=torch.tensor([ids]), pixel_values=torch.tensor(image[None])) for ids in read]
        rows.append([float(one.logits_per_image[0, 0]) for one in found])
    return np.array(rows, np.float32)


def test_logits_are_the_whole_models(both: Any) -> None:
    whole, towers = both
    expected = wanted(whole)
    found = towers.similarity(images(2), TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(towers.similarity(images(2)[0], TEXTS[1]), expected[:1, 1:2], atol=1e-4)


def test_labels_are_scored_as_the_model_was_trained(both: Any) -> None:
    """Softmax over the labels without a bias, a sigmoid of each with one."""
    whole, towers = both
    logits = torch.tensor(wanted(whole))
    expected = logits.softmax(-1) if towers.bias is None else logits.sigmoid()
    found = towers.classify(images(2), TEXTS, template="{}")
    np.testing.assert_allclose([list(one.scores.values()) for one in found], expected, atol=1e-5)
    assert [one.label for one in found] == [TEXTS[int(row.argmax())] for row in expected]
    with pytest.raises(InputError, match=r"template is 'none'; a sentence with .. where"):
        towers.classify(images(1), TEXTS, template="none")


def test_saved_and_loaded_they_answer_the_same(both: Any, tmp_path: Path) -> None:
    _, towers = both
    again = headrace.load_towers(towers.save(tmp_path / "out"))
    np.testing.assert_array_equal(again.similarity(images(2), TEXTS), towers.similarity(images(2), TEXTS))
    with pytest.raises(ArtifactError, match="holds no two towers"):
        headrace.load_towers(tmp_path)


def test_a_folder_with_its_processor_takes_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install 'headrace[vision]'")
    from transformers import CLIPImageProcessor

    build("clip", "AutoModel").save_pretrained(tmp_path)
    tokenizer("clip").save_pretrained(tmp_path)
    size = {"height": 24, "width": 24}
    processor = CLIPImageProcessor(size=size, crop_size=size)
    processor.save_pretrained(tmp_path)
    towers = headrace.compile_towers(tmp_path, target="reference")
    shown = image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 40, 3), np.uint8))
    shown.save(tmp_path / "shown.png")
    array = processor(shown, return_tensors="np")["pixel_values"][0]
    expected = towers.similarity(array, TEXTS)
    np.testing.assert_allclose(towers.similarity(tmp_path / "shown.png", TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(towers.similarity([shown], TEXTS), expected, atol=1e-5)


def test_a_model_without_towers_is_refused() -> None:
    with pytest.raises(LoadError, match="is no model of two towers: it has no get_text_features, get_image_features"):
        headrace.compile_towers(build("bert", num_hidden_layers=1), target="reference")
