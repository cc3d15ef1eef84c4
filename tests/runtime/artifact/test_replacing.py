"""A saved model is replaced whole: readers beside a writer, writers that are killed, and what they leave behind."""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.errors import ArtifactError
from headrace.runtime.artifact import exchange, working
from headrace.runtime.artifact.places import held, new_folder
from tests.tiny import build

IDS = [[0, 5, 6, 2]]


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    """Two that answer differently."""
    made = [build("bert", num_hidden_layers=layers) for layers in (1, 2)]
    first, second = (headrace.compile(model, target="reference", pooling="mean").warm() for model in made)
    return first, second


@pytest.fixture
def in_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that exchanges no names."""

    def lacking(one: Path, other: Path) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(exchange, "_exchange", lacking)


def _forked(work: Callable[[], object]) -> int:
    """Do it in a process of its own."""
    if (child := os.fork()) == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def _write(place: Path, text: str) -> None:
    with new_folder(place) as (work, _):
        (work / "one").write_text(text)
        (work / "two").write_text(text)
        (work / "headrace.json").write_text('{"files": {"one": "", "two": ""}}')


def _hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(working.PREFIX)]


def _read_on(place: Path, stop: Path, log: Path, read: Callable[[Path], str]) -> None:
    with log.open("w") as out:
        while not stop.exists():
            try:
                out.write(f"{read(place)}\n")
            except Exception as error:
                out.write(f"failed: {error!r}\n")
            out.flush()


def _both(place: Path) -> str:
    with held(place) as inside:
        one = (inside / "one").read_text()
        time.sleep(0.002)
        return "fine" if one == (inside / "two").read_text() else "failed: two versions in one"


def _beside(place: Path, read: Callable[[Path], str], replace: Callable[[], object]) -> list[str]:
    """What a reader in a process of its own saw while a folder was being replaced."""
    stop, log = place.parent / "stop", place.parent / "log"
    reader = _forked(lambda: _read_on(place, stop, log, read))
    while not log.exists() or not log.read_text():
        time.sleep(0.01)
    replace()
    stop.touch()
    os.waitpid(reader, 0)
    seen = log.read_text().splitlines()
    stop.unlink()
    log.unlink()
    return seen


def _kill(times: int, longest: float, write: Callable[[int], object]) -> int:
    """Kill a writer at moments spread over what it does; how many were still at it."""
    dice, caught = random.Random(7), 0
    for number in range(times):
        child = _forked(partial(write, number))
        time.sleep(dice.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        caught += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    return caught


@pytest.mark.parametrize("steps", [1, 2])
def test_a_reader_beside_a_writer(steps: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if steps == 2:
        request.getfixturevalue("in_two_steps")
    _write(tmp_path / "m", "0")

    def replace() -> None:
        for number in range(100):
            _write(tmp_path / "m", str(number))

    seen = _beside(tmp_path / "m", _both, replace)
    assert set(seen) == {"fine"}
    _write(tmp_path / "m", "last")
    assert not _hidden(tmp_path)


@pytest.mark.parametrize("steps", [1, 2])
def test_killed_writers(steps: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if steps == 2:
        request.getfixturevalue("in_two_steps")
    _write(tmp_path / "m", "0")
    seen = _beside(tmp_path / "m", _both, lambda: _kill(60, 0.01, lambda i: _write(tmp_path / "m", str(i))))
    assert set(seen) == {"fine"}
    _write(tmp_path / "m", "last")
    assert not _hidden(tmp_path)


def test_one_killed_between_two_steps(tmp_path: Path, in_two_steps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stepped aside comes back with the next reader, or writer."""
    _write(tmp_path / "m", "0")
    monkeypatch.setattr(exchange, "step_aside", lambda work, place: (place.rename(work.with_name("old")), os._exit(9)))
    os.waitpid(_forked(lambda: _write(tmp_path / "m", "1")), 0)
    assert not (tmp_path / "m").exists()
    assert _both(tmp_path / "m") == "fine"
    assert not _hidden(tmp_path)


def test_what_is_open_stays(tmp_path: Path) -> None:
    _write(tmp_path / "m", "0")
    with held(tmp_path / "m") as inside:
        _write(tmp_path / "m", "1")
        _write(tmp_path / "m", "2")
        assert (inside / "one").read_text() == "0"
        assert len(_hidden(tmp_path)) == 1
    assert not _hidden(tmp_path)
    assert (tmp_path / "m" / "one").read_text() == "2"


def test_what_a_living_writer_holds_is_not_swept(tmp_path: Path) -> None:
    with new_folder(tmp_path / "m") as (work, _):
        (work / "mine").touch()
        _write(tmp_path / "other", "0")
        assert (work / "mine").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "other"]


def test_only_folders_of_this_kind_are_swept(tmp_path: Path) -> None:
    (tmp_path / ".headrace-mine").mkdir()
    (tmp_path / ".headrace-mine" / "thesis.txt").touch()
    (tmp_path / ".headrace-link").symlink_to(tmp_path / ".headrace-mine")
    _write(tmp_path / "m", "0")
    assert (tmp_path / ".headrace-mine" / "thesis.txt").exists()


