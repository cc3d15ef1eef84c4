"""Sentence-transformers' folders and objects, whole: every key is applied, changes nothing, or is refused by name."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headrace
from headrace.errors import HeadraceWarning, InputError, LoadError
from headrace.frontend.facts.config_claims import read_labels
from headrace.frontend.load.checkpoint import load
from headrace.frontend.load.pipeline import TRANSFORMER_FILES
from headrace.ir import Head
from headrace.runtime.artifact.export_onnx import _write_side_files
from headrace.runtime.tasks.classify import classification
from headrace.runtime.tasks.vectors import similarity, similarity_pairwise
from headrace.runtime.text.tokenizer import Texts
from tests.tiny import build
from tests.trained import limited
from tests.words import bert_like

st = pytest.importorskip("sentence_transformers")

F32 = torch.float32
NAMES = ["input_ids", "token_type_ids", "attention_mask"]
SEQUENCE = "AutoModelForSequenceClassification"
TEXTS = ["w5 w6 w7", "w9", "w20 w21 w22 w23 w24 w25 w26 w27 w28 w29 w30", ""]
PAIRS = [("w5 w6 w7", "w8 w9"), ("w9", "w10 w11 w12 w13"), ("w20 w21", "w22 " * 20)]
LONG = " ".join(f"w{5 + i % 90}" for i in range(200))
FLAT = (
    "{% for m in messages %}{% if m.role == 'system' %}w90 {{ m.content }} {% else %}"
    "{{ 'w91' if m.role == 'query' else 'w92' }} {{ m.content }} {% endif %}{% endfor %}w93 w94"
    "{% if add_generation_prompt %} w95{% endif %}"
)
STRUCTURED = FLAT.replace("m.content", "m.content[0].text")


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    build("bert", num_hidden_layers=2).save_pretrained(folder)
    bert_like(model_max_length=40, model_input_names=NAMES).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorer")
    build("bert", SEQUENCE, num_labels=1, num_hidden_layers=1).save_pretrained(folder)
    bert_like(model_max_length=40, model_input_names=NAMES).save_pretrained(folder)
    return folder


def transformer(folder: Path, **options: Any) -> Any:
    from sentence_transformers.base.modules import Transformer

    return Transformer(str(folder), **options)


def embedder(folder: Path, *after: Any, made: dict[str, Any] | None = None, **options: Any) -> Any:
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    modules = [transformer(folder, **(made or {})), Pooling(32, "mean"), *(after or [Normalize()])]
    return st.SentenceTransformer(modules=modules, device="cpu", **options)


def compiled(model: Any, **options: Any) -> Any:
    return headrace.compile(model, target="reference", **options)


def both(model: Any, folder: Path) -> list[Any]:
    """The object, and the folder that it saves."""
    model.save_pretrained(str(folder))
    return [model, folder]


def reading(source: Any) -> Texts:
    """How texts are read by what was loaded, without a trace."""
    loaded = load(source, dtype=F32)
    return Texts(loaded.tokenizer, limited(64, text=loaded.text))


def require_same_tokens(source: Any, theirs: Any, texts: list[Any], prompt: str | None = None) -> None:
    """Ids and types of each text alone, as sentence-transformers makes them."""
    text = theirs.prompts.get(theirs.default_prompt_name) if prompt is None else theirs.prompts.get(prompt, prompt)
    pairs = isinstance(texts[0], tuple)
    for one, given in zip(reading(source).encode(texts, truncate=None, pairs=pairs, prompt=prompt), texts, strict=True):
        wanted = theirs.preprocess([given], prompt=text)
        kept = wanted["attention_mask"][0].bool()
        assert one.ids.tolist() == wanted["input_ids"][0][kept].tolist()
        assert one.types is not None
        assert one.types.tolist() == wanted["token_type_ids"][0][kept].tolist()


def write(folder: Path, name: str, **keys: Any) -> None:
    """Change keys of one of a folder's files; None takes one out."""
    path = folder / name
    kept = (json.loads(path.read_text()) if path.is_file() else {}) | keys
    path.write_text(json.dumps({key: value for key, value in kept.items() if value is not None}))


