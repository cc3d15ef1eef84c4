"""The committed bundles on every device present, and record and check over every pair of devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.ir import Task
from headrace.runtime.tools.parity.bundle import read_bundle
from headrace.runtime.tools.parity.check.checking import measure_bundle
from headrace.runtime.tools.parity.record.recording import record, recorded
from headrace.runtime.tools.parity.report.text import report_text
from tests.parity.conftest import named
from tests.parity.models import CASES, Case, save

TARGETS = (
    "reference",
    "cpu",
    "onnx",
    pytest.param("cuda", marks=pytest.mark.gpu),
    pytest.param("rocm", marks=pytest.mark.rocm),
)
# By the slow, clear target; the others are run with --slow.
QUICK = {"qwen3-token-classify": "bfloat16"}
COMPILED = ("bert-embed", "float32")


@pytest.mark.parametrize("name", QUICK)
def test_reference_passes(name: str, parity: Any) -> None:
    result = parity(named(name).folder, "reference", [QUICK[name]])
    assert [run.dtype for run in result.runs] == [QUICK[name]]
    assert len(result.left_out) == 2


def test_cpu_passes(traces: Any, remembered: Any) -> None:
    """Compiled code is other code: it passes without being equal to the eager run."""
    name, dtype = COMPILED
    bundle = read_bundle(named(name).folder)
    (run,) = measure_bundle(bundle, remembered("cpu"), {dtype: traces(named(name), dtype).analysed}).runs
    assert run.passed
    assert all(reading.error != reading.floor for reading in run.readings)


def test_onnx_passes(traces: Any, remembered: Any) -> None:
    name, dtype = COMPILED
    bundle = read_bundle(named(name).folder)
    result = measure_bundle(bundle, remembered("onnx"), {dtype: traces(named(name), dtype).analysed})
    assert result.passed, report_text([result])


def honest(case: Case, target: str, dtypes: Sequence[str], seeds: Sequence[int], traces: Any, remembered: Any) -> None:
    """No false alarm: requests of every seed pass, on a target whose programs are compiled once."""
    backend = remembered(target)
    traced = {dtype: traces(case, dtype) for dtype in dtypes if dtype in backend.dtypes}
    for seed in seeds:
        bundle = recorded(traces(case, "float64"), traced, Task(case.task), seed)
        result = measure_bundle(bundle, backend, {dtype: one.analysed for dtype, one in traced.items()})
        print(case.name, target, seed, *(f"{run.dtype} {run.worst.node} {run.worst.share:.2f}" for run in result.runs))
        assert result.passed, report_text([result])


def test_no_false_alarm(traces: Any, remembered: Any) -> None:
    name, dtype = COMPILED
    honest(named(name), "cpu", [dtype], range(1, 4), traces, remembered)


SWEPT = ["bert-embed", "modernbert-token-classify", "qwen3-classify", "gemma3-embed", "t5-classify", "mamba2-embed"]


@pytest.mark.slow(reason="every bundle, dtype, target and seed: one of each target is checked by default")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SWEPT)
def test_no_false_alarm_in_twenty_seeds(name: str, target: str, traces: Any, remembered: Any) -> None:
    honest(named(name), target, ("float32", "float16", "bfloat16"), range(1, 21), traces, remembered)


@pytest.mark.slow(reason="every bundle, dtype, target and seed: one of each target is checked by default")
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


@pytest.mark.slow(reason="every bundle, dtype, target and seed: one of each target is checked by default")
@pytest.mark.parametrize("checker", TARGETS)
@pytest.mark.parametrize("recorder", TARGETS)
def test_record_on_one_check_on_another(recorder: str, checker: str, tmp_path: Path, parity: Any) -> None:
    from headrace.backends import backend
    from headrace.errors import TargetError

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
