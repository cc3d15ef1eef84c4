"""Our SentenceTransformer beside theirs: the arguments that both have, and packages that are written for theirs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.runtime import api
from tests.tiny import build
from tests.words import bert_like

st = pytest.importorskip("sentence_transformers")

TEXTS = ["w5 w6 w7", "w9", "w20 w21 w5 w9", "w5 w6 w7", "w40 " * 60]
PROMPTS = {"query": "w80 ", "passage": "w81 ", "other": "w82 w83 "}
CLOSE = 1e-4  # D1


@pytest.fixture(scope="module", params=["plain", "normalised, with a default"])
def both(request: Any, tmp_path_factory: Any) -> tuple[Any, Any]:
    """Theirs, and ours of the folder that it saves."""
    from sentence_transformers.sentence_transformer.modules import Normalize

    folder = tmp_path_factory.mktemp("bert")
    build("bert", num_hidden_layers=1).save_pretrained(folder)
    bert_like(model_max_length=40).save_pretrained(folder)
    theirs = st.SentenceTransformer(str(folder), device="cpu", prompts=PROMPTS)
    if request.param != "plain":
        theirs.append(Normalize())
        theirs.default_prompt_name = "other"
        theirs.similarity_fn_name = "dot"
    saved = tmp_path_factory.mktemp("saved")
    theirs.save_pretrained(str(saved))
    return theirs, headrace.SentenceTransformer(headrace.compile(saved, target="reference"))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"prompt_name": "query"},
    {"prompt": "w90 "},
    {"prompt": "query"},  # a text that reads like a name
    {"batch_size": 2},
    {"normalize_embeddings": True},
    {"truncate_dim": 5},
    {"truncate_dim": 5, "normalize_embeddings": True},
    {"precision": "int8"},
    {"precision": "ubinary", "truncate_dim": 16},
    {"convert_to_tensor": True},
    {"convert_to_numpy": False},
    {"output_value": "token_embeddings"},
    {"show_progress_bar": False, "device": "cpu"},
]


@pytest.mark.filterwarnings("ignore:The int8 vectors")
@pytest.mark.parametrize("options", OPTIONS, ids=repr)
@pytest.mark.parametrize(
    "texts", [TEXTS, TEXTS[0], tuple(TEXTS), np.array(TEXTS)], ids=lambda texts: type(texts).__name__
)
def test_encode(texts: Any, options: dict[str, Any], both: tuple[Any, Any]) -> None:
    theirs, ours = both
    if isinstance(texts, str) and options.get("precision") == "int8":  # the ranges of one vector are none
        with pytest.raises(headrace.InputError, match="The vectors to take ranges from"):
            ours.encode(texts, **options)
        return
    wanted, found = (model.encode(texts, **options) for model in (theirs, ours))
    if options.get("precision") == "int8":  # a step in 255 turns with the last bit
        assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
        return
    assert type(found) is type(wanted)
    rows = [(found, wanted)] if isinstance(texts, str) else zip(found, wanted, strict=True)
    for one, other in rows:
        assert type(one) is type(other)
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, atol=CLOSE)


def test_queries_documents_and_older_names(both: tuple[Any, Any]) -> None:
    theirs, ours = both
    for method in ("encode_query", "encode_document"):
        wanted, found = (getattr(model, method)(TEXTS) for model in (theirs, ours))
        np.testing.assert_allclose(found, wanted, atol=CLOSE)
        wanted, found = (getattr(model, method)(TEXTS, prompt="w90 ") for model in (theirs, ours))
        np.testing.assert_allclose(found, wanted, atol=CLOSE)
    np.testing.assert_array_equal(ours.encode(sentences=TEXTS), ours.encode(TEXTS))


def test_similarity(both: tuple[Any, Any]) -> None:
    theirs, ours = both
    vectors, others = theirs.encode(TEXTS), theirs.encode(TEXTS[:2], convert_to_tensor=True)
    assert ours.similarity_fn_name == theirs.similarity_fn_name
    for given in ((vectors, others), (vectors[0], vectors), (list(vectors), list(others))):
        wanted, found = (model.similarity(*given) for model in (theirs, ours))
        assert isinstance(found, torch.Tensor)
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
    np.testing.assert_allclose(
        ours.similarity_pairwise(vectors, vectors), theirs.similarity_pairwise(vectors, vectors), rtol=1e-4
    )
    ours.similarity_fn_name = "euclidean"
    assert float(ours.similarity(vectors[:1], vectors[:1])) == 0
    ours.similarity_fn_name = theirs.similarity_fn_name


def test_attributes(both: tuple[Any, Any]) -> None:
    theirs, ours = both
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension() == 32
    assert ours.prompts == theirs.prompts
    assert ours.default_prompt_name == theirs.default_prompt_name
    assert ours.device == theirs.device
    with ours.truncate_embeddings(7), theirs.truncate_embeddings(7):
        np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(TEXTS), atol=CLOSE)
        assert ours.get_embedding_dimension() == 7
    theirs.max_seq_length, before = 8, theirs.max_seq_length
    ours.max_seq_length = 8
    np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(TEXTS), atol=CLOSE)
    theirs.max_seq_length, ours.max_seq_length = before, None
    assert repr(ours).startswith("SentenceTransformer(<CompiledModel ")


@pytest.mark.parametrize(
    ("ask", "met"),
    [
        (lambda model: model.encode("w5", prompt_name="nothing"), "no prompt named 'nothing'; prompts are .*query"),
        (
            lambda model: model.encode("w5", device="cuda:1"),
            "device is 'cuda:1', and the model was compiled for refere",
        ),
        (lambda model: model.encode("w5", pool={"input": 1}), "encode takes no pool: one process runs the model"),
        (lambda model: model.encode("w5", output_value="cls"), "output_value is 'cls'; sentence_embedding and token"),
        (
            lambda model: headrace.SentenceTransformer(model.compiled, device="cpu"),
            "is compiled, and device='cpu' would",
        ),
        (lambda model: headrace.SentenceTransformer(model.compiled, backend="onnx"), "takes no backend: device= or"),
        (lambda model: headrace.SentenceTransformer(model.compiled, default_prompt_name="x"), "no prompt named 'x'"),
    ],
)
def test_what_is_refused(ask: Any, met: str, both: tuple[Any, Any]) -> None:
    with pytest.raises(headrace.InputError, match=met):
        ask(both[1])


def test_arguments_that_nobody_has(both: tuple[Any, Any]) -> None:
    with pytest.raises(TypeError, match=r"encode\(\) got an unexpected keyword argument 'promt'"):
        both[1].encode("w5", promt="x")


def test_what_it_is_made_of(both: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that `save` wrote is read back; anything else is compiled, in the dtype that model_kwargs say."""
    theirs, ours = both
    if theirs.default_prompt_name is not None:
        return  # once is enough
    saved = ours.compiled.save(tmp_path / "saved")
    np.testing.assert_allclose(headrace.SentenceTransformer(str(saved)).encode(TEXTS), ours.encode(TEXTS), atol=CLOSE)
    lower, given = api.lower, dict[str, Any]()

    def on_reference(model: Any, *, device: Any, **options: Any) -> Any:
        given.update(options, device=device)
        return lower(model, target="reference", **options)

    monkeypatch.setattr(api, "lower", on_reference)
    made = headrace.SentenceTransformer(theirs, device="cpu", model_kwargs={"torch_dtype": torch.float32})
    np.testing.assert_allclose(made.encode(TEXTS), theirs.encode(TEXTS), atol=CLOSE)
    assert (given["device"], given["dtype"]) == ("cpu", torch.float32)
    with pytest.raises(headrace.InputError, match="model_kwargs has attn_implementation; dtype is accepted"):
        headrace.SentenceTransformer(theirs, model_kwargs={"attn_implementation": "eager"})