def refusal(folder: Any) -> str:
    with pytest.raises(LoadError) as refused:
        load(folder, dtype=F32)
    return str(refused.value)


def require_same(model: Any, theirs: Any, texts: list[str] = TEXTS, **options: Any) -> None:
    np.testing.assert_allclose(model.embed(texts), theirs.encode(texts, **options), atol=1e-5)


# Chat templates.


@pytest.mark.parametrize("template", [FLAT, STRUCTURED], ids=["flat", "structured"])
def test_f2_texts_go_through_the_chat_template(bert: Path, tmp_path: Path, template: str) -> None:
    folder = shutil.copytree(bert, tmp_path / "bert")
    (folder / "chat_template.jinja").write_text(template)
    model = embedder(folder, prompts={"query": "w80 w81", "document": ""})
    assert "message" in model[0].modality_config
    for ours in both(model, tmp_path / "saved"):
        assert load(ours, dtype=F32).text.chat.structured == (template == STRUCTURED)
        for prompt in (None, "query", "w70 "):
            # The template's end is put back where it was cut off.
            require_same_tokens(ours, model, [*TEXTS, LONG], prompt)


@pytest.fixture(scope="module")
def rendering(bert, tmp_path_factory):
    """An object with a chat template that compares by dot products, and what becomes of it."""
    folder = shutil.copytree(bert, tmp_path_factory.mktemp("rendering") / "bert")
    (folder / "chat_template.jinja").write_text(FLAT)
    model = embedder(folder, prompts={"query": "w80 w81"}, similarity_fn_name="dot")
    return model, compiled(model)


def test_f2_answers_are_of_the_rendered_texts(rendering: Any) -> None:
    model, ours = rendering
    require_same(ours, model, [LONG, *TEXTS])
    expected = model.encode(TEXTS, prompt_name="query")
    np.testing.assert_allclose(ours.embed(TEXTS, prompt="query"), expected, atol=1e-5)
    require_same(ours, model, [f"w{5 + i % 80} " * (1 + i % 60) for i in range(90)])  # a tokenizer is asked directly


def test_f2_a_saved_model_renders_and_compares_as_before(rendering: Any, tmp_path: Path) -> None:
    ours, vectors = rendering[1], np.array([[3.0, 4.0], [6.0, 8.0]], np.float32)
    ours.save(tmp_path / "ours")
    again = headrace.load(tmp_path / "ours")
    np.testing.assert_array_equal(again.embed(TEXTS), ours.embed(TEXTS))
    for model in (ours, again):
        np.testing.assert_array_equal(model.similarity(vectors, vectors), vectors @ vectors.T)


def test_f2_what_was_found_is_explained(rendering: Any) -> None:
    text = rendering[1].explain()
    assert "every text goes through the tokenizer's" in text
    assert any("vectors compared by" in line and "dot" in line for line in text.splitlines())


@pytest.mark.parametrize("template", [FLAT, STRUCTURED], ids=["flat", "structured"])
def test_f2_pairs_go_through_the_chat_template_by_their_roles(scorer: Path, tmp_path: Path, template: str) -> None:
    folder = shutil.copytree(scorer, tmp_path / "scorer")
    (folder / "chat_template.jinja").write_text(template)
    model = st.CrossEncoder(str(folder), device="cpu", prompts={"q": "w50 w51"}, default_prompt_name="q")
    assert "message" in model[0].modality_config
    pairs = [*PAIRS, ("w5", LONG), (LONG, "w5")]
    for ours in both(model, tmp_path / "saved"):
        require_same_tokens(ours, model, pairs)
        require_same_tokens(ours, model, pairs, "")
    np.testing.assert_allclose(compiled(tmp_path / "saved").score(pairs), model.predict(pairs), atol=1e-6)


@pytest.mark.parametrize(
    "rendering",
    [
        {"add_generation_prompt": True},
        {"add_generation_prompt": True, "restore_suffix": False},
        {"chat_template": "w60 {{ messages[0].content }} w61", "max_length": 9},
    ],
)
def test_f2_how_the_template_is_rendered(bert: Path, tmp_path: Path, rendering: dict[str, Any]) -> None:
    folder = shutil.copytree(bert, tmp_path / "bert")
    (folder / "chat_template.jinja").write_text(FLAT)
    model = embedder(folder, made={"processing_kwargs": {"chat_template": rendering}})
    for ours in both(model, tmp_path / "saved"):
        require_same_tokens(ours, model, [LONG, *TEXTS])


