"""Code from a folder runs after a yes alone: every way in is tried on a folder that would make a file, and must not."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.runtime.artifact import saved_model, trust
from headrace.runtime.tools import cli
from tests.hostile import WAYS, Touches, as_snapshot, pickled, pickled_inputs, poison, sign
from tests.tiny import build
from tests.words import bert_like

REFUSED = (
    r"holds a program, which loading runs, and .*\. Pass trust=True if you know where it comes from, or make it anew"
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    model = headrace.compile(build("bert"), target="reference", tokenizer=bert_like(), pooling="mean")
    return model.save(tmp_path_factory.mktemp("trust") / "saved"), model


@pytest.fixture
def folder(saved: tuple[Path, Any], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[0], tmp_path / "copy"))


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What hostile code would make."""
    return tmp_path / "it-ran"


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """A command's exit code, and what it said on stderr."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    code = ended.value.code
    assert isinstance(code, int)
    return code, capsys.readouterr().err


@pytest.mark.parametrize("way", WAYS)
def test_a_folder_that_would_run_something(way: str, folder: Path, marker: Path) -> None:
    """With every digest as it should be: anybody can compute one. The last line shows that each would have run."""
    poison(folder, "embedding.pt2", WAYS[way](marker))
    with pytest.raises(headrace.ArtifactError, match=r"not saved by this user here: nothing in .*trust=True"):
        headrace.load(folder)
    with pytest.raises(headrace.ArtifactError, match=REFUSED):
        headrace.load(folder, trust=False)
    assert not marker.exists()
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever torch makes of it afterwards
        headrace.load(folder, trust=True)
    assert marker.exists()


@pytest.mark.parametrize("name", ["embed", "classify", "token-classify", "compile"])
def test_nor_does_a_command_run_it(name: str, folder: Path, marker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An ordinary model's folder, with a headrace.json and a program beside its weights."""
    build("bert").save_pretrained(folder)
    poison(folder, "embedding.pt2", pickled_inputs(marker))
    last = "a text" if name != "compile" else str(folder.parent / "out")
    code, said = command(capsys, name, str(folder), last)
    assert code == 2
    assert "was not saved by this user here" in said
    assert "Pass --trust if you know" in said
    assert not marker.exists()


def test_a_yes_runs_it(folder: Path, saved: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A model that another saved, as it is on a machine that it was copied to."""
    sign(folder, lambda manifest: manifest.update(headrace="0.0.9"))
    assert command(capsys, "embed", str(folder), "w5 w6")[0] == 2
    with pytest.raises(SystemExit) as ended:
        cli.main(["embed", str(folder), "w5 w6", "--trust"])
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)["embedding"]
    np.testing.assert_allclose(found, saved[1].embed("w5 w6")[0], atol=1e-6)


def test_trust_is_for_saved_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build("bert").save_pretrained(tmp_path / "model")
    code, said = command(capsys, "embed", str(tmp_path / "model"), "w5", "--trust")
    assert code == 2
    assert "is no saved model, which alone takes --trust" in said
    assert "--trust-remote-code" in said


def test_what_this_user_saved_loads_wherever_it_is_moved(folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "moved")
    assert headrace.load(moved).task == "embed"
    (tmp_path / "link").symlink_to(moved)
    assert headrace.load(tmp_path / "link").task == "embed"


def test_a_saved_graph_holds_no_pickle(folder: Path) -> None:
    """No file of the archive is one, and no table says so."""
    with zipfile.ZipFile(folder / "embedding.pt2") as archive:
        for name in archive.namelist():
            held = archive.read(name)
            assert b'use_pickle": true' not in held, name
            assert held[:1] != b"\x80", name
            assert b"data.pkl" not in held, name


def test_compiled_code_is_not_even_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of AOTInductor is a library of machine code: to open it is to run it."""
    opened: list[Any] = []
    monkeypatch.setattr("headrace.backends.inductor.compiled.read_package", opened.append)
    sign(folder, lambda manifest: manifest.update(target="cpu"))
    with pytest.raises(headrace.ArtifactError, match=REFUSED):
        headrace.load(folder)
    assert not opened
    headrace.load(folder, trust=True)
    assert len(opened) == 1


def closed_to(path: Path, mode: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / path).chmod(mode)

    return change


OPEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "all may write the program": (closed_to(Path("embedding.pt2"), 0o646), "others can write to embedding.pt2"),
    "the group may write it": (closed_to(Path("embedding.pt2"), 0o664), "others can write to embedding.pt2"),
    "or the manifest": (closed_to(Path("headrace.json"), 0o664), "others can write to headrace.json"),
    "or the tokenizer's folder": (closed_to(Path("tokenizer"), 0o775), "others can write to tokenizer"),
    "or the folder": (closed_to(Path(), 0o775), "others can write to it"),
    "or the one above": (closed_to(Path(".."), 0o775), r"others can write to .*, in which it lies"),
    "all may write the one above": (closed_to(Path(".."), 0o777), r"others can write to .*, in which it lies"),
}


