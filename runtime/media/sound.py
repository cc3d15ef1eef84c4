"""Sound as samples: WAV files by the standard library, another rate by soxr."""

from __future__ import annotations

import os
import reprlib
import wave
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError, missing_library
from headrace.runtime.text.validate import read_array

Samples = NDArray[np.float32]
# What mappings that hold sound call the samples, by those who make them: datasets, transformers' pipelines.
KEYS, RATE = ("array", "raw"), "sampling_rate"


def is_sampled(one: Any) -> bool:
    """Whether something is samples with their rate: (samples, rate), or {"array": samples, "sampling_rate": rate}."""
    if isinstance(one, Mapping):
        return RATE in one and any(key in one for key in KEYS)
    return isinstance(one, tuple) and len(one) == 2 and np.ndim(one[1]) == 0 and np.ndim(one[0]) == 1


def read_sound(one: Any, rate: int, number: int) -> Samples:
    """A WAV file, or samples with their rate, as one channel of samples [n] at the model's rate.

    Args:
        number: of the request, for messages.

    Raises:
        InputError: no sound can be read there.
        TargetError: it has another rate, and soxr is not installed.
    """
    samples, given = _of_values(one, number) if is_sampled(one) else _of_file(one, number)
    if not samples.size:
        raise InputError(f"Request {number} holds no samples. Leave it out.")
    return samples if given == rate else _resampled(samples, given, rate)


def _of_file(path: Any, number: int) -> tuple[Samples, int]:
    try:
        with wave.open(os.fspath(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise InputError(
            f"Request {number}, {path!s}, cannot be read as a WAV file of whole numbers: {error}. Convert it, or read "
            "it by a library and pass (samples, rate)."
        ) from error
    return _levels(data, width).reshape(-1, channels).mean(axis=1, dtype=np.float32), rate


def _levels(data: bytes, width: int) -> Samples:
    """Whole numbers of so many bytes as levels from -1 to 1; those of one byte have no sign, as the format has it."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - np.float32(128)) / np.float32(128)
    raw = np.frombuffer(data, np.uint8).reshape(-1, width)
    wide = np.zeros((len(raw), 4), np.uint8)
    wide[:, 4 - width :] = raw
    levels: Samples = (wide.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    return levels


def _of_values(one: Any, number: int) -> tuple[Samples, int]:
    given, rate = (one[next(key for key in KEYS if key in one)], one[RATE]) if isinstance(one, Mapping) else one
    array, why = read_array(given)
    if array is None or array.ndim != 1 or array.dtype.kind != "f":
        met = why or f"they are {array.dtype if array is not None else given} of shape {list(np.shape(given))}"
        raise InputError(f"Request {number} gives samples with a rate, and {met}; floats [samples] are accepted.")
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or rate < 1:
        raise InputError(f"Request {number} has the rate {reprlib.repr(rate)}; samples a second, an int, are accepted.")
    return np.asarray(array, np.float32), int(rate)


def _resampled(samples: Samples, given: int, rate: int) -> Samples:
    try:
        import soxr
    except ImportError as error:
        raise (missing_library(error, f"Sound of {given} samples a second, for a model of {rate},") or error) from error
    made: Samples = np.asarray(soxr.resample(samples, given, rate), np.float32)
    return made
