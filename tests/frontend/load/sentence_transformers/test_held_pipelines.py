"""Sentence-transformers' pipelines in memory answer as themselves, whatever they would save."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headrace.errors import LoadError
from headrace.frontend.facts.config_claims import read_labels
from headrace.frontend.load.checkpoint import load
from headrace.ir import Head
from headrace.runtime.tasks.classify import classification
from tests.pipelines import (
    F32,
    PAIRS,
    SEQUENCE,
    TEXTS,
    compiled,
    embedder,
    refusal,
    require_same,
)
from tests.tiny import build
from tests.words import bert_like

st = pytest.importorskip("sentence_transformers")

pytestmark = pytest.mark.filterwarnings("ignore")


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
