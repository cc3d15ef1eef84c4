"""Raw outputs to answers: scores by the model's rule, and vectors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.errors import InputError, NonFiniteError
from headrace.frontend.facts.config_claims import read_labels
from headrace.ir import Activation, Head, Labels
from headrace.runtime.engine.finite import require_finite
from headrace.runtime.tasks.answers.vectors import normalise, similarity
from headrace.runtime.tasks.classify import classification


def labels(count: int, activation: Activation, names: tuple[str, ...] | None = None) -> Labels:
    return Labels(names or tuple(f"LABEL_{i}" for i in range(count)), activation, "test")


def scores(logits: list[float], activation: Activation) -> list[float]:
    return list(classification(np.array(logits), labels(len(logits), activation)).scores.values())


def config(**facts: Any) -> SimpleNamespace:
    return SimpleNamespace(**facts)


def test_h1_one_label_is_a_sigmoid() -> None:
    """Case H1: never a softmax of one."""
    read = read_labels(config(id2label={0: "fits"}), Head.SEQUENCE, 1)
    assert read is not None
    found = classification(np.array([0.3]), read)
    assert found.label == "fits"
    assert found.score == pytest.approx(0.5744, abs=1e-4)
    assert found.scores == {"fits": found.score}


def test_h2_several_labels_at_once_are_sigmoids() -> None:
    """Case H2."""
    read = read_labels(config(problem_type="multi_label_classification"), Head.SEQUENCE, 3)
    assert read is not None
    found = classification(np.array([2.0, -1.0, 0.0]), read)
    assert list(found.scores.values()) == pytest.approx([0.8808, 0.2689, 0.5], abs=1e-4)
    assert found.label == "LABEL_0"
    assert found.score == found.scores["LABEL_0"]


def test_h3_regression_is_the_value_itself() -> None:
    """Case H3."""
    read = read_labels(config(problem_type="regression", id2label={0: "stars"}), Head.SEQUENCE, 1)
    assert read is not None
    found = classification(np.array([4.2]), read)
    assert found.label == "stars"
    assert found.score == pytest.approx(4.2)


def test_h4_large_logits_stay_finite() -> None:
    """Case H4, and what a sigmoid makes of the same."""
    with np.errstate(all="raise", under="ignore"):
        assert scores([-100, 0], Activation.SOFTMAX) == pytest.approx([0, 1], abs=1e-6)
        assert scores([1e4, -1e4, 3e38, -3e38], Activation.SIGMOID) == [1, 0, 1, 0]
        assert scores([1e38, -1e38], Activation.SOFTMAX) == [1, 0]
        assert scores([-20], Activation.SIGMOID) == pytest.approx([2.0611537e-9])


def test_h5_labels_keep_the_order_of_their_numbers() -> None:
    """Case H5: eleven labels with string keys."""
    read = read_labels(config(id2label={str(i): f"l{i}" for i in reversed(range(11))}), Head.SEQUENCE, 11)
    assert read is not None
    found = classification(np.arange(11), read)
    assert list(found.scores) == [f"l{i}" for i in range(11)]
    assert found.label == "l10"


def test_h7_a_cross_encoder_of_three_labels_that_names_sigmoid() -> None:
    """Case H7: elementwise, not a softmax."""
    named = config(sentence_transformers={"activation_fn": "torch.nn.modules.activation.Sigmoid"})
    read = read_labels(named, Head.SEQUENCE, 3)
    assert read is not None
    found = list(classification(np.array([0.0, 1.0, -1.0]), read).scores.values())
    assert found == pytest.approx([0.5, 0.7311, 0.2689], abs=1e-4)


def test_normalised_vectors_have_length_one_and_zero_stays_zero() -> None:
    found = normalise(np.array([[3.0, 4.0], [0.0, 0.0], [3e38, 0.0], [1e-30, 0]], np.float32))
    assert found.dtype == np.float32
    assert found[:3].tolist() == [pytest.approx([0.6, 0.8]), [0, 0], [1, 0]]
    assert np.isfinite(found).all()
    assert normalise(np.empty((0, 4))).shape == (0, 4)


def test_normalising_equals_torch() -> None:
    import torch

    vectors = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    expected = torch.nn.functional.normalize(torch.from_numpy(vectors), dim=-1).numpy()
    np.testing.assert_allclose(normalise(vectors), expected, atol=1e-7)


def test_similarity_is_the_cosine_of_each_with_each() -> None:
    a, b = np.array([[1.0, 0.0], [2.0, 2.0], [0.0, 0.0]]), np.array([[5.0, 0.0], [0.0, -1.0]])
    expected = np.array([[1, 0], [0.70711, -0.70711], [0, 0]], np.float32)
    np.testing.assert_allclose(similarity(a, b), expected, atol=1e-5)
    assert similarity(a[0], b[0]).tolist() == [[1.0]]
    with pytest.raises(InputError, match=r"shape \(3, 2\) and \(1, 3\) cannot be compared"):
        similarity(a, np.ones((1, 3)))


@pytest.mark.parametrize(
    ("dtype", "cure"),
    [("float16", r"dtype=\"bfloat16\""), ("bfloat16", r"dtype=\"float32\""), ("float32", "broken weights")],
)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_l5_values_that_are_not_finite_are_an_error(dtype: str, cure: str, bad: float) -> None:
    """Case L5: names the dtype and what has more room, and no null vector comes out."""
    with pytest.raises(NonFiniteError, match=rf"the embedding of text 3 holds .*ran in {dtype}\..*{cure}"):
        require_finite(np.array([1.0, bad]), "the embedding of text 3", dtype)
    fine = np.array([1.0, 2.0])
    assert require_finite(fine, "it", dtype) is fine
