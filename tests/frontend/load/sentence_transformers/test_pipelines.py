"""Sentence-transformers' folders, whole: every key is applied, changes nothing, or is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headrace
from headrace.errors import HeadraceWarning, InputError
from headrace.frontend.load.checkpoint import load
from headrace.frontend.load.sentence_transformers.pipeline import TRANSFORMER_FILES
from headrace.runtime.tasks.answers.vectors import similarity, similarity_pairwise
from tests.pipelines import (
    F32,
    LONG,
    PAIRS,
    TEXTS,
    both,
    compiled,
    embedder,
    reading,
    refusal,
    require_same,
    require_same_tokens,
    transformer,
    write,
)

st = pytest.importorskip("sentence_transformers")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(("width", "normal"), [(8, True), (64, False)])
def test_f4_truncate_dim(bert: Path, tmp_path: Path, width: int, normal: bool) -> None:
    model = embedder(bert, *([] if normal else [nn.Identity()]), truncate_dim=width)
    if not normal:
        del model[2]
    for source in both(model, tmp_path / "saved")[0 if normal else 1 :]:
        ours = compiled(source)
        require_same(ours, model)
        assert ours.embed(TEXTS).shape == (len(TEXTS), min(width, 32))
    expected = model.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(ours.embed(TEXTS, normalize=True), expected, atol=1e-5)
    assert ours.embed(TEXTS, dimensions=4).shape == (len(TEXTS), 4)


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity_is_the_folders(bert: Path, tmp_path: Path, name: str) -> None:
    model = embedder(bert, similarity_fn_name=name)
    vectors = 3 * np.random.default_rng(0).normal(size=(5, 32)).astype(np.float32)
    expected = np.asarray(model.similarity(vectors, vectors))
    for source in both(model, tmp_path / "saved"):
        found = similarity(vectors, vectors, load(source, dtype=F32).similarity)
        # Their distances take the way over squares, of which a difference near 0 keeps little.
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2 if name == "euclidean" else 1e-4)
        assert found.dtype == np.float32
        pairs = similarity_pairwise(vectors, vectors[::-1], load(source, dtype=F32).similarity)
        theirs = np.asarray(model.similarity_pairwise(vectors, vectors[::-1].copy()))
        np.testing.assert_allclose(pairs, theirs, rtol=1e-4, atol=1e-4)
        assert pairs.dtype == np.float32
    with pytest.raises(InputError, match="5 vectors and 4 make no pairs"):
        similarity_pairwise(vectors, vectors[:4])


def require_applied(saved: Path, name: str, keys: dict[str, Any]) -> None:
    (saved / "sentence_bert_config.json").unlink()
    (saved / name).write_text(json.dumps(keys))
    theirs, loaded = st.SentenceTransformer(str(saved), device="cpu"), load(saved, dtype=F32)
    require_same_tokens(saved, theirs, [*TEXTS, LONG, "W5 W6"])
    ids = torch.arange(5, 30)[None]
    with torch.no_grad():
        assert torch.allclose(loaded.module(ids)[0], theirs[0].auto_model(ids)[0], atol=1e-6)


@pytest.mark.parametrize(
    "keys",
    [
        {"processing_kwargs": {"text": {"max_length": 6}, "common": {"max_length": 5, "padding": "max_length"}}},
        {"processing_kwargs": {"text": {"padding": "max_length", "pad_to_multiple_of": 8}, "image": {"size": 3}}},
        {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}},
        {"max_seq_length": 7, "do_lower_case": True},
        {"max_seq_length": 7, "processor_kwargs": {"model_max_length": 5}},
        {"tokenizer_args": {"model_max_length": 5, "trust_remote_code": True}},
        {"config_kwargs": {"num_hidden_layers": 1}},
        {"config_args": {"hidden_act": "relu", "revision": "main"}},
        {"model_args": {"attn_implementation": "eager", "add_pooling_layer": False}},
        {"unpad_inputs": False},
    ],
    ids=str,
)
def test_f5_a_key_of_the_transformers_file_is_applied(saved: Path, keys: dict[str, Any]) -> None:
    require_applied(saved, "sentence_bert_config.json", keys)


@pytest.mark.parametrize("name", TRANSFORMER_FILES)
def test_f5_by_every_name_that_the_file_has_had(saved: Path, name: str) -> None:
    require_applied(saved, name, {"processing_kwargs": {"text": {"max_length": 6}}})


def test_f5_the_first_file_that_says_something(saved: Path) -> None:
    (saved / "sentence_bert_config.json").write_text("{}")
    (saved / "sentence_roberta_config.json").write_text('{"max_seq_length": 6}')
    (saved / "sentence_albert_config.json").write_text('{"max_seq_length": 3}')
    require_same_tokens(saved, st.SentenceTransformer(str(saved), device="cpu"), TEXTS)
    assert load(saved, dtype=F32).text.why == "sentence_roberta_config.json's max_seq_length"


def test_f5_without_modules_json_none_of_the_files_is_read(saved: Path) -> None:
    """As in sentence-transformers, which then makes a pipeline of its own."""
    write(saved, "sentence_bert_config.json", max_seq_length=3)
    write(saved, "config_sentence_transformers.json", truncate_dim=5)
    (saved / "modules.json").unlink()
    require_same_tokens(saved, st.SentenceTransformer(str(saved), device="cpu"), TEXTS)
    assert load(saved, dtype=F32).sentence is None


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("sentence_bert_config.json", {"max_sequence_length": 3}, "sentence_bert_config.json says max_sequence_length=3"),
    ("sentence_bert_config.json", {"query_length": 3}, "query_length=3, which is not served"),
    ("sentence_bert_config.json", {"document_length": 3}, "document_length=3, which is not served"),
    ("sentence_bert_config.json", {"query_expansion": {"strategy": "fixed", "length": 4}}, "query_expansion={"),
    ("sentence_bert_config.json", {"tokenizer_name_or_path": "x"}, "tokenizer_name_or_path='x'"),
    ("sentence_bert_config.json", {"max_seq_length": "6"}, "max_seq_length='6'; an int of 1 and above"),
    ("sentence_bert_config.json", {"model_kwargs": {"head_dim": 3}}, "model_kwargs says head_dim=3"),
    ("sentence_bert_config.json", {"config_kwargs": {"num_hidden_layres": 3}}, "num_hidden_layres=3"),
    (
        "sentence_bert_config.json",
        {"transformer_task": "fill-mask", "modality_config": None},
        "a Pooling over token_embeddings, which no module before it makes",
    ),
    ("sentence_bert_config.json", {"module_output_name": "sentence_embedding"}, "(module_output_name)"),
    ("sentence_bert_config.json", {"processing_kwargs": {"texts": {}}}, "processing_kwargs says texts="),
    ("sentence_bert_config.json", {"processing_kwargs": {"text": {"stride": 3}}}, "text says stride=3"),
    ("sentence_bert_config.json", {"processing_kwargs": {"common": {"add_special_tokens": False}}}, "common says add_"),
    ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 0}}}, "max_length=0; an int of 1"),
    ("sentence_bert_config.json", {"processing_kwargs": {"text": {"truncation": "only_first"}}}, "'only_first'"),
    (
        "sentence_bert_config.json",
        {"modality_config": {"text": {"method": "get_text_features", "method_output_name": "pooler_output"}}},
        "takes pooler_output of get_text_features for text",
    ),
    (
        "sentence_bert_config.json",
        {"modality_config": {"message": {"method": "forward", "method_output_name": "last_hidden_state"}}},
        "gives message the format None; structured and flat are served",
    ),
    ("config_sentence_transformers.json", {"model_type": "ColBERT"}, "is of a ColBERT (model_type)"),
    (
        "config_sentence_transformers.json",
        {"model_type": "MultiVectorEncoder"},
        "compares vectors by cosine (similarity_fn_name)",
    ),
    ("config_sentence_transformers.json", {"similarity_fn_name": "maxsim"}, "by maxsim (similarity_fn_name)"),
    ("config_sentence_transformers.json", {"truncate_dim": "8"}, "truncate_dim as '8'"),
    ("config_sentence_transformers.json", {"keep_in_fp32_modules": ["0.model"]}, "keep_in_fp32_modules="),
    ("config_sentence_transformers.json", {"prompts": {"a": 3}}, "'s prompts are {'a': 3}"),
    ("config_sentence_transformers.json", {"truncate_dims": 8}, "says truncate_dims=8"),
    ("1_Pooling/config.json", {"pooling_modes": "cls"}, "says pooling_modes='cls'"),
    ("2_Normalize/config.json", {"eps": 3}, "says eps=3"),
    (
        "2_Normalize/config.json",
        {"module_input_name": "token_embeddings"},
        "a Normalize over token_embeddings, into sentence_embedding, is not served",
    ),
]


@pytest.mark.parametrize(("file", "keys", "says"), REFUSED, ids=str)
def test_f5_a_key_that_is_not_applied_is_refused_by_its_name(
    saved: Path, file: str, keys: dict[str, Any], says: str
) -> None:
    write(saved, file, **keys)
    assert says in refusal(saved)


def test_f5_truncation_that_is_switched_off_refuses_long_texts(saved: Path) -> None:
    write(saved, "sentence_bert_config.json", processing_kwargs={"text": {"truncation": False}})
    require_same_tokens(saved, st.SentenceTransformer(str(saved), device="cpu"), TEXTS)
    with pytest.raises(headrace.InputTooLongError, match="at most 40"):
        reading(saved).encode([LONG], truncate=None)


def test_a_dense_into_a_name_of_its_own(bert: Path, tmp_path: Path) -> None:
    """As rerankers have one; what reads no such name answers as before."""
    from sentence_transformers.base.modules import Dense

    model = embedder(bert, Dense(32, 1, module_output_name="scores"))
    for source in both(model, tmp_path / "saved"):
        require_same(compiled(source), model)


def test_a_normalize_that_finds_no_vector_leaves_tokens_alone(bert: Path, tmp_path: Path) -> None:
    from sentence_transformers.base.modules import Normalize

    model = st.SentenceTransformer(modules=[transformer(bert), Normalize()], device="cpu")
    for source in both(model, tmp_path / "saved")[1:]:
        ours = compiled(source)
        for one, other in zip(
            ours.token_embed(TEXTS), model.encode(TEXTS, output_value="token_embeddings"), strict=True
        ):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_modules_over_tokens_where_nothing_pools(bert: Path, tmp_path: Path) -> None:
    from sentence_transformers.base.modules import Dense, Normalize

    over = {"module_input_name": "token_embeddings"}
    modules = [transformer(bert), Dense(32, 6, **over), Normalize(**over)]
    model = st.SentenceTransformer(modules=modules, device="cpu")
    for source in both(model, tmp_path / "saved")[1:]:
        ours = compiled(source)
        for one, other in zip(
            ours.token_embed(TEXTS), model.encode(TEXTS, output_value="token_embeddings"), strict=True
        ):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_text_rules_of_a_cross_encoder(scorer: Path, tmp_path: Path) -> None:
    model = st.CrossEncoder(str(scorer), device="cpu")
    model.save_pretrained(str(tmp_path))
    keys = {"max_seq_length": 9, "do_lower_case": True, "processor_kwargs": {"padding_side": "left"}}
    write(tmp_path, "sentence_bert_config.json", **keys)
    theirs = st.CrossEncoder(str(tmp_path), device="cpu")
    require_same_tokens(tmp_path, theirs, [*PAIRS, ("W5 W6", LONG)])
    assert load(tmp_path, dtype=F32).text.truncates


def test_a_warning_is_no_refusal(saved: Path) -> None:
    """Layers that config_kwargs take off are named."""
    write(saved, "sentence_bert_config.json", config_kwargs={"num_hidden_layers": 1})
    with pytest.warns(HeadraceWarning, match="16 weights of .* have no place"):
        load(saved, dtype=F32)
