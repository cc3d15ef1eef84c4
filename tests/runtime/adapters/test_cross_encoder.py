"""Our CrossEncoder beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from tests.tiny import build
from tests.words import bert_like

st = pytest.importorskip("sentence_transformers")

PAIRS = [("w5 w6 w7", "w8 w9"), ("w9", "w10 w11 w12 w13"), ("w20 w21", "w22 " * 60), ("w5 w6 w7", "w8 w9")]
FOLDERS: dict[str, dict[str, Any]] = {
    "one label": {"num_labels": 1},
    "regression": {"num_labels": 1, "problem_type": "regression"},
    "several labels": {"num_labels": 3},
    "several at once": {"num_labels": 3, "problem_type": "multi_label_classification"},
    "a named activation": {"num_labels": 3, "named": torch.nn.Sigmoid()},
}
CLOSE = 1e-4  # D1


@pytest.fixture(scope="module", params=FOLDERS)
def both(request: Any, tmp_path_factory: Any) -> tuple[Any, Any]:
    """Theirs, and ours of the same folder."""
    options = dict(FOLDERS[request.param])
    named, folder = options.pop("named", None), tmp_path_factory.mktemp("bert")
    build("bert", "AutoModelForSequenceClassification", num_hidden_layers=1, **options).save_pretrained(folder)
    bert_like(model_max_length=40).save_pretrained(folder)
    theirs = st.CrossEncoder(str(folder), device="cpu", activation_fn=named)
    if named is not None:
        folder = tmp_path_factory.mktemp("saved")
        theirs.save_pretrained(str(folder))
    return theirs, headrace.CrossEncoder(headrace.compile(Path(folder), target="reference"))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"activation_fn": torch.nn.Identity()},
    {"activation_fn": torch.nn.Sigmoid(), "batch_size": 2},
    {"apply_softmax": True},
    {"convert_to_tensor": True},
    {"convert_to_numpy": False, "show_progress_bar": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
@pytest.mark.parametrize(
    "pairs", [PAIRS, PAIRS[0], list(PAIRS[1]), np.array(PAIRS)], ids=["list", "pair", "two", "array"]
)
def test_predict(pairs: Any, options: dict[str, Any], both: tuple[Any, Any]) -> None:
    theirs, ours = both
    wanted, found = (model.predict(pairs, **options) for model in (theirs, ours))
    assert type(found) is type(wanted)
    np.testing.assert_allclose(np.asarray(found, float), np.asarray(wanted, float), atol=CLOSE)


def test_rank(both: tuple[Any, Any]) -> None:
    theirs, ours = both
    documents = [other for _, other in PAIRS]
    assert ours.num_labels == theirs.num_labels
    if ours.num_labels > 1:
        with pytest.raises(headrace.InputError, match="rank needs one label, and the model has 3"):
            ours.rank("w5", documents)
        return
    for options in ({}, {"top_k": 2}, {"return_documents": True, "activation_fn": torch.nn.Identity()}):
        wanted, found = (model.rank("w5 w6", documents, **options) for model in (theirs, ours))
        for one, other in zip(found, wanted, strict=True):
            assert one.keys() == other.keys()
            assert one["score"] == pytest.approx(other["score"], abs=1e-4)
        assert {one["corpus_id"] for one in found[:1]} <= {0, 1, 2, 3}
    assert ours.rank("w5", []) == []


def test_limits_and_refusals(both: tuple[Any, Any]) -> None:
    theirs, ours = both
    theirs.max_seq_length, before = 12, theirs.max_seq_length
    ours.max_length = 12
    np.testing.assert_allclose(ours.predict(PAIRS), theirs.predict(PAIRS), atol=CLOSE)
    assert ours.max_seq_length == 12
    theirs.max_seq_length, ours.max_seq_length = before, None
    with pytest.raises(headrace.InputError, match="CrossEncoder takes no num_labels: the model's head says"):
        headrace.CrossEncoder(ours.compiled, num_labels=2)
    with pytest.raises(TypeError, match=r"predict\(\) got an unexpected keyword argument 'sotfmax'"):
        ours.predict(PAIRS, sotfmax=True)