# The packages that are written for theirs.


def test_their_utilities(both: tuple[Any, Any]) -> None:
    from sentence_transformers import util

    theirs, ours = both
    for of in (
        lambda model: util.paraphrase_mining(model, TEXTS, batch_size=2),
        lambda model: util.community_detection(model.encode(TEXTS, convert_to_tensor=True), 0.9, 1),
    ):
        assert _rounded(of(ours)) == _rounded(of(theirs))
    hits = util.semantic_search(ours.encode_query(TEXTS[:1]), ours.encode_document(TEXTS), top_k=2)
    wanted = util.semantic_search(theirs.encode_query(TEXTS[:1]), theirs.encode_document(TEXTS), top_k=2)
    assert [hit["corpus_id"] for hit in hits[0]] == [hit["corpus_id"] for hit in wanted[0]]


def _rounded(found: Any) -> Any:
    if isinstance(found, (list, tuple)):
        return [_rounded(one) for one in found]
    return round(float(found), 3)


def test_their_evaluators(both: tuple[Any, Any]) -> None:
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

    theirs, ours = both
    scores = [0.1, 0.9, 0.4, 0.7]
    evaluator = EmbeddingSimilarityEvaluator(TEXTS[:4], TEXTS[1:], scores, name="pairs", write_csv=False)
    wanted, found = evaluator(theirs), evaluator(ours)
    assert found.keys() == wanted.keys()
    assert list(found.values()) == pytest.approx(list(wanted.values()), abs=1e-3)
    assert ours.model_card_data.metrics["pairs"] == found


