"""Saved models: the same answers after loading, and every damage refused with what differs."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.runtime.artifact.manifest import digest
from tests.tiny import build
from tests.words import bert_like

REQUESTS = [[0, 5, 6, 2], [0, 7, 2]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    model = headrace.compile(build("bert"), target="reference", tokenizer=bert_like(), pooling="mean", max_length=9)
    return model.save(tmp_path_factory.mktemp("artifact") / "saved"), model


@pytest.fixture
def folder(saved: tuple[Path, Any], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[0], tmp_path / "copy"))


def test_loaded_equals_saved(saved: tuple[Path, Any]) -> None:
    """D3, B6: answers, decisions and limits survive."""
    path, model = saved
    loaded = headrace.load(path)
    for one, other in zip(loaded(REQUESTS), model(REQUESTS), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(loaded.embed("w5 w6"), model.embed("w5 w6"))
    assert loaded.as_text() == model.as_text()
    assert loaded.explain() == model.explain()
    with pytest.raises(headrace.InputTooLongError, match="max_length=9"):
        loaded.embed("w5 " * 20)


READ = """
import sys
import headrace
for path in sys.argv[1:]:
    loaded = headrace.load(path)
    print(loaded.program.decision.route.name, *(f"{value:.9e}" for value in loaded([[5, 6, 7]], task="embed")[0]))
