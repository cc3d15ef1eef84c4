"""What stands in the way of writing or loading a model, told by what to do about it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.utils import scratch
from tests.tiny import build
from tests.words import bert_like

HOME = "begins with a home that is not known: .* Write the path out"


def _lowered(**changes: Any) -> Any:
    return headrace.lower(build("bert", **changes), target="reference", tokenizer=bert_like(), pooling="mean")


@pytest.fixture(scope="module")
def embedder() -> Any:
    return _lowered()


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.save("~nobody-at-all/x"),
        lambda model: model.export_onnx("~nobody-at-all/x"),
        lambda model: headrace.load("~nobody-at-all/x"),
        lambda model: headrace.trace("~nobody-at-all/x"),
        lambda model: headrace.compile(build("bert"), tokenizer="~nobody-at-all/x"),
    ],
    ids=["save", "export", "load", "trace", "tokenizer"],
)
def test_nobodys_home(use: Callable[[Any], object], embedder: Any) -> None:
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
    with pytest.raises(headrace.HeadraceError, match=HOME):
        use(embedder.compile())


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        (["embed", "~nobody-at-all/x", "a"], {}),
        (["inspect", "~nobody-at-all/x"], {}),
        (["tasks", "model"], {scratch.CACHE: "/proc/none"}),
        (["parity", "check", "bundle"], {scratch.CACHE: "/proc/none"}),
    ],
)
def test_on_the_command_line(command: list[str], variables: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *command], capture_output=True, text=True, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(scratch.CACHE, str(tmp_path / "file" / "cache"))
    says = r"TORCHINDUCTOR_CACHE_DIR names \S+cache, where .*: Not a directory. Set it to a folder that you can write"
    for use in (lambda: headrace.compile(build("bert"), target="reference"), lambda: headrace.trace):
        with pytest.raises(headrace.TargetError, match=says):
            use()


def test_a_place_for_temporary_files_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(scratch.TEMPORARY, str(tmp_path / "none"))
    with pytest.raises(
        headrace.TargetError, match=r"TMPDIR names \S+none, where temporary files cannot be written: No"
    ):
        headrace.compile(build("bert"), target="cpu")


def test_no_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(headrace.TargetError, match=r"no folder that temporary files can be written to: No usable.*Set"):
        scratch.Scratch()


def test_a_library_that_fails_on_a_full_disk_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_free", lambda place: 5 << 10)
    says = r"The model cannot be made: \S+ has 5 KiB left \(RuntimeError: it gave up\). Make room there, or set TMPDIR"
    with pytest.raises(headrace.TargetError, match=says), scratch.room_told("The model"):
        raise RuntimeError("it gave up")


def test_other_faults_of_libraries_stay_theirs() -> None:
    with pytest.raises(RuntimeError, match="it gave up"), scratch.room_told("The model"):
        raise RuntimeError("it gave up")


def _stray(folder: Path, content: bytes) -> Path:
    build("bert").save_pretrained(folder)
    (folder / "7_Notes").mkdir()
    (folder / "7_Notes" / "config.json").write_bytes(content)
    return folder


def test_a_stray_side_file_that_is_no_json(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
    lowered = headrace.lower(_stray(tmp_path / "model", b"three years"), target="reference", pooling="mean")
    with pytest.raises(headrace.ArtifactError, match=r"7_Notes/config.json of the .* is no JSON: .* mend it or"):
        lowered.export_onnx(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_stray_side_file_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(headrace.LoadError, match=r"7_Notes/config.json, which .* cannot be read as a text: .* Mend it"):
        headrace.trace(_stray(tmp_path / "model", b"\xff\xfe"))


@pytest.fixture(scope="module")
def exported(embedder: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
    return Path(embedder.export_onnx(tmp_path_factory.mktemp("exported") / "m"))


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda to: _lowered().export_onnx(to, dtype="float16"), r"float32. To write .* as std in float16 there"),
        (lambda to: _lowered().export_onnx(to, profile="portable"), "as portable in float32 there"),
        (lambda to: _lowered(num_hidden_layers=1).export_onnx(to), "in float32 of another configuration there"),
        (lambda to: _lowered().compile().save(to), "saved there"),
    ],
    ids=["dtype", "profile", "model", "saved"],
)
def test_an_export_gives_way_to_no_other(write: Callable[[Path], object], says: str, exported: Path) -> None:
    with pytest.raises(headrace.ArtifactError, match=rf"m holds a BertModel module, exported .*{says} would delete"):
        write(exported)
    assert headrace.load(exported).task == "embed"


def test_but_to_itself(exported: Path, embedder: Any) -> None:
    before = exported.stat().st_ino
    assert embedder.export_onnx(exported) == exported
    assert exported.stat().st_ino != before


def test_nor_does_a_saved_model_to_an_export(embedder: Any, tmp_path: Path) -> None:
    folder = embedder.compile().warm().save(tmp_path / "m")
    with pytest.raises(headrace.ArtifactError, match=r"m holds a BertModel module, saved. To write .* would delete"):
        embedder.export_onnx(folder)
    assert headrace.load(folder).target == "reference"