@pytest.mark.parametrize("times", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_saves_beside_loads(times: int, tmp_path: Path, models: tuple[Any, Any]) -> None:
    place, right = tmp_path / "m", [model(IDS)[0] for model in models]
    models[0].save(place)
    begun = time.monotonic()
    os.waitpid(_forked(lambda: models[1].save(place)), 0)
    longest = 1.5 * (time.monotonic() - begun)

    def read(path: Path) -> str:
        found = headrace.load(path)(IDS)[0]
        return "fine" if any(np.array_equal(found, one) for one in right) else "failed: another answer"

    caught: list[int] = []
    seen = _beside(place, read, lambda: caught.append(_kill(times, longest, lambda i: models[i % 2].save(place))))
    print(f"{caught[0]} of {times} writers killed at work, {len(seen)} loads beside them")
    assert set(seen) == {"fine"}
    models[1].save(place)
    assert np.array_equal(headrace.load(place)(IDS)[0], right[1])
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_loaded_model_saves_what_it_is(tmp_path: Path, models: tuple[Any, Any]) -> None:
    """Though another lies where it was read, with its weights in a file beside the graph."""
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
    models[0].export_onnx(tmp_path / "m", external_from=0)
    loaded = headrace.load(tmp_path / "m")
    with new_folder(tmp_path / "m"):
        pass
    assert _hidden(tmp_path)
    again = headrace.load(loaded.save(tmp_path / "n"))
    np.testing.assert_array_equal(again(IDS)[0], loaded(IDS)[0])
    del loaded, again
    gc.collect()
    assert not _hidden(tmp_path)


def test_a_refusal_names_the_folder_as_it_was_given(tmp_path: Path, models: tuple[Any, Any]) -> None:
    (models[0].save(tmp_path / "m") / "embedding.pt2").unlink()
    with pytest.raises(ArtifactError, match=rf"^{tmp_path}/m is damaged: missing embedding.pt2"):
        headrace.load(tmp_path / "m")


@pytest.mark.parametrize("writers", [2, 3])
def test_writers_beside_each_other(writers: int, tmp_path: Path, in_two_steps: None) -> None:
    """Each takes the place in the other's two steps, and finds its own version followed already."""
    _write(tmp_path / "m", "0")

    def write(writer: int) -> None:
        for number in range(60):
            try:
                _write(tmp_path / "m", f"{writer} {number}")
            except Exception as error:
                (tmp_path / f"failed-{writer}").write_text(repr(error))
                raise

    def replace() -> None:
        for child in [_forked(partial(write, writer)) for writer in range(writers)]:
            os.waitpid(child, 0)

    seen = _beside(tmp_path / "m", _both, replace)
    assert set(seen) == {"fine"}
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(working.PREFIX)] == ["m"]
    _write(tmp_path / "m", "last")
    assert not _hidden(tmp_path)


def test_a_version_that_was_followed_never_comes_back(
    tmp_path: Path, in_two_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last reader of an older one departs just between the two steps of the next writer."""
    _write(tmp_path / "m", "0")
    reader, rename = held(tmp_path / "m"), Path.rename
    reader.__enter__()
    _write(tmp_path / "m", "1")
    assert (tmp_path / _hidden(tmp_path)[0] / exchange.OLD / "one").read_text() == "0"

    def departs(self: Path, target: Path) -> Path:
        if target == tmp_path / "m":
            reader.__exit__(None, None, None)
            working.sweep(tmp_path)
            assert not (tmp_path / "m").exists()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", departs)
    _write(tmp_path / "m", "2")
    assert (tmp_path / "m" / "one").read_text() == "2"
    assert not _hidden(tmp_path)


def test_what_is_put_back_between_the_two_steps_steps_aside_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that meets no folder returns the old one just before the new one takes its place."""
    work, place = tmp_path / "aside" / exchange.NEW, tmp_path / "m"
    for folder, text in ((work, "new"), (place, "old")):
        folder.mkdir(parents=True)
        (folder / "one").write_text(text)
    rename, returned = Path.rename, list[bool]()

    def meets_nobody(self: Path, target: Path) -> Path:
        if self == work and not returned:
            returned.append(True)
            exchange.put_back(work.parent, place)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", meets_nobody)
    exchange.step_aside(work, place)
    assert returned
    assert (place / "one").read_text() == "new"
    assert (work.parent / exchange.OLD / "one").read_text() == "old"


def test_what_takes_the_place_between_the_two_steps_steps_aside_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, place = tmp_path / "aside" / exchange.NEW, tmp_path / "m"
    for folder, text in ((work, "new"), (place, "old"), (tmp_path / "other", "other")):
        folder.mkdir(parents=True)
        (folder / "one").write_text(text)
    rename = Path.rename

    def another(self: Path, target: Path) -> Path:
        if self == work and (tmp_path / "other").exists():
            rename(tmp_path / "other", place)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", another)
    exchange.step_aside(work, place)
    assert (place / "one").read_text() == "new"
    assert sorted((path / "one").read_text() for path in work.parent.iterdir()) == ["old", "other"]