"""


def test_a_fresh_process_reads_them(tmp_path: Path) -> None:
    """The operators that a graph holds are known where nothing was traced."""
    models = [headrace.compile(build(name), target="reference", pooling="mean") for name in ("rwkv", "jamba", "bert")]
    paths = [model.save(tmp_path / str(place)) for place, model in enumerate(models)]
    done = subprocess.run([sys.executable, "-c", READ, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for model, line in zip(models, done.stdout.splitlines(), strict=True):
        route, *values = line.split()
        assert route == model.program.decision.route.name
        wanted = model([[5, 6, 7]], task="embed")[0]
        np.testing.assert_allclose([float(value) for value in values], wanted, rtol=1e-6)


def test_compiled_code_survives(tmp_path: Path, compiled: Any) -> None:
    """The cpu target's package is loaded without compiling anything."""
    model = compiled("xlm-roberta", "AutoModel", "cpu")
    loaded = headrace.load(model.save(tmp_path / "saved"))
    for one, other in zip(loaded(REQUESTS), model(REQUESTS), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_was_not_compiled_is_not_there(folder: Path) -> None:
    loaded = headrace.load(folder)
    with pytest.raises(headrace.ArtifactError, match=r"holds executables for embedding.*task='token_embed'"):
        loaded.token_embed("w5")


def _manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "headrace.json"
        manifest = json.loads(path.read_text())
        change(manifest)
        if "digest" in manifest:
            manifest["digest"] = digest(manifest)  # what it then says is wrong all the same
        path.write_text(json.dumps(manifest))

    return damage


def _replace(folder: Path, old: str, new: str) -> None:
    path = folder / "headrace.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda f: (f / "headrace.json").unlink(), "no saved model"),
    "manifest is no json": (lambda f: (f / "headrace.json").write_text("{"), "cannot be read"),
    "newer": (_manifest(lambda m: m.update(format=99)), "newer format"),
    "older": (_manifest(lambda m: m.pop("lanes")), "lanes differs"),
    "other torch": (_manifest(lambda m: m.update(libraries={"torch": "1.0.0"})), "compiled with torch 1.0.0"),
    "unknown fact": (_manifest(lambda m: m["program"].update(surprise=1)), "cannot read"),
    "a fact changed": (lambda f: _replace(f, '"normalize": false', '"normalize": true'), "changed headrace.json"),
    "wrong enum": (_manifest(lambda m: m["program"].update(head="hydra")), "hydra"),
    "no route": (_manifest(lambda m: m["program"].update(route=None)), "no state that runs the model"),
    "missing file": (lambda f: (f / "embedding.pt2").unlink(), "missing embedding.pt2"),
    "truncated": (lambda f: (f / "embedding.pt2").write_bytes((f / "embedding.pt2").read_bytes()[:-9]), "changed"),
    "swapped tokenizer": (lambda f: (f / "tokenizer" / "tokenizer.json").write_text("{}"), "changed tokenizer"),
    "escaping path": (_manifest(lambda m: m["files"].update({"../x": "0"})), "'../x', which leads out of the folder"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused(kind: str, folder: Path) -> None:
    damage, message = DAMAGE[kind]
    damage(folder)
    with pytest.raises(headrace.ArtifactError, match=message):
        headrace.load(folder)


def test_the_manifest_names_no_place_of_the_machine(tmp_path: Path, tiny: Any) -> None:
    tiny("bert").save_pretrained(tmp_path / "private" / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        headrace.compile(tmp_path / "private" / "model", target="reference").save(tmp_path / "saved")
    assert "private" not in (tmp_path / "saved" / "headrace.json").read_text()
    assert headrace.load(tmp_path / "saved").program.source.name == "model"


def test_a_folder_that_others_can_write_is_not_trusted(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(headrace.ArtifactError, match="trust=True"):
        headrace.load(folder)
    assert headrace.load(folder, trust=True).task == "embed"


@pytest.mark.parametrize("name", ["embedding.pt2", "tokenizer", "tokenizer/tokenizer.json"])
def test_nor_is_one_whose_content_others_can_write(folder: Path, name: str) -> None:
    (folder / name).chmod(0o777)
    with pytest.raises(headrace.ArtifactError, match=f"others can write to {name}.*trust=True"):
        headrace.load(folder)


def test_trust_is_yes_or_no(folder: Path) -> None:
    with pytest.raises(headrace.ArtifactError, match="trust is False"):
        headrace.load(folder, trust=False)
    odd: Any = "no"
    with pytest.raises(headrace.ArtifactError, match="trust is 'no'; True, False or None"):
        headrace.load(folder, trust=odd)


def test_another_target_is_refused(folder: Path) -> None:
    with pytest.raises(headrace.ArtifactError, match="compiled for reference, not cpu"):
        headrace.load(folder, target="cpu")


def test_saving_over_something_else_is_refused(saved: tuple[Path, Any], tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years")
    with pytest.raises(headrace.ArtifactError, match="nothing was written"):
        saved[1].save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("name", ["notes.txt", ".git/config", "tokenizer/mine.json"])
def test_what_a_user_put_beside_a_saved_model_is_not_replaced(name: str, folder: Path, saved: tuple[Path, Any]) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("three years")
    with pytest.raises(headrace.ArtifactError, match=rf"holds {name} beside what its headrace.json lists.*nothing was"):
        saved[1].save(folder)
    assert (folder / name).read_text() == "three years"
    assert headrace.load(folder).task == "embed"


def test_nor_is_what_came_while_it_was_written(
    folder: Path, saved: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = saved[1]._tokenizer.save_pretrained
    monkeypatch.setattr(
        saved[1]._tokenizer, "save_pretrained", lambda work: (save(work), (folder / "notes.txt").write_text("late"))
    )
    with pytest.raises(headrace.ArtifactError, match=r"holds notes.txt beside"):
        saved[1].save(folder)
    assert (folder / "notes.txt").read_text() == "late"


def test_a_damaged_one_is_not_replaced_either(folder: Path, saved: tuple[Path, Any]) -> None:
    (folder / "headrace.json").write_text("{")
    with pytest.raises(headrace.ArtifactError, match=r"and \d more|beside what its headrace.json lists"):
        saved[1].save(folder)


@pytest.mark.parametrize("room", [1000, 20_000])
def test_files_that_may_not_grow(room: int, saved: tuple[Path, Any], tmp_path: Path) -> None:
    """The tokenizers library meets the one limit, the writer of the graph the other."""
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(headrace.ArtifactError, match="cannot be written: File too large"):
            saved[1].export_onnx(tmp_path / "m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_a_name_as_long_as_they_may_be(saved: tuple[Path, Any], tmp_path: Path) -> None:
    assert headrace.load(saved[1].save(tmp_path / ("x" * 255))).task == "embed"


def test_saving_again_replaces(saved: tuple[Path, Any], tmp_path: Path) -> None:
    model = saved[1]
    first = model.save(tmp_path / "m")
    assert model.save(tmp_path / "m") == first
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert headrace.load(first).task == "embed"
