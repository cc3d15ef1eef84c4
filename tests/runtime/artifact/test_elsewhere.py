"""Names that came with a folder lead into it and nowhere else, whoever gives them: a manifest, a graph, a link."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.runtime.artifact.manifest import damage, digest
from headrace.runtime.text.tokenizer.tokenizers_only import FILE
from headrace.runtime.tools import cli
from tests.hostile import as_snapshot, sign
from tests.tiny import build
from tests.words import bert_like

SECRET = "hunter2"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A program of torch, and an export."""
    model = headrace.compile(build("bert"), target="reference", tokenizer=bert_like(), pooling="mean", max_length=9)
    base = tmp_path_factory.mktemp("elsewhere")
    made = {"torch": model.save(base / "torch")}
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
    return made | {"onnx": model.export_onnx(base / "onnx", external_from=1)}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that is none of the folder's."""
    (path := tmp_path / "secret").write_text(SECRET)
    return path


def _set(*keys: str) -> Callable[[dict[str, Any], str], object]:
    """Put a name where a manifest has one."""

    def change(manifest: dict[str, Any], name: str) -> None:
        for key in keys[:-1]:
            manifest = manifest[key] if key else next(iter(manifest.values()))
        manifest[keys[-1]] = name

    return change


NAMES: dict[str, Callable[[dict[str, Any], str], object]] = {
    "files": lambda manifest, name: manifest["files"].update({name: "0"}),
    "lanes": _set("lanes", "", "file"),
    "tokenizer": _set("tokenizer", "folder"),
    "report": _set("export", "report"),
}


HOWS = ("absolute", "upwards", "by a link", "no text")
# A program of torch has no report, and JSON no keys but texts.
CASES = [
    (kind, what, how)
    for kind, what, how in product(("torch", "onnx"), NAMES, HOWS)
    if (kind, what) != ("torch", "report") and (what, how) != ("files", "no text")
]


@pytest.mark.parametrize(("kind", "what", "how"), CASES)
def test_names_of_a_manifest(kind: str, what: str, how: str, saved: dict[str, Path], secret: Path) -> None:
    folder = Path(shutil.copytree(saved[kind], secret.parent / "copy"))
    (folder / "link").symlink_to(secret)
    name: Any = {"absolute": str(secret), "upwards": "../secret", "by a link": "link", "no text": 7}[how]
    sign(folder, lambda manifest: NAMES[what](manifest, name))
    for opened in (lambda: headrace.load(folder, trust=True), lambda: cli_verify(folder)):
        with pytest.raises(headrace.ArtifactError, match=rf"names {name!r}, which leads out of the folder"):
            opened()


def cli_verify(folder: Path) -> None:
    from headrace.runtime.tools.cli.commands.onnx import check_export

    list(check_export(folder))


@pytest.mark.parametrize(
    "shape", [{"lanes": []}, {"tokenizer": 3}, {"export": "x"}, {"files": None}, {"lanes": {"x": 1}}]
)
def test_a_manifest_of_another_shape(shape: dict[str, Any], saved: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved["onnx"], tmp_path / "copy"))
    manifest = json.loads((folder / "headrace.json").read_text()) | shape
    manifest["digest"] = digest(manifest)
    (folder / "headrace.json").write_text(json.dumps(manifest))
    with pytest.raises(headrace.ArtifactError, match="holds facts that this version cannot read"):
        headrace.load(folder)


@pytest.mark.parametrize("name", ["chat_template.jinja", "onnx/model.onnx_data"])
def test_links_beside_an_exported_model(name: str, saved: dict[str, Path], secret: Path) -> None:
    """Also those that no manifest lists: transformers reads what it finds."""
    folder = Path(shutil.copytree(saved["onnx"], secret.parent / "copy"))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    with pytest.raises(headrace.ArtifactError, match=rf"{name}.* leads out of the folder"):
        headrace.load(folder)


def test_an_exported_model_in_the_hubs_cache(saved: dict[str, Path], tmp_path: Path) -> None:
    """Every file is a link to a blob that came with it."""
    loaded = headrace.load(as_snapshot(saved["onnx"], tmp_path / "models--one--two"))
    assert loaded.embed("w5 w6").shape == (1, 32)


def test_a_file_of_another_kind_is_not_handed_to_onnxruntime(saved: dict[str, Path], tmp_path: Path) -> None:
    """It takes what ends in .ort for a form of its own, which our look at the file does not read."""
    folder = Path(shutil.copytree(saved["onnx"], tmp_path / "copy"))
    (folder / "onnx" / "model.onnx").rename(folder / "onnx" / "model.ort")

    def renamed(manifest: dict[str, Any]) -> None:
        manifest["files"]["onnx/model.ort"] = manifest["files"].pop("onnx/model.onnx")
        for lane in manifest["lanes"].values():
            lane["file"] = "onnx/model.ort"

    sign(folder, renamed)
    with pytest.raises(headrace.ArtifactError, match=r"names onnx/model\.ort; the target onnx reads \.onnx"):
        headrace.load(folder)


