"""Tiny folders that the tests of loading pipelines share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines import NAMES, SEQUENCE, embedder
from tests.tiny import build
from tests.words import bert_like


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    build("bert", num_hidden_layers=2).save_pretrained(folder)
    bert_like(model_max_length=40, model_input_names=NAMES).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def scorer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorer")
    build("bert", SEQUENCE, num_labels=1, num_hidden_layers=1).save_pretrained(folder)
    bert_like(model_max_length=40, model_input_names=NAMES).save_pretrained(folder)
    return folder


@pytest.fixture
def saved(bert: Path, tmp_path: Path) -> Path:
    embedder(bert).save_pretrained(str(tmp_path / "saved"))
    return tmp_path / "saved"