@pytest.mark.parametrize("how", OPEN)
def test_what_others_can_change_is_not_trusted(how: str, folder: Path) -> None:
    """Nor what is checked could be what is loaded, otherwise."""
    change, said = OPEN[how]
    change(folder)
    with pytest.raises(headrace.ArtifactError, match=f"{said}.*trust=True"):
        headrace.load(folder)
    assert headrace.load(folder, trust=True).task == "embed"


def test_a_folder_in_which_all_may_write_and_none_replace(folder: Path) -> None:
    """As /tmp is."""
    folder.parent.chmod(0o1777)
    assert headrace.load(folder).task == "embed"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another")
@pytest.mark.parametrize("name", ["embedding.pt2", "tokenizer", "."])
def test_what_others_own_is_not_trusted(name: str, folder: Path) -> None:
    os.chown(folder / name, 12345, -1)
    with pytest.raises(headrace.ArtifactError, match=r"others own .*trust=True"):
        headrace.load(folder)


def test_links_out_of_the_folder_are_not_trusted(folder: Path, tmp_path: Path) -> None:
    """Even to the very same bytes."""
    (folder / "embedding.pt2").rename(tmp_path / "elsewhere.pt2")
    (folder / "embedding.pt2").symlink_to(tmp_path / "elsewhere.pt2")
    with pytest.raises(headrace.ArtifactError, match=r"'embedding.pt2', which leads out of the folder"):
        headrace.load(folder)
    with pytest.raises(headrace.ArtifactError, match=r"'embedding.pt2', which leads out of the folder"):
        headrace.load(folder, trust=True)


def test_a_link_that_passes_elsewhere_on_its_way_back(folder: Path, tmp_path: Path) -> None:
    """Whoever owns that place can turn it after the check."""
    (folder / "embedding.pt2").rename(folder / "same.pt2")
    (tmp_path / "elsewhere").symlink_to(folder / "same.pt2")
    (folder / "embedding.pt2").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(headrace.ArtifactError, match=r"embedding.pt2 is a link, of which `save` makes none"):
        headrace.load(folder)
    assert headrace.load(folder, trust=True).task == "embed"


def test_a_snapshot_of_the_hub_is_not_a_save_of_this_users(folder: Path, tmp_path: Path) -> None:
    """Its links may lead to the blobs, for a yes; unasked, what is ours lies in the folder."""
    snapshot = as_snapshot(folder, tmp_path / "models--one--two")
    with pytest.raises(headrace.ArtifactError, match=r"is a link, of which `save` makes none.*trust=True"):
        headrace.load(snapshot)
    assert headrace.load(snapshot, trust=True).task == "embed"


