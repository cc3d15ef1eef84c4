"""Sentence-transformers' CLIPModel folders: their texts, as CLIP itself projects them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import LoadError
from headrace.frontend.load.checkpoint import load
from headrace.frontend.load.text_side import TextSide
from tests.tiny import build
from tests.words import bert_like

TEXTS = ["w5 w6 w7", "w9", "", " ".join(f"w{i}" for i in range(5, 60)), "w20 nothing w21"]
ST = "sentence_transformers.models."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """As sentence-transformers wrote them before 5.4, and still reads them."""
    root: Path = tmp_path_factory.mktemp("clip")
    listed = [{"idx": 0, "name": "0", "path": "0_CLIPModel", "type": f"{ST}CLIPModel"}]
    (root / "modules.json").write_text(json.dumps(listed))
    build("clip").save_pretrained(root / "0_CLIPModel")
    names = ["input_ids", "attention_mask"]
    bert_like(model_max_length=40, model_input_names=names).save_pretrained(root / "0_CLIPModel")
    return root


@torch.no_grad()
def test_texts_are_projected_as_by_clip(folder: Path, tmp_path: Path) -> None:
    """What sentence-transformers answers is `get_text_features` of the truncated text, alone."""
    from transformers import AutoTokenizer, CLIPModel

    model = headrace.compile(folder, target="reference")
    assert next(iter(model.tasks)) == "embed"
    assert model.program.facts.pooling.why == "the model returns text_embeds"
    clip = CLIPModel.from_pretrained(folder / "0_CLIPModel").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "0_CLIPModel")
    given = [tokenizer(text, return_tensors="pt", truncation=True) for text in TEXTS]
    wanted = np.concatenate([clip.get_text_features(**one).pooler_output.numpy() for one in given])
    np.testing.assert_allclose(model.embed(TEXTS, truncate=True), wanted, atol=1e-5)
    loaded = headrace.load(model.save(tmp_path / "m"))
    np.testing.assert_allclose(loaded.embed(TEXTS, truncate=True), wanted, atol=1e-5)


def test_what_follows_it_is_refused(folder: Path, tmp_path: Path) -> None:
    listed = json.loads((folder / "modules.json").read_text())
    listed.append({"idx": 1, "name": "1", "path": "", "type": f"{ST}Normalize"})
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(LoadError, match="puts Normalize after a CLIPModel, which is not served"):
        load(tmp_path, dtype=torch.float32)


def test_a_model_without_a_text_side() -> None:
    with pytest.raises(LoadError, match="has no get_text_features"):
        TextSide(build("bert"))
