"""Sparse vectors beside sentence-transformers' SparseEncoder: SPLADE, tables of tokens, auto-encoders, and towers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace import examples
from headrace.errors import HeadraceWarning, InputError, LoadError
from headrace.frontend.load.checkpoint import load
from headrace.runtime.tasks.sparse_embed import SparseVector, joined, largest, of_vector
from tests.tiny import build
from tests.words import bert_like

st = pytest.importorskip("sentence_transformers")

TEXTS = ["w5 w6 w7", "w9", "w20 w21 w22 w23 w24 w25 w26 w5 w5"]
LONG = " ".join(f"w{5 + i % 80}" for i in range(60))
MLM = "AutoModelForMaskedLM"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("sparse")
    for name, head in (("mlm", MLM), ("body", "AutoModel")):
        build("bert", head, num_hidden_layers=1).save_pretrained(folder / name)
        words().save_pretrained(folder / name)
    return folder


def words() -> Any:
    return bert_like(model_max_length=40)


def splade(folders: Path, *options: Any) -> list[Any]:
    from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

    return [Transformer(str(folders / "mlm"), transformer_task="fill-mask"), SpladePooling(*options)]


def table(_folders: Path) -> list[Any]:
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

    weights = torch.rand(96, generator=torch.Generator().manual_seed(0)) - 0.2
    return [SparseStaticEmbedding(words(), weights)]


def encoder(folders: Path, normalize: bool) -> list[Any]:
    from sentence_transformers.sentence_transformer.modules import Pooling
    from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder, Transformer

    made = SparseAutoEncoder(32, 64, k=6, normalize=normalize)
    torch.manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return [Transformer(str(folders / "body")), Pooling(32, "mean"), made]


MADE = {
    "max": lambda folders: splade(folders, "max"),
    "sum": lambda folders: splade(folders, "sum"),
    "max, dampened twice": lambda folders: splade(folders, "max", "log1p_relu"),
    "table of tokens": table,
    "auto-encoder": lambda folders: encoder(folders, False),
    "auto-encoder, normalised": lambda folders: encoder(folders, True),
}


@pytest.fixture(scope="module", params=MADE)
def both(request: Any, folders: Path, tmp_path_factory: Any) -> tuple[Any, Path]:
    model = st.SparseEncoder(modules=MADE[request.param](folders), device="cpu", prompts={"query": "w80 "})
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(str(folder))
    return model, folder


def dense(model: Any, texts: list[str], **options: Any) -> Any:
    """Each text alone."""
    return np.concatenate([model.encode([one], convert_to_sparse_tensor=False, **options).numpy() for one in texts])


def same(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), expected, atol=1e-5)


def test_equals_sentence_transformers(both: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = both
    for source in (model, folder):
        ours = headrace.compile(source, target="reference")
        assert ours.task == "sparse_embed"
        expected = dense(model, TEXTS)
        got = ours.sparse_embed(TEXTS)
        same(got, expected)
        assert [one.indices.tolist() for one in got] == [np.flatnonzero(row).tolist() for row in expected]
        same(ours.sparse_embed(TEXTS, prompt_name="query"), dense(model, TEXTS, prompt_name="query"))
        same(ours.sparse_embed(TEXTS, max_active=3), dense(model, TEXTS, max_active_dims=3))
        same(ours.sparse_embed([LONG], truncate=True), dense(model, [LONG]))
        near = model.similarity(torch.tensor(expected), torch.tensor(expected))
        np.testing.assert_allclose(ours.similarity(got, got), near, rtol=1e-5, atol=1e-5)
    ours.save(tmp_path / "ours")
    np.testing.assert_array_equal(headrace.load(tmp_path / "ours").sparse_embed(TEXTS), np.asarray(got))


def test_a_saved_number_of_places_is_the_folders(folders: Path, tmp_path: Path) -> None:
    model = st.SparseEncoder(modules=splade(folders, "max"), device="cpu", max_active_dims=4)
    model.save_pretrained(str(tmp_path))
    for source in (model, tmp_path):
        ours = headrace.compile(source, target="reference")
        assert ours.program.facts.active == 4
        got = ours.sparse_embed(TEXTS)
        same(got, dense(model, TEXTS))
        assert [len(one.indices) for one in got] == [4] * len(TEXTS)


def test_words_are_the_tokens_of_the_heaviest(folders: Path) -> None:
    model = st.SparseEncoder(modules=splade(folders, "max"), device="cpu")
    ours = headrace.compile(model, target="reference")
    theirs = model.decode(torch.tensor(dense(model, TEXTS)).to_sparse(), top_k=5)
    for got, expected in zip(ours.sparse_words(ours.sparse_embed(TEXTS), 5), theirs, strict=True):
        assert [token for token, _ in got] == [token for token, _ in expected]
        same([weight for _, weight in got], [weight for _, weight in expected])


def test_words_of_what_is_no_vocabulary(folders: Path) -> None:
    ours = headrace.compile(build("bert", num_hidden_layers=1), target="reference", tokenizer=words())
    with pytest.raises(InputError, match="The vectors have 500 places, and the tokenizer names 96 tokens"):
        ours.sparse_words(joined([SparseVector(np.array([3]), np.ones(1, np.float32))], 500))


def test_a_bare_masked_language_model_where_that_is_asked_for(folders: Path) -> None:
    with pytest.warns(HeadraceWarning, match="the greatest over the text is taken"):
        ours = headrace.compile(folders / "mlm", target="reference", task="sparse_embed")
    model = st.SparseEncoder(str(folders / "mlm"), device="cpu")
    same(ours.sparse_embed(TEXTS), dense(model, TEXTS))


def test_real_weights() -> None:
    """splade_tiny, in one batch of texts of unlike lengths."""
    texts = ["a cat", "How do I bake bread without an oven?", "rain in the hills " * 12]
    with pytest.warns(HeadraceWarning):
        ours = headrace.compile(examples.folder("splade_tiny"), target="reference", task="sparse_embed")
    model = st.SparseEncoder(str(examples.folder("splade_tiny")), device="cpu")
    expected = dense(model, texts)
    got = ours.sparse_embed(texts)
    same(got, expected)
    theirs = model.decode(torch.tensor(expected).to_sparse(), top_k=10)
    assert [[word for word, _ in one] for one in ours.sparse_words(got, 10)] == [[w for w, _ in one] for one in theirs]


@pytest.fixture(scope="module")
def towers(folders: Path, tmp_path_factory: Any) -> tuple[Any, Path]:
    """Queries by a table of tokens, without inference, and documents by a masked language model."""
    from sentence_transformers.sparse_encoder.modules import Router

    router = Router.for_query_document(table(folders), splade(folders, "max"))
    model = st.SparseEncoder(modules=[router], device="cpu")
    folder = tmp_path_factory.mktemp("towers")
    model.save_pretrained(str(folder))
    return model, folder


@pytest.mark.parametrize("tower", ["query", "document"])
def test_a_tower_is_a_model(towers: tuple[Any, Path], tower: str) -> None:
    model, folder = towers
    for source in (model, folder):
        ours = headrace.compile(source, target="reference", tower=tower)
        same(ours.sparse_embed(TEXTS), dense(model, TEXTS, task=tower))


def test_a_router_may_name_a_tower(towers: tuple[Any, Path]) -> None:
    for source in towers:
        ours = headrace.compile(source, target="reference")
        same(ours.sparse_embed(TEXTS), dense(towers[0], TEXTS, task="document"))


def test_a_tower_that_is_not_there(towers: tuple[Any, Path], folders: Path, tmp_path: Path) -> None:
    for source in towers:
        with pytest.raises(LoadError) as refused:
            load(source, dtype=torch.float32, tower="passage")
        assert "has the towers query, document, and none is 'passage'. Compile a model for each" in str(refused.value)
    model = st.SparseEncoder(modules=splade(folders, "max"), device="cpu")
    model.save_pretrained(str(tmp_path))
    for source in (model, tmp_path):
        with pytest.raises(LoadError, match="has no Router, and so no tower 'query'"):
            load(source, dtype=torch.float32, tower="query")
    from sentence_transformers.sparse_encoder.modules import Router

    router = Router({"query": table(folders), "document": splade(folders, "max")}, allow_empty_key=False)
    with pytest.raises(LoadError, match="has the towers query, document, and none is named"):
        load(st.SparseEncoder(modules=[router], device="cpu"), dtype=torch.float32)


def test_vectors_as_rows_of_scipy() -> None:
    rows = np.array([[0, 2, 0, -3], [0, 0, 0, 0], [1, 0, 4, 0]], np.float32)
    made = joined([of_vector(row) for row in rows], 4)
    assert (made.shape, len(made)) == ((3, 4), 3)
    np.testing.assert_array_equal(made.csr().toarray(), rows)
    np.testing.assert_array_equal(np.asarray(made), rows)
    np.testing.assert_array_equal(np.asarray(made, np.float64), rows)
    assert made[-1].indices.tolist() == [0, 2]
    assert [one.weights.tolist() for one in made[:2]] == [[2.0, -3.0], []]
    assert largest(of_vector(rows[0]), 1).indices.tolist() == [3]
    assert np.asarray(joined([], 4)).shape == (0, 4)


@pytest.mark.parametrize("max_active", [0, -1, True, "3"])
def test_a_number_of_places_that_is_none(folders: Path, max_active: Any) -> None:
    model = headrace.compile(st.SparseEncoder(modules=table(folders), device="cpu"), target="reference")
    with pytest.raises(InputError, match="max_active is"):
        model.sparse_embed("w5", max_active=max_active)