def test_a_link_that_turns_between_the_check_and_the_use(
    folder: Path, tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that was checked is read, wherever the link leads by then."""
    evil = Path(shutil.copytree(folder, tmp_path / "evil"))
    poison(evil, "embedding.pt2", pickled_inputs(marker))
    (link := tmp_path / "link").symlink_to(folder)
    checked = saved_model.check_files

    def then_turn(*given: Any) -> None:
        checked(*given)
        link.unlink()
        link.symlink_to(evil)

    monkeypatch.setattr(saved_model, "check_files", then_turn)
    assert headrace.load(link).task == "embed"
    assert not marker.exists()


def test_saving_leaves_nothing_open(saved: tuple[Path, Any], tmp_path: Path) -> None:
    """Whatever the umask is: many systems let the group write."""
    before = os.umask(0)
    try:
        path = saved[1].save(tmp_path / "model")
    finally:
        os.umask(before)
    assert not [held for held in (path, *path.rglob("*")) if held.stat().st_mode & 0o022]
    assert headrace.load(path).task == "embed"


class TestRegister:
    """Where the digests of what this user saved stand."""

    @pytest.fixture(autouse=True)
    def state(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        return tmp_path / "state"

    def test_it_is_made_for_the_user_alone(self, saved: tuple[Path, Any], tmp_path: Path, state: Path) -> None:
        saved[1].save(tmp_path / "model")
        (noted,) = trust.register().iterdir()
        assert noted.stat().st_mode & 0o777 == 0o600
        assert not [made for made in (state, state / "headrace", noted.parent) if made.stat().st_mode & 0o077]

    def test_one_that_others_can_write_says_nothing(self, saved: tuple[Path, Any], tmp_path: Path) -> None:
        path = saved[1].save(tmp_path / "model")
        trust.register().chmod(0o770)
        with pytest.raises(headrace.ArtifactError, match=r"others can write to .*, in which the register of saved"):
            headrace.load(path)

    def test_one_that_cannot_be_written(self, saved: tuple[Path, Any], tmp_path: Path, state: Path) -> None:
        """The model is saved all the same, and asked about."""
        state.write_text("")
        with pytest.warns(headrace.HeadraceWarning, match=r"cannot be noted \(.*loading it will take trust=True"):
            path = saved[1].save(tmp_path / "model")
        with pytest.raises(headrace.ArtifactError, match=REFUSED):
            headrace.load(path)

    def test_a_user_without_a_home(
        self, saved: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in a container that runs under a number."""
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setattr(Path, "expanduser", lambda _: homeless())
        with pytest.warns(headrace.HeadraceWarning, match=r"Could not determine home.*Set XDG_STATE_HOME"):
            trust.remember(saved[0], "0")
        with pytest.raises(headrace.ArtifactError, match=r"cannot be looked up \(Could not determine.*trust=True"):
            trust.check_trust(saved[0], "0", None)

    def test_another_users_knows_nothing(self, folder: Path) -> None:
        with pytest.raises(headrace.ArtifactError, match=REFUSED):
            headrace.load(folder)

    def test_a_place_that_is_no_path_is_passed_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", "here")
        assert trust.register() == Path("~/.local/state/headrace/saved").expanduser()


class TestSources:
    """Folders that are compiled: nothing in them is run either."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        build("bert", num_hidden_layers=1).save_pretrained(tmp_path / "source")
        bert_like().save_pretrained(tmp_path / "source")
        return tmp_path / "source"

    def test_a_pickled_checkpoint(self, source: Path, marker: Path) -> None:
        """Read by the unpickler that builds tensors and nothing else."""
        (source / "model.safetensors").unlink()
        torch.save({"embeddings.word_embeddings.weight": Touches(marker)}, source / "pytorch_model.bin")
        with pytest.raises(headrace.LoadError, match=r"pytorch_model.bin|source cannot be read"):
            headrace.trace(source)
        (source / "pytorch_model.bin").write_bytes(pickled(marker))
        with pytest.raises(headrace.LoadError, match=r"pytorch_model.bin|source cannot be read"):
            headrace.trace(source)
        assert not marker.exists()

    def test_a_pickled_layer_after_the_pooling(self, source: Path, marker: Path) -> None:
        names = ["models.Transformer", "models.Pooling", "models.Dense"]
        modules = [
            {"path": p, "type": f"sentence_transformers.{t}"} for p, t in zip(["", "1", "2"], names, strict=True)
        ]
        (source / "modules.json").write_text(json.dumps(modules))
        for name, said in (("1", {"pooling_mode": "mean"}), ("2", {"in_features": 32, "out_features": 4})):
            (source / name).mkdir()
            (source / name / "config.json").write_text(json.dumps(said))
        torch.save({"linear.weight": Touches(marker)}, source / "2" / "pytorch_model.bin")
        with pytest.raises(headrace.LoadError):
            headrace.trace(source)
        assert not marker.exists()

    def test_code_that_comes_with_a_model(self, source: Path, marker: Path) -> None:
        brings_code(source, "config.json", marker)
        with pytest.raises(headrace.LoadError, match=r"auto_map in config.json.*trust_remote_code=True"):
            headrace.trace(source)
        assert not marker.exists()

    def test_code_that_comes_with_a_tokenizer(self, source: Path, marker: Path) -> None:
        """The class that belongs to the model's kind stands in."""
        brings_code(source, "tokenizer_config.json", marker)
        assert headrace.trace(source).tokenizer is not None
        assert not marker.exists()

    def test_a_chat_template(self, source: Path, marker: Path, tmp_path: Path) -> None:
        """It goes from folder to folder as text, and is rendered nowhere."""
        code = f"__import__('pathlib').Path('{marker}').touch()"
        template = '{{ cycler.__init__.__globals__.__builtins__.eval("' + code + '") }}'
        (source / "chat_template.jinja").write_text(template)
        model = headrace.compile(source, target="reference")
        model.embed("w5 w6")
        again = headrace.load(model.save(tmp_path / "saved"))
        again.embed("w5 w6")
        assert template in (tmp_path / "saved" / "tokenizer" / "chat_template.jinja").read_text()
        assert not marker.exists()

    def test_a_tokenizer_beside_a_saved_model(self, folder: Path, marker: Path) -> None:
        """Also after a yes: that is about the program, and a tokenizer is data."""
        brings_code(folder / "tokenizer", "tokenizer_config.json", marker)
        sign(folder, lambda manifest: None)
        headrace.load(folder, trust=True)  # by tokenizer.json alone, which names no classes
        assert not marker.exists()
        sign(folder, lambda manifest: manifest["tokenizer"].update(facts=None))
        with pytest.raises(headrace.HeadraceError):
            headrace.load(folder, trust=True)
        assert not marker.exists()


def homeless() -> Path:
    raise RuntimeError("Could not determine home directory.")


def brings_code(folder: Path, file: str, marker: Path) -> None:
    """Name classes of the folder's own, for every library that asks the file for one."""
    (folder / "own.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    said = json.loads((folder / file).read_text())
    classes = {"AutoConfig": "own.Own", "AutoModel": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    said |= {"auto_map": classes, "model_type": "own", "tokenizer_class": "Own", "architectures": ["Own"]}
    (folder / file).write_text(json.dumps(said))