def test_f2_a_template_that_leaves_one_of_a_pair_out(scorer: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(scorer, tmp_path / "scorer")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages if m.role != 'query' %}{{ m.content }}{% endfor %}"
    )
    texts = reading(st.CrossEncoder(str(folder), device="cpu"))
    with pytest.raises(InputError, match="leaves the query of a pair out"):
        texts.encode(PAIRS, truncate=None, pairs=True)


def test_f2_a_template_that_fails(bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "bert")
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no system') if messages|length > 1 }}w5")
    texts = reading(embedder(folder))
    texts.encode(["w5"], truncate=None)
    with pytest.raises(InputError, match=r"cannot render messages of system, user: .*no system"):
        texts.encode(["w5"], truncate=None, prompt="w6 ")


def test_f2_a_tokenizer_without_the_template_is_refused(bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "bert")
    (folder / "chat_template.jinja").write_text(FLAT)
    embedder(folder).save_pretrained(str(tmp_path / "saved"))
    (tmp_path / "saved" / "chat_template.jinja").unlink()
    assert "and its tokenizer has none" in refusal(tmp_path / "saved")


# Prompts.


def test_f3_a_cross_encoders_prompt_stands_before_the_query(scorer: Path, tmp_path: Path) -> None:
    model = st.CrossEncoder(str(scorer), device="cpu", prompts={"q": "w50 w51 "}, default_prompt_name="q")
    for source in both(model, tmp_path / "saved"):
        require_same_tokens(source, model, PAIRS)
        require_same_tokens(source, model, PAIRS, "")
    ours = compiled(tmp_path / "saved")
    np.testing.assert_allclose(ours.score(PAIRS), model.predict(PAIRS), atol=1e-6)
    np.testing.assert_allclose(ours.score(PAIRS, prompt=""), model.predict(PAIRS, prompt=""), atol=1e-6)
    given = [(found.index, found.score) for found in ours.rank("w5", ["w6", "w7 w8"])]
    theirs = [(found["corpus_id"], found["score"]) for found in model.rank("w5", ["w6", "w7 w8"])]
    np.testing.assert_allclose(given, theirs, atol=1e-6)
    assert np.abs(ours.score(PAIRS) - np.array(ours.score(PAIRS, prompt=""))).max() > 1e-4
    with pytest.raises(InputError, match="no prompt named 'p'"):
        ours.score(PAIRS, prompt="p")


@pytest.mark.parametrize("prompts", [{"query": "w50 ", "document": "w51 "}, {}])
def test_f11_a_name_that_the_folder_lacks_is_no_text(bert: Path, tmp_path: Path, prompts: dict[str, str]) -> None:
    embedder(bert).save_pretrained(str(tmp_path))
    write(tmp_path, "config_sentence_transformers.json", prompts=prompts)
    texts = reading(tmp_path)
    with pytest.raises(InputError) as refused:
        texts.encode(TEXTS, truncate=None, prompt="qurey")
    near = ", but 'query'" if prompts else ""
    assert f"no prompt named 'qurey'{near}; its prompts are {', '.join(sorted(prompts)) or 'none'}" in str(
        refused.value
    )
    assert "prompt='qurey: '" in str(refused.value)
    texts.encode(TEXTS, truncate=None, prompt="qurey: ")


# What becomes of vectors.


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


# Keys of the files.


@pytest.fixture
def saved(bert: Path, tmp_path: Path) -> Path:
    embedder(bert).save_pretrained(str(tmp_path / "saved"))
    return tmp_path / "saved"


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


# Objects answer as themselves.


def test_an_object_answers_as_itself_not_as_its_copy(bert: Path) -> None:
    """Nothing of this is in the folder that it would save."""
    from sentence_transformers.base.modules import Dense

    model = embedder(bert, Dense(32, 6, activation_function=nn.LeakyReLU(0.7)))
    words = model[0].auto_model
    words.encoder.layer = words.encoder.layer[:1]
    words.encoder.layer[0].intermediate.intermediate_act_fn = nn.Tanh()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    require_same(compiled(model), model)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in weights.items())
    assert load(model, dtype=F32).module is words


