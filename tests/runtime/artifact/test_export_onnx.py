"""Exported folders: the same answers as the model they were made of, without torch, and every damage refused."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'headrace[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'headrace[onnx]'")

import torch

import headrace
from tests.test_packaging import BLOCK
from tests.tiny import build
from tests.words import bert_like

TEXTS = ["w5 w6 w7", "w8", "w9 w10 w11 w12 w13 w14", ""]


@pytest.fixture(scope="module")
def embedder() -> Any:
    return headrace.lower(build("bert"), target="reference", tokenizer=bert_like(), pooling="mean")


@pytest.fixture(scope="module")
def exported(embedder: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(embedder.export_onnx(tmp_path_factory.mktemp("export") / "model", max_length=9))


@pytest.fixture(scope="module")
def apart(embedder: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, its weights in a file of their own."""
    return Path(embedder.export_onnx(tmp_path_factory.mktemp("apart") / "model", max_length=9, external_from=1))


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def test_the_folder_is_what_deployment_users_expect(exported: Path) -> None:
    files = {str(path.relative_to(exported)) for path in exported.rglob("*") if path.is_file()}
    at_the_top = {"config.json", "headrace.json", "tokenizer.json", "tokenizer_config.json", "verification.json"}
    assert files == {*at_the_top, "onnx/model.onnx"}
    assert json.loads((exported / "config.json").read_text())["model_type"] == "bert"
    report = json.loads((exported / "verification.json").read_text())
    assert all(check["passed"] for check in report["checks"])
    assert any("padded left" in check["name"] for check in report["checks"])


def test_nothing_of_this_machine_is_in_the_folder(exported: Path) -> None:
    for path in exported.rglob("*"):
        if path.is_file():
            held = path.read_bytes()
            for place in (str(Path.home()), str(exported.parent), str(Path(__file__).parents[3])):
                assert place.encode() not in held, (path.name, place)


