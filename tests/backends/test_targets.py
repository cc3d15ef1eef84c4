"""What the targets say where they cannot run."""

from __future__ import annotations

import pytest
import torch

from headrace.backends import backend, preferred
from headrace.errors import TargetError


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
