"""Pages of mapped files go back to the system; no value ever changes."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.utils import madvise

SIZE = 1 << 20


@pytest.fixture
def mapped(tmp_path: Path) -> torch.Tensor:
    """8 MiB of float64 mapped from a file."""
    path = tmp_path / "weights"
    np.arange(SIZE, dtype=np.float64).tofile(path)
    with path.open("r+b") as file:
        os.fsync(file.fileno())
    return torch.from_file(str(path), shared=False, size=SIZE, dtype=torch.float64)


def resident(tensor: torch.Tensor) -> int:
    """Bytes of the tensor's mapping that are in memory."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
            inside = start <= tensor.data_ptr() < end
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the tensor is mapped nowhere")


@pytest.mark.skipif(not madvise.MAPS.exists(), reason="needs Linux")
def test_a_mapped_file_leaves_memory_and_comes_back(mapped: torch.Tensor, tmp_path: Path) -> None:
    if b"tmpfs" in subprocess.check_output(["stat", "-f", "-c", "%T", tmp_path]):
        pytest.skip("needs temporary files on a disk")
    total = float(mapped.sum())
    assert resident(mapped) >= mapped.nbytes
    madvise.give_back([mapped[5:7]])
    assert resident(mapped) < mapped.nbytes / 4
    assert float(mapped.sum()) == total


def test_what_was_written_since_stays(mapped: torch.Tensor) -> None:
    mapped[::4096] = -1
    own = torch.arange(100.0)
    madvise.give_back([mapped, own])
    assert (mapped[::4096] == -1).all()
    assert mapped[4097] == 4097
    assert torch.equal(own, torch.arange(100.0))


def test_systems_that_do_not_tell_are_left_alone(mapped: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(madvise, "MAPS", Path("/nowhere"))
    madvise.give_back([mapped])
    assert mapped[7] == 7