def test_loaded_answers_as_the_model(embedder: Any, exported: Path) -> None:
    """D3, B6: answers, decisions and limits survive."""
    loaded, model = headrace.load(exported), embedder.compile()
    np.testing.assert_allclose(loaded.embed(TEXTS), model.embed(TEXTS), atol=2e-5)
    for one, other in zip(loaded([[5, 6, 7], [8]]), model([[5, 6, 7], [8]]), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    assert loaded.target == "onnx"
    assert dict(loaded.tasks.items()) == dict(model.tasks.items())
    assert loaded.program.nodes.attention == model.program.nodes.attention
    assert loaded.program.decision.route == model.program.decision.route
    assert "ENCODER_ONLY" in loaded.explain()
    with pytest.raises(headrace.InputTooLongError, match="max_length=9"):
        loaded.embed("w5 " * 20)


def test_refusals_are_word_for_word_those_of_the_model(embedder: Any, exported: Path) -> None:
    loaded, model = headrace.load(exported), embedder.compile()
    wrongs = lambda m: m.classify("w5"), lambda m: m.embed([None]), lambda m: m([[999]]), lambda m: m.score(["a"])
    for wrong in wrongs:
        with pytest.raises(headrace.HeadraceError) as here:
            wrong(loaded)
        with pytest.raises(headrace.HeadraceError) as there:
            wrong(model)
        assert str(here.value) == str(there.value)


def test_types_are_zeros_where_the_tokenizer_gives_none(tmp_path: Path) -> None:
    """P13."""
    tokenizer = bert_like(model_input_names=["input_ids", "attention_mask"])
    lowered = headrace.lower(build("bert"), target="reference", tokenizer=tokenizer, pooling="mean")
    loaded = headrace.load(lowered.export_onnx(tmp_path / "m"))
    np.testing.assert_allclose(loaded.embed(TEXTS), lowered.compile().embed(TEXTS), atol=2e-5)


WITHOUT_TORCH = """
import sys
import headrace
model = headrace.load({folder!r})
vectors = model.embed(["w5 w6", "w7"])
assert model([[5, 6]])[0].shape == (32,)
assert [t for t in model.tasks] == ["embed", "token_embed"], model.tasks
assert model.token_embed("w5 w6")[0].shape == (4, 32)
try:
    model.classify("w5")
except headrace.TaskNotEnabledError as error:
    print(error)
assert "ENCODER_ONLY" in model.explain() and "<html" in model.explain("html")
loaded = {{name.split(".")[0] for name in sys.modules}}
print(vectors.shape, sorted(loaded & {{"torch", "transformers", "onnx", "onnxscript"}}))
"""


def test_a_machine_without_torch_answers(exported: Path) -> None:
    code = BLOCK + WITHOUT_TORCH.format(folder=str(exported))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "The task classify is not supported." in ran.stdout
    assert ran.stdout.splitlines()[-1] == "(2, 32) []"


def test_an_export_that_answers_otherwise_is_not_written(
    embedder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A scale that is off by a hundredth."""
    from headrace.backends.onnx.export import translate

    true = translate.Translation.attention

    @functools.wraps(true)  # the exporter reads the signature
    def wrong(self: Any, q: Any, k: Any, v: Any, mask: Any, bias: Any, sinks: Any, scale: float, *rest: Any) -> Any:
        return true(self, q, k, v, mask, bias, sinks, scale * 1.01, *rest)

    monkeypatch.setattr(translate.Translation, "attention", wrong)
    with pytest.raises(headrace.VerifyError, match=r"failed \d+ of \d+ checks: onnxruntime, .*differs by"):
        embedder.export_onnx(tmp_path / "m")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("dtype", "file", "cosine"), [("float16", "model_fp16", 0.9999), ("int8", "model_int8", 0.99)])
def test_smaller_weights(dtype: str, file: str, cosine: float, embedder: Any, exported: Path, tmp_path: Path) -> None:
    """Inputs and outputs keep their types, so that the same callers serve."""
    folder = embedder.export_onnx(tmp_path / "m", dtype=dtype)
    path = folder / "onnx" / f"{file}.onnx"
    loaded = headrace.load(folder)
    plain = headrace.load(exported)
    assert path.stat().st_size < (exported / "onnx" / "model.onnx").stat().st_size
    assert sorted((folder / "onnx").iterdir()) == [path]
    got, wanted = loaded([[5, 6, 7, 8]])[0], plain([[5, 6, 7, 8]])[0]
    assert got.dtype == np.float32
    assert float(np.abs(got - wanted).max()) > 0
    assert float(got @ wanted / np.linalg.norm(got) / np.linalg.norm(wanted)) >= cosine


@pytest.mark.parametrize("profile", ["std", "portable"])
def test_squares_of_large_rows_do_not_overflow_in_half(profile: str, tmp_path: Path) -> None:
    """A norm's mean of squares passes 65,504 where rows pass 256, on the way between operators in float32 too.

    ONNX's own evaluator shows that, which is part of every export; onnxruntime's CPU hides it.
    """
    model = build("llama")
    with torch.no_grad():
        model.embed_tokens.weight.mul_(3000)
    lowered = headrace.lower(model, target="reference", pooling="mean")
    folder = lowered.export_onnx(tmp_path / "m", profile=profile, dtype="float16")
    report = json.loads((folder / "verification.json").read_text())
    evaluated = [check["found"] for check in report["checks"] if "evaluator" in check["name"]]
    assert evaluated
    assert all("cosine 0.999" in found or "cosine 1.0" in found for found in evaluated)


def test_eight_bits_below_the_gate_are_refused_unless_forced(
    embedder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    from headrace.backends.onnx.check import verify
    from headrace.backends.onnx.check.report import Bound

    monkeypatch.setitem(verify.BOUNDS, "int8", Bound(1.0, 0.999999))
    with pytest.raises(headrace.VerifyError, match=r"in int8 failed .*cosine"):
        embedder.export_onnx(tmp_path / "m", dtype="int8")
    folder = embedder.export_onnx(tmp_path / "m", dtype="int8", force=True)
    report = json.loads((folder / "verification.json").read_text())
    assert not all(check["passed"] for check in report["checks"])


def test_exporting_over_something_else_is_refused(embedder: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years")
    with pytest.raises(headrace.ArtifactError, match="nothing was written"):
        embedder.export_onnx(tmp_path)


def test_what_cannot_be_exported_is_refused(embedder: Any, exported: Path, tmp_path: Path) -> None:
    with pytest.raises(headrace.InputError, match="choose from std, fast, portable"):
        embedder.export_onnx(tmp_path / "m", profile="turbo")
    with pytest.raises(headrace.InputError, match="float32, float16, int8, int4"):
        embedder.export_onnx(tmp_path / "m", dtype="int2")
    with pytest.raises(headrace.TaskNotEnabledError, match="classify is not supported"):
        embedder.export_onnx(tmp_path / "m", task="classify")
    with pytest.raises(headrace.ArtifactError, match="holds no graph to export"):
        headrace.load(exported).export_onnx(tmp_path / "m")


@pytest.mark.parametrize(("name", "head"), [("deberta-v2", "AutoModel"), ("t5", "T5EncoderModel")])
def test_positions_that_are_distances(name: str, head: str, tmp_path: Path) -> None:
    """They stand on either side, whether or not an input tells a place that the model reads nowhere."""
    path = headrace.lower(build(name, head), target="reference", pooling="mean").export_onnx(tmp_path / "m")
    checks = json.loads((path / "verification.json").read_text())["checks"]
    assert any("padded left" in check["name"] for check in checks)
    assert not any(check["name"] == "padding on the left" for check in checks)


@pytest.mark.parametrize("head", ["AutoModel", "AutoModelForSequenceClassification"])
def test_positions_that_a_model_counts_itself(head: str, tmp_path: Path) -> None:
    """BART: no input tells it where a text begins, so padding stands on the right; its head reads the rows of eos."""
    lowered = headrace.lower(build("bart", head), target="reference")
    report = json.loads((lowered.export_onnx(tmp_path / "m") / "verification.json").read_text())
    checks = {check["name"]: check["found"] for check in report["checks"]}
    assert "pad on the right" in checks["padding on the left"]
    assert "onnxruntime, 5 + 9 + 2 tokens, padded right" in checks
    assert not any("padded left" in name for name in checks)
    requests = [[5, 6, 7, 2], [9, 2]]
    for one, other in zip(headrace.load(tmp_path / "m")(requests), lowered.compile()(requests), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"external_from": "x"}, "external_from is 'x'; bytes of weights are accepted, an int of 0 and above"),
        ({"external_from": -1}, "external_from is -1"),
        ({"external_from": True}, "external_from is True"),
        ({"finished": "no"}, "finished is 'no'; True, False or None is accepted"),
        ({"force": 1}, "force is 1"),
        ({"tokenizer": None}, "takes no tokenizer here.* Pass tokenizer to headrace.lower"),
    ],
)
def test_options_are_refused_in_words(
    options: dict[str, Any], message: str, embedder: Any, tmp_path: Path
) -> None:  # fmt: skip
    with pytest.raises(headrace.InputError, match=message):
        embedder.export_onnx(tmp_path / "m", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["max_length", "token_budget", "tokenizer"])
def test_what_compiling_settled_is_exported_as_it_is(name: str, embedder: Any, tmp_path: Path) -> None:
    with pytest.raises(headrace.InputError, match=f"takes no {name} here.* Pass {name} to headrace.compile"):
        embedder.compile().export_onnx(tmp_path / "m", **{name: 3})


@pytest.mark.parametrize("name", ["onnx/model.onnx", "tokenizer.json", "config.json", "verification.json"])
def test_missing_truncated_and_changed_files_are_named(name: str, folder: Path) -> None:
    path = folder / name
    whole = path.read_bytes()
    for damaged in (whole[:-3], whole[:100] + b"\x00" + whole[101:], b""):
        path.write_bytes(damaged)
        with pytest.raises(headrace.ArtifactError, match=f"changed {name}"):
            headrace.load(folder)
    path.unlink()
    with pytest.raises(headrace.ArtifactError, match=f"missing {name}"):
        headrace.load(folder)


def _mutate(path: Path, others: list[Path], random: Random) -> None:
    """One damage of a kind that disks, copies and people do."""
    held = path.read_bytes()
    place = random.randrange(len(held))
    other = random.choice(others)
    damages: list[Callable[[], object]] = [
        lambda: path.write_bytes(held[:place] + bytes([held[place] ^ 1 << random.randrange(8)]) + held[place + 1 :]),
        lambda: path.write_bytes(held[:place]),
        lambda: path.write_bytes(held[:place] + bytes(64) + held[place + 64 :]),
        lambda: path.write_bytes(held + b"x"),
        lambda: path.write_bytes(other.read_bytes()),
        path.unlink,
    ]
    random.choice(damages)()


@pytest.mark.parametrize("external", [False, True], ids=["one file", "data apart"])
def test_no_damage_goes_unseen(external: bool, apart: Path, exported: Path, tmp_path: Path) -> None:
    """300 damages in all: refused, or harmless; never a crash, never another answer."""
    whole = apart if external else exported
    wanted, random = headrace.load(whole).embed(TEXTS), Random(external)
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert external == any(path.name == "model.onnx_data" for path in files)
    refused: list[str] = []
    for round_ in range(150):
        folder = Path(shutil.copytree(whole, tmp_path / str(round_)))
        _mutate(folder / random.choice(files), [folder / name for name in files], random)
        try:
            np.testing.assert_array_equal(headrace.load(folder).embed(TEXTS), wanted)
        except headrace.ArtifactError as error:
            refused.append(str(error))
        shutil.rmtree(folder)
    assert len(refused) >= 125
    for said in refused:
        assert re.search(r"changed|missing|cannot be read|no saved model|not a manifest", said), said


def test_the_data_file_moved_deleted_and_damaged(apart: Path, embedder: Any, tmp_path: Path) -> None:
    """X4, from the folder's side."""
    moved = Path(shutil.copytree(apart, tmp_path / "elsewhere" / "copy"))
    np.testing.assert_allclose(headrace.load(moved).embed("w5"), embedder.compile().embed("w5"), atol=2e-5)
    data = moved / "onnx" / "model.onnx_data"
    held = data.read_bytes()
    for damaged in (held[:-4], held[:64] + bytes(4) + held[68:], held[::-1]):
        data.write_bytes(damaged)
        with pytest.raises(headrace.ArtifactError, match=r"changed onnx/model\.onnx_data"):
            headrace.load(moved)
    data.rename(moved / "model.onnx_data")
    with pytest.raises(headrace.ArtifactError, match=r"missing onnx/model\.onnx_data"):
        headrace.load(moved)


def test_a_moved_folder_works(folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "elsewhere")
    assert headrace.load(moved).embed("w5").shape == (1, 32)


def test_verifying_on_another_target_is_refused(exported: Path) -> None:
    """It was run on onnxruntime's providers all the same."""
    from headrace.runtime.tools.cli.commands.onnx import check_export

    for target in ("cpu", "reference", "nosuch"):
        with pytest.raises(headrace.InputError, match=f"is an onnx model, which target='{target}' does not run"):
            next(check_export(exported, target))
