"""Contract C through the public API, word for word: what is served, refused, listed and warned of."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from tests.conformance import oracle
from tests.tiny import VOCABULARY, build
from tests.words import bert_like, gpt_like

TOKEN = "AutoModelForTokenClassification"


def test_a_decoders_token_head_is_refused_with_the_second_hint(tiny: Any) -> None:
    """C2, C5: nothing else is supported, so the hint says how to make it work and names no other task to choose."""
    lowered = headrace.lower(tiny("qwen3", TOKEN), target="reference")
    assert dict(lowered.tasks) == {}
    assert "single_pass" in lowered.tasks.refused["token_classify"]
    with pytest.raises(headrace.TaskNotEnabledError) as caught:
        lowered.compile(task="token_classify")
    text = str(caught.value)
    assert "DecoderState with chunked prefill enables: classify, embed, generate, multiple_choice, score," in text
    assert "Selected: token_classify." in text
    assert "The model offers: token_classify." in text
    assert 'compile with prefill="single_pass"' in text
    assert "hoose" not in text


def test_with_single_pass_it_is_served_and_equals_hugging_face(tiny: Any) -> None:
    eager = tiny("qwen3", TOKEN)
    model = headrace.compile(eager, target="reference", prefill="single_pass")
    assert list(model.tasks) == ["token_classify"]
    requests = oracle.prompts(64, VOCABULARY)
    oracle.require_close(model(requests), eager, requests, oracle.logits)


@pytest.fixture
def tagger_folder(tmp_path: Path) -> Path:
    """A sentence-transformers folder whose modules yield one vector a token, around a decoder."""
    model = build("qwen3")
    model.save_pretrained(tmp_path)
    gpt_like().save_pretrained(tmp_path)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    return tmp_path


def test_filtering_is_never_silent(tagger_folder: Path) -> None:
    """C6: embed is kept, token_embed is listed with its reason, and one warning says what became of the default."""
    with pytest.warns(headrace.HeadraceWarning) as caught:
        model = headrace.compile(tagger_folder, target="reference")
    changed = [str(w.message) for w in caught if "default task" in str(w.message)]
    assert len(changed) == 1
    assert "embed instead of token_embed" in changed[0]
    assert list(model.tasks) == ["embed"]
    assert model.task == "embed"
    assert "needs every token of a sequence in one step" in model.tasks.refused["token_embed"]
    assert model.tasks["token_embed"].supported is False


def test_asking_for_it_gives_the_first_hint(tagger_folder: Path) -> None:
    """C5: another offered task is supported, so the hint names it, and single_pass besides."""
    with pytest.raises(headrace.TaskNotEnabledError) as caught:
        headrace.compile(tagger_folder, target="reference", task="token_embed")
    assert "Choose one of: embed" in str(caught.value)
    assert 'prefill="single_pass" to enable token_embed' in str(caught.value)


def test_single_pass_opens_it_without_a_warning(tagger_folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = headrace.compile(tagger_folder, target="reference", prefill="single_pass")
    assert model.task == "token_embed"
    (rows,) = model.token_embed("w5 w6 w7")
    assert rows.shape == (3, 32)


def test_an_encoder_with_a_token_head(tiny: Any) -> None:
    model = headrace.compile(tiny("bert", TOKEN), target="reference", tokenizer=bert_like())
    assert model.task == "token_classify"
    assert [len(found) for found in model.token_classify(["w5 w6", ""])] == [2, 0]


def test_a_task_is_answered_by_its_name_as_by_its_method(tiny: Any) -> None:
    """And refused so."""
    model = headrace.compile(tiny("bert", TOKEN), target="reference", tokenizer=bert_like())
    texts = ["w5 w6", "w7"]
    assert model.answer("token_classify", texts) == model.answer(None, texts) == model.token_classify(texts)
    options = {"aggregation": "max", "batch_size": 1}
    assert model.answer("token_classify", texts, **options) == model.token_classify(texts, **options)
    with pytest.raises(headrace.TaskNotEnabledError, match="The task embed is not supported"):
        model.answer("embed", texts)


def test_a_model_that_supports_no_task_is_not_compiled(tiny: Any) -> None:
    """C4, C5: said at once, with the hint, where nothing was selected; the stages before it show why."""
    model = tiny("qwen3", TOKEN)
    for stage in (headrace.trace(model), headrace.lower(model, target="reference")):
        assert dict(stage.tasks) == {}
        assert "prefills in chunks" in stage.tasks.refused["token_classify"]
        assert "token_classify" in stage.explain()
    with pytest.raises(headrace.TaskNotEnabledError) as caught:
        headrace.compile(model, target="reference")
    text = str(caught.value)
    assert text.startswith("The model supports no task. DecoderState with chunked prefill enables: ")
    assert "Selected: none. The model offers: token_classify. " in text
    assert 'To make it work, compile with prefill="single_pass"' in text
    assert "hoose" not in text


def test_tasks_of_a_model_that_cannot_be_typed(tiny: Any) -> None:
    """C4: `.tasks` never raises."""
    traced = headrace.trace(tiny("llama-ignored-flag"))
    assert len(traced.tasks) == 0
    with pytest.raises(headrace.AttentionTypeError):
        traced.lower("reference")


def test_every_stage_and_the_manifest_agree(tiny: Any, tmp_path: Path) -> None:
    """C4, B8: one function decides, so everything that asks hears the same."""
    traced = headrace.trace(tiny("llama", "AutoModelForCausalLM"), pooling="last")
    lowered = traced.lower("reference")
    model = lowered.compile()
    model.engine.lane("embed")
    loaded = headrace.load(model.save(tmp_path / "saved"))
    heard = [(list(stage.tasks), stage.tasks.refused) for stage in (traced, lowered, model, loaded)]
    assert heard[0][0] == ["embed", "generate"]
    assert all(one == heard[0] for one in heard)
    assert loaded.program.decision.route == model.program.decision.route


def test_an_unknown_task_is_refused(tiny: Any) -> None:
    with pytest.raises(headrace.TaskNotEnabledError, match="Selected: translate"):
        headrace.compile(tiny("bert"), target="reference", task="translate")


def test_generate_is_a_causal_heads_default(tiny: Any) -> None:
    """C3 enables it, C7 makes it the default; nothing is raw of it: it answers by its method."""
    model = headrace.compile(tiny("llama", "AutoModelForCausalLM"), target="reference", pooling="last")
    assert model.task == "generate"
    with pytest.raises(headrace.InputError, match=r"generate answers by model\.generate"):
        model([[5, 6]])
    assert np.isfinite(model([[5, 6]], task="embed")[0]).all()


def test_a_bare_folder_warns_of_the_pooling_it_assumes(tiny: Any) -> None:
    """Last for a causal model, mean for a bidirectional one, with a warning; an argument takes it away."""
    for name, kind in (("qwen3", "last"), ("bert", "mean")):
        with pytest.warns(headrace.HeadraceWarning, match=f"Pooling is {kind}"):
            headrace.compile(tiny(name), target="reference")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = headrace.compile(tiny("bert"), target="reference", pooling=("cls", "mean"))
    assert model([[5, 6]], task="embed")[0].shape == (64,)


def test_missing_weights_are_refused_when_the_task_reads_them(tmp_path: Path) -> None:
    """A head that the checkpoint never had would answer at random."""
    build("bert").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BertForSequenceClassification"]}))
    with pytest.raises(headrace.LoadError, match=r"classifier.*random"):
        headrace.compile(tmp_path, target="reference")


def test_half_precision_is_traced_in_its_own_dtype() -> None:
    model = headrace.compile(build("qwen3").to(torch.bfloat16), target="reference", pooling="last")
    assert model.dtype == "bfloat16"
    assert model([[5, 6]], task="embed")[0].dtype == np.float32


def test_a_task_that_is_an_array_is_refused(tiny: Any) -> None:
    model = headrace.compile(tiny("bert"), target="reference", pooling="mean")
    task: Any
    for task in (np.array([], object), np.array([1, 2]), [], 3):
        with pytest.raises(headrace.TaskNotEnabledError, match="is not supported"):
            model([[5, 6]], task=task)
