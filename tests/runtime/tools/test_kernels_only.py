"""`headrace compile --kernels-only`: a program's own kernels for a device that is not here."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import TargetError
from headrace.runtime.tools.cli.commands.doctor import KFD, _gpu
from tests.command import refused

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")
ELF = b"\x7fELF"


@needs_triton
def test_writes_every_kernel_and_a_table(headrace_: Any, folders: dict[str, str], tmp_path: Path) -> None:
    ran = headrace_("compile", folders["decoder"], str(tmp_path / "out"), "--target", "rocm:gfx942", "--kernels-only")
    assert ran.code == 0, ran.err
    assert "gfx942 (MI300A, MI300X, MI325X), bfloat16" in ran.out
    assert "spills" in ran.out
    assert "Inductor compiles the rest" in ran.out
    assert "not run" in ran.out
    rows = json.loads((tmp_path / "out" / "kernels.json").read_text())
    assert {row["name"].rstrip("_01") for row in rows} == {
        "attend_tiles",
        "list_tiles",
        "reduce_sequences",
        "rotate_rows",
    }
    for row in rows:
        assert (tmp_path / "out" / row["file"]).read_bytes().startswith(ELF)
        assert (row["wave"], row["spills"], row["architecture"]) == (64, 0, "gfx942")
        assert row["lds"] <= 65536
        multiplies = any("mfma" in name for name in row["matrix_instructions"])
        assert multiplies is row["name"].startswith("attend_tiles")
    assert sum(len(row["nodes"]) for row in rows if row["name"] == "rotate_rows_0") == 2
    refused(
        headrace_("compile", folders["decoder"], str(tmp_path / "out"), "--target", "rocm:gfx942", "--kernels-only"),
        "is no empty folder",
    )


@needs_triton
@pytest.mark.parametrize(("target", "suffix"), [("rocm:gfx1201", ".hsaco"), ("cuda:sm90", ".cubin")])
def test_api(target: str, suffix: str, tiny: Any) -> None:
    made = headrace.lower(tiny("bert"), target=target, dtype="float32").kernels()
    assert [kernel.name for kernel in made] == ["list_tiles", "attend_tiles", "reduce_sequences"]
    assert {kernel.code.suffix for kernel in made} == {suffix}


def test_what_has_no_kernels_says_so(headrace_: Any, folders: dict[str, str], tiny: Any) -> None:
    refused(
        headrace_("compile", folders["encoder"], "--target", "reference", "--kernels-only"),
        "The target reference has no kernels of Headrace's own",
        "rocm:gfx942",
    )
    refused(headrace_("compile", folders["encoder"], "--target", "reference"), "headrace compile MODEL OUT")
    lowered = headrace.lower(tiny("bart", "AutoModelForSequenceClassification"), target="rocm:gfx942")
    with pytest.raises(TargetError, match="runs padded, without kernels of Headrace's own: The keys of"):
        lowered.kernels()


def test_without_triton(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = headrace.lower(tiny("bert"), target="rocm:gfx942")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TargetError, match="pip install triton"):
        lowered.kernels()


def test_doctor_knows_rocm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    device = tmp_path / "kfd"
    device.touch()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "hip", None)
    assert str(KFD) == "/dev/kfd"
    monkeypatch.setattr("headrace.runtime.tools.cli.commands.doctor.KFD", device)
    found = _gpu(torch)
    assert "AMD GPU's driver is here" in found.found
    assert "pytorch.org/get-started" in found.mend
    monkeypatch.setattr(torch.version, "hip", "7.2.0")
    found = _gpu(torch)
    assert "built for ROCm 7.2.0" in found.found
    assert "groups render and video" in found.mend
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i=0: "AMD Radeon")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr("headrace.backends.gpu.rocm.family", lambda device: "gfx1030")
    found = _gpu(torch)
    assert found.mark == "unsuitable"
    assert "AMD Radeon is gfx1030" in found.mend
