"""Disks that fill while a model is written: an error, never the end of the process, and the old model stays."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.runtime.tools.parity.record.recording import record
from tests.tiny import build
from tests.words import bert_like

IDS = [[0, 5, 6, 2]]
SIZES = 20
PAGE = 4096


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    """A small one, and one that does not fit beside it everywhere."""
    made = [build("bert", num_hidden_layers=layers) for layers in (1, 3)]
    first, second = (
        headrace.compile(model, target="reference", pooling="mean", tokenizer=bert_like()).warm() for model in made
    )
    return first, second


@contextmanager
def disk(room: int, at: Path) -> Iterator[Path]:
    """A file system of so many bytes."""
    at.mkdir(exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(at), b"tmpfs", 0, f"size={room}".encode()) != 0:
        pytest.skip(f"mounting a tmpfs is not allowed here: {os.strerror(ctypes.get_errno())}")
    try:
        yield at
    finally:
        assert libc.umount2(os.fsencode(at), 2) == 0  # MNT_DETACH: a model may still hold it


def _bytes(folder: Path) -> int:
    """What a folder takes on a disk of pages, itself included."""
    return sum(-(-path.stat().st_size // PAGE) * PAGE for path in folder.rglob("*") if path.is_file())


def _held(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _refused(write: Callable[[Path], object], folder: Path) -> str | None:
    try:
        write(folder)
    except headrace.ArtifactError as error:
        return str(error)
    return None


def _over(old: Path, new: Path, write: Callable[[Path], object], tmp_path: Path, most: float = 1.2) -> str:
    """Replace `old` by what is as large as `new`, on disks with none to `most` times the room of that."""
    fitted = 0
    for step in range(SIZES):
        room = _bytes(old) + int(_bytes(new) * most * step / (SIZES - 1)) // PAGE * PAGE
        with disk(room + 2 * PAGE, tmp_path / "disk") as place:
            shutil.copytree(old, place / "m")
            if (met := _refused(write, place / "m")) is None:
                fitted += 1
            else:
                assert re.search("cannot be written.*nothing was written", met), met
                assert _held(place / "m") == _held(old)
            assert [path.name for path in place.iterdir()] == ["m"]
    assert 0 < fitted < SIZES
    return f"{fitted} of {SIZES} fitted, and no process ended"


def test_saving(models: tuple[Any, Any], tmp_path: Path) -> None:
    old, new = (model.save(tmp_path / name) for model, name in zip(models, ("old", "new"), strict=True))
    print(_over(old, new, models[1].save, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("external_from", [None, 0])
def test_exporting(dtype: str, external_from: int | None, models: tuple[Any, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")

    def write(folder: Path) -> None:
        models[1].export_onnx(folder, dtype=dtype, external_from=external_from, force=True)

    write(tmp_path / "new")
    # A form is made of a copy in float32, and another with shapes.
    print(_over(tmp_path / "new", tmp_path / "new", write, tmp_path, 1.2 if dtype == "float32" else 8))


@pytest.mark.slow
def test_recording(tmp_path: Path) -> None:
    build("bert").save_pretrained(tmp_path / "model")

    def write(folder: Path) -> None:
        record(tmp_path / "model", folder, target="reference", precisions=("float32",))

    write(tmp_path / "new")
    print(_over(tmp_path / "new", tmp_path / "new", write, tmp_path))


@pytest.mark.slow
def test_saving_compiled_code(models: tuple[Any, Any], tmp_path: Path) -> None:
    new = headrace.compile(build("bert"), target="cpu", pooling="mean").warm()
    print(
        f"{_over(models[0].save(tmp_path / 'old'), new.save(tmp_path / 'new'), new.save, tmp_path)} of {SIZES} fitted"
    )


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 0.99])
def test_a_file_that_may_not_grow(share: float, models: tuple[Any, Any], tmp_path: Path) -> None:
    """Between the bytes of the weights and those of the archive torch ended the process."""
    old = models[0].save(tmp_path / "m")
    whole = (models[1].save(tmp_path / "whole") / "embedding.pt2").stat().st_size
    weights = sum(weight.nbytes for weight in models[1].program.graph.state_dict.values())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(weights + share * (whole - weights)), before[1]))
    try:
        with pytest.raises(headrace.ArtifactError, match=r"cannot be written: File too large.*nothing was written"):
            models[1].save(old)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    np.testing.assert_array_equal(headrace.load(old)(IDS)[0], models[0](IDS)[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "whole"]
