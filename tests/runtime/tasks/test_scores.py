"""Scores beside sentence-transformers' CrossEncoder: by heads, by modules and by a language model's yes and no."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headrace
from headrace.errors import HeadraceWarning, InputError, LoadError, TaskNotEnabledError
from headrace.ir import PoolKind, Task
from headrace.lowering.pipeline import prepare
from tests.tiny import build
from tests.words import bert_like, gpt_like

st = pytest.importorskip("sentence_transformers")

PAIRS = [("w5 w6 w7", "w8 w9"), ("w9", "w10 w11 w12 w13"), ("w20 w21", "w22 " * 20)]
ROLES = (
    "{% for m in messages %}{% if m.role == 'system' %}w90 {{ m.content }} {% else %}"
    "{{ 'w91' if m.role == 'query' else 'w92' }} {{ m.content }} {% endif %}{% endfor %}w93 w94"
)
CAUSAL = "AutoModelForCausalLM"
SEQUENCE = "AutoModelForSequenceClassification"


def yes_no(template: str | None = None) -> Any:
    """A tokenizer that adds nothing, and two of whose words are yes and no."""
    import json

    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    said = json.loads(gpt_like().backend_tokenizer.to_str())
    vocabulary = said["model"]["vocab"]
    vocabulary["yes"], vocabulary["no"] = vocabulary.pop("w94"), vocabulary.pop("w95")
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(said)), **names)
    made.chat_template = template
    return made


def saved(folder: Path, tokenizer: Any, name: str, head: str, **options: Any) -> Path:
    build(name, head, **options).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def quietly(source: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HeadraceWarning)
        return headrace.compile(source, target="reference", **options)


def alone(model: Any, **options: Any) -> Any:
    return np.array([model.predict([pair], **options)[0] for pair in PAIRS])


def same(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), expected, atol=1e-5)


CROSSED = pytest.mark.slow(reason="texts are written before a model reads them: each of both once by default")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        pytest.param(None, "qwen3", id="bare texts-qwen3"),
        pytest.param(ROLES, "gemma2", id="template-gemma2"),
        pytest.param(None, "gemma2", id="bare texts-gemma2", marks=CROSSED),
        pytest.param(ROLES, "qwen3", id="template-qwen3", marks=CROSSED),
    ],
)
def test_a_language_model_as_a_cross_encoder(tmp_path: Path, name: str, template: str | None) -> None:
    """Gemma 2 caps its logits."""
    from sentence_transformers.cross_encoder.modules import LogitScore, Transformer

    folder = saved(tmp_path / "model", yes_no(template), name, CAUSAL)
    modules = [Transformer(str(folder), transformer_task="text-generation"), LogitScore(7, None if template else 9)]
    model = st.CrossEncoder(modules=modules, device="cpu", prompts={"q": "w80 "}, default_prompt_name="q")
    model.save_pretrained(str(tmp_path / "saved"))
    for source in (model, tmp_path / "saved"):
        ours = quietly(source)
        assert ours.task == "score"
        same(ours.score(PAIRS), alone(model))
        same(ours.score(PAIRS, raw=True), alone(model, activation_fn=nn.Identity()))
        same(ours.score(PAIRS, prompt=""), alone(model, prompt=""))
        same([found.score for found in ours.classify(PAIRS)], alone(model))
    ours.save(tmp_path / "ours")
    np.testing.assert_array_equal(headrace.load(tmp_path / "ours").score(PAIRS), ours.score(PAIRS))
    require_logits_of_one_row(ours)


def require_logits_of_one_row(model: Any) -> None:
    """No node of the program that scores has the logits of every row."""
    graph = prepare(model.program, Task.SCORE).graph.graph
    vocabulary = model.program.signature.vocabulary
    shapes = [tuple(node.meta["val"].shape) for node in graph.nodes if hasattr(node.meta.get("val"), "shape")]
    assert sum(shape[-1:] == (vocabulary,) for shape in shapes) > 0
    assert not [shape for shape in shapes if len(shape) == 3 and shape[-1] == vocabulary]
    pools = [node for node in graph.nodes if node.target is torch.ops.headrace.pool.default]
    assert [node.args[2] for node in pools] == [PoolKind.LAST.value]


@pytest.mark.parametrize("template", [None, ROLES, ROLES.replace("m.content", "m.content[0].text")])
def test_a_bare_language_model_scores_where_that_is_asked_for(tmp_path: Path, template: str | None) -> None:
    folder = saved(tmp_path, yes_no(template), "qwen3", CAUSAL)
    model = st.CrossEncoder(str(folder), device="cpu")
    with pytest.warns(HeadraceWarning, match="scores pairs by its logits of the tokens yes and no"):
        ours = headrace.compile(folder, target="reference", task="score")
    same(ours.score(PAIRS), alone(model))
    got, expected = ours.rank("w5", ["w6", "w7 w8"]), model.rank("w5", ["w6", "w7 w8"])
    assert [found.index for found in got] == [found["corpus_id"] for found in expected]
    same([found.score for found in got], [found["score"] for found in expected])
    assert headrace.trace(folder).program.evidence.declared_tasks == ()


def test_a_language_model_without_yes_and_no(tmp_path: Path) -> None:
    folder = saved(tmp_path, gpt_like(), "qwen3", CAUSAL)
    with pytest.raises(LoadError, match="and the tokenizer has no yes and no no"):
        headrace.compile(folder, target="reference", task="score")


@pytest.mark.parametrize("labels", [1, 3])
def test_modules_that_pool_and_score(tmp_path: Path, labels: int) -> None:
    from sentence_transformers.cross_encoder.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    folder = saved(tmp_path / "model", bert_like(), "bert", "AutoModel", num_hidden_layers=1)
    torch.manual_seed(0)
    scoring = Dense(32, labels, activation_function=nn.Identity(), module_output_name="scores")
    model = st.CrossEncoder(modules=[Transformer(str(folder)), Pooling(32, "cls"), scoring], device="cpu")
    model.save_pretrained(str(tmp_path / "saved"))
    for source in (model, tmp_path / "saved"):
        ours = quietly(source)
        assert ("score" in ours.tasks, ours.task) == (labels == 1, "score" if labels == 1 else "classify")
        got = [list(found.scores.values()) for found in ours.classify(PAIRS)]
        same(np.squeeze(got), alone(model))


CONFIGS = {
    "one label": {"num_labels": 1},
    "several": {"num_labels": 3},
    "several at once": {"num_labels": 3, "problem_type": "multi_label_classification"},
    "regression": {"num_labels": 1, "problem_type": "regression"},
}


@pytest.fixture(scope="module", params=CONFIGS)
def labelled(request: Any, tmp_path_factory: Any) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("labelled")
    return request.param, saved(folder, bert_like(), "bert", SEQUENCE, num_hidden_layers=1, **CONFIGS[request.param])


def test_scores_of_a_bare_head_are_the_pipelines(labelled: tuple[str, Path]) -> None:
    """And its logits are what a CrossEncoder without an activation predicts."""
    from transformers import pipeline

    name, folder = labelled
    ours, texts = quietly(folder), ["w5 w6 w7", "w9 w10"]
    theirs = pipeline("text-classification", model=str(folder), tokenizer=bert_like(), top_k=None)
    for found, expected in zip(ours.classify(texts), theirs(texts), strict=True):
        assert found.scores == pytest.approx({one["label"]: one["score"] for one in expected}, abs=1e-5), name
    raw = [list(found.scores.values()) for found in ours.classify(PAIRS, raw=True)]
    model = st.CrossEncoder(str(folder), device="cpu")
    same(np.squeeze(raw), alone(model, activation_fn=nn.Identity()))


@pytest.mark.parametrize("activation", [None, nn.Identity(), nn.Sigmoid(), nn.Softmax(-1)], ids=repr)
def test_scores_of_a_saved_cross_encoder_are_its_own(
    labelled: tuple[str, Path], tmp_path: Path, activation: Any
) -> None:
    model = st.CrossEncoder(str(labelled[1]), device="cpu", activation_fn=activation)
    model.save_pretrained(str(tmp_path))
    got = [list(found.scores.values()) for found in quietly(tmp_path).classify(PAIRS)]
    expected = alone(model)
    same(np.squeeze(got), expected)


DOCUMENTS = ["w6 w7", "w9 w10 w11", "w6 w7", "w30", "w5"]


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: Any) -> tuple[Any, Any]:
    folder = saved(tmp_path_factory.mktemp("ranking"), bert_like(), "bert", SEQUENCE, num_labels=1, num_hidden_layers=1)
    return st.CrossEncoder(str(folder), device="cpu"), quietly(folder)


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 2}, {"top_k": 9, "return_documents": True}, {"return_documents": True}]
)
def test_documents_are_ranked_alike(ranking: tuple[Any, Any], options: dict[str, Any]) -> None:
    model, ours = ranking
    expected = model.rank("w5", DOCUMENTS, **options)
    got = ours.rank("w5", DOCUMENTS, **options)
    assert [found.index for found in got] == [found["corpus_id"] for found in expected]
    same([found.score for found in got], [found["score"] for found in expected])
    assert [found.document for found in got] == [found.get("text") for found in expected]


@pytest.mark.parametrize("top_k", [0, -1, True, "2"])
def test_a_top_k_that_is_no_number_of_documents(ranking: tuple[Any, Any], top_k: Any) -> None:
    with pytest.raises(InputError, match=r"top_k is .*; an int of 1 and above is accepted\."):
        ranking[1].rank("w5", DOCUMENTS, top_k=top_k)


def test_few_documents(ranking: tuple[Any, Any]) -> None:
    assert ranking[1].rank("w5", []) == []
    assert [found.index for found in ranking[1].rank("w5", "w6")] == [0]


@pytest.mark.parametrize("compared", ["cosine", "dot", "euclidean"])
def test_a_model_that_embeds_ranks_by_similarity(tmp_path: Path, compared: str) -> None:
    folder = saved(tmp_path / "model", bert_like(), "bert", "AutoModel", num_hidden_layers=1)
    prompts = {"query": "w80 ", "document": "w81 "}
    model = st.SentenceTransformer(str(folder), device="cpu", prompts=prompts, similarity_fn_name=compared)
    model.save_pretrained(str(tmp_path / "saved"))
    ours = quietly(tmp_path / "saved")
    expected = model.similarity(model.encode_query("w5"), model.encode_document(DOCUMENTS))[0].numpy()
    got = ours.rank("w5", DOCUMENTS, top_k=3, return_documents=True)
    order = np.argsort(-expected, kind="stable")[:3]
    assert {found.document for found in got} == {DOCUMENTS[place] for place in order}
    np.testing.assert_allclose([found.score for found in got], expected[order], rtol=1e-4)
    assert ours.rank("w5", []) == []
    other = model.similarity(model.encode("w5", prompt="w82 "), model.encode_document(DOCUMENTS))[0].numpy()
    np.testing.assert_allclose(ours.rank("w5", DOCUMENTS, prompt="w82 ")[0].score, other.max(), rtol=1e-4)


def test_what_neither_scores_nor_embeds_does_not_rank(tiny: Any) -> None:
    model = quietly(tiny("bert", "AutoModelForTokenClassification"), tokenizer=bert_like())
    with pytest.raises(TaskNotEnabledError, match="The task score is not supported"):
        model.rank("w5", DOCUMENTS)


def test_a_score_of_tokens_that_the_model_lacks(tmp_path: Path) -> None:
    from sentence_transformers.cross_encoder.modules import LogitScore, Transformer

    folder = saved(tmp_path / "model", yes_no(), "qwen3", CAUSAL)
    modules = [Transformer(str(folder), transformer_task="text-generation"), LogitScore(5000)]
    with pytest.raises(headrace.TraceError, match="compare the token 5000, and the model has logits of 96"):
        quietly(st.CrossEncoder(modules=modules, device="cpu"))


def test_documents_without_a_length_are_gone_through() -> None:
    """A nested tensor says by an error of torch's own that it has none."""
    import torch

    from headrace.runtime.tasks.score import read_documents

    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    assert [len(one) for one in read_documents(nested, None)] == [1, 2]
