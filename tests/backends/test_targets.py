"""What the targets say where they cannot run."""

from __future__ import annotations

import pytest
import torch

from headrace.backends import backend, preferred
from headrace.backends.several import Several
from headrace.errors import InputError, TargetError


def test_cuda_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TargetError, match=r"needs an NVIDIA GPU, and torch sees none.*cpu"):
        backend("cuda")


def test_cuda_without_a_build_for_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(TargetError, match=r"needs torch built for CUDA.*cpu"):
        backend("cuda")


def test_an_old_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    with pytest.raises(TargetError, match=r"Tesla T4 has 7\.5"):
        backend("cuda")


@pytest.mark.parametrize(
    ("cuda", "hip", "there", "target"),
    [
        ("13.0", None, True, "cuda"),
        ("13.0", None, False, "cpu"),
        (None, "7.2", True, "rocm"),
        (None, "7.2", False, "cpu"),
        (None, None, False, "cpu"),
    ],
)
def test_auto(cuda: str | None, hip: str | None, there: bool, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCm's torch answers torch.cuda too, and has no CUDA version."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert preferred() == target


def test_what_takes_no_device() -> None:
    with pytest.raises(TargetError, match=r"The target cpu has neither variants nor devices, and 'cpu:1' names one"):
        backend("cpu:1")
    with pytest.raises(TargetError, match=r"'reference:fast'"):
        backend("reference:fast")
    with pytest.raises(TargetError, match="There is no target 'tpu:1'"):
        backend("tpu:1")
    with pytest.raises(TargetError, match=r"'reference:0,1'"):
        backend("reference:0-1")


def test_how_devices_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _two_devices(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    found = backend("cuda:0-1", parallel="tensor")
    assert isinstance(found, Several)
    assert list(map(str, found.each)) == ["cuda:0", "cuda:1"]
    assert (str(found.target), found.parallel, asked) == ("cuda:0,1", "tensor", [0, 1])
    assert found.step_tokens * 2 == backend("cuda:0-1").step_tokens
    with pytest.raises(TargetError, match="names a device that is not here"):
        backend("cuda:0-2")
    with pytest.raises(InputError, match="choose from data, tensor"):
        backend("cuda:0-1", parallel="pipeline")
    with pytest.raises(InputError, match=r"names one\. Name several, as in cuda:0-1"):
        backend("cuda:0", parallel="data")
    with pytest.raises(InputError, match="names none"):
        backend("reference", parallel="tensor")


def _two_devices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine with two GPUs, as far as asking goes; what was made torch's current device, in order."""
    current, made = [0], list[int]()

    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            self.before, current[0] = current[0], self.index
            made.append(self.index)

        def __exit__(self, *_: object) -> None:
            current[0] = self.before

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    # The second is the newer one.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: ((7, 5), (9, 0))[current[0]])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: ("Tesla T4", "NVIDIA H200")[current[0]])
    monkeypatch.setattr("headrace.backends.gpu.target.family", lambda device: f"sm{90 if device.index else 75}")
    return made


def test_the_second_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _two_devices(monkeypatch)
    second = backend("cuda:1", compiles=False)
    assert (second.name, str(second.target), made) == ("cuda", "cuda:1", [1])
    with pytest.raises(TargetError, match=r"Tesla T4 has 7\.5"):
        backend("cuda:0")
    with pytest.raises(
        TargetError, match=r"cuda:2 names a device that is not here: torch sees 2, from cuda:0 to cuda:1"
    ):
        backend("cuda:2")


def test_onnx_on_a_device() -> None:
    with pytest.raises(TargetError, match="onnx:cpu:1 names a device"):
        backend("onnx:cpu:1", compiles=False)
