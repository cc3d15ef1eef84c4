"""Texts of many vectors beside sentence-transformers' MultiVectorEncoder: masks, skip lists, expansion and MaxSim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.errors import InputError, LoadError
from headrace.ir import Interaction
from headrace.runtime.tasks.multi_embed import length_of, scores
from tests.tiny import build
from tests.words import bert_like

st = pytest.importorskip("sentence_transformers")

TEXTS = ["w5 w6 w7", "w9", "w20 w21 w22 w23 w24 w25 w26 w5 w5"]
LONG = " ".join(f"w{5 + i % 80}" for i in range(60))
MASKED: dict[str, Any] = {
    "plain": {},
    "skip list": {"skiplist_words": ["w5", "w21", "nothing"]},
    "skip list, both sides": {"skiplist_words": ["w5", "w21"], "skiplist_tasks": ["query", "document"]},
    "only some": {"keep_only_token_ids": [5, 20, 21, 22]},
}
EXPANDED: dict[str, Any] = {
    "attended": {"query_expansion": {"strategy": "fixed", "length": 8, "attend": True}},
    "not attended": {"query_expansion": {"strategy": "fixed", "length": 8}},
    "at least": {"query_expansion": {"strategy": "min", "length": 6, "token": "w90"}, "query_length": 12},
    "lengths": {"query_length": 6, "document_length": 9},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("multi")
    for name in ("bert", "xlm-roberta"):
        build(name, num_hidden_layers=1).save_pretrained(folder / name)
        bert_like(model_max_length=40).save_pretrained(folder / name)
    build("bert", num_hidden_layers=1).save_pretrained(folder / "left")
    bert_like(model_max_length=40, padding_side="left").save_pretrained(folder / "left")
    return folder


def encoder(folder: Path, mask: dict[str, Any], transformer: dict[str, Any], **options: Any) -> Any:
    import torch
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    torch.manual_seed(0)
    tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    after = [Dense(32, 16, bias=False, activation_function=torch.nn.Identity(), **tokens), Normalize(**tokens)]
    modules = [Transformer(str(folder), **transformer), *after, MultiVectorMask(**mask)]
    return st.MultiVectorEncoder(modules=modules, device="cpu", **options)


MADE = {name: ("bert", {"mask": said, "transformer": {}}) for name, said in MASKED.items()}
MADE |= {name: ("bert", {"mask": {"skiplist_words": ["w5"]}, "transformer": said}) for name, said in EXPANDED.items()}
MADE |= {f"{name}, on the left": ("left", MADE[name][1]) for name in ("attended", "not attended", "at least")}
MADE |= {f"{name}, positions by ids": ("xlm-roberta", MADE[name][1]) for name in ("attended", "not attended")}


@pytest.fixture(scope="module", params=MADE)
def both(request: Any, folders: Path, tmp_path_factory: Any) -> tuple[Any, Path]:
    name, said = MADE[request.param]
    model = encoder(folders / name, prompts={"query": "w80 ", "document": "w81 "}, **said)
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(str(folder))
    return model, folder


def same(got: Any, expected: Any) -> None:
    assert [one.shape for one in got] == [one.shape for one in expected]
    for one, two in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


def test_equals_sentence_transformers(both: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = both
    for source in (model, folder):
        ours = headrace.compile(source, target="reference")
        assert ours.task == "multi_embed"
        queries, documents = ours.multi_embed(TEXTS, "query"), ours.multi_embed(TEXTS)
        # Each alone: a batch of theirs counts the places of a text from its padding, where that is on the left.
        their_queries = [model.encode_query(one) for one in TEXTS]
        their_documents = [model.encode_document(one) for one in TEXTS]
        same(queries, their_queries)
        same(documents, their_documents)
        same(ours.multi_embed(TEXTS, prompt=""), [model.encode_document(one, prompt="") for one in TEXTS])
        for side, ask in (("query", model.encode_query), ("document", model.encode_document)):
            same(ours.multi_embed([LONG], side, truncate=True), [ask(LONG)])
        theirs = np.asarray(model.similarity(their_queries, their_documents))
        np.testing.assert_allclose(ours.similarity(queries, documents), theirs, atol=2e-5)
        np.testing.assert_allclose(ours.similarity_pairwise(queries, documents), np.diag(theirs), atol=2e-5)
    ours.save(tmp_path / "ours")
    same(headrace.load(tmp_path / "ours").multi_embed(TEXTS, "query"), queries)


def test_the_mean_over_a_query(folders: Path) -> None:
    model = encoder(folders / "bert", {}, {}, similarity_fn_name="meanmaxsim")
    ours = headrace.compile(model, target="reference")
    queries, documents = ours.multi_embed(TEXTS, "query"), ours.multi_embed(TEXTS)
    expected = np.asarray(model.similarity(model.encode_query(TEXTS), model.encode_document(TEXTS)))
    np.testing.assert_allclose(ours.similarity(queries, documents), expected, atol=1e-5)
    np.testing.assert_allclose(ours.similarity(queries[0], documents), expected[:1], atol=1e-5)


def test_a_query_that_is_not_attended_runs_padded(folders: Path) -> None:
    """Packed sequences have no token that others pass over."""
    from headrace.ir import Layout, Task
    from headrace.lowering.pipeline import prepare

    program = headrace.trace(encoder(folders / "bert", {}, EXPANDED["not attended"])).analysed
    prepared = prepare(program, Task.MULTI_EMBED, Layout.PACKED)
    assert prepared.form.layout is Layout.PADDED
    assert prepared.form.layout_why == "Its queries are filled up with tokens that no other attends to."


def test_a_pipeline_without_a_mask(folders: Path) -> None:
    from sentence_transformers.base.modules import Normalize, Transformer

    modules = [Transformer(str(folders / "bert")), Normalize(module_input_name="token_embeddings")]
    with pytest.raises(LoadError, match="without a MultiVectorMask, so that nothing says what counts"):
        headrace.trace(st.MultiVectorEncoder(modules=modules, device="cpu"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"strategy": "most"}, "names the strategy 'most'; fixed and min are served."),
        ({"token": "w900"}, "fills queries with w900, which the tokenizer does not have."),
        ({"often": 1}, "says often=1"),
    ],
)
def test_an_expansion_that_is_not_served(folders: Path, tmp_path: Path, change: dict[str, Any], says: str) -> None:
    import json

    encoder(folders / "bert", {}, EXPANDED["attended"]).save_pretrained(str(tmp_path))
    path = tmp_path / "sentence_bert_config.json"
    said = json.loads(path.read_text())
    said["query_expansion"] |= change
    path.write_text(json.dumps(said))
    with pytest.raises(LoadError) as refused:
        headrace.trace(tmp_path)
    assert says in str(refused.value)


def test_a_side_that_is_none(folders: Path) -> None:
    ours = headrace.compile(encoder(folders / "bert", {}, {}), target="reference")
    with pytest.raises(InputError, match="side is 'passage'; query and document are accepted"):
        ours.multi_embed(TEXTS, "passage")


def test_which_tokens_score() -> None:
    ids = np.array([0, 5, 6, 7, 2])
    rules = Interaction(skipped=(6,), kept=(5, 6, 7))
    assert scores(ids, rules, "document").tolist() == [False, True, False, True, False]
    assert scores(ids, rules, "query").all()
    assert length_of(Interaction(query_length=4, document_length=9), "query") == 4
    assert length_of(Interaction(query_length=4, document_length=9), "document") == 9
