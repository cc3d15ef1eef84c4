"""Prompts by name and by side, as sentence-transformers finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.errors import InputError
from tests.tiny import build
from tests.words import bert_like

st = pytest.importorskip("sentence_transformers")

TEXTS = ["w5 w6 w7", "w9"]
SIDES = {"query": "w80 ", "passage": "w81 "}
NAMED = {"query": "w80 ", "document": "w81 ", "other": "w82 w83 "}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("bert")
    build("bert", num_hidden_layers=1).save_pretrained(folder)
    bert_like(model_max_length=40).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["sides", "named", "named, with a default", "none"])
def both(request: Any, bert: Path, tmp_path_factory: Any) -> tuple[Any, Any]:
    """Sentence-transformers' model, and ours of the folder that it saves."""
    prompts = {"sides": SIDES, "none": {}}.get(request.param, NAMED)
    model = st.SentenceTransformer(str(bert), device="cpu", prompts=prompts)
    if "default" in request.param:
        model.default_prompt_name = "other"
    folder = tmp_path_factory.mktemp("prompts")
    model.save_pretrained(str(folder))
    return model, headrace.compile(folder, target="reference")


def same(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_queries_and_documents(both: tuple[Any, Any]) -> None:
    model, ours = both
    same(ours.embed_query(TEXTS), model.encode_query(TEXTS))
    same(ours.embed_document(TEXTS), model.encode_document(TEXTS))
    same(ours.embed(TEXTS), model.encode(TEXTS))
    same(ours.embed_query(TEXTS, dimensions=5), model.encode_query(TEXTS, truncate_dim=5))


def test_a_prompt_by_its_name(both: tuple[Any, Any]) -> None:
    model, ours = both
    for name in model.prompts:
        same(ours.embed(TEXTS, prompt_name=name), model.encode(TEXTS, prompt_name=name))
    # A name that reads like a text, and a text that reads like a name.
    with pytest.raises(InputError, match="prompt_name is 'w80 '; the model's prompts are document, "):
        ours.embed(TEXTS, prompt_name="w80 ")
    with pytest.raises(InputError, match="prompt and prompt_name are both given"):
        ours.embed(TEXTS, prompt="w80 ", prompt_name="query")