def test_files_of_a_parity_bundle(secret: Path) -> None:
    """One function holds both kinds of folder against their digests."""
    (folder := secret.parent / "bundle").mkdir()
    (folder / "link").symlink_to(secret)
    found = damage(folder, {str(secret): "0", "../secret": "0", "link": "0", "gone": "0"})
    assert found == f"outside the folder {secret}, ../secret, link; missing gone"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder."""
    path = tmp_path_factory.mktemp("sources") / "source"
    build("bert", num_hidden_layers=1).save_pretrained(path)
    bert_like().save_pretrained(path)
    (path / "chat_template.jinja").write_text("{{ messages }}")
    return path


class TestSources:
    """What a model's folder only links to is not handed on by an export."""

    @pytest.fixture
    def source(self, whole: Path, tmp_path: Path) -> Path:
        return Path(shutil.copytree(whole, tmp_path / "source"))

    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
    def test_a_link_is_not_copied(self, name: str, source: Path, tmp_path: Path) -> None:
        (source / name).rename(tmp_path / "elsewhere")
        (source / name).symlink_to(tmp_path / "elsewhere")
        lowered = headrace.lower(source, target="reference")
        for write in (lowered.export_onnx, quiet(lowered.compile).save):
            with pytest.raises(headrace.ArtifactError, match=rf"{name} would be written, and is a link that leads out"):
                write(tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_nor_is_what_lies_in_a_linked_folder(self, source: Path, tmp_path: Path) -> None:
        shutil.move(source, tmp_path / "elsewhere")
        source.mkdir()
        (source / "0_Transformer").symlink_to(tmp_path / "elsewhere")
        sentences(source, "0_Transformer")
        with pytest.raises(headrace.LoadError, match=r"modules.json names '0_Transformer', outside its folder"):
            headrace.lower(source, target="reference")

    @pytest.mark.parametrize("name", ["../elsewhere", "/"])
    def test_names_in_modules_json(self, name: str, source: Path) -> None:
        sentences(source, name)
        with pytest.raises(headrace.LoadError, match=rf"modules.json names '{name}', outside its folder"):
            headrace.trace(source)

    def test_a_tokenizers_folder_of_its_own(self, source: Path, tmp_path: Path) -> None:
        bert_like().save_pretrained(tmp_path / "words")
        (tmp_path / "words" / FILE).rename(tmp_path / "elsewhere")
        (tmp_path / "words" / FILE).symlink_to(tmp_path / "elsewhere")
        for model in (source, build("bert", num_hidden_layers=1)):
            lowered = headrace.lower(model, target="reference", tokenizer=str(tmp_path / "words"))
            with pytest.raises(headrace.ArtifactError, match=rf"{FILE} would be written"):
                lowered.export_onnx(tmp_path / "out")

    @pytest.mark.parametrize("key", ["vocab", "vocab_file"])
    def test_a_vocabulary_elsewhere(self, key: str, source: Path, secret: Path) -> None:
        (source / FILE).unlink()
        said = {"tokenizer_class": "BertTokenizer", key: str(secret)}
        (source / "tokenizer_config.json").write_text(json.dumps(said))
        with pytest.raises(
            headrace.LoadError, match=rf"tokenizer_config.json names {key} .*secret, outside its folder"
        ):
            headrace.trace(source)

    def test_a_place_of_its_authors_machine(self, source: Path) -> None:
        """Older versions of transformers left such, and they lead nowhere."""
        path = source / "tokenizer_config.json"
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"tokenizer_file": "/root/.cache/gone/tokenizer.json"})
        )
        assert headrace.trace(source).tokenizer is not None

    def test_a_snapshot_of_the_hub(self, source: Path, tmp_path: Path) -> None:
        """Links to its blobs are how the hub's client keeps files."""
        lowered = headrace.lower(as_snapshot(source, tmp_path / "models--one--two"), target="reference")
        assert set(lowered.side_files) == {"config.json"}
        assert quiet(lowered.compile).save(tmp_path / "out").is_dir()


def sentences(folder: Path, path: str) -> None:
    modules = [{"path": path, "type": "sentence_transformers.models.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules))


def quiet(made: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return made()


def test_inspect_opens_nothing_elsewhere(
    saved: dict[str, Path], secret: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(saved["onnx"], secret.parent / "copy"))
    sign(folder, lambda manifest: manifest["files"].update({str(secret): "0"}))
    with pytest.raises(SystemExit) as ended:
        cli.main(["inspect", str(folder)])
    assert ended.value.code == 2
    assert "leads out of the folder" in capsys.readouterr().err
