"""The Python of docs/integrations.md, where the library that a part is about is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace import InputError
from headrace.examples import folder

PAGE = (Path(__file__).parents[1] / "docs" / "integrations.md").read_text()
OPENING, *PARTS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
BY_LIBRARY = {re.search(r"from (\w+)", part)[1]: part for part in PARTS}
TEXTS = ["a cat", "tax law", "a very long story " * 200]


@pytest.fixture(scope="module")
def model() -> Any:
    return headrace.compile(folder("minilm"), target="reference")


def test_the_page_has_a_part_a_library() -> None:
    assert sorted(BY_LIBRARY) == ["haystack", "langchain_core", "llama_index"]
    assert "headrace.compile" in OPENING


@pytest.mark.parametrize("library", sorted(BY_LIBRARY))
def test_the_python_of_the_page(library: str, model: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library)
    exec(compile(BY_LIBRARY[library], "docs/integrations.md", "exec"), {"headrace": headrace, "model": model})
    assert capsys.readouterr().out == "a cat\n"


def test_llama_index_gets_the_models_vectors(model: Any) -> None:
    pytest.importorskip("llama_index")
    import asyncio

    made = headrace.LlamaIndexEmbedding(model, embed_batch_size=2)
    wanted = model.embed(TEXTS, truncate=True)
    np.testing.assert_allclose(made.get_text_embedding_batch(TEXTS), wanted, atol=1e-6)
    np.testing.assert_allclose(made.get_query_embedding("a cat"), wanted[0], atol=1e-6)
    np.testing.assert_allclose(asyncio.run(made.aget_text_embedding_batch(TEXTS)), wanted, atol=1e-6)
    assert made.embed_batch_size == 2
    assert made.class_name() == "HeadraceEmbedding"


def test_haystack_gets_the_models_vectors_and_writes_a_path(model: Any) -> None:
    pytest.importorskip("haystack")
    from haystack import Document, Pipeline

    wanted = model.embed(TEXTS, truncate=True)
    embedder = headrace.HaystackDocumentEmbedder(model, meta_fields_to_embed=["title"])
    given = [Document(content=text) for text in TEXTS] + [Document(content="law", meta={"title": "tax"})]
    found = embedder.run(given)["documents"]
    np.testing.assert_allclose([one.embedding for one in found[:3]], wanted, atol=1e-6)
    np.testing.assert_allclose(found[3].embedding, model.embed("tax\nlaw")[0], atol=1e-6)
    assert all(one.embedding is None for one in given)
    with pytest.raises(InputError, match="in memory, and a pipeline is written as text"):
        embedder.to_dict()
    with pytest.raises(InputError, match="no list of Haystack's Document"):
        embedder.run("a cat")
    pipeline = Pipeline()
    pipeline.add_component("query", headrace.HaystackTextEmbedder("some/folder"))
    pipeline.add_component("documents", headrace.HaystackDocumentEmbedder("some/folder", embedding_separator=" "))
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["headrace.runtime.adapters.haystack"])
    assert again.dumps() == pipeline.dumps()
