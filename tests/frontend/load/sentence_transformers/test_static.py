"""Tables of token vectors without a transformer: sentence-transformers' StaticEmbedding, and Model2Vec's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import InputError, LoadError
from headrace.frontend.load.checkpoint import load
from tests.words import bert_like

st = pytest.importorskip("sentence_transformers")

TEXTS = ["w5 w6 w7", "w9", " w20 w21", "w22 " * 30]


def static(*after: Any, **options: Any) -> Any:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    table = torch.randn(96, 16, generator=torch.Generator().manual_seed(0))
    module = StaticEmbedding(bert_like().backend_tokenizer, embedding_weights=table)
    return st.SentenceTransformer(modules=[module, *after], device="cpu", **options)


def normalize() -> Any:
    from sentence_transformers.sentence_transformer.modules import Normalize

    return Normalize()


def dense() -> Any:
    from sentence_transformers.sentence_transformer.modules import Dense

    return Dense(16, 8)


@pytest.fixture(scope="module", params=["alone", "normalised", "dense, cut"])
def both(request: Any, tmp_path_factory: Any) -> tuple[Any, Path]:
    """Sentence-transformers' model, and the folder that it saves."""
    made = {
        "alone": lambda: static(prompts={"query": "w30 w31 "}),
        "normalised": lambda: static(normalize()),
        "dense, cut": lambda: static(dense(), normalize(), truncate_dim=4),
    }
    model, folder = made[request.param](), tmp_path_factory.mktemp("static")
    model.save_pretrained(str(folder))
    return model, folder


def test_equals_sentence_transformers(both: Any, tmp_path: Path) -> None:
    model, folder = both
    for source in (model, folder):
        ours = headrace.compile(source, target="reference")
        assert list(ours.tasks) == ["embed"]
        np.testing.assert_allclose(ours.embed(TEXTS), model.encode(TEXTS), atol=1e-6)
        if model.prompts["query"]:
            expected = model.encode(TEXTS, prompt_name="query")
            np.testing.assert_allclose(ours.embed(TEXTS, prompt="query"), expected, atol=1e-6)
    ours.save(tmp_path / "ours")
    np.testing.assert_array_equal(headrace.load(tmp_path / "ours").embed(TEXTS), ours.embed(TEXTS))


def test_a_text_without_tokens_is_refused(both: Any) -> None:
    with pytest.raises(InputError, match="Text 0 has no tokens"):
        headrace.compile(both[1], target="reference").embed("")


@pytest.mark.parametrize("mapped", [False, True])
def test_model2vec_files(tmp_path: Path, mapped: bool) -> None:
    from safetensors.torch import save_file

    static().save_pretrained(str(tmp_path))
    generator = torch.Generator().manual_seed(1)
    tensors = {"embeddings": torch.randn(8 if mapped else 96, 16, generator=generator).half()}
    if mapped:
        tensors |= {"mapping": torch.arange(96) % 8, "weights": torch.rand(96, generator=generator)}
    save_file(tensors, tmp_path / "model.safetensors")
    expected = st.SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(headrace.compile(tmp_path, target="reference").embed(TEXTS), expected, atol=2e-3)
    if mapped:
        np.testing.assert_allclose(headrace.compile(tmp_path, target="reference").embed(TEXTS), expected, atol=1e-6)


def test_the_tokenizers_own_truncation(tmp_path: Path) -> None:
    model = static()
    model[0].tokenizer.enable_truncation(4)
    model.save_pretrained(str(tmp_path))
    for source in (tmp_path, model):
        assert load(source, dtype=torch.float32).text.max_length == 4
        ours = headrace.compile(source, target="reference")
        np.testing.assert_allclose(ours.embed(TEXTS, truncate=True), model.encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize(
    ("lacking", "says"), [("tokenizer.json", "holds no tokenizer.json"), ("model.safetensors", "holds no weights")]
)
def test_a_folder_that_lacks_a_file(tmp_path: Path, lacking: str, says: str) -> None:
    static().save_pretrained(str(tmp_path))
    (tmp_path / lacking).unlink()
    with pytest.raises(LoadError, match=says):
        load(tmp_path, dtype=torch.float32)
