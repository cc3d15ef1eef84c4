"""Bundles and results that are no good are refused with what differs; the command's exit codes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.backends.reference import Reference
from headrace.errors import ArtifactError, InputError, NonFiniteError, ParityError
from headrace.runtime.artifact.manifest import digest
from headrace.runtime.tools.parity.bundle import MANIFEST, TENSORS, Node, read_bundle
from headrace.runtime.tools.parity.check.checking import check, measure_bundle, reading
from headrace.runtime.tools.parity.check.findings import read_result
from headrace.runtime.tools.parity.record.recording import record
from headrace.runtime.tools.parity.report.text import read, report_page, report_text
from headrace.runtime.tools.parity.rule import Noise, limit
from tests.parity.conftest import named

NODE = Node("attention 0", "ENCODER_ONLY", "model", 4)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(named("bert-embed").folder, tmp_path / "bundle"))


def changed(bundle: Path, **fields: Any) -> None:
    """The manifest with other fields, its digest made good."""
    held = json.loads((bundle / MANIFEST).read_text()) | fields
    held["digest"] = digest(held)
    (bundle / MANIFEST).write_text(json.dumps(held))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ParityError, match=r"no parity bundle: it has no parity\.json"):
        check(tmp_path)


@pytest.mark.parametrize("name", [TENSORS, "model/model.safetensors", "model/config.json", "recorded.json"])
def test_damaged(bundle: Path, name: str) -> None:
    content = bytearray((bundle / name).read_bytes())
    content[-2] ^= 1
    (bundle / name).write_bytes(content)
    with pytest.raises(ParityError, match=f"damaged: changed {name}"):
        check(bundle)
    (bundle / name).unlink()
    with pytest.raises(ParityError, match=f"damaged: missing {name}"):
        check(bundle)


def test_manifest_damaged(bundle: Path) -> None:
    text = (bundle / MANIFEST).read_text()
    (bundle / MANIFEST).write_text(text.replace('"embed"', '"token_embed"', 1))
    with pytest.raises(ParityError, match=r"parity\.json was changed"):
        check(bundle)
    (bundle / MANIFEST).write_text(text[:100])
    with pytest.raises(ParityError, match="cannot be read"):
        check(bundle)


def test_newer(bundle: Path) -> None:
    changed(bundle, format=2)
    with pytest.raises(ParityError, match="format 2; this version reads 1"):
        check(bundle)


def test_foreign(bundle: Path) -> None:
    changed(bundle, colour="blue")
    with pytest.raises(ParityError, match="colour differs"):
        check(bundle)


def test_fields_of_another_version(bundle: Path) -> None:
    held = json.loads((bundle / MANIFEST).read_text())["recording"]
    changed(bundle, recording=held | {"colour": "blue"})
    with pytest.raises(ParityError, match="Recording has no colour"):
        check(bundle)


def test_other_weights(bundle: Path) -> None:
    with pytest.raises(ParityError, match="weights of bert in float32 are not the recorded ones"):
        check(bundle, target="reference", precisions=["float32"], model=named("xlm-roberta-embed").folder / "model")


def test_other_model(traces: Any) -> None:
    other = traces(named("modernbert-embed"), "float32").analysed
    with pytest.raises(ParityError, match=r"attention 0 \(32\), .*attention 2 \(32\); recorded were"):
        measure_bundle(read_bundle(named("bert-embed").folder), Reference(), {"float32": other})


def test_weights_that_are_not_carried(bundle: Path) -> None:
    held = json.loads((bundle / MANIFEST).read_text())["recording"]
    changed(bundle, recording=held | {"carries_weights": False})
    with pytest.raises(ParityError, match='say where the model is, by model="FOLDER"'):
        check(bundle)


def test_precision_that_was_not_recorded(bundle: Path) -> None:
    with pytest.raises(InputError, match="not recorded in float64; it holds float32"):
        check(bundle, precisions=["float64"])


def test_record_keeps_what_is_no_bundle(tmp_path: Path) -> None:
    from headrace.runtime.tools.parity.record.recording import record

    (tmp_path / "mine.txt").write_text("dear")
    with pytest.raises(ArtifactError, match=r"no folder with a parity\.json"):
        record(named("bert-embed").folder / "model", tmp_path, target="reference")
    assert (tmp_path / "mine.txt").read_text() == "dear"


def test_a_precision_that_overflows(tmp_path: Path) -> None:
    """Where the eager model itself has no numbers, it is refused by name, and nothing is written."""
    from headrace.runtime.tools.parity.record.recording import record, require_numbers
    from tests.tiny import build

    model = build("bert")
    with torch.no_grad():
        model.encoder.layer[1].attention.self.value.weight *= 1e6
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(NonFiniteError, match="ran in float16"):
        record(tmp_path / "model", tmp_path / "bundle", target="reference", precisions=["float16"])
    assert not (tmp_path / "bundle").exists()
    nodes = [NODE, replace(NODE, name="attention 1")]
    with pytest.raises(ParityError, match="In float16 the eager model computes NaN or infinite values, at attention 1"):
        require_numbers("float16", nodes, [Noise(1e-3, 1.0), Noise(float("nan"), 1.0)])


def test_result_of_another_kind(tmp_path: Path) -> None:
    for text, what in (("{}", "no result"), ("[", "cannot be read"), ('{"format": 9}', "format 9; this version")):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(ParityError, match=what):
            read_result(tmp_path / "r.json")


def test_results_of_two_bundles() -> None:
    one, other = read(named("bert-embed").folder), read(named("bert-classify").folder)
    with pytest.raises(ParityError, match="different bundles, by task, nodes, what was recorded"):
        report_text([one, other])


def test_page_of_results_that_ran_other_precisions() -> None:
    """A machine that lacks a precision has no column there, and says so."""
    both = read(named("bert-embed").folder)
    lacking = replace(both, target="onnx", runs=both.runs[:1], left_out=(("float16", "the target onnx lacks it"),))
    page = report_page([both, lacking])
    assert page.count('<td class="gap"></td>') == 2 + len(both.runs[0].readings)
    assert "float16 was not run: the target onnx lacks it" in page
    assert page.count("<h3>") == len(both.runs)


def test_rule() -> None:
    """A multiple of the eager run's own distance, and a rounding of the values' size."""
    assert limit("float32", Noise(1e-7, 1.0)) == pytest.approx(1e-6 + 2e-7)
    assert limit("bfloat16", Noise(1e-3, 2.0)) == pytest.approx(3e-3 + 1.6e-3)
    rows = [np.ones((3, 4)), np.ones((1, 4))]
    good = reading(NODE, "float16", [rows[0] + 1e-3, rows[1]], rows, Noise(1e-3, 1.0))
    assert good.passed
    assert good.shares[0] > good.shares[1] == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_fails(value: float) -> None:
    rows = [np.ones((3, 4)), np.ones((1, 4))]
    wrong = [rows[0].copy(), rows[1]]
    wrong[0][1, 2] = value
    found = reading(NODE, "float16", wrong, rows, Noise(10.0, 1.0))
    assert not found.passed
    assert found.error is None
    assert found.shares == (None, 0.0)
    result = read(named("bert-embed").folder)
    run = replace(result.runs[0], readings=(found, *result.runs[0].readings[1:]))
    failing = replace(result, runs=(run, *result.runs[1:]))
    assert "not a number" in report_text([failing])
    assert "inf" in report_page([failing, failing])


def test_exit_codes(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """0 where it passes, 1 where it does not, 2 for a user's mistake."""
    from headrace.runtime.tools.cli import main
    from tests.parity import defects

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main(["parity", *arguments])
        return int(left.value.code or 0), "".join(capsys.readouterr())

    one, two, page = (str(tmp_path / name) for name in ("one.json", "two.json", "page.html"))
    options = ("--target", "reference", "--precision", "float32")
    code, said = run("check", str(bundle), *options, "--json", one)
    assert (code, "PASS: 3 of 3" in said) == (0, True)

    broken = defects.Broken(Reference(), defects.scale_off)
    monkeypatch.setattr("headrace.runtime.tools.parity.check.checking.find_backend", lambda target: broken)
    code, said = run("check", str(bundle), *options, "--json", two)
    assert code == 1
    assert "float32 parts first at attention 1" in said
    assert "the first node that parts is attention_1 (headrace.attention) in" in " ".join(said.split())

    code, said = run("report", one, two, "--html", page)
    assert code == 1
    text = Path(page).read_text()
    assert "Worst offenders" in text
    assert "The two machines differ in nothing" in text
    assert "The two machines differ in nothing that was recorded.\n" in said
    assert "The two machines differ in\n" not in said
    assert text.index("attention 1") < text.index("Heat map")

    assert run("report", one, str(bundle))[0] == 0
    code, said = run("check", str(tmp_path))
    assert code == 2
    assert said.count("\n") == 1
    assert run("check", str(bundle), "--precision", "int8")[0] == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precisions": "float32"}, "precisions is 'float32'; a list"),
        ({"precisions": []}, r"precisions is \[\]; a list"),
        ({"precisions": [3]}, "3"),
        ({"seed": -1}, "seed is -1; an int of 0 and above"),
        ({"seed": "x"}, "seed is 'x'"),
    ],
)
def test_what_nothing_can_be_recorded_with(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        record(named("bert-embed").folder / "model", tmp_path / "out", **options)
    if "seed" not in options:
        with pytest.raises(InputError, match=said):
            check(named("bert-embed").folder, **options)


@pytest.mark.parametrize("folder", [None, 3, b"x", []])
def test_what_is_no_folder_of_a_bundle(folder: Any) -> None:
    with pytest.raises(ParityError, match="the path of its folder is accepted"):
        check(folder)
