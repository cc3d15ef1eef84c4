"""Images and sound by the processor of a model's folder: as transformers makes arrays of them, and as those answer."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.errors import InputError
from headrace.runtime.media.sound import read_sound
from headrace.runtime.tools.cli.lines import read_arrays
from tests.tiny import build

Image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install 'headrace[vision]'")
soxr = pytest.importorskip("soxr", reason="needs soxr: pip install 'headrace[audio]'")

RATE = 16000


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a model of images, and the model."""
    from transformers import ViTImageProcessor

    folder = tmp_path_factory.mktemp("vit")
    build("vit", "AutoModelForImageClassification", num_labels=3, num_hidden_layers=1).save_pretrained(folder)
    ViTImageProcessor(size={"height": 24, "width": 24}).save_pretrained(folder)
    return folder, headrace.compile(folder, target="reference")


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a model of sound, and the model."""
    from transformers import Wav2Vec2FeatureExtractor

    folder = tmp_path_factory.mktemp("wav2vec2")
    build("wav2vec2", num_hidden_layers=1).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(sampling_rate=RATE, do_normalize=True).save_pretrained(folder)
    return folder, headrace.compile(folder, target="reference", pooling="mean")


def pixels(seed: int, height: int = 30, width: int = 41) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def scores(found: Any) -> list[float]:
    return [score for one in found for score in one.scores.values()]


def test_images_are_read_as_by_transformers(seeing: Any, tmp_path: Path) -> None:
    """A path, Pillow's images and pixels, alone and among others, turned upright and in colours."""
    from transformers import AutoImageProcessor

    folder, model = seeing
    processor, shown = AutoImageProcessor.from_pretrained(folder), [pixels(seed) for seed in range(3)]
    arrays = list(processor([Image.fromarray(one) for one in shown], return_tensors="np")["pixel_values"])
    expected = scores(model.classify(arrays))
    paths = [tmp_path / f"{place}.png" for place in range(3)]
    for path, one in zip(paths, shown, strict=True):
        Image.fromarray(one).save(path)
    for given in (shown, np.stack(shown), paths, [str(path) for path in paths], [Image.open(path) for path in paths]):
        assert scores(model.classify(given)) == pytest.approx(expected, abs=1e-6)
    for alone in (shown[0], paths[0], str(paths[0]), Image.open(paths[0])):
        assert scores(model.classify(alone)) == pytest.approx(expected[:3], abs=1e-6)
    assert model.classify([arrays[1], paths[1]])[0].score == pytest.approx(model.classify(paths[1])[0].score, abs=1e-6)
    assert model(paths)[0] == pytest.approx(model(arrays)[0], abs=1e-6)

    turned = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(shown[0]).save(turned, quality=100, subsampling=0, exif=exif)
    upright = Image.fromarray(np.asarray(Image.open(turned))[::-1, ::-1])
    assert scores(model.classify(turned)) == pytest.approx(scores(model.classify(upright)), abs=1e-6)
    grey = Image.fromarray(shown[0]).convert("L")
    assert scores(model.classify(grey)) == pytest.approx(scores(model.classify(grey.convert("RGB"))), abs=1e-6)


def test_a_saved_model_reads_images_too(seeing: Any, tmp_path: Path) -> None:
    _, model = seeing
    Image.fromarray(pixels(7)).save(tmp_path / "one.png")
    model.warm().save(tmp_path / "saved")
    again = headrace.load(tmp_path / "saved")
    assert again.classify(tmp_path / "one.png") == model.classify(tmp_path / "one.png")
    assert read_arrays([str(tmp_path / "one.png")]) == [str(tmp_path / "one.png")]


def write_wav(path: Path, samples: Any, rate: int, width: int = 2) -> None:
    """Samples [n] or [n, channels] as whole numbers of so many bytes."""
    whole = np.round(np.asarray(samples) * (2 ** (8 * width - 1) - 1)).astype(np.int64) + 128 * (width == 1)
    raw = whole.astype("<i8")[..., None].view(np.uint8)[..., :width]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if whole.ndim == 1 else whole.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(raw.tobytes())


