"""What sentence-transformers' pipelines say of texts: chat templates of every form, and prompts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.errors import InputError
from headrace.frontend.load.checkpoint import load
from headrace.runtime.artifact.export_onnx import _write_side_files
from tests.pipelines import (
    F32,
    FLAT,
    LONG,
    PAIRS,
    STRUCTURED,
    TEXTS,
    both,
    compiled,
    embedder,
    reading,
    refusal,
    require_same,
    require_same_tokens,
    write,
)

st = pytest.importorskip("sentence_transformers")

pytestmark = pytest.mark.filterwarnings("ignore")


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


def test_an_export_of_rendered_texts_keeps_transformers_tokenizer(bert: Path, tmp_path: Path) -> None:
    """tokenizer.json alone knows no template."""
    tokenizer = load(bert, dtype=F32).tokenizer
    for alone in (True, False):
        (tmp_path / str(alone)).mkdir()
        held = _write_side_files(tmp_path / str(alone), tokenizer, {}, alone=alone)
        assert held is not None
        assert (held["facts"] is not None) == alone