def test_keybert(both: tuple[Any, Any]) -> None:
    """By the class that it documents for models of one's own: it asks for sentence-transformers' own class else."""
    keybert = pytest.importorskip("keybert")
    from keybert.backend import BaseEmbedder

    theirs, ours = both

    class Embedder(BaseEmbedder):  # type: ignore[misc]
        def embed(self, documents: Any, verbose: bool = False) -> Any:
            return ours.encode(documents, show_progress_bar=verbose)

    text = "w5 w6 w7 w20 w21 w5 w9"
    wanted = keybert.KeyBERT(theirs).extract_keywords(text, stop_words=None)
    found = keybert.KeyBERT(Embedder()).extract_keywords(text, stop_words=None)
    assert [word for word, _ in found] == [word for word, _ in wanted]
    assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=1e-3)


def test_langchain(both: tuple[Any, Any]) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core.vectorstores import InMemoryVectorStore

    theirs, ours = both
    store = InMemoryVectorStore.from_texts(TEXTS[:4], ours)
    assert store.similarity_search(TEXTS[1], k=4)
    np.testing.assert_allclose(ours.embed_query(TEXTS[0]), theirs.encode_query(TEXTS[0]), atol=CLOSE)
    np.testing.assert_allclose(ours.embed_documents(TEXTS), theirs.encode_document(TEXTS), atol=CLOSE)


def test_mteb(both: tuple[Any, Any], tmp_path: Path) -> None:
    """As an encoder of its protocol, on a task of its own that needs no download."""
    mteb = pytest.importorskip("mteb")
    import datasets
    from mteb.abstasks.sts import AbsTaskSTS

    class Pairs(AbsTaskSTS):  # type: ignore[misc]
        metadata = mteb.TaskMetadata(
            name="Pairs", description="pairs of words", reference=None, dataset={"path": "none", "revision": "none"},
            type="STS", category="t2t", modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"],
            main_score="cosine_spearman", date=("2026-01-01", "2026-01-02"), domains=[], task_subtypes=[],
            license="not specified", annotations_creators="derived", dialect=[], sample_creation="found",
            bibtex_citation="",
        )  # fmt: skip
        min_score, max_score = 0, 1

        def load_data(self, *args: Any, **options: Any) -> None:
            rows = {"sentence1": TEXTS[:4], "sentence2": TEXTS[1:], "score": [0.1, 0.9, 0.4, 0.7]}
            self.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_dict(rows)})
            self.data_loaded = True

    theirs, ours = both
    found, wanted = (
        mteb.evaluate(model, Pairs(), cache=None, show_progress_bar=False).task_results[0].get_score()
        for model in (ours, theirs)
    )
    assert found == pytest.approx(wanted, abs=1e-3)


def test_mteb_is_not_imported_for_others(both: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.setitem(sys.modules, "mteb.models", None)
    assert not hasattr(both[1], "mteb_model_meta")
    both[1].encode(TEXTS)
