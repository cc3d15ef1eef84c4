"""What a compiled model takes in place of text: arrays of its own shape, and what it says to anything else."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import InputError, InputTooLongError
from headrace.ir import Axis, Input, Role
from headrace.runtime.arrays import Arrays
from headrace.runtime.tools.cli.lines import read_arrays
from tests.synthetic import facts
from tests.tiny import arrays, build

SAMPLES = Input("input_values", Role.ARRAY, "float32", (Axis("batch"), Axis("samples", None, 40, 20, least=60)))
SHAPE = (Axis("batch"), Axis("channels", 3), Axis("height", 4), Axis("width", 6))
IMAGE = Input("pixel_values", Role.ARRAY, "float32", SHAPE)


def reader(given: Input, rows: int | None = None, **options):
    return Arrays(facts(inputs=(given,), vocabulary=0, rows=rows), **options)


@pytest.fixture(scope="module")
def classifier():
    model = build("vit", "AutoModelForImageClassification", num_labels=3)
    return headrace.compile(model, target="reference")


@pytest.fixture(scope="module")
def images(classifier):
    return arrays(classifier.program, 5)


def test_one_array_a_list_and_a_batch_are_the_same(classifier, images):
    answers = classifier.classify(images)
    assert [len(answer.scores) for answer in answers] == [3] * 5
    assert classifier.classify(np.stack(images)) == answers
    assert classifier.classify(torch.from_numpy(np.stack(images))) == answers
    assert classifier.classify(iter(images)) == answers
    alone = [classifier.classify(image)[0] for image in images]
    for one, other in zip(alone, answers, strict=True):
        assert one.label == other.label
        assert one.score == pytest.approx(other.score, abs=1e-6)
    assert classifier.classify([]) == []


def test_batch_size_and_budget_cut_the_steps(classifier, images):
    lane = classifier.engine.lane("classify")
    before = lane.executable.calls
    classifier.classify(images, batch_size=2)
    assert lane.executable.calls - before == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tight = headrace.compile(build("vit"), target="reference", token_budget=25)
    tight.embed(images)
    # 10 rows an image: two fit into 25.
    assert tight.engine.lane("embed").executable.calls == 3


WRONG = {
    "text": ("a cat", "Request 0 is 'a cat'"),
    "a batch of a processor": ({"pixel_values": np.zeros((1, 3, 24, 24))}, r"Request 0 is \{'pixel_values'"),
    "raw pixels": (np.zeros((3, 24, 24), np.uint8), "Request 0 holds uint8 values"),
    "height last": (np.zeros((24, 24, 3)), r"Request 0 has the shape \[24, 24, 3\]"),
    "another size": (np.zeros((3, 32, 32)), r"Request 0 has the shape \[3, 32, 32\]"),
    "one of a list": ([np.zeros((3, 24, 24)), np.zeros((24, 24))], r"Request 1 has the shape \[24, 24\]"),
    "masked": (np.ma.masked_less(np.zeros((3, 24, 24)), 1), "Request 0 is a masked array"),
    "one of a masked batch": (np.ma.masked_less(np.zeros((2, 3, 24, 24)), 1), "Request 0 is a masked array"),
    "a number": (3.0, r"Request 0 has the shape \[\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_anything_else_is_refused_with_what_is_accepted(classifier, case):
    given, met = WRONG[case]
    accepted = r"pixel_values: floating-point arrays \[channels 3, height 24, width 24\].*AutoImageProcessor"
    with pytest.raises(InputError, match=f"(?s){met}.*{accepted}"):
        classifier.classify(given)
    with pytest.raises(InputError, match=met):
        classifier(given)


def test_values_that_are_not_finite_are_refused(classifier):
    with pytest.raises(InputError, match="NaN or infinite"):
        classifier.classify(np.full((3, 24, 24), np.nan))


def test_options_of_texts_are_refused(classifier, images):
    with pytest.raises(InputError, match="truncate and prompt are for texts; the model reads pixel_values"):
        classifier.classify(images, truncate=True)
    with pytest.raises(InputError, match="takes no token_type_ids"):
        classifier(images, token_type_ids=[[0]])
    with pytest.raises(InputError, match="max_length counts tokens, but the model reads pixel_values"):
        headrace.compile(build("vit"), target="reference", max_length=8)
    with pytest.raises(InputError, match="one request makes 10 rows"):
        headrace.compile(build("vit"), target="reference", token_budget=9)


def test_arrays_given_to_a_model_of_text_are_refused(tiny):
    tokenizer = SimpleNamespace(is_fast=True, model_input_names=(), model_max_length=64, truncation_side="right")
    model = headrace.compile(tiny("bert"), target="reference", tokenizer=tokenizer, pooling="mean")
    with pytest.raises(InputError, match=r"Text 0 is array.*here a str is accepted"):
        model.embed(np.zeros((3, 24, 24)))


def test_samples_of_any_length_from_the_least():
    waves = reader(SAMPLES)
    found = waves.encode(waves.drawn([np.zeros(60), np.zeros(99, np.float16)]))
    assert [(one.length, one.values.dtype) for one in found] == [(60, np.float32), (99, np.float32)]
    assert [one.length for one in waves.encode(waves.drawn(np.zeros((3, 70))))] == [70] * 3
    assert len(list(waves.drawn(np.zeros(70)))) == 1
    with pytest.raises(InputError, match=r"\[59\].*\[samples from 60\].*AutoFeatureExtractor"):
        waves.encode([np.zeros(59)])


def test_a_budget_counts_rows_and_not_samples():
    waves = reader(SAMPLES, token_budget=3)
    assert waves.encode([np.zeros(99)])[0].length == 99
    with pytest.raises(InputTooLongError, match="Request 0 makes 4 rows; at most 3"):
        waves.encode([np.zeros(100)])


def test_an_artifact_reads_arrays_again(classifier, images, tmp_path):
    classifier.save(tmp_path / "saved")
    loaded = headrace.load(tmp_path / "saved")
    assert loaded.program == classifier.program.with_(exported=None)
    assert loaded.classify(images) == classifier.classify(images)
    with pytest.raises(InputError, match="pixel_values"):
        loaded.classify("a cat")


def test_an_embedding_is_the_models_own_and_says_so(images):
    eager = build("vit")
    with pytest.warns(headrace.HeadraceWarning, match=r"Pooling is own \(nothing names one: .*pooler_output\)"):
        model = headrace.compile(eager, target="reference")
    vectors = model.embed(images)
    with torch.no_grad():
        wanted = eager(torch.from_numpy(np.stack(images))).pooler_output.numpy()
    np.testing.assert_allclose(vectors, wanted, atol=1e-5)
    rows = model.token_embed(images)
    assert [row.shape for row in rows] == [(10, 32)] * 5


def test_the_command_line_reads_npy_files(images, tmp_path):
    path = tmp_path / "image.npy"
    np.save(path, images[0])
    (read,) = read_arrays([str(path)])
    np.testing.assert_array_equal(read, images[0])
    with pytest.raises(InputError, match=r"a cat\.npy cannot be read as a \.npy file .*The model reads arrays"):
        read_arrays(["a cat.npy"])
    np.save(path, np.array([{}]), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read"):
        read_arrays([str(path)])


def test_the_explanation_speaks_of_arrays(classifier):
    said = classifier.explain()
    assert "it can classify arrays" in " ".join(said.split())
    assert "pixel_values float32 [batch, channels 3, height 24, width 24]" in said
    assert "text" not in said
    assert "token" not in said
