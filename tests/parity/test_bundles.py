"""The committed bundles on every device present, and record and check over every pair of devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.parity.conftest import named
from tests.parity.models import CASES, Case, save

TARGETS = (
    "reference",
    "cpu",
    "onnx",
    pytest.param("cuda", marks=pytest.mark.gpu),
    pytest.param("rocm", marks=pytest.mark.rocm),
)
# Each model once by the slow, clear target; its other precisions and tasks are the same program.
QUICK = {
    "bert-embed": "float32",
    "xlm-roberta-classify": "float16",
    "qwen3-token-classify": "bfloat16",
    "gemma3-embed": "float32",
    "t5-classify": "float32",
    "mamba2-embed": "bfloat16",
}
COMPILED = ("bert-token-classify", "bfloat16")


@pytest.mark.parametrize("name", QUICK)
def test_reference_passes(name: str, parity: Any) -> None:
    result = parity(named(name).folder, "reference", [QUICK[name]])
    assert [run.dtype for run in result.runs] == [QUICK[name]]
    assert len(result.left_out) == 2


def test_cpu_passes(parity: Any) -> None:
    """Compiled code is other code: it passes without being equal."""
    name, dtype = COMPILED
    result = parity(named(name).folder, "cpu", [dtype])
    assert result.target == "cpu"
    assert 0 < result.runs[0].worst.share < 1


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_bundle(case: Case, target: str, parity: Any) -> None:
    """Every precision that the target runs."""
    result = parity(case.folder, target)
    assert {run.dtype for run in result.runs} | {dtype for dtype, _ in result.left_out} == {
        "float32",
        "float16",
        "bfloat16",
    }


@pytest.mark.slow
@pytest.mark.parametrize("checker", TARGETS)
@pytest.mark.parametrize("recorder", TARGETS)
def test_record_on_one_check_on_another(recorder: str, checker: str, tmp_path: Path, parity: Any) -> None:
    from headrace.backends import backend
    from headrace.errors import TargetError
    from headrace.runtime.parity.recording import record

    for target in (recorder, checker):
        try:
            backend(target)
        except TargetError as error:
            pytest.skip(str(error))
    case = named("bert-classify")
    recorded = record(
        save(case, tmp_path), tmp_path / "bundle", task="classify", target=recorder, precisions=["float32"]
    )
    assert recorded.passed
    result = parity(tmp_path / "bundle", checker)
    assert (recorded.target, result.target) == (recorder, checker)


def test_bundles_are_small_and_say_nothing_of_the_machine() -> None:
    """Together below 4 MB, of JSON and safetensors alone, without paths."""
    files = [path for case in CASES for path in case.folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    for path in files:
        if path.suffix == ".json":
            text = path.read_text()
            assert "/tmp" not in text
            assert "/home" not in text
            assert "_name_or_path" not in text


def test_every_case_is_committed() -> None:
    from tests.parity.models import BUNDLES

    assert {path.name for path in BUNDLES.iterdir()} == {case.name for case in CASES}