def tone(count: int, rate: int, pitch: float = 440.0) -> Any:
    return (0.5 * np.sin(2 * np.pi * pitch * np.arange(count) / rate)).astype(np.float32)


def test_sound_is_read_as_by_transformers(hearing: Any, tmp_path: Path) -> None:
    """A path, samples with their rate, and at another rate; floats alone are the model's own arrays."""
    from transformers import AutoFeatureExtractor

    folder, model = hearing
    extractor, samples = AutoFeatureExtractor.from_pretrained(folder), tone(900, RATE)
    array = extractor(samples, sampling_rate=RATE, return_tensors="np")["input_values"][0]
    expected = model.embed(array)
    write_wav(tmp_path / "tone.wav", samples, RATE)
    for given in ((samples, RATE), [(samples, RATE)], {"array": samples, "sampling_rate": RATE}):
        np.testing.assert_allclose(model.embed(given), expected, atol=1e-6)
    np.testing.assert_allclose(model.embed(tmp_path / "tone.wav"), expected, atol=1e-3)
    both = model.embed([(samples, RATE), str(tmp_path / "tone.wav")])
    np.testing.assert_allclose(both[0], expected[0], atol=1e-6)

    slow = tone(450, RATE // 2)
    faster = extractor(soxr.resample(slow, RATE // 2, RATE), sampling_rate=RATE, return_tensors="np")["input_values"][0]
    np.testing.assert_allclose(model.embed((slow, RATE // 2)), model.embed(faster), atol=1e-6)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_files_of_any_width_and_channels(width: int, tmp_path: Path) -> None:
    samples = np.stack([tone(200, RATE), tone(200, RATE, 660.0)], axis=1)
    write_wav(tmp_path / "two.wav", samples, RATE, width)
    found = read_sound(tmp_path / "two.wav", RATE, 0)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, samples.mean(axis=1), atol=2.0 ** (2 - 8 * width) + 1e-6)


def test_resampling_keeps_the_pitch() -> None:
    found = read_sound((tone(48000, 48000), 48000), RATE, 0)
    assert len(found) == RATE
    np.testing.assert_allclose(found[100:-100], tone(RATE, RATE)[100:-100], atol=2e-3)


WRONG = {
    "no file": ("seeing", "no such cat.png", r"Request 0, no such cat.png, cannot be read as an image: .*No such file"),
    "a wave for an image": ("seeing", (np.zeros(9), RATE), r"images of Pillow's and uint8 arrays of pixels, of which"),
    "another shape": ("seeing", np.zeros((5, 5)), r"Request 0 has the shape \[5, 5\]; the model reads pixel_values"),
    "no wave": ("hearing", "no such cat.wav", r"Request 0, no such cat.wav, cannot be read as a WAV file of whole"),
    "no rate": ("hearing", (np.zeros(900, np.float32), 0.5), r"Request 0 has the rate 0.5; samples a second, an int,"),
    "whole numbers": (
        "hearing",
        (np.zeros(900, np.int16), RATE),
        r"they are int16 of shape \[900\]; floats \[samples\]",
    ),
    "no samples": ("hearing", (np.zeros(0, np.float32), RATE), r"Request 0 holds no samples"),
    "a number": ("hearing", 3.0, r"Request 0 has the shape \[\].*or paths of WAV files and \(samples, rate\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_refused(case: str, seeing: Any, hearing: Any) -> None:
    which, given, message = WRONG[case]
    _, model = seeing if which == "seeing" else hearing
    with pytest.raises(InputError, match=message):
        model.embed([given]) if which == "hearing" else model.classify([given])


def test_a_file_that_is_no_image_is_refused(seeing: Any, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no pixels")
    with pytest.raises(InputError, match=r"text.png, cannot be read as an image: cannot identify"):
        seeing[1].classify(tmp_path / "text.png")