def test_an_object_is_not_written_anywhere(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = embedder(bert)
    for name in ("save", "save_pretrained"):
        monkeypatch.setattr(type(model), name, lambda *_args, **_options: pytest.fail("it was saved"))
    loaded = load(model, dtype=F32)
    assert loaded.name == "a SentenceTransformer module"
    assert loaded.tokenizer is model.tokenizer
    assert {"config.json", "modules.json", "1_Pooling/config.json"} <= set(loaded.side_files)


def test_an_objects_side_files_are_a_folders(bert: Path, tmp_path: Path) -> None:
    model = embedder(bert, truncate_dim=8, prompts={"query": "w5 "})
    made = shutil.copytree(bert, tmp_path / "made")
    for name, text in load(model, dtype=F32).side_files.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(text)
    loaded = load(made, dtype=F32)
    assert (loaded.text, len(loaded.sentence.chain.steps)) == (load(model, dtype=F32).text, 3)
    np.testing.assert_allclose(st.SentenceTransformer(str(made), device="cpu").encode(TEXTS), model.encode(TEXTS))


@pytest.mark.parametrize(
    ("activation", "labels"), [(nn.Identity(), 1), (nn.Softmax(dim=1), 3), (torch.sigmoid, 3), (nn.Softmax(), 3)]
)
def test_a_cross_encoders_activation_is_the_objects(
    tmp_path: Path, activation: Callable[[Any], Any], labels: int
) -> None:
    build("bert", SEQUENCE, num_labels=labels, num_hidden_layers=1).save_pretrained(tmp_path)
    bert_like().save_pretrained(tmp_path)
    model = st.CrossEncoder(str(tmp_path), device="cpu")
    model.activation_fn = activation
    loaded = load(model, dtype=F32)
    rules = read_labels(loaded.config, Head.SEQUENCE, labels, loaded.activation)
    assert rules is not None
    logits = model.predict(PAIRS, activation_fn=nn.Identity()).reshape(-1, labels)
    found = [list(classification(row, rules).scores.values()) for row in logits]
    np.testing.assert_allclose(np.squeeze(found), model.predict(PAIRS), atol=1e-6)


def test_an_activation_that_is_none_of_ours_is_refused(scorer: Path) -> None:
    model = st.CrossEncoder(str(scorer), device="cpu")
    for function in (nn.Softmax(dim=0), nn.Tanh(), lambda logits: logits * 2):
        model.activation_fn = function
        assert "which computes none of torch.nn.Sigmoid" in refusal(model)


def test_an_object_in_another_dtype_is_refused(bert: Path) -> None:
    with pytest.raises(LoadError, match="weights are float32, but bfloat16 was asked for"):
        load(embedder(bert), dtype=torch.bfloat16)


def test_a_warning_is_no_refusal(saved: Path) -> None:
    """Layers that config_kwargs take off are named."""
    write(saved, "sentence_bert_config.json", config_kwargs={"num_hidden_layers": 1})
    with pytest.warns(HeadraceWarning, match="16 weights of .* have no place"):
        load(saved, dtype=F32)


def test_a_users_module_that_encodes_is_no_pipeline() -> None:
    """Sentence-transformers' pipelines alone are read as such; any other module is traced."""

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build("bert", num_hidden_layers=1)

        def encode(self, texts: list[str]) -> None: ...
        def save(self, path: str) -> None: ...

    wrapper = Wrapper()
    assert load(wrapper, dtype=F32).module is wrapper


def test_an_export_of_rendered_texts_keeps_transformers_tokenizer(bert: Path, tmp_path: Path) -> None:
    """tokenizer.json alone knows no template."""
    tokenizer = load(bert, dtype=F32).tokenizer
    for alone in (True, False):
        (tmp_path / str(alone)).mkdir()
        held = _write_side_files(tmp_path / str(alone), tokenizer, {}, alone=alone)
        assert held is not None
        assert (held["facts"] is not None) == alone
